//! The sockets of the report port: bound, listened to, and opened again where one fails.
//!
//! An error of a socket ends nothing; after [`ERRORS_MAX`] in a row, or when its task ends however it
//! did, the socket is closed and bound anew, until that works.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::batch::Batch;
use super::interface::Place;
use super::listener::Take;
use super::outlet::any;
use super::receive::{self, Receiver};
use super::silence::Heard;
use super::status::{Status, count};
use crate::config::{Groups, ReportsConfig};
use crate::telemetry::Quiet;

/// Pause after an error of a socket that is not the datagram's: no busy loop, and no end.
const PAUSE: Duration = Duration::from_millis(100);
/// Errors in a row, a second of them, after which a socket is opened anew.
const ERRORS_MAX: usize = 10;
/// Time between two attempts to open a socket.
const RETRY: Duration = Duration::from_secs(1);

/// Where a socket is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    at: SocketAddr,
    /// The group that it hears; `None`: unicast.
    pub(super) group: Option<IpAddr>,
}

/// One UDP socket.
#[derive(Debug)]
pub(super) struct Ear {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) spot: Spot,
    receiver: Receiver,
}

/// The sockets that are listened to, and those that are to be opened again.
#[derive(Debug, Default)]
pub(super) struct Ears {
    /// Each ends with why.
    tasks: JoinSet<io::Error>,
    /// Of the tasks that should run.
    spots: HashMap<Id, (Spot, AbortHandle)>,
    missing: Vec<Spot>,
    /// The next attempt, where any is missing.
    retry: Option<Instant>,
    complaints: Complaints,
}

/// What was said of errors, by all sockets: one that is opened again says nothing anew.
#[derive(Debug, Clone, Default)]
struct Complaints(Arc<Mutex<Quiet<io::ErrorKind>>>);

impl Complaints {
    fn may(&self, kind: io::ErrorKind) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).may(kind)
    }
}

impl Ears {
    /// Hands over what arrives at a socket.
    pub(super) fn listen(
        &mut self,
        ear: Ear,
        take: impl Take,
        heard: &Arc<Heard>,
        status: &Arc<Status>,
    ) {
        let spot = ear.spot;
        let (heard, status) = (Arc::clone(heard), Arc::clone(status));
        let task = self.tasks.spawn(ear.run(take, heard, status, self.complaints.clone()));
        self.spots.insert(task.id(), (spot, task));
    }

    /// Ends the sockets that are bound to a link that is gone, or to be so again.
    pub(super) fn forget(&mut self, link: u32) {
        let is_there = |spot: &Spot| spot.link() == link;
        for (_, (_, task)) in self.spots.extract_if(|_, (spot, _)| is_there(spot)) {
            task.abort();
        }
        self.missing.retain(|spot| !is_there(spot));
    }

    /// Waits until a socket is to be opened again; why, where it has just failed.
    pub(super) async fn next(&mut self) -> Option<String> {
        loop {
            let retry = self.retry;
            let due = async {
                match retry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let ended = tokio::select! {
                () = due => return None,
                Some(ended) = self.tasks.join_next_with_id() => ended,
            };
            let (id, why) = match ended {
                Ok((id, error)) => (id, error.to_string()),
                Err(error) => (error.id(), error.to_string()),
            };
            // One that was to end is missing nowhere.
            if let Some((spot, _)) = self.spots.remove(&id) {
                self.missing.push(spot);
                return Some(why);
            }
        }
    }

    /// Opens those that are missing, as far as that works now.
    pub(super) fn reopen(&mut self, status: &Arc<Status>) -> Vec<Ear> {
        let mut opened = Vec::new();
        self.missing.retain(|spot| match Ear::bind(spot.at, spot.group, status) {
            Ok(ear) => {
                opened.push(ear);
                false
            }
            Err(error) => {
                tracing::debug!(at = %spot.at, %error, "cannot be bound again yet");
                true
            }
        });
        self.retry = (!self.missing.is_empty()).then(|| Instant::now() + RETRY);
        opened
    }

    pub(super) fn are_whole(&self) -> bool {
        self.missing.is_empty()
    }
}

impl Spot {
    /// Whether it hears this group there.
    pub(super) fn hears(&self, place: &Place) -> bool {
        self.group == Some(place.group) && [0, place.index].contains(&self.link())
    }

    /// The link that it is bound to; 0: to none.
    pub(super) fn link(&self) -> u32 {
        match self.at {
            SocketAddr::V6(at) => at.scope_id(),
            SocketAddr::V4(_) => 0,
        }
    }
}

impl Ear {
    /// One that hears a group of one link there.
    pub(super) fn of_link(
        group: Ipv6Addr,
        port: u16,
        link: u32,
        status: &Arc<Status>,
    ) -> io::Result<Self> {
        let at = SocketAddrV6::new(group, port, 0, link);
        Self::bind(at.into(), Some(group.into()), status)
    }

    pub(super) fn bind(
        at: SocketAddr,
        group: Option<IpAddr>,
        status: &Arc<Status>,
    ) -> io::Result<Self> {
        let is_v4 = at.is_ipv4();
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
        // Without this a socket hears every group that any process of this machine has joined.
        if is_v4 {
            socket.set_multicast_all_v4(false)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_multicast_all_v6(false)?;
        }
        // Several hosts on one machine hear the same group, but a free port is nobody else's.
        if at.port() != 0 {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&at.into())?;
        let at = socket.local_addr()?.as_socket().unwrap_or(at);
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket.into())?;
        let receiver = Receiver::new(&socket, Arc::clone(status))?;
        Ok(Self { socket: Arc::new(socket), spot: Spot { at, group }, receiver })
    }

    /// Hands over what arrives; why it ended.
    async fn run(
        self,
        take: impl Take,
        heard: Arc<Heard>,
        status: Arc<Status>,
        complaints: Complaints,
    ) -> io::Error {
        let is_group = self.spot.group.is_some();
        let counted = Arc::clone(&status);
        let hand_over = move |batch: Batch| {
            if is_group {
                heard.note(&batch, &counted);
            }
            take(batch);
        };
        hear(self, hand_over, &status, &complaints).await
    }
}

/// Where batches come from.
trait Source: Send {
    /// The next one; `WouldBlock`: nothing after all.
    fn next(&mut self) -> impl Future<Output = io::Result<Batch>> + Send;
}

impl Source for Ear {
    async fn next(&mut self) -> io::Result<Batch> {
        let Self { socket, receiver, .. } = self;
        socket.readable().await?;
        socket.try_io(Interest::READABLE, || receiver.receive(&**socket))
    }
}

/// Hands over what comes, whatever errors are between; the last one of too many in a row.
async fn hear(
    mut source: impl Source,
    hand_over: impl Fn(Batch),
    status: &Status,
    complaints: &Complaints,
) -> io::Error {
    let mut errors = 0;
    loop {
        match source.next().await {
            Ok(batch) => {
                errors = 0;
                hand_over(batch);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                count(&status.receive_errors);
                if complaints.may(error.kind()) {
                    tracing::warn!(%error, "cannot receive reports, still trying");
                }
                errors += 1;
                if errors >= ERRORS_MAX {
                    return error;
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Asks for receive buffers of so many bytes; says it once where the kernel gives less.
pub(super) fn enlarge(ears: &[Ear], wanted: usize) {
    let given = ears.iter().filter_map(|ear| {
        let given = receive::enlarge(&ear.socket, wanted);
        given.inspect_err(|error| tracing::debug!(%error, "a receive buffer's size")).ok()
    });
    let given = given.min().unwrap_or(wanted);
    if given < wanted {
        tracing::info!(
            wanted,
            given,
            "the kernel gives less receive buffer than reports.receive_buffer: raise \
             net.core.rmem_max, or allow CAP_NET_ADMIN"
        );
    }
}

/// The UDP sockets, all on one port.
pub(super) fn bind_all(
    config: &ReportsConfig,
    status: &Arc<Status>,
) -> io::Result<(Groups, Vec<Ear>)> {
    let mut groups = config.groups;
    let is_local = config.is_local();
    let direct = Ear::bind(SocketAddr::new(reach(true, is_local), groups.port), None, status)?;
    groups.port = direct.socket.local_addr()?.port();
    let mut ears = vec![direct];
    if let Some(group) = groups.v4 {
        let at = SocketAddr::new(group.into(), groups.port);
        ears.push(Ear::bind(at, Some(group.into()), status)?);
    }
    for (at, group) in places_v6(groups, is_local) {
        match Ear::bind(at, group, status) {
            Ok(ear) => ears.push(ear),
            Err(error) => tracing::info!(%error, "no reports over IPv6"),
        }
    }
    Ok((groups, ears))
}

/// Where IPv6 sockets are bound, each with the group that it hears. For a group of one link there is one
/// more for each link where it is heard ([`Ear::of_link`]).
fn places_v6(groups: Groups, is_local: bool) -> Vec<(SocketAddr, Option<IpAddr>)> {
    let direct = (SocketAddr::new(reach(false, is_local), groups.port), None);
    match groups.v6 {
        Some(group) if !is_of_link(group) => {
            let at = SocketAddr::new(group.into(), groups.port);
            vec![direct, (at, Some(group.into()))]
        }
        _ => vec![direct],
    }
}

/// Whether a group is another one on each link, and cannot be bound without naming one.
pub(super) fn is_of_link(group: Ipv6Addr) -> bool {
    group.segments()[0] & 0xf == 2
}

/// The address of a family at which unicast is taken.
pub(super) fn reach(is_v4: bool, is_local: bool) -> IpAddr {
    match (is_local, is_v4) {
        (false, is_v4) => any(is_v4),
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
impl Ears {
    /// Those of which one could not be opened again.
    pub(super) fn lacking(at: SocketAddr) -> Self {
        Self { missing: vec![Spot { at, group: None }], ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tokio::sync::mpsc;

    use super::super::log::Log;
    use super::*;

    /// Errors, then one batch, then nothing.
    struct Faulty(Vec<i32>, bool);

    impl Source for Faulty {
        async fn next(&mut self) -> io::Result<Batch> {
            match self.0.pop() {
                Some(error) => Err(io::Error::from_raw_os_error(error)),
                None if std::mem::take(&mut self.1) => Ok(Batch::default()),
                None => std::future::pending().await,
            }
        }
    }

    /// O-A14: no error of the socket ends the loop, whatever it is.
    #[tokio::test]
    async fn errors_between_datagrams_are_counted_and_end_nothing() {
        use nix::errno::Errno;
        let errors = [Errno::ENOBUFS, Errno::ECONNREFUSED, Errno::ENETDOWN, Errno::EBADF];
        let errors = errors.map(|error| error as i32);
        let status = Status::default();
        let (told, mut batches) = mpsc::unbounded_channel();
        let hand_over = move |batch| told.send(batch).expect("the test waits");
        let complaints = Complaints::default();
        tokio::select! {
            _ = hear(Faulty(errors.to_vec(), true), hand_over, &status, &complaints) => {}
            batch = batches.recv() => assert!(batch.is_some(), "what comes after them is handed over"),
        }
        assert_eq!(status.receive_errors.load(Ordering::Relaxed), errors.len() as u64);
    }

    /// A socket that gives nothing but errors is given up, to be opened anew; however often that is, it costs
    /// one warning.
    #[tokio::test]
    async fn errors_without_end_end_the_socket_and_are_told_once() {
        use nix::errno::Errno;
        let (log, _guard) = Log::here();
        let (status, complaints) = (Status::default(), Complaints::default());
        let fail = async || {
            let errors = vec![Errno::ENETDOWN as i32; ERRORS_MAX];
            let took = |_| panic!("nothing came");
            let ended = hear(Faulty(errors, true), took, &status, &complaints).await;
            assert_eq!(ended.raw_os_error(), Some(Errno::ENETDOWN as i32));
        };
        tokio::join!(fail(), fail(), fail());
        fail().await;
        let counted = status.receive_errors.load(Ordering::Relaxed);
        assert_eq!(counted, 4 * ERRORS_MAX as u64);
        let text = log.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains("cannot receive reports"), "{text}");
    }
}
