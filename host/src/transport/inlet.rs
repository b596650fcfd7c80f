//! Frames in: what is sent to the groups, to this machine by datagram, or over TCP, on one port.
//!
//! A family has two sockets, one bound to its group and one to every address, so that what came by
//! multicast is known, other groups on the port are not heard, and unicast still is: at loopback alone
//! where that is the only interface. Memberships follow the interfaces; while those cannot be listed
//! everything stays as it is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::batch::Batch;
use super::changes::Changes;
use super::interface::{Look, Place, loopback_index};
use super::listener::{Connections, Judge, Take, Verdict};
use super::outlet::{any, complain_of_missing};
use super::receive::{self, Receiver};
use super::silence::{Heard, Silence};
use super::status::{Status, Troubles, count};
use crate::config::{Groups, ReportsConfig};
use crate::telemetry::Quiet;

/// Pause after an error of a socket that is not the datagram's: no busy loop, and no end.
const PAUSE: Duration = Duration::from_millis(100);
/// Free ports tried, until one is free for datagrams and connections.
const FREE_PORTS: u32 = 16;

/// Receives frames.
#[derive(Debug)]
pub struct Inlet {
    groups: Groups,
    wanted: Vec<String>,
    /// Changed by who holds [`Inlet::silence`]'s other end.
    silence: (watch::Sender<Duration>, watch::Receiver<Duration>),
    /// Until they run.
    ears: Vec<Ear>,
    /// The groups' sockets, once the ears run.
    sockets: Vec<(IpAddr, Arc<UdpSocket>)>,
    connections: Arc<Connections>,
    /// Where connections are to be taken.
    tcp: Vec<SocketAddr>,
    /// Until they run.
    listeners: Vec<TcpListener>,
    is_listening: bool,
    /// Whether what is joined now is news.
    is_running: bool,
    joined: Vec<Place>,
    heard: Arc<Heard>,
    status: Arc<Status>,
    changes: Changes,
    troubles: Troubles,
}

/// One UDP socket.
#[derive(Debug)]
struct Ear {
    socket: Arc<UdpSocket>,
    /// The group it is bound to; `None`: unicast.
    group: Option<IpAddr>,
    receiver: Receiver,
}

impl Inlet {
    /// Binds the report port (0: any free one) and joins the groups; must be called in a runtime.
    /// Those of `connections` go on when this inlet runs, where it takes any.
    ///
    /// # Errors
    /// The port cannot be bound for datagrams. Everything else is logged and tried again.
    pub fn bind(
        config: &ReportsConfig,
        status: Arc<Status>,
        connections: Arc<Connections>,
    ) -> io::Result<Self> {
        let is_any_port = config.groups.port == 0;
        let mut tries = if is_any_port { FREE_PORTS } else { 1 };
        let (groups, ears, tcp, listeners) = loop {
            tries -= 1;
            let all = bind_all(config, &status).and_then(|(groups, ears)| {
                let tcp = tcp_addresses(config, groups.port);
                // A port that was asked for is used as far as it can be.
                let listeners = match connections.bind(&tcp) {
                    Err(error) if is_any_port => return Err(error),
                    listeners => listeners.ok(),
                };
                Ok((groups, ears, tcp, listeners))
            });
            match all {
                Err(error) if tries > 0 => tracing::debug!(%error, "another free port"),
                all => break all?,
            }
        };
        enlarge(&ears, config.receive_buffer);
        let mut inlet = Self {
            groups,
            wanted: config.interfaces.clone(),
            silence: watch::channel(config.silence),
            ears,
            sockets: Vec::new(),
            connections,
            tcp,
            is_listening: listeners.is_some(),
            listeners: listeners.unwrap_or_default(),
            is_running: false,
            joined: Vec::new(),
            heard: Arc::default(),
            status,
            changes: Changes::new(),
            troubles: Troubles::default(),
        };
        inlet.look();
        Ok(inlet)
    }

    /// Changes how long no multicast may come before that is said, while the inlet runs.
    #[must_use]
    pub fn silence(&self) -> watch::Sender<Duration> {
        self.silence.0.clone()
    }

    /// The port that was bound.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.groups.port
    }

    /// Hands over everything that arrives, until the task is dropped; `judge` says what a frame of a
    /// connection is worth.
    pub async fn run(
        mut self,
        take: impl Fn(Batch) + Clone + Send + Sync + 'static,
        judge: impl Fn(&[u8]) -> Verdict + Clone + Send + Sync + 'static,
    ) {
        let mut tasks = JoinSet::new(); // end with this one
        let ears: Vec<_> = self.ears.drain(..).collect();
        for ear in ears {
            self.sockets.extend(ear.group.map(|group| (group, Arc::clone(&ear.socket))));
            tasks.spawn(ear.run(take.clone(), Arc::clone(&self.heard), Arc::clone(&self.status)));
        }
        let mut silence = Silence::new(self.silence.1.clone());
        // First here, then no more elsewhere, so that nobody is refused between.
        self.take_connections(&take, &judge);
        self.connections.keep(&self.tcp).await;
        loop {
            if !self.is_listening {
                self.listen();
            }
            self.take_connections(&take, &judge);
            tokio::select! {
                () = self.changes.next() => self.look(),
                () = silence.next() => silence.look(&self.heard, &self.status),
            }
        }
    }

    /// Takes connections from the listeners that were bound.
    fn take_connections(&mut self, take: &impl Take, judge: &impl Judge) {
        for listener in self.listeners.drain(..) {
            self.connections.listen(listener, take.clone(), judge.clone());
        }
    }

    /// Brings memberships to where they should be by now.
    fn look(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let Some(look) = Look::now(&mut self.troubles) else { return };
        self.heard.set_own(look.addresses());
        complain_of_missing(&look, &self.wanted, &mut self.troubles);
        let wanted = look.hearing(self.groups, &self.wanted);
        let is_same = |a: &Place, b: &Place| (a.index, a.group) == (b.index, b.group);
        // What an interface that is gone leaves behind counts against the system's limit.
        for place in &self.joined {
            if !wanted.iter().any(|w| is_same(w, place)) {
                self.membership(place, Membership::Leave).ok();
            }
        }
        let mut joined = Vec::new();
        for place in wanted {
            let what = format!("{JOIN}{} {}", place.interface, place.group);
            let known = self.joined.iter().any(|j| is_same(j, &place));
            let result = if known { Ok(()) } else { self.membership(&place, Membership::Join) };
            match result {
                Ok(()) => {
                    if self.troubles.end(&what) || (!known && self.is_running) {
                        let Place { interface, group, .. } = &place;
                        tracing::info!(%interface, %group, "the group is heard here now");
                    }
                    joined.push(place);
                }
                Err(error) if self.troubles.begin(&what) => {
                    let Place { interface, group, .. } = &place;
                    tracing::warn!(%interface, %group, %error, "cannot join the group here");
                }
                Err(_) => {}
            }
        }
        self.joined = joined;
        self.status.set_joined(&self.joined);
        self.is_running = true;
        if !self.joined.is_empty() {
            self.troubles.end(NOWHERE);
        } else if self.troubles.begin(NOWHERE) {
            tracing::warn!(
                "no usable interface: multicast is not heard, unicast is; still looking"
            );
        }
    }

    fn membership(&self, place: &Place, change: Membership) -> io::Result<()> {
        let socket = self.ears.iter().map(|ear| (ear.group, &ear.socket));
        let kept = self.sockets.iter().map(|(group, socket)| (Some(*group), socket));
        let socket = socket.chain(kept).find(|(group, _)| *group == Some(place.group));
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "this system has no IPv6");
        let socket = SockRef::from(socket.ok_or_else(missing)?.1);
        let on = InterfaceIndexOrAddress::Index(place.index);
        let done = match (place.group, change) {
            (IpAddr::V4(group), Membership::Join) => socket.join_multicast_v4_n(&group, &on),
            (IpAddr::V4(group), Membership::Leave) => socket.leave_multicast_v4_n(&group, &on),
            (IpAddr::V6(group), Membership::Join) => socket.join_multicast_v6(&group, place.index),
            (IpAddr::V6(group), Membership::Leave) => {
                socket.leave_multicast_v6(&group, place.index)
            }
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()), // joined before
            done => done,
        }
    }

    fn listen(&mut self) {
        match self.connections.bind(&self.tcp) {
            Ok(listeners) => {
                self.listeners = listeners;
                self.is_listening = true;
                if self.troubles.end(TCP) {
                    tracing::info!(port = self.groups.port, "reports are taken by TCP too");
                }
            }
            Err(error) if self.troubles.begin(TCP) => {
                let port = self.groups.port;
                tracing::warn!(
                    port, %error,
                    "reports are not taken by TCP (is another host running here?); still trying"
                );
            }
            Err(_) => {}
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Membership {
    Join,
    Leave,
}

const JOIN: &str = "join ";
const NOWHERE: &str = "nowhere";
const TCP: &str = "tcp";

impl Ear {
    fn bind(at: SocketAddr, group: Option<IpAddr>, status: &Arc<Status>) -> io::Result<Self> {
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
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket.into())?;
        let receiver = Receiver::new(&socket, Arc::clone(status))?;
        Ok(Self { socket: Arc::new(socket), group, receiver })
    }

    /// Hands over what arrives.
    async fn run(self, take: impl Take, heard: Arc<Heard>, status: Arc<Status>) {
        let is_group = self.group.is_some();
        let counted = Arc::clone(&status);
        let hand_over = move |batch: Batch| {
            if is_group {
                heard.note(&batch, &counted);
            }
            take(batch);
        };
        hear(self, hand_over, &status).await;
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

/// Hands over what comes, whatever errors are between.
async fn hear(mut source: impl Source, hand_over: impl Fn(Batch), status: &Status) {
    let mut quiet = Quiet::default();
    loop {
        match source.next().await {
            Ok(batch) => hand_over(batch),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                count(&status.receive_errors);
                if quiet.may(error.kind()) {
                    tracing::warn!(%error, "cannot receive reports, still trying");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Asks for receive buffers of so many bytes; says it once where the kernel gives less.
fn enlarge(ears: &[Ear], wanted: usize) {
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
fn bind_all(config: &ReportsConfig, status: &Arc<Status>) -> io::Result<(Groups, Vec<Ear>)> {
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

/// Where IPv6 sockets are bound, each with the group that it hears.
fn places_v6(groups: Groups, is_local: bool) -> Vec<(SocketAddr, Option<IpAddr>)> {
    let direct = SocketAddr::new(reach(false, is_local), groups.port);
    let Some(group) = groups.v6 else { return vec![(direct, None)] };
    let is_of_link = group.segments()[0] & 0xf == 2;
    if is_of_link && !is_local {
        // It cannot be bound without naming one link: this socket hears unicast too.
        return vec![(direct, Some(group.into()))];
    }
    let link = if is_of_link { loopback_index() } else { 0 };
    let at = SocketAddrV6::new(group, groups.port, 0, link);
    vec![(direct, None), (at.into(), Some(group.into()))]
}

/// The address of a family at which unicast is taken.
fn reach(is_v4: bool, is_local: bool) -> IpAddr {
    match (is_local, is_v4) {
        (false, is_v4) => any(is_v4),
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Where connections are taken.
fn tcp_addresses(config: &ReportsConfig, port: u16) -> Vec<SocketAddr> {
    let families: &[bool] = if config.tcp { &[true, false] } else { &[] };
    let at = |is_v4: &bool| SocketAddr::new(reach(*is_v4, config.is_local()), port);
    families.iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use tokio::sync::mpsc;

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
        tokio::select! {
            () = hear(Faulty(errors.to_vec(), true), hand_over, &status) => {}
            batch = batches.recv() => assert!(batch.is_some(), "what comes after them is handed over"),
        }
        assert_eq!(status.receive_errors.load(Ordering::Relaxed), errors.len() as u64);
    }
}
