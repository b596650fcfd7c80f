//! The network interfaces of this machine: names wanted in, places to send and to hear out.
//!
//! Without a wish every interface is used that is up and can multicast; tunnels (point to point) and
//! loopback only when they are named, or loopback when there is nothing else: a machine by itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

use super::status::Troubles;
use crate::config::Groups;

/// A group on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `eth0`
    pub interface: String,
    /// The kernel's number: another one for an interface that was made anew under its old name.
    pub index: u32,
    /// The group.
    pub group: IpAddr,
    /// The interface's address, of the group's family; what is sent here comes from it.
    pub source: IpAddr,
}

/// An interface with its best address of each family.
#[derive(Debug, Clone)]
pub(super) struct Link {
    name: String,
    index: u32,
    flags: InterfaceFlags,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

const LIST: &str = "list";

/// The interfaces as they are now.
#[derive(Debug, Default)]
pub(super) struct Look {
    links: Vec<Link>,
}

impl Look {
    /// `None`: they cannot be listed now, which says nothing about them.
    pub(super) fn now(troubles: &mut Troubles) -> Option<Self> {
        match getifaddrs() {
            Ok(entries) => {
                if troubles.end(LIST) {
                    tracing::info!("the network interfaces can be listed again");
                }
                Some(Self { links: links(entries) })
            }
            Err(error) => {
                if troubles.begin(LIST) {
                    tracing::warn!(%error, "cannot list the network interfaces: what is in use stays");
                }
                None
            }
        }
    }

    /// Where to join: both families, wherever there is an address of the family.
    pub(super) fn hearing(&self, groups: Groups, wanted: &[String]) -> Vec<Place> {
        let usable = self.usable(wanted).into_iter();
        usable.flat_map(|link| [link.v4_place(groups), link.v6_place(groups)]).flatten().collect()
    }

    /// Where to send: one family an interface, so that nobody hears a report twice.
    pub(super) fn sending(&self, groups: Groups, wanted: &[String]) -> Vec<Place> {
        let usable = self.usable(wanted).into_iter();
        usable.filter_map(|link| link.v4_place(groups).or_else(|| link.v6_place(groups))).collect()
    }

    /// The wanted names that no interface has.
    pub(super) fn missing<'w>(&self, wanted: &'w [String]) -> Vec<&'w str> {
        let is_missing = |name: &&String| !self.links.iter().any(|link| link.name == **name);
        wanted.iter().filter(is_missing).map(String::as_str).collect()
    }

    /// Whether what begins with an interface's name is of one that exists, up or not.
    pub(super) fn is_there(&self, named: &str) -> bool {
        named.split(' ').next().is_some_and(|name| self.links.iter().any(|l| l.name == name))
    }

    /// Whether nothing can be sent by this interface: it is down, away or has no address for a group.
    pub(super) fn is_cut(&self, name: &str, groups: Groups) -> bool {
        let can_send = |link: &Link| {
            let has_place = link.v4_place(groups).or_else(|| link.v6_place(groups)).is_some();
            link.flags.contains(InterfaceFlags::IFF_UP) && has_place
        };
        !self.links.iter().any(|link| link.name == name && can_send(link))
    }

    /// Whether there are places, and all on loopback.
    pub(super) fn is_local(&self, places: &[Place]) -> bool {
        let is_loopback = |place: &Place| {
            let link = self.links.iter().find(|link| link.index == place.index);
            link.is_some_and(|link| link.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        };
        !places.is_empty() && places.iter().all(is_loopback)
    }

    /// All names, for messages.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.links.iter().map(|link| link.name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    /// The addresses that reports of this machine come from.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let both = |link: &Link| [link.v4.map(IpAddr::V4), link.v6.map(IpAddr::V6)];
        self.links.iter().flat_map(both).flatten().collect()
    }

    fn usable(&self, wanted: &[String]) -> Vec<&Link> {
        let up = |link: &&Link| link.flags.contains(InterfaceFlags::IFF_UP);
        let up = self.links.iter().filter(up);
        if !wanted.is_empty() {
            return up.filter(|link| wanted.contains(&link.name)).collect();
        }
        let (loopback, real): (Vec<_>, Vec<_>) = up
            .filter(|link| link.v4.is_some() || link.v6.is_some())
            .partition(|link| link.flags.contains(InterfaceFlags::IFF_LOOPBACK));
        let fits = |link: &&Link| {
            link.flags.contains(InterfaceFlags::IFF_MULTICAST)
                && !link.flags.contains(InterfaceFlags::IFF_POINTOPOINT)
        };
        let real: Vec<_> = real.into_iter().filter(fits).collect();
        if real.is_empty() { loopback } else { real }
    }
}

impl Link {
    fn v4_place(&self, groups: Groups) -> Option<Place> {
        Some(self.place(groups.v4?.into(), self.v4?.into()))
    }

    fn v6_place(&self, groups: Groups) -> Option<Place> {
        Some(self.place(groups.v6?.into(), self.v6?.into()))
    }

    fn place(&self, group: IpAddr, source: IpAddr) -> Place {
        Place { interface: self.name.clone(), index: self.index, group, source }
    }
}

/// All addresses of this machine.
pub(super) fn addresses() -> io::Result<Vec<IpAddr>> {
    Ok(getifaddrs()?.filter_map(|entry| ip(entry.address.as_ref()?)).collect())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

fn links(entries: impl Iterator<Item = nix::ifaddrs::InterfaceAddress>) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for entry in entries {
        let known = links.iter().position(|link| link.name == entry.interface_name);
        let at = known.or_else(|| {
            // One that has just gone has no number any more.
            let index = if_nametoindex(&*entry.interface_name).ok()?;
            let (name, flags) = (entry.interface_name.clone(), entry.flags);
            links.push(Link { name, index, flags, v4: None, v6: None });
            Some(links.len() - 1)
        });
        let (Some(at), Some(address)) = (at, &entry.address) else { continue };
        match ip(address) {
            Some(IpAddr::V4(v4)) => {
                links[at].v4.get_or_insert(v4); // the kernel names the main one first
            }
            Some(IpAddr::V6(v6)) => {
                let best = &mut links[at].v6;
                if best.is_none_or(|known| known.is_unicast_link_local()) {
                    *best = Some(v6); // one that others can be told
                }
            }
            None => {}
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(links: &[(&str, InterfaceFlags, bool, bool)]) -> Look {
        let link =
            |(index, &(name, flags, v4, v6)): (u32, &(&str, InterfaceFlags, bool, bool))| Link {
                name: name.to_owned(),
                index,
                flags: flags | InterfaceFlags::IFF_UP,
                v4: v4.then_some(Ipv4Addr::new(10, 0, 0, 1)),
                v6: v6.then_some(Ipv6Addr::LOCALHOST),
            };
        Look { links: (1..).zip(links).map(link).collect() }
    }

    #[track_caller]
    fn check(places: Vec<Place>, expected: &[&str]) {
        let family = |place: &Place| if place.group.is_ipv4() { "4" } else { "6" };
        let found: Vec<_> =
            places.iter().map(|p| format!("{}:{}", p.interface, family(p))).collect();
        assert_eq!(found, expected);
    }

    const LAN: InterfaceFlags = InterfaceFlags::IFF_MULTICAST;
    const LO: InterfaceFlags = InterfaceFlags::IFF_LOOPBACK;

    #[test]
    fn hosts_hear_both_families_and_agents_send_on_one() {
        let tunnel = LAN | InterfaceFlags::IFF_POINTOPOINT;
        let dual = look(&[
            ("lo", LO, true, true),
            ("a", LAN, true, true),
            ("b", LAN, false, true),
            ("tun0", tunnel, true, true),
        ]);
        let groups = Groups::default();
        check(dual.hearing(groups, &[]), &["a:4", "a:6", "b:6"]);
        check(dual.sending(groups, &[]), &["a:4", "b:6"]);
        let only_v6 = Groups { v4: None, ..groups };
        check(dual.sending(only_v6, &[]), &["a:6", "b:6"]);
        check(dual.sending(groups, &["tun0".to_owned()]), &["tun0:4"]);
        check(dual.sending(groups, &["nope0".to_owned()]), &[]);
        assert_eq!(dual.missing(&["nope0".to_owned(), "a".to_owned()]), ["nope0"]);
    }

    #[test]
    fn a_machine_by_itself_uses_loopback() {
        let alone = look(&[("lo", LO, true, true), ("a", LAN, false, false)]);
        check(alone.sending(Groups::default(), &[]), &["lo:4"]);
        check(alone.sending(Groups { v4: None, v6: None, port: 1 }, &[]), &[]);
    }
}
