//! One UDP socket drained in batches: datagrams with the time at which the kernel took them in.
//!
//! The kernel stamps each datagram by the wall clock, which may be stepped; the stamp becomes an
//! age, and the age is believed as far as it can be true: nothing in the socket is older than the
//! last time it was seen empty, nor younger than now. So a report that lay there while the process
//! was paused has its true age, and a step of the clock can do no more harm than the pause was long.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, getsockopt, recvmmsg,
    setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;

use super::batch::Batch;
use super::status::{Status, count};

/// Datagrams of one call to the kernel at most.
const CALL_MAX: usize = 64;
/// Datagrams read before they are handed on, where so many wait: who takes them is woken less often, and
/// the first one waits some tenths of a millisecond.
const BATCH_MAX: usize = 4 * CALL_MAX;
/// No call follows after so many bytes: what is dropped where there is no room is dropped in small parts.
const BATCH_BYTES: usize = 1 << 18;
/// Datagrams asked for after a call that found few: preparing for more has its price.
const FEW: usize = 4;
/// Bytes of a usual datagram: a batch makes room for so many of them.
const USUAL_BYTES: usize = 256;
/// Room for the beginning of one datagram, mostly for all of it: those of a call lie side by side and stay
/// in the cache. Not a power of two, or the slots would share cache lines' places.
const SLOT_BYTES: usize = 2_112;
/// Room for what is longer: any datagram fits.
const REST_BYTES: usize = 1 << 16;

/// Drains one socket.
#[derive(Debug)]
pub struct Receiver {
    slots: Vec<u8>,
    rests: Vec<u8>,
    ask: usize,
    /// The last time nothing was left in the socket.
    empty: Instant,
    /// The kernel's count of drops that it told last.
    drops: u32,
    /// What a call failed with after others had succeeded: told by the next one.
    error: Option<io::Error>,
    status: Arc<Status>,
}

/// Asks for a receive buffer of so many bytes, for when the host is held up; what the kernel gives: as
/// much as it allows where this process may not go beyond the system's limit.
///
/// # Errors
/// The kernel does not say what it gives.
pub fn enlarge(socket: &impl AsFd, bytes: usize) -> io::Result<usize> {
    let forced = setsockopt(socket, sockopt::RcvBufForce, &bytes);
    if let Err(error) = forced.or_else(|_| setsockopt(socket, sockopt::RcvBuf, &bytes)) {
        tracing::debug!(%error, "the kernel keeps its own receive buffer size");
    }
    Ok(getsockopt(socket, sockopt::RcvBuf)? / 2) // it doubles it, for its own books
}

impl Receiver {
    /// Prepares a bound socket.
    ///
    /// # Errors
    /// The kernel cannot stamp datagrams or count drops.
    pub fn new(socket: &impl AsFd, status: Arc<Status>) -> io::Result<Self> {
        setsockopt(socket, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(socket, sockopt::RxqOvfl, &1)?;
        let slots = vec![0; SLOT_BYTES * CALL_MAX];
        let rests = vec![0; REST_BYTES * CALL_MAX]; // not there until it is written to
        Ok(Self { slots, rests, ask: FEW, empty: Instant::now(), drops: 0, error: None, status })
    }

    /// Everything that is there, up to [`BATCH_MAX`] datagrams, in calls that may find [`CALL_MAX`].
    ///
    /// # Errors
    /// `WouldBlock`: nothing is there.
    pub fn receive(&mut self, socket: &impl AsRawFd) -> io::Result<Batch> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let mut batch = Batch::with_capacity(self.ask, self.ask * USUAL_BYTES);
        loop {
            let asked = self.ask;
            match self.call(socket, &mut batch) {
                Ok(found) if found == asked && self.has_room(&batch) => batch.reserve(BATCH_MAX),
                Ok(_) => return Ok(batch),
                Err(error) if batch.is_empty() => return Err(error),
                Err(error) => {
                    // Whether anything is there is to be asked anew.
                    let is_fault = error.kind() != io::ErrorKind::WouldBlock;
                    self.error = is_fault.then_some(error);
                    return Ok(batch);
                }
            }
        }
    }

    /// Whether another call may be made for the same batch.
    fn has_room(&self, batch: &Batch) -> bool {
        batch.len() + self.ask <= BATCH_MAX && batch.bytes() < BATCH_BYTES
    }

    /// Appends what one call to the kernel finds; how many datagrams that are.
    fn call(&mut self, socket: &impl AsRawFd, batch: &mut Batch) -> io::Result<usize> {
        let begin = Instant::now();
        let rests = self.rests.chunks_mut(REST_BYTES);
        let slots = self.slots.chunks_mut(SLOT_BYTES).zip(rests).take(self.ask);
        let slices = slots.map(|(slot, rest)| [slot, rest].map(IoSliceMut::new));
        let mut slices: Vec<_> = slices.collect();
        // Made anew for each call: the kernel writes into them how much it used, and what is used
        // again that way has no room for what it did not have the last time.
        let space = cmsg_space!(TimeSpec, u32);
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(self.ask, Some(space));
        let flags = MsgFlags::MSG_DONTWAIT;
        let results = recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, flags, None);
        let results = results.inspect_err(|error| {
            if *error == Errno::EWOULDBLOCK {
                self.empty = begin;
            }
        })?;
        let (now, wall) = (Instant::now(), SystemTime::now());
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut found, mut drops) = (0, None);
        for message in results {
            found += 1;
            let (stamp, told) = control(&message);
            drops = told.or(drops);
            if message.flags.contains(MsgFlags::MSG_TRUNC) {
                count(&self.status.truncated);
                continue;
            }
            let age = stamp.map_or(Duration::ZERO, |stamp| wall.saturating_sub(stamp));
            let received = now.checked_sub(age).map_or(self.empty, |at| at.max(self.empty));
            batch.push_parts(message.iovs(), received, source(&message));
        }
        if found < self.ask {
            self.empty = begin;
        }
        self.ask = if found < FEW { FEW } else { CALL_MAX };
        self.note_drops(drops);
        Ok(found)
    }

    /// Counts what the kernel has dropped since it told last.
    fn note_drops(&mut self, drops: Option<u32>) {
        let Some(drops) = drops else { return };
        let new = drops.wrapping_sub(self.drops);
        self.status.kernel_drops.fetch_add(new.into(), Ordering::Relaxed);
        self.drops = drops;
    }
}

/// The time stamp, since 1970, and the socket's drops so far.
fn control(message: &RecvMsg<'_, '_, SockaddrStorage>) -> (Option<Duration>, Option<u32>) {
    let (mut stamp, mut drops) = (None, None);
    // Without room for them there would be none; there is.
    for control in message.cmsgs().into_iter().flatten() {
        match control {
            ControlMessageOwned::ScmTimestampns(at) => stamp = Some(Duration::from(at)),
            ControlMessageOwned::RxqOvfl(dropped) => drops = Some(dropped),
            _ => {}
        }
    }
    (stamp, drops)
}

fn source(message: &RecvMsg<'_, '_, SockaddrStorage>) -> IpAddr {
    let address = message.address.as_ref();
    let v4 = address.and_then(|a| a.as_sockaddr_in()).map(|a| IpAddr::V4(a.ip()));
    let v6 = || address.and_then(|a| a.as_sockaddr_in6()).map(|a| IpAddr::V6(a.ip()));
    v4.or_else(v6).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_canonical()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn datagrams_of_any_length_arrive_whole() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let mut receiver = Receiver::new(&socket, Arc::default()).expect("a receiver");
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let to = socket.local_addr().expect("an address");
        let lengths = [1, 0, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 65_507, 7];
        let sent: Vec<Vec<u8>> = lengths
            .iter()
            .map(|length| (0..*length).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect())
            .collect();
        sent.iter().for_each(|bytes| {
            sender.send_to(bytes, to).expect("sent");
        });
        // Loopback delivers before it returns.
        let mut heard: Vec<Vec<u8>> = Vec::new();
        while let Ok(batch) = receiver.receive(&socket) {
            heard.extend(batch.iter().map(|datagram| datagram.bytes.to_vec()));
        }
        assert_eq!(heard, sent);
    }

    #[test]
    fn what_waits_is_handed_on_in_large_batches_and_in_order() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        enlarge(&socket, 8 << 20).expect("a size");
        let mut receiver = Receiver::new(&socket, Arc::default()).expect("a receiver");
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let to = socket.local_addr().expect("an address");
        // More than one batch, and at its end a call that finds nothing.
        let sent: Vec<_> = (0..FEW + BATCH_MAX).map(|at| at.to_string().into_bytes()).collect();
        sent.iter().for_each(|bytes| {
            sender.send_to(bytes, to).expect("sent");
        });
        let mut heard: Vec<Vec<u8>> = Vec::new();
        let mut lengths = Vec::new();
        while let Ok(batch) = receiver.receive(&socket) {
            lengths.push(batch.len());
            heard.extend(batch.iter().map(|datagram| datagram.bytes.to_vec()));
        }
        assert_eq!(heard, sent);
        assert_eq!(lengths, [FEW + BATCH_MAX - CALL_MAX, CALL_MAX]);
        // Long ones are handed on call by call.
        let long = [0; BATCH_BYTES / CALL_MAX];
        for _ in 0..2 * CALL_MAX {
            sender.send_to(&long, to).expect("sent");
        }
        let mut next = || receiver.receive(&socket).expect("some wait").len();
        assert_eq!([next(), next()], [CALL_MAX; 2]);
    }
}
