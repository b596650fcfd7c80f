//! Frames in: what is sent to the groups, to this machine by datagram, or over TCP, on one port.
//!
//! A family has two sockets, one bound to its group and one to every address, so that what came by
//! multicast is known, other groups on the port are not heard, and unicast still is: at loopback alone
//! where that is the only interface. A group of one link (`ff02::…`) has a socket for each link.
//! Memberships follow the interfaces; while those cannot be listed everything stays as it is. A socket
//! that fails is opened again, and joins again ([`Ears`]).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{InterfaceIndexOrAddress, SockRef};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

use super::batch::Batch;
use super::changes::Changes;
use super::ear::{Ear, Ears, Spot, bind_all, enlarge, is_of_link, reach};
use super::interface::{Look, Place};
use super::listener::{Connections, Judge, Take, Verdict};
use super::outlet::complain_of_missing;
use super::silence::{Heard, Silence};
use super::status::{Status, Troubles};
use crate::config::{Groups, ReportsConfig};

/// Free ports tried, until one is free for datagrams and connections.
const FREE_PORTS: u32 = 16;

/// Receives frames.
#[derive(Debug)]
pub struct Inlet {
    groups: Groups,
    wanted: Vec<String>,
    receive_buffer: usize,
    /// Changed by who holds [`Inlet::silence`]'s other end.
    silence: (watch::Sender<Duration>, watch::Receiver<Duration>),
    /// Until they run.
    ears: Vec<Ear>,
    /// The groups' sockets, once the ears run.
    sockets: Vec<(Spot, Arc<UdpSocket>)>,
    /// Links whose sockets are to end.
    left: Vec<u32>,
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
            receive_buffer: config.receive_buffer,
            silence: watch::channel(config.silence),
            ears,
            sockets: Vec::new(),
            left: Vec::new(),
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
        inlet.status.is_receiving.store(true, Ordering::Relaxed);
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
        let mut ears = Ears::default(); // end with this one
        self.follow(&mut ears, &take);
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
                () = self.changes.next() => {
                    self.look();
                    self.follow(&mut ears, &take);
                }
                () = silence.next() => silence.look(&self.heard, &self.status),
                failed = ears.next() => self.hear_again(failed, &mut ears, &take),
            }
        }
    }

    /// Listens to the sockets that were opened, ends those that were left.
    fn follow(&mut self, ears: &mut Ears, take: &impl Take) {
        for link in self.left.drain(..) {
            ears.forget(link);
        }
        let bound = std::mem::take(&mut self.ears);
        self.hear(bound, ears, take);
    }

    fn hear(&mut self, bound: Vec<Ear>, ears: &mut Ears, take: &impl Take) {
        for ear in bound {
            let spot = ear.spot;
            if spot.group.is_some() {
                self.sockets.retain(|(of, _)| *of != spot);
                self.sockets.push((spot, Arc::clone(&ear.socket)));
            }
            ears.listen(ear, take.clone(), &self.heard, &self.status);
        }
    }

    /// Opens sockets that failed, and joins their groups again.
    fn hear_again(&mut self, failed: Option<String>, ears: &mut Ears, take: &impl Take) {
        if let Some(why) = failed {
            self.status.is_receiving.store(false, Ordering::Relaxed);
            if self.troubles.begin(DEAF) {
                tracing::warn!(why, "a socket for reports has failed: opening it again");
            }
        }
        let opened = ears.reopen(&self.status);
        enlarge(&opened, self.receive_buffer);
        let is_new = |place: &Place| opened.iter().any(|ear| ear.spot.hears(place));
        self.joined.retain(|place| !is_new(place));
        self.hear(opened, ears, take);
        self.look();
        self.follow(ears, take);
        if ears.are_whole() {
            self.status.is_receiving.store(true, Ordering::Relaxed);
            if self.troubles.end(DEAF) {
                tracing::info!("reports are received again");
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
        for place in &self.joined.clone() {
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

    fn membership(&mut self, place: &Place, change: Membership) -> io::Result<()> {
        if let IpAddr::V6(group) = place.group
            && is_of_link(group)
        {
            return self.link_socket(group, place, change);
        }
        self.change(place, change)
    }

    /// A group of one link: its socket there comes and goes with the membership.
    fn link_socket(
        &mut self,
        group: Ipv6Addr,
        place: &Place,
        change: Membership,
    ) -> io::Result<()> {
        let is_there = self.socket(place).is_some();
        match change {
            Membership::Join if is_there => self.change(place, change),
            Membership::Join => {
                let ear = Ear::of_link(group, self.groups.port, place.index, &self.status)?;
                enlarge(std::slice::from_ref(&ear), self.receive_buffer);
                self.ears.push(ear);
                let joined = self.change(place, change);
                if joined.is_err() {
                    self.ears.pop();
                }
                joined
            }
            Membership::Leave => {
                self.ears.retain(|ear| !ear.spot.hears(place));
                self.sockets.retain(|(spot, _)| !spot.hears(place));
                self.left.push(place.index);
                Ok(())
            }
        }
    }

    /// The socket that hears a group there.
    fn socket(&self, place: &Place) -> Option<&Arc<UdpSocket>> {
        let bound = self.ears.iter().map(|ear| (ear.spot, &ear.socket));
        let kept = self.sockets.iter().map(|(spot, socket)| (*spot, socket));
        bound.chain(kept).find(|(spot, _)| spot.hears(place)).map(|(_, socket)| socket)
    }

    fn change(&self, place: &Place, change: Membership) -> io::Result<()> {
        let missing = || io::Error::new(io::ErrorKind::Unsupported, "this system has no IPv6");
        let socket = SockRef::from(self.socket(place).ok_or_else(missing)?);
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
const DEAF: &str = "deaf";
const NOWHERE: &str = "nowhere";
const TCP: &str = "tcp";

/// Where connections are taken.
fn tcp_addresses(config: &ReportsConfig, port: u16) -> Vec<SocketAddr> {
    let families: &[bool] = if config.tcp { &[true, false] } else { &[] };
    let at = |is_v4: &bool| SocketAddr::new(reach(*is_v4, config.is_local()), port);
    families.iter().map(at).collect()
}

#[cfg(test)]
mod tests;
