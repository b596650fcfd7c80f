//! Reports on real networks: machines in namespaces, on bridges, whose interfaces come, go and change.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use loadline::report::{Keyring, Report, wire};

use crate::support::net::{Net, by, configured, reports, throw};
use crate::support::{report, service};

#[test]
fn two_hosts_list_three_agents_and_one_that_leaves_is_gone() {
    let Some(net) = Net::lan(&["h1", "h2", "a1", "a2", "a3"]) else { return };
    let hosts = [net.host("h1", reports()), net.host("h2", reports())];
    let mut agents: Vec<_> = ["a1", "a2", "a3"].map(|name| net.agent(name, reports())).into();
    for host in &hosts {
        host.lists(&["a1", "a2", "a3"]);
        host.offers("a1", "10.77.1.3");
    }
    agents.pop().unwrap().stop();
    for host in &hosts {
        host.lists(&["a1", "a2"]);
    }
}

/// Where they must run, tests that cannot make their network do not pass.
#[test]
fn network_that_is_required_is_not_left_out() {
    let run = |wish: &str| {
        let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
        tests.args(["--exact", "net::two_hosts_list_three_agents_and_one_that_leaves_is_gone"]);
        // There is no `ip` here.
        tests.env("PATH", "").env("LOADLINE_NETNS", wish).output().unwrap()
    };
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let (left_out, required) = (run(""), run("required"));
    assert!(left_out.status.success(), "{}", said(&left_out));
    assert!(said(&left_out).contains("1 passed"), "{}", said(&left_out));
    assert!(!required.status.success(), "{}", said(&required));
    assert!(said(&required).contains("network namespaces need root and ip"), "{}", said(&required));
}

#[test]
fn interface_that_goes_down_comes_back_is_made_anew_or_gets_another_address() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", reports());
    let _agent = net.agent("a", reports());
    host.lists(&["a"]);
    for machine in ["a", "h"] {
        net.ip(machine, "link set e1 down");
        host.lists(&[]);
        net.ip(machine, "link set e1 up");
        host.lists(&["a"]);
    }
    for (machine, number) in [("a", 2), ("h", 1)] {
        net.ip(machine, "link del e1");
        host.lists(&[]);
        net.plug(machine, 1, number);
        net.address(machine, 1, number);
        host.lists(&["a"]);
    }
    host.offers("a", "10.77.1.2");
    net.ip("a", "address del 10.77.1.2/24 dev e1");
    net.ip("a", "address add 10.77.1.22/24 dev e1");
    host.offers("a", "10.77.1.22");
    assert_eq!(host.json("/v1/machines").as_array().unwrap().len(), 1);
}

/// O-A01, O-A02, O-A12: without routes, and with the interface there later than the process.
#[test]
fn network_that_comes_after_the_start_is_used_without_routes() {
    let Some(mut net) = Net::new() else { return };
    net.bridge(1);
    net.machine("h");
    net.machine("a");
    let host = net.host("h", reports());
    let _agent = net.agent("a", reports());
    for (machine, number) in [("h", 1), ("a", 2)] {
        net.plug(machine, 1, number);
        // A single address, and no route to anywhere else.
        net.ip(machine, &format!("address add 10.77.1.{number}/32 dev e1"));
    }
    host.lists(&["a"]);
    host.offers("a", "10.77.1.2");
}

/// O-A05: a named interface that is not there is waited for; no other is used.
#[test]
fn named_interface_is_waited_for() {
    let Some(net) = Net::lan(&["h", "a", "b"]) else { return };
    let host = net.host("h", reports());
    let named = configured("interfaces = [\"late0\"]");
    let _late = net.agent("a", named);
    let _other = net.agent("b", reports());
    host.lists(&["b"]);
    net.ip("a", "link set e1 down");
    net.ip("a", "link set e1 name late0");
    net.ip("a", "link set late0 up");
    host.lists(&["a", "b"]);
}

/// O-A03, O-A21: every interface is joined, and a report that comes by two is counted once.
#[test]
fn host_on_two_networks_hears_both_and_counts_reports_once() {
    let Some(mut net) = Net::lan(&["h", "a", "both"]) else { return };
    net.bridge(2);
    net.machine("b");
    for (machine, number) in [("h", 1), ("b", 2), ("both", 3)] {
        net.plug(machine, 2, number);
        net.address(machine, 2, number);
    }
    let host = net.host("h", reports());
    let _agents = ["a", "b", "both"].map(|name| net.agent(name, reports()));
    host.lists(&["a", "b", "both"]);
    let metrics = host.text("/metrics");
    for place in ["e1", "e2"].map(|e| format!("{{interface=\"{e}\",group=\"239.255.76.76\"}} 1")) {
        assert!(metrics.contains(&place), "{place}: {metrics}");
    }
    host.until("twenty reports by both ways, none lost", |machines| {
        let both = machines.iter().find(|machine| machine["name"] == "both")?;
        (both["seq"].as_u64()? >= 20).then(|| assert_eq!(both["loss"]["lost"], 0, "{both}"))
    });
}

/// Of two ways the one is of a link alone: its address is nothing to anybody else.
#[test]
fn address_of_one_link_is_the_last_choice() {
    let Some(mut net) = Net::new() else { return };
    net.bridge(1);
    net.bridge(2);
    for (machine, number) in [("h", 1), ("a", 2)] {
        net.machine(machine);
        net.plug(machine, 1, number);
        net.ip(machine, &format!("address add fe80::{number}/64 dev e1 nodad"));
        net.plug(machine, 2, number);
        net.address(machine, 2, number);
    }
    let host = net.host("h", reports());
    let _agent = net.agent("a", reports());
    let duplicate = "loadline_reports_rejected_total{reason=\"duplicate\"}";
    let first = host.until("reports by both ways", |machines| {
        let seq = machines.first()?["seq"].as_u64()?;
        host.text("/metrics").contains(duplicate).then_some(seq)
    });
    host.until("twenty reports more", |machines| {
        let machine = machines.first()?;
        assert_eq!(machine["targets"][0]["address"], "10.77.2.2", "{machine}");
        (machine["seq"].as_u64()? >= first + 20).then_some(())
    });
}

#[test]
fn only_ipv6_works_alone_and_addresses_are_bracketed() {
    let Some(mut net) = Net::new() else { return };
    net.bridge(1);
    for (machine, number) in [("h", 1), ("a", 2)] {
        net.machine(machine);
        net.plug(machine, 1, number);
        net.ip(machine, &format!("address add fd77:1::{number}/64 dev e1 nodad"));
    }
    let host = net.host("h", reports());
    let _agent = net.agent("a", reports());
    host.lists(&["a"]);
    host.offers("a", "[fd77:1::2]");
    let answer = host.json("/v1/target");
    assert_eq!(answer["url"], "http://[fd77:1::2]", "{answer}");
    assert!(host.metric("datagrams_multicast_total") > 0);
}

/// O-A11: a group of one link, on the second interface.
#[test]
fn link_local_group_is_joined_on_the_named_interface() {
    let Some(mut net) = Net::lan(&["h", "a"]) else { return };
    net.bridge(2);
    for (machine, number) in [("h", 1), ("a", 2)] {
        net.plug(machine, 2, number);
        net.address(machine, 2, number);
    }
    let second = || configured("group = \"[ff02::4c4c]:12000\"\ninterfaces = [\"e2\"]");
    let host = net.host("h", second());
    let _agent = net.agent("a", second());
    host.lists(&["a"]);
    let metrics = host.text("/metrics");
    assert!(metrics.contains("{interface=\"e2\",group=\"ff02::4c4c\"} 1"), "{metrics}");
    assert!(!metrics.contains("interface=\"e1\""), "{metrics}");
}

/// O-A23, O-A09: no multicast at all, by datagram and by connection; then beside it, on one port.
#[test]
fn unicast_and_tcp_work_where_multicast_does_not() {
    let Some(net) = Net::lan(&["h", "u", "t", "m"]) else { return };
    net.ip("br", "link set p11 type bridge_slave mcast_flood off");
    let host = net.host("h", reports());
    let _agents = [
        net.agent("u", by(&["udp://10.77.1.1:12000"])),
        net.agent("t", by(&["tcp://10.77.1.1:12000"])),
        net.agent("m", reports()),
    ];
    host.lists(&["t", "u"]);
    assert_eq!(host.metric("datagrams_multicast_total"), 0);
    net.ip("br", "link set p11 type bridge_slave mcast_flood on");
    host.lists(&["m", "t", "u"]);
    assert_eq!(host.metric("tcp_open"), 1);
}

/// O-A23: beside a group of one link, too, what comes to this machine alone is no multicast. Its sockets come
/// and go with the links.
#[test]
fn unicast_is_no_multicast_beside_a_group_of_one_link() {
    let Some(net) = Net::lan(&["h", "u", "m"]) else { return };
    let of_link = || configured("group = \"[ff02::4c4c]:12000\"\nsilence = \"0s\"");
    let host = net.host("h", of_link());
    let _unicast = net.agent("u", by(&["udp://[fd77:1::1]:12000"]));
    let seq = |machines: &[serde_json::Value]| machines.first()?["seq"].as_u64();
    host.until("ten reports", |machines| (seq(machines)? > 10).then_some(()));
    assert_eq!(host.metric("datagrams_multicast_total"), 0);
    let _multicast = net.agent("m", of_link());
    host.lists(&["m", "u"]);
    assert!(host.metric("datagrams_multicast_total") > 0);
    net.ip("h", "link set e1 down");
    host.lists(&[]);
    net.ip("h", "link set e1 up");
    net.ip("h", "address replace fd77:1::1/64 dev e1 nodad"); // IPv6 addresses go with the link
    host.lists(&["m", "u"]);
    net.ip("h", "link del e1");
    host.lists(&[]);
    net.plug("h", 1, 1);
    net.address("h", 1, 1);
    host.lists(&["m", "u"]);
    assert_eq!(host.metric("receiving"), 1);
}

/// O-A09 by IPv6: on one port, whether the group is bound by itself or, being of one link, beside unicast.
#[test]
fn unicast_and_multicast_share_a_port_over_ipv6() {
    for group in ["[ff15::4c4c]:12000", "[ff02::4c4c]:12000"] {
        let Some(net) = Net::lan(&["h", "m", "u"]) else { return };
        let by_group = || configured(&format!("group = \"{group}\""));
        let host = net.host("h", by_group());
        let _agents =
            [net.agent("m", by_group()), net.agent("u", by(&["udp://[fd77:1::1]:12000"]))];
        host.lists(&["m", "u"]);
        host.offers("m", "[fd77:1::2]");
        host.offers("u", "[fd77:1::3]");
    }
}

#[test]
fn unicast_and_tcp_work_over_ipv6() {
    let Some(net) = Net::lan(&["h", "u", "t"]) else { return };
    let host = net.host("h", reports());
    let _agents = [
        net.agent("u", by(&["udp://[fd77:1::1]:12000"])),
        net.agent("t", by(&["tcp://[fd77:1::1]:12000"])),
    ];
    host.lists(&["t", "u"]);
    host.offers("u", "[fd77:1::2]");
    host.offers("t", "[fd77:1::3]");
}

/// O-C09, O-A15: an agent outlives its host, by every way.
#[test]
fn agents_report_to_a_host_that_comes_later_and_again() {
    let Some(net) = Net::lan(&["h", "u", "t"]) else { return };
    let _agents = [
        net.agent("u", by(&["udp://10.77.1.1:12000"])),
        net.agent("t", by(&["tcp://10.77.1.1:12000"])),
    ];
    for _ in 0..2 {
        let host = net.host("h", reports());
        host.lists(&["t", "u"]);
        host.stop();
    }
}

/// O-A04: what cannot be reached is not offered.
#[test]
fn wildcard_loopback_and_multicast_addresses_are_not_offered() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", reports());
    for (machine, address, offered) in [
        ("any", "0.0.0.0:80", "10.77.1.2:80"),
        ("any6", "[::]:80", "10.77.1.2:80"),
        ("loop", "127.0.0.1:81", "10.77.1.2:81"),
        ("local", "http://localhost:82/x", "10.77.1.2:82"),
        ("group", "224.0.0.1", "10.77.1.2"),
        ("own", "10.9.9.9:83", "10.9.9.9:83"),
    ] {
        let services = vec![service("default", address)];
        let frame =
            wire::encode(&[Report { services, ..report(machine, &[]) }], &Keyring::default());
        let to = SocketAddr::from(([10, 77, 1, 1], host.port));
        let from = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        net.within("a", move || throw(from, to, &frame.unwrap()));
        host.offers(machine, offered);
    }
    let answer = host.text("/v1/target?n=6");
    assert!(answer.contains("\"url\":\"http://10.77.1.2:82/x\""), "{answer}");
}

/// Two networks with a machine on both, `r`; the farm on the first, a host on the second.
fn two_lans() -> Option<Net> {
    let mut net = Net::lan(&["r", "a", "b", "near"])?;
    net.bridge(2);
    net.machine("far");
    for (machine, number) in [("r", 1), ("far", 2)] {
        net.plug(machine, 2, number);
        net.address(machine, 2, number);
    }
    Some(net)
}

const HEARD: &str = "[reports]\ninterfaces = [\"e1\"]\n[relay]\n";

fn check_relay(to: &str) {
    let Some(net) = two_lans() else { return };
    let (near, far) = (net.host("near", reports()), net.host("far", reports()));
    let _agents = ["a", "b"].map(|name| net.agent(name, reports()));
    near.lists(&["a", "b"]);
    let relay = net.relay("r", &format!("{HEARD}{to}"));
    far.lists(&["a", "b"]);
    // Where the machine is, not the relay.
    far.offers("a", "10.77.1.2");
    far.offers("b", "10.77.1.3");
    near.lists(&["a", "b"]);
    assert!(relay.stop() > 0);
    far.lists(&[]);
}

#[test]
fn relay_brings_a_farm_to_a_host_of_another_network_by_datagram() {
    check_relay("send_to = [\"udp://10.77.2.2:12000\"]");
}

#[test]
fn relay_brings_a_farm_to_a_host_of_another_network_by_tcp() {
    check_relay("send_to = [\"tcp://10.77.2.2:12000\"]");
}

#[test]
fn relay_brings_a_farm_to_the_same_group_of_another_network() {
    check_relay("group = \"239.255.76.76:12000\"\ninterfaces = [\"e2\"]");
}

/// Each sends to the other: what a relay sent is relayed by none, and no report is counted twice.
#[test]
fn two_relays_make_no_loop() {
    let Some(net) = two_lans() else { return };
    let far = net.host("far", reports());
    let _agent = net.agent("a", reports());
    let there =
        net.relay("r", &format!("{HEARD}group = \"239.255.76.76:12000\"\ninterfaces = [\"e2\"]"));
    let back = net.relay(
        "r",
        "[reports]\ninterfaces = [\"e2\"]\ntcp = false\n[relay]\n\
         group = \"239.255.76.76:12000\"\ninterfaces = [\"e1\"]",
    );
    far.until("twenty reports", |machines| {
        (machines.first()?["seq"].as_u64()? >= 20).then_some(())
    });
    assert_eq!(back.stop(), 0);
    assert!(there.stop() > 0);
    let duplicates = far.text("/metrics").contains("reason=\"duplicate\"");
    assert!(!duplicates, "each report came once");
}

/// The relay has the farm's keys; the stamps stay those of the agents.
#[test]
fn relay_signs_anew() {
    let Some(net) = two_lans() else { return };
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    let keys = format!("keys = [{{ id = 1, secret_file = {:?} }}]", secret.path());
    let far = net.host("far", configured(&keys));
    let _agent = net.agent("a", configured(&keys));
    let _relay = net.relay(
        "r",
        &format!("[reports]\ninterfaces = [\"e1\"]\n{keys}\n[relay]\nsend_to = [\"tcp://[fd77:2::2]:12000\"]"),
    );
    far.lists(&["a"]);
}
