//! Frames in: what is sent to the groups, to this machine by datagram, or over TCP, on one port.
//!
//! A family has two sockets, one bound to its group and one to every address, so that what came by
//! multicast is known, other groups on the port are not heard, and unicast still is. Memberships
//! follow the interfaces.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::batch::Batch;
use super::changes::Changes;
use super::interface::{Look, Place};
use super::listener::{self, Take, Verdict};
use super::outlet::{any, complain_of_missing};
use super::receive::Receiver;
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
    tcp: bool,
    silence: Duration,
    /// Until they run.
    ears: Vec<Ear>,
    /// The groups' sockets, once the ears run.
    sockets: Vec<(IpAddr, Arc<UdpSocket>)>,
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

/// What came by multicast lately.
#[derive(Debug, Default)]
struct Heard {
    own: Mutex<Vec<IpAddr>>,
    from_others: AtomicU64,
}

impl Inlet {
    /// Binds the report port (0: any free one) and joins the groups; must be called in a runtime.
    ///
    /// # Errors
    /// The port cannot be bound for datagrams. Everything else is logged and tried again.
    pub fn bind(config: &ReportsConfig, status: Arc<Status>) -> io::Result<Self> {
        let mut tries = if config.groups.port == 0 { FREE_PORTS } else { 1 };
        let (groups, ears, listeners) = loop {
            tries -= 1;
            let all = bind_all(config, &status).and_then(|(groups, ears)| {
                let listeners =
                    if config.tcp { bind_listeners(groups.port) } else { Ok(Vec::new()) };
                // A port that was asked for is used as far as it can be.
                let listeners = if config.groups.port == 0 {
                    listeners?
                } else {
                    listeners.unwrap_or_default()
                };
                Ok((groups, ears, listeners))
            });
            match all {
                Err(error) if tries > 0 => tracing::debug!(%error, "another free port"),
                all => break all?,
            }
        };
        let mut inlet = Self {
            groups,
            wanted: config.interfaces.clone(),
            tcp: config.tcp,
            silence: config.silence,
            is_listening: !listeners.is_empty(),
            is_running: false,
            ears,
            sockets: Vec::new(),
            listeners,
            joined: Vec::new(),
            heard: Arc::default(),
            status,
            changes: Changes::new(),
            troubles: Troubles::default(),
        };
        inlet.look();
        Ok(inlet)
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
        let mut silence = Silence::new(self.silence);
        loop {
            for listener in self.listeners.drain(..) {
                let status = Arc::clone(&self.status);
                tasks.spawn(listener::listen(listener, status, take.clone(), judge.clone()));
            }
            tokio::select! {
                () = self.changes.next() => self.look(),
                () = silence.next() => silence.look(&self.heard, &self.status),
            }
        }
    }

    /// Brings memberships and the TCP port to where they should be by now.
    fn look(&mut self) {
        if self.tcp && !self.is_listening {
            self.listen();
        }
        if self.groups.is_empty() {
            return;
        }
        let look = Look::now();
        *self.heard.own.lock().unwrap_or_else(PoisonError::into_inner) = look.addresses();
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
        match bind_listeners(self.groups.port) {
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
    fn bind(
        is_v4: bool,
        group: Option<IpAddr>,
        port: u16,
        status: &Arc<Status>,
    ) -> io::Result<Self> {
        let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        // Without this a socket hears every group that any process of this machine has joined.
        if is_v4 {
            socket.set_multicast_all_v4(false)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_multicast_all_v6(false)?;
        }
        // Several hosts on one machine hear the same group, but a free port is nobody else's.
        if port != 0 {
            socket.set_reuse_address(true)?;
        }
        let bound = group.filter(|group| !is_link_local(*group)).unwrap_or_else(|| any(is_v4));
        socket.bind(&SocketAddr::new(bound, port).into())?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket.into())?;
        let receiver = Receiver::new(&socket, Arc::clone(status))?;
        Ok(Self { socket: Arc::new(socket), group, receiver })
    }

    /// Hands over what arrives, whatever errors the socket has between.
    async fn run(mut self, take: impl Take, heard: Arc<Heard>, status: Arc<Status>) {
        let mut quiet = Quiet::default();
        let socket = &*self.socket;
        loop {
            let received = match socket.readable().await {
                Ok(()) => socket.try_io(Interest::READABLE, || self.receiver.receive(socket)),
                Err(error) => Err(error),
            };
            match received {
                Ok(batch) => {
                    if self.group.is_some() {
                        heard.note(&batch, &status);
                    }
                    take(batch);
                }
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
}

impl Heard {
    fn note(&self, batch: &Batch, status: &Status) {
        status.multicast.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if batch.iter().any(|datagram| !own.contains(&datagram.from)) {
            count(&self.from_others);
        }
    }
}

/// Says once when no multicast comes, and once when it does again.
struct Silence {
    limit: Duration,
    next: Instant,
    before: (u64, u64),
    said: bool,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        Self { limit, next: Instant::now() + limit, before: (0, 0), said: false }
    }

    async fn next(&self) {
        if self.limit.is_zero() {
            std::future::pending::<()>().await;
        }
        sleep_until(self.next).await;
    }

    fn look(&mut self, heard: &Heard, status: &Status) {
        let now =
            [&status.multicast, &heard.from_others].map(|count| count.load(Ordering::Relaxed));
        let [any, others] = now;
        let (any_before, others_before) = self.before;
        self.before = (any, others);
        self.next += self.limit;
        let is_silent = others == others_before && !status.joined().is_empty();
        if is_silent == self.said {
            return;
        }
        self.said = is_silent;
        let limit = humantime::format_duration(self.limit);
        if !is_silent {
            tracing::info!("multicast is heard");
        } else if any == any_before {
            tracing::warn!(
                "no multicast was heard for {limit}: if machines report, this network may not carry \
                 it; let them send_to = [\"udp://THIS-HOST:PORT\"] or tcp://"
            );
        } else {
            tracing::info!("for {limit} multicast came from this machine alone");
        }
    }
}

/// The UDP sockets and the TCP ones, all on one port.
fn bind_all(config: &ReportsConfig, status: &Arc<Status>) -> io::Result<(Groups, Vec<Ear>)> {
    let mut groups = config.groups;
    let direct = Ear::bind(true, None, groups.port, status)?;
    groups.port = direct.socket.local_addr()?.port();
    let mut ears = vec![direct];
    if let Some(group) = groups.v4 {
        ears.push(Ear::bind(true, Some(group.into()), groups.port, status)?);
    }
    let mut v6 = vec![None, groups.v6.map(IpAddr::V6)];
    if groups.v6.is_none() || groups.v6.is_some_and(|group| is_link_local(group.into())) {
        v6.remove(if groups.v6.is_none() { 1 } else { 0 });
    }
    for group in v6 {
        match Ear::bind(false, group, groups.port, status) {
            Ok(ear) => ears.push(ear),
            Err(error) => tracing::info!(%error, "no reports over IPv6"),
        }
    }
    Ok((groups, ears))
}

/// A group of one link: its socket cannot be bound to it without naming the link, so it hears
/// unicast too.
fn is_link_local(group: IpAddr) -> bool {
    matches!(group, IpAddr::V6(group) if group.segments()[0] & 0xf == 2)
}

fn bind_listeners(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut listeners = vec![listener::bind(true, port)?];
    match listener::bind(false, port) {
        Ok(listener) => listeners.push(listener),
        Err(error) => tracing::debug!(%error, "no TCP over IPv6"),
    }
    Ok(listeners)
}
