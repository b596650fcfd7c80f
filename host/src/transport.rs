//! Datagrams in and out: frames to the group on every usable interface and to unicast destinations,
//! and what arrives on the report port with the time it arrived.
//!
//! A usable interface is up, has an IPv4 address and can multicast; where there is none, loopback
//! serves a machine by itself. Interfaces are looked up again every [`REFRESH`], so that one that
//! comes later is used and one that is missing stops nothing. Errors are counted, and logged at
//! most once a minute. Nothing here knows what a report is.

mod interface;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::{Destination, ReportsConfig};
use crate::telemetry::Quiet;
pub use interface::Interface;

/// Time between two looks at the interfaces.
pub const REFRESH: Duration = Duration::from_secs(10);
/// Receive buffer asked of the kernel: some 10 000 reports, for when the host is held up.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Datagrams read before they are handed on: bounds the delay of the first one.
const BATCH_MAX: usize = 64;
/// Hops of a multicast report: the local network.
const MULTICAST_TTL: u32 = 1;

/// One datagram with the time it was taken from the socket.
#[derive(Debug, Clone)]
pub struct Datagram {
    /// What was sent.
    pub bytes: Vec<u8>,
    /// When it was received, on the monotonic clock.
    pub received: Instant,
    /// Who sent it.
    pub from: IpAddr,
}

/// Sends frames.
#[derive(Debug)]
pub struct Outlet {
    group: SocketAddrV4,
    wanted: Vec<String>,
    sockets: Vec<(Interface, UdpSocket)>,
    unicast: Vec<(mpsc::Sender<Vec<u8>>, JoinHandle<()>)>,
    refreshed: Option<Instant>,
    quiet: Quiet<String>,
}

impl Outlet {
    /// An outlet for this configuration; must be called inside a runtime, where each unicast
    /// destination gets a task of its own.
    #[must_use]
    pub fn new(config: &ReportsConfig) -> Self {
        let start = |to: &Destination| {
            let (frames, queue) = mpsc::channel(1);
            (frames, tokio::spawn(send_to(to.authority.clone(), queue)))
        };
        Self {
            group: config.group,
            wanted: config.interfaces.clone(),
            sockets: Vec::new(),
            unicast: config.send_to.iter().map(start).collect(),
            refreshed: None,
            quiet: Quiet::default(),
        }
    }

    /// Sends every frame that comes, until there are no more.
    pub async fn run(mut self, mut frames: mpsc::Receiver<Vec<u8>>) {
        while let Some(frame) = frames.recv().await {
            self.send(&frame).await;
        }
        for (queue, task) in self.unicast {
            drop(queue); // the task sends what it has and ends
            if let Err(error) = task.await {
                tracing::error!(%error, "a sending task failed");
            }
        }
    }

    /// Sends one frame everywhere; what fails is logged and tried again with the next one.
    pub async fn send(&mut self, frame: &[u8]) {
        self.refresh();
        let group = SocketAddr::V4(self.group);
        let mut failed = Vec::new();
        for (interface, socket) in &self.sockets {
            if let Err(error) = socket.send_to(frame, group).await {
                failed.push(interface.clone());
                if self.quiet.may(format!("send on {}", interface.name)) {
                    tracing::warn!(interface = %interface.name, %group, %error, "cannot send a report");
                }
            }
        }
        if !failed.is_empty() {
            self.sockets.retain(|(interface, _)| !failed.contains(interface));
            self.refreshed = None; // look again before the next send
        }
        for (queue, _) in &self.unicast {
            // A destination that is still busy with the last report misses this one.
            queue.try_send(frame.to_vec()).ok();
        }
    }

    fn refresh(&mut self) {
        if self.refreshed.is_some_and(|at| at.elapsed() < REFRESH) {
            return;
        }
        self.refreshed = Some(Instant::now());
        let usable = interface::usable(&self.wanted);
        self.sockets.retain(|(interface, _)| usable.contains(interface));
        for interface in usable {
            if self.sockets.iter().any(|(known, _)| *known == interface) {
                continue;
            }
            match group_sender(&interface) {
                Ok(socket) => self.sockets.push((interface, socket)),
                Err(error) if self.quiet.may(format!("open on {}", interface.name)) => {
                    tracing::warn!(interface = %interface.name, %error, "cannot multicast here");
                }
                Err(_) => {}
            }
        }
        let nowhere = self.sockets.is_empty() && self.unicast.is_empty();
        if nowhere && self.quiet.may("nowhere".to_owned()) {
            tracing::warn!("no usable interface: reports go nowhere, still looking");
        }
    }
}

/// Sends frames to one destination, whose name is looked up each time: it may move, and a look-up
/// that hangs holds up nothing else.
async fn send_to(to: String, mut frames: mpsc::Receiver<Vec<u8>>) {
    let mut quiet = Quiet::default();
    while let Some(frame) = frames.recv().await {
        let sent = async {
            let address = tokio::net::lookup_host(&to).await?.next();
            let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
            let any = match address {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            UdpSocket::bind((any, 0)).await?.send_to(&frame, address).await
        };
        if let Err(error) = sent.await
            && quiet.may(())
        {
            tracing::warn!(%to, %error, "cannot send a report");
        }
    }
}

/// Receives datagrams of the group and those sent to this machine.
#[derive(Debug)]
pub struct Inlet {
    socket: UdpSocket,
    group: Ipv4Addr,
    wanted: Vec<String>,
    joined: Vec<Interface>,
    quiet: Quiet<String>,
}

impl Inlet {
    /// Binds the report port (0: any free one) and joins the group.
    ///
    /// # Errors
    /// The port cannot be bound. An interface that cannot be joined is only logged.
    pub fn bind(config: &ReportsConfig) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?; // several hosts on one machine hear the same group
        socket.set_nonblocking(true)?;
        if let Err(error) = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES) {
            tracing::debug!(%error, "the kernel keeps its own receive buffer size");
        }
        // Without this a socket hears every group that any process of this machine has joined.
        socket.set_multicast_all_v4(false)?;
        let port = config.group.port();
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
        let mut inlet = Self {
            socket: into_tokio(socket.into())?,
            group: *config.group.ip(),
            wanted: config.interfaces.clone(),
            joined: Vec::new(),
            quiet: Quiet::default(),
        };
        inlet.join();
        Ok(inlet)
    }

    /// The port that was bound.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// The interfaces on which the group is heard.
    #[must_use]
    pub fn joined(&self) -> &[Interface] {
        &self.joined
    }

    /// Hands over every datagram in batches of at most [`BATCH_MAX`], until the task is dropped.
    pub async fn run(mut self, mut hand_over: impl FnMut(Vec<Datagram>)) {
        let mut refresh = tokio::time::interval(REFRESH);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            tokio::select! {
                readable = self.socket.readable() => match readable {
                    Ok(()) => hand_over(self.drain(&mut buffer)),
                    Err(error) => self.complain(&error),
                },
                _ = refresh.tick() => self.join(),
            }
        }
    }

    fn drain(&mut self, buffer: &mut [u8]) -> Vec<Datagram> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX {
            match self.socket.try_recv_from(buffer) {
                Ok((len, from)) => batch.push(Datagram {
                    bytes: buffer[..len].to_vec(),
                    received: Instant::now(),
                    from: from.ip(),
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.complain(&error);
                    break;
                }
            }
        }
        batch
    }

    fn join(&mut self) {
        let usable = interface::usable(&self.wanted);
        self.joined.retain(|interface| usable.contains(interface));
        for interface in usable {
            if self.joined.contains(&interface) {
                continue;
            }
            match self.socket.join_multicast_v4(self.group, interface.address) {
                Ok(()) => {
                    tracing::debug!(interface = %interface.name, group = %self.group, "joined");
                    self.joined.push(interface);
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    self.joined.push(interface); // joined before, by another address of it
                }
                Err(error) if self.quiet.may(format!("join {}", interface.name)) => {
                    tracing::warn!(interface = %interface.name, group = %self.group, %error, "cannot join");
                }
                Err(_) => {}
            }
        }
        if self.joined.is_empty() && self.quiet.may("none".to_owned()) {
            tracing::warn!(
                group = %self.group,
                "no usable interface: multicast is not heard, unicast is; still looking"
            );
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if self.quiet.may("receive".to_owned()) {
            tracing::warn!(%error, "cannot receive reports");
        }
    }
}

fn group_sender(interface: &Interface) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_multicast_if_v4(&interface.address)?;
    socket.set_multicast_ttl_v4(MULTICAST_TTL)?;
    socket.set_multicast_loop_v4(true)?; // a host on this machine wants to hear it too
    socket.bind(&SocketAddr::from((interface.address, 0)).into())?;
    into_tokio(socket.into())
}

fn into_tokio(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
