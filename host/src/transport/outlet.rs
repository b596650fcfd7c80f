//! Frames out: to the groups on every usable interface, and to every unicast destination.
//!
//! Sending never waits: a frame that an interface or a destination cannot take now is lost, and the
//! next one is newer anyway. What fails is said once, and once more when it works again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::changes::Changes;
use super::frames::Spread;
use super::interface::{Look, Place};
use super::status::Troubles;
use super::unicast;
use crate::config::{Groups, ReportsConfig};

/// Time before an interface that failed is tried anew: addresses of IPv6 take a while to be ready.
const RETRY: Duration = Duration::from_secs(1);

/// Sends frames.
#[derive(Debug)]
pub struct Outlet {
    groups: Groups,
    wanted: Vec<String>,
    ttl: u8,
    senders: Vec<Sender>,
    unicast: Spread,
    tasks: Vec<JoinHandle<()>>,
    changes: Changes,
    troubles: Troubles,
    is_beside_host: bool,
}

/// A socket for one place.
#[derive(Debug)]
struct Sender {
    place: Place,
    socket: UdpSocket,
    to: SocketAddr,
}

impl Outlet {
    /// An outlet for this configuration, where a destination that is slow or away has at most
    /// `backlog` frames waiting, the newest; must be called inside a runtime, where each
    /// destination gets a task of its own.
    #[must_use]
    pub fn new(config: &ReportsConfig, backlog: usize) -> Self {
        let mut unicast = Spread::new(backlog);
        let mut start =
            |to: &_| tokio::spawn(unicast::send_to(Clone::clone(to), unicast.subscribe()));
        let tasks = config.send_to.iter().map(&mut start).collect();
        Self {
            groups: config.groups,
            wanted: config.interfaces.clone(),
            ttl: config.ttl,
            senders: Vec::new(),
            unicast,
            tasks,
            changes: Changes::new(),
            troubles: Troubles::default(),
            is_beside_host: false,
        }
    }

    /// A host in this process hears it: that nobody else can is no fault.
    #[must_use]
    pub fn beside_host(self, is_beside_host: bool) -> Self {
        Self { is_beside_host, ..self }
    }

    /// Sends every frame that comes, until there are no more and the destinations have theirs.
    pub async fn run(mut self, mut frames: mpsc::Receiver<Vec<u8>>) {
        self.look();
        loop {
            tokio::select! {
                frame = frames.recv() => match frame {
                    Some(frame) => self.send(&frame),
                    None => break,
                },
                () = self.changes.next() => self.look(),
            }
        }
        drop(self.unicast); // the tasks send what they have and end
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a sending task failed");
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        let mut failed = Vec::new();
        for Sender { place, socket, to } in &self.senders {
            let name = &place.interface;
            match socket.send_to(frame, to) {
                Ok(_) => {
                    if self.troubles.end(&on(place)) {
                        tracing::info!(interface = %name, group = %to, "reports are sent again");
                    }
                }
                Err(error) if is_too_long(&error) => {
                    if self.troubles.once(&format!("{TOO_LONG}{name}")) {
                        tracing::warn!(interface = %name, group = %to, bytes = frame.len(), %error, "a frame is lost");
                    }
                }
                Err(error) => {
                    failed.push(place.clone());
                    if self.troubles.begin(&on(place)) {
                        tracing::warn!(interface = %name, group = %to, %error, "no reports here: they cannot be sent");
                    }
                }
            }
        }
        if !failed.is_empty() {
            self.senders.retain(|sender| !failed.contains(&sender.place));
            self.changes.again_in(RETRY);
        }
        self.unicast.send(frame);
    }

    /// Opens a socket where there is a new place, closes those whose place is gone.
    fn look(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let Some(look) = Look::now(&mut self.troubles) else { return };
        let places = look.sending(self.groups, &self.wanted);
        let gone = self.senders.extract_if(.., |sender| !places.contains(&sender.place));
        for Sender { place, to, .. } in gone {
            let is_cut = look.is_cut(&place.interface, self.groups);
            if is_cut && self.troubles.begin(&on(&place)) {
                tracing::warn!(interface = %place.interface, group = %to, "no reports here: the interface is down or has no address");
            }
        }
        self.troubles.keep(|what| what.strip_prefix(ON).is_none_or(|on| look.is_there(on)));
        complain_of_missing(&look, &self.wanted, &mut self.troubles);
        // By the configuration it may be meant so; then, or with another destination, it is no trouble.
        let is_alone = self.wanted.is_empty() && self.tasks.is_empty() && look.is_local(&places);
        for place in places {
            if self.senders.iter().any(|sender| sender.place == place) {
                continue;
            }
            match Sender::open(&place, self.groups.port, self.ttl) {
                Ok(sender) => self.senders.push(sender),
                Err(error) => {
                    self.changes.again_in(RETRY);
                    if self.troubles.begin(&on(&place)) {
                        let name = &place.interface;
                        tracing::warn!(interface = %name, group = %place.group, %error, "cannot multicast here");
                    }
                }
            }
        }
        self.say_how_far(is_alone);
    }

    /// Says each change of how far reports go: nowhere, to this machine, or out of it.
    fn say_how_far(&mut self, is_alone: bool) {
        let is_nowhere = self.senders.is_empty() && self.tasks.is_empty();
        if !is_alone && self.troubles.end(ALONE) && !is_nowhere {
            tracing::info!("there is a usable interface: reports leave this machine");
        }
        if !is_nowhere && self.troubles.end(NOWHERE) && !is_alone {
            tracing::info!("there is a usable interface: reports are sent");
        }
        if is_nowhere {
            if self.troubles.begin(NOWHERE) {
                tracing::warn!("no usable interface: reports go nowhere, still looking");
            }
        } else if is_alone && self.troubles.begin(ALONE) {
            let what = "only loopback is usable: reports stay on this machine, still looking";
            if self.is_beside_host {
                tracing::info!("{what}");
            } else {
                tracing::warn!("{what}");
            }
        }
    }
}

impl Sender {
    fn open(place: &Place, port: u16, ttl: u8) -> io::Result<Self> {
        let domain = if place.group.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        // The interface is named to the kernel: routes do not matter, and need not be there.
        // Looped back, because a host on this machine wants to hear it too.
        match place.source {
            IpAddr::V4(source) => {
                socket.set_multicast_if_v4(&source)?;
                socket.set_multicast_ttl_v4(ttl.into())?;
                socket.set_multicast_loop_v4(true)?;
            }
            IpAddr::V6(_) => {
                socket.set_multicast_if_v6(place.index)?;
                socket.set_multicast_hops_v6(ttl.into())?;
                socket.set_multicast_loop_v6(true)?;
            }
        }
        let on_place = |address: IpAddr, port| match address {
            IpAddr::V4(address) => SocketAddr::from((address, port)),
            IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, place.index).into(),
        };
        socket.bind(&on_place(place.source, 0).into())?;
        let to = on_place(place.group, port);
        Ok(Self { place: place.clone(), socket: socket.into(), to })
    }
}

/// Says once which wanted interfaces do not exist, and once that they came.
pub(super) fn complain_of_missing(look: &Look, wanted: &[String], troubles: &mut Troubles) {
    let missing = look.missing(wanted);
    for name in wanted {
        let what = format!("missing {name}");
        if !missing.contains(&name.as_str()) {
            if troubles.end(&what) {
                tracing::info!(interface = %name, "the interface is there");
            }
        } else if troubles.begin(&what) {
            let there = look.names();
            tracing::warn!(interface = %name, %there, "no such interface: waiting for it, no other is used instead");
        }
    }
}

const ON: &str = "on ";
const TOO_LONG: &str = "too long for ";
const NOWHERE: &str = "nowhere";
const ALONE: &str = "alone";

/// The trouble of an interface: one group at a time is sent to there.
fn on(place: &Place) -> String {
    format!("{ON}{}", place.interface)
}

/// Whether this is the frame's fault: the socket is good for others.
pub(super) fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EMSGSIZE as i32)
}

/// The address that binds every interface of a family.
pub(super) fn any(is_v4: bool) -> IpAddr {
    if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests;
