//! The network interfaces of this machine: names wanted in, usable ones out.

use std::net::Ipv4Addr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

/// One IPv4 address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`
    pub name: String,
    /// Names the interface towards the kernel and is the source of what is sent.
    pub address: Ipv4Addr,
    /// The kernel's number: another one for an interface that was made anew under its old name.
    pub index: u32,
}

/// The interfaces to use: the wanted ones that are up, whatever they are; without a wish every one
/// that can multicast, else loopback.
pub(super) fn usable(wanted: &[String]) -> Vec<Interface> {
    let up = match getifaddrs() {
        Ok(addresses) => addresses.filter(|address| address.flags.contains(InterfaceFlags::IFF_UP)),
        Err(error) => {
            tracing::warn!(%error, "cannot list the network interfaces");
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for entry in up {
        let address =
            entry.address.as_ref().and_then(|address| Some(address.as_sockaddr_in()?.ip()));
        if let Some(address) = address {
            // One that has just gone has no number any more.
            let Ok(index) = if_nametoindex(&*entry.interface_name) else { continue };
            all.push((Interface { name: entry.interface_name, address, index }, entry.flags));
        }
    }
    let of = |test: &dyn Fn(&Interface, InterfaceFlags) -> bool| -> Vec<Interface> {
        let matching = all.iter().filter(|(interface, flags)| test(interface, *flags));
        matching.map(|(interface, _)| interface.clone()).collect()
    };
    if !wanted.is_empty() {
        return of(&|interface, _| wanted.contains(&interface.name));
    }
    let is_loopback = |flags: InterfaceFlags| flags.contains(InterfaceFlags::IFF_LOOPBACK);
    let multicast =
        of(&|_, flags| flags.contains(InterfaceFlags::IFF_MULTICAST) && !is_loopback(flags));
    if multicast.is_empty() { of(&|_, flags| is_loopback(flags)) } else { multicast }
}
