//! How far a group's datagrams go: by hops, and back to the machine that they come from.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use loadline::report::{Keyring, wire};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};

use crate::support::net::{Net, by, configured, reports};
use crate::support::{PATIENCE, report};

/// Interface of the networks that [`Net::lan`] makes, by its number in a machine's namespace.
const CABLE: &str = "e1";

/// The hops that are left of the first datagram that comes by this group.
fn hops_seen(group: SocketAddr) -> i32 {
    let socket = UdpSocket::bind(group).unwrap();
    match group.ip() {
        IpAddr::V4(group) => {
            setsockopt(&socket, sockopt::Ipv4RecvTtl, &true).unwrap();
            socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 1, 1)).unwrap();
        }
        IpAddr::V6(group) => {
            setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true).unwrap();
            let index = nix::net::if_::if_nametoindex(CABLE).unwrap();
            socket.join_multicast_v6(&group, index).unwrap();
        }
    }
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut bytes, mut space) = ([0; 2_000], nix::cmsg_space!(i32));
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let (from, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let message = recvmsg::<SockaddrStorage>(from, &mut slices, Some(&mut space), flags).unwrap();
    let hops = message.cmsgs().unwrap().find_map(|control| match control {
        ControlMessageOwned::Ipv4Ttl(hops) | ControlMessageOwned::Ipv6HopLimit(hops) => Some(hops),
        _ => None,
    });
    hops.unwrap()
}

/// O-A07: the setting is on the wire, in both families.
#[test]
fn hops_are_as_configured() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    for (number, ttl) in (13_000..).zip([1, 4, 255]) {
        for group in [
            SocketAddr::from((Ipv4Addr::new(239, 1, 1, 1), number)),
            SocketAddr::from((Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 1), number)),
        ] {
            let _agent = net.agent("a", configured(&format!("ttl = {ttl}\ngroup = \"{group}\"")));
            assert_eq!(net.within("h", move || hops_seen(group)), ttl, "{group}");
        }
    }
}

/// O-A07: without any hop reports stay on their machine, where they are heard.
#[test]
fn reports_without_a_hop_stay_on_their_machine() {
    let Some(net) = Net::lan(&["h", "a", "b"]) else { return };
    let (here, there) = (net.host("a", reports()), net.host("h", reports()));
    let _agents = [net.agent("a", configured("ttl = 0")), net.agent("b", reports())];
    here.lists(&["a", "b"]);
    // As many as the other agent has sent meanwhile, and none of them left.
    there.until("ten reports of the one with a hop", |machines| {
        let b = machines.iter().find(|machine| machine["name"] == "b")?;
        (b["seq"].as_u64()? >= 10).then_some(())
    });
    there.lists(&["b"]);
    assert_eq!(there.json("/v1/machines").as_array().unwrap().len(), 1, "it was never heard there");
    here.lists(&["a", "b"]);
}

/// O-A06: the sending socket decides whether its own machine hears it, whatever the receiving one says;
/// an agent's always lets it, so there is no setting.
#[test]
fn own_machine_hears_who_lets_it() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let (here, there) = (net.host("a", reports()), net.host("h", reports()));
    let _agent = net.agent("a", reports());
    let port = here.port;
    net.within("a", move || {
        for (machine, is_looped) in [("apart", false), ("shared", true)] {
            let socket = UdpSocket::bind((Ipv4Addr::new(10, 77, 1, 2), 0)).unwrap();
            socket.set_multicast_loop_v4(is_looped).unwrap();
            let frame = wire::encode(&[report(machine, &[])], &Keyring::default()).unwrap();
            socket.send_to(&frame, (Ipv4Addr::new(239, 255, 76, 76), port)).unwrap();
        }
    });
    there.lists(&["a", "apart", "shared"]);
    here.lists(&["a", "shared"]);
}

/// O-A23: interfaces that cannot multicast are left alone by groups until they can; datagrams and connections to
/// the host go by them all the while.
#[test]
fn interfaces_without_multicast_carry_datagrams_and_connections() {
    let Some(net) = Net::lan(&["h", "u", "t", "m"]) else { return };
    let all = ["h", "u", "t", "m"];
    all.iter().for_each(|machine| net.ip(machine, "link set e1 multicast off"));
    let host = net.host("h", reports());
    let _agents = [
        net.agent("u", by(&["udp://10.77.1.1:12000"])),
        net.agent("t", by(&["tcp://10.77.1.1:12000"])),
        net.agent("m", reports()),
    ];
    host.lists(&["t", "u"]);
    assert!(!host.text("/metrics").contains("interface=\"e1\""), "no group is joined there");
    all.iter().for_each(|machine| net.ip(machine, "link set e1 multicast on"));
    host.lists(&["m", "t", "u"]);
    assert!(host.text("/metrics").contains("{interface=\"e1\",group=\"239.255.76.76\"} 1"));
}

/// O-A02, O-A03: with the default route by another cable, whichever came first, reports leave by the named interface
/// and, where none is named, by both.
#[test]
fn default_route_decides_nothing() {
    for [first, second] in [[1, 2], [2, 1]] {
        let Some(mut net) = Net::new() else { return };
        for lan in [1, 2] {
            net.bridge(lan);
        }
        net.machine("a");
        for lan in [first, second] {
            net.plug("a", lan, 9);
            net.address("a", lan, 9);
        }
        for (machine, lan) in [("near", 1), ("far", 2)] {
            net.machine(machine);
            net.plug(machine, lan, 1);
            net.address(machine, lan, 1);
        }
        net.ip("a", "route add default via 10.77.2.1 dev e2");
        let hosts = ["near", "far"].map(|machine| net.host(machine, reports()));
        let named = net.agent("a", configured("interfaces = [\"e1\"]"));
        hosts[0].until("ten reports", |machines| {
            (machines.first()?["seq"].as_u64()? > 10).then_some(())
        });
        hosts[0].offers("a", "10.77.1.9");
        assert!(hosts[1].json("/v1/machines").as_array().unwrap().is_empty(), "none leaves there");
        named.stop();
        hosts[0].lists(&[]);
        let _everywhere = net.agent("a", reports());
        hosts[0].offers("a", "10.77.1.9");
        hosts[1].offers("a", "10.77.2.9");
    }
}
