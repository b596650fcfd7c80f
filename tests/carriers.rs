//! What datagrams and connections carry, and what they do when the other side does not: sizes, other
//! groups, two hosts on one machine, full buffers, peers that are silent, bad or do not read.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use loadline::config::Config;
use loadline::report::{Keyring, Metrics, Report, wire};
use loadline::run::Loadline;
use loadline::transport::{Outlet, Receiver, Status};

use crate::support::net::{Net, by, configured, reports, throw};
use crate::support::{Farm, PATIENCE, report};

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn frame(report: Report<'_>) -> Vec<u8> {
    wire::encode(&[report], &Keyring::default()).unwrap()
}

/// O-A18: larger than a frame of the network, up to what a datagram holds.
#[test]
fn large_reports_arrive_whole() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", reports());
    let names: Vec<_> = (0..256).map(|n| format!("{n:03}-{}", "x".repeat(230))).collect();
    for (machine, metrics) in [("a5", 5), ("b6", 6), ("c17", 17), ("d37", 37), ("e250", 250)] {
        let names: Vec<_> = names[..metrics].iter().map(String::as_str).collect();
        let metrics = Metrics { values: vec![0.5; names.len()], names: names.into() };
        let bytes = frame(Report { metrics, ..report(machine, &[]) });
        let to = SocketAddr::from(([10, 77, 1, 1], host.port));
        net.within("a", move || throw(ANY, to, &bytes));
    }
    host.lists(&["a5", "b6", "c17", "d37", "e250"]);
    assert_eq!(host.metric("datagrams_truncated_total"), 0);
}

/// O-A08: another process of the host's machine hears another group on the port.
#[test]
fn other_groups_on_the_port_are_not_heard() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", reports());
    let other = Ipv4Addr::new(239, 7, 7, 8);
    let port = host.port;
    let _member = net.within("h", move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.join_multicast_v4(&other, &Ipv4Addr::new(10, 77, 1, 1)).unwrap();
        socket
    });
    net.within("a", move || {
        let from = IpAddr::from([10, 77, 1, 2]);
        throw(from, (other, port).into(), &frame(report("other", &[])));
        throw(from, (Ipv4Addr::new(239, 255, 76, 76), port).into(), &frame(report("ours", &[])));
    });
    host.lists(&["ours"]);
}

/// O-A10, O-A06: hosts share the groups; the first one has TCP. Who sends on the machine is heard there, too.
#[test]
fn two_hosts_on_one_machine_hear_the_same() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let hosts = [net.host("h", reports()), net.host("h", reports())];
    let _agents = [net.agent("h", reports()), net.agent("a", reports())];
    for host in &hosts {
        host.lists(&["a", "h"]);
    }
}

/// O-A22: a tunnel that fails stops nothing.
#[test]
fn tunnel_is_left_alone() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    net.ip("a", "tuntap add tun0 mode tun");
    net.ip("a", "address add 10.99.0.1/24 dev tun0");
    net.ip("a", "link set tun0 up");
    net.ip("a", "route add default dev tun0");
    let host = net.host("h", reports());
    let _agent = net.agent("a", reports());
    host.offers("a", "10.77.1.2");
    net.ip("a", "link set tun0 down");
    host.lists(&["a"]);
}

/// A name may have addresses of both families: one that works is used.
#[test]
fn names_are_looked_up() {
    let Some(net) = Net::lan(&["h"]) else { return };
    let host = net.host("h", reports());
    let _agent = net.agent("h", by(&["udp://localhost:12000"]));
    host.lists(&["h"]);
}

/// O-A20: what the kernel drops is counted, and nothing else is lost.
#[test]
fn drops_of_a_full_buffer_are_counted() {
    let (status, socket, sender) = pair();
    let mut receiver = Receiver::new(&socket, Arc::clone(&status)).unwrap();
    let (mut sent, mut received) = (60_000, 0);
    (0..sent).for_each(|_| assert_eq!(sender.send(&[7; 1_000]).unwrap(), 1_000));
    let mut drain = |receiver: &mut Receiver| {
        while let Ok(batch) = receiver.receive(&socket) {
            received += batch.len() as u64;
        }
        received
    };
    drain(&mut receiver);
    sender.send(&[7]).unwrap(); // the kernel tells its drops with the next datagram
    sent += 1;
    let received = drain(&mut receiver);
    let dropped = status.kernel_drops.load(Ordering::Relaxed);
    assert!(dropped > 0 && received + dropped == sent, "{received} + {dropped} of {sent}");
}

/// O-A20, a paused host: what waited in the socket has its true age.
#[test]
fn datagram_that_waited_has_the_time_it_came() {
    let (status, socket, sender) = pair();
    let mut receiver = Receiver::new(&socket, status).unwrap();
    // The kernel begins to stamp some time after the first socket of the machine has asked for it;
    // until then a datagram is stamped when it is read.
    let begin = Instant::now();
    loop {
        sender.send(b"is it stamped?").unwrap();
        pass(Duration::from_millis(40));
        let read = Instant::now();
        let stamped = receiver.receive(&socket).unwrap().iter().next().unwrap().received;
        if stamped + Duration::from_millis(20) < read {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "the kernel stamps nothing");
    }
    let before = Instant::now();
    sender.send(b"early").unwrap();
    let after = Instant::now();
    pass(Duration::from_millis(200));
    sender.send(b"late").unwrap();
    let batch = receiver.receive(&socket).unwrap();
    let times: Vec<_> = batch.iter().map(|datagram| datagram.received).collect();
    let slack = Duration::from_millis(50); // the two clocks are not read at one moment
    assert!(times[0] >= before && times[0] <= after + slack, "{:?}", times[0] - before);
    assert!(times[1] >= before + Duration::from_millis(150) && times[1] <= Instant::now());
}

fn pair() -> (Arc<Status>, UdpSocket, UdpSocket) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    sender.connect(socket.local_addr().unwrap()).unwrap();
    (Arc::default(), socket, sender)
}

/// Lets time pass, where that is what is tested.
fn pass(time: Duration) {
    let (_keep, never) = mpsc::channel::<()>();
    assert!(never.recv_timeout(time).is_err());
}

/// O-C17: a host that takes connections and never reads is left, and tried again.
#[tokio::test(flavor = "multi_thread")]
async fn peer_that_does_not_read_is_left() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let config = by(&[&format!("tcp://{to}")]);
    let (frames, queue) = tokio::sync::mpsc::channel(1);
    let outlet = tokio::spawn(Outlet::new(&config, 1).run(queue));
    let feed = tokio::spawn(async move {
        let mut sent = 0_u64;
        while frames.send(vec![7; 60_000]).await.is_ok() {
            sent += 1;
            tokio::time::sleep(Duration::from_millis(5)).await; // an agent's pace
        }
        sent
    });
    let accepted = tokio::task::spawn_blocking(move || {
        let first = listener.accept().unwrap();
        (first, listener.accept().unwrap())
    });
    let both = tokio::time::timeout(PATIENCE, accepted).await;
    both.expect("a second connection").unwrap();
    assert!(!feed.is_finished(), "the agent goes on meanwhile");
    feed.abort();
    outlet.await.unwrap();
}

/// O-C16: connections that send nothing, or something else, are closed by the host.
#[tokio::test(flavor = "multi_thread")]
async fn silent_and_bad_connections_are_closed() {
    let farm = Farm::new("weighted", "p2c").await;
    let connect = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, farm.host().report_port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let write = |stream: &mut TcpStream, bytes: &[u8]| {
        let len = u32::try_from(bytes.len()).unwrap();
        stream.write_all(&[&len.to_be_bytes(), bytes].concat()).unwrap();
    };
    let silent: Vec<_> = (0..50).map(|_| connect()).collect();
    let (mut good, mut foreign, mut huge) = (connect(), connect(), connect());
    write(&mut good, &frame(report("a", &[])));
    farm.eligible(1).await;
    write(&mut foreign, b"GET / HTTP/1.1");
    huge.write_all(&u32::MAX.to_be_bytes()).unwrap();
    for mut stream in [foreign, huge].into_iter().chain(silent) {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed, with or without a reset");
    }
    write(&mut good, &frame(Report { seq: 2, ..report("a", &[]) }));
    farm.until("a report on the connection that is used", |farm| {
        (farm.get("/v1/machines/a")["seq"] == 2).then_some(())
    })
    .await;
    let metrics = crate::support::get(&farm.url("/metrics"), "").1;
    for line in ["loadline_tcp_open 1", "loadline_tcp_closed_total 52"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(metrics.contains("loadline_reports_rejected_total{reason=\"foreign\"} 1"), "{metrics}");
    farm.stop().await;
}

/// Not used up by what is not there: a destination that is away costs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn outlet_ends_although_a_destination_is_away() {
    let away = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let config = by(&[&format!("tcp://{away}"), &format!("udp://{away}")]);
    let (frames, queue) = tokio::sync::mpsc::channel(1);
    let outlet = tokio::spawn(Outlet::new(&config, 1).run(queue));
    for _ in 0..10 {
        frames.send(vec![1; 100]).await.unwrap();
    }
    drop(frames);
    tokio::time::timeout(PATIENCE, outlet).await.expect("an end").unwrap();
}

#[test]
fn host_of_loopback_alone_is_reached_by_nobody_else() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", configured("interfaces = [\"lo\"]"));
    let port = host.port;
    for address in ["10.77.1.1", "fd77:1::1"] {
        let there = SocketAddr::new(address.parse().unwrap(), port);
        let connected = net.within("a", move || {
            let from = if there.is_ipv4() { ANY } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
            throw(from, there, &frame(report("far", &[])));
            TcpStream::connect(there).map(drop)
        });
        assert_eq!(connected.unwrap_err().kind(), ErrorKind::ConnectionRefused, "{there}");
    }
    for (address, machine) in [("127.0.0.1", "near"), ("::1", "near6")] {
        let here = SocketAddr::new(address.parse().unwrap(), port);
        net.within("h", move || {
            throw(here.ip(), here, &frame(report(machine, &[])));
            TcpStream::connect(here).unwrap();
        });
    }
    host.lists(&["near", "near6"]);
}

/// What a connection is to its host after a change of the configuration.
#[tokio::test(flavor = "multi_thread")]
async fn connections_outlive_a_changed_way_in_and_end_with_tcp() {
    let config = |text: &str| {
        let host = "[host]\nlisten = \"127.0.0.1:0\"\n[reports]\ninterfaces = [\"lo\"]\n";
        Config::parse(&format!("{host}{text}")).unwrap()
    };
    let mut loadline = Loadline::start(config("group = \"239.255.76.76:0\"")).await.unwrap();
    let port = loadline.host().unwrap().report_port();
    let connect = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        std::io::Result::Ok(stream)
    };
    let say = |mut stream: &TcpStream, seq| {
        let bytes = frame(Report { seq, ..report("a", &[]) });
        stream.write_all(&u32::try_from(bytes.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(&bytes).unwrap();
    };
    let until = async |loadline: &Loadline, seq| {
        let mut changes = loadline.host().unwrap().changes();
        let heard = changes.wait_for(|_| loadline.host().unwrap().reports() == seq);
        tokio::time::timeout(PATIENCE, heard).await.expect("heard").unwrap();
    };
    let old = connect().unwrap();
    say(&old, 1);
    until(&loadline, 1).await;
    // Another group, then another silence: the listener stays, and so does the connection.
    for (seq, text) in
        [(2, "group = \"239.255.76.75:0\""), (3, "group = \"239.255.76.75:0\"\nsilence = \"1m\"")]
    {
        assert!(loadline.apply(&config(text)).await.is_empty());
        connect().expect("it listens at every moment");
        say(&old, seq);
        until(&loadline, seq).await;
    }
    assert!(loadline.apply(&config("group = \"239.255.76.75:0\"\ntcp = false")).await.is_empty());
    let mut byte = [0];
    let ended = tokio::task::spawn_blocking(move || (&old).read(&mut byte)).await.unwrap();
    assert!(matches!(ended, Ok(0)) || ended.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    loadline.stop().await;
}

/// From loopback alone to every address and back, again and again: nobody is refused or cut off.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_refused_while_the_addresses_change() {
    // The interface that does not exist makes it any address.
    let config = |interfaces: &str| {
        let text = format!(
            "[host]\nlisten = \"127.0.0.1:0\"\n[reports]\ngroup = \"239.255.76.76:0\"\n\
             interfaces = {interfaces}\n"
        );
        Config::parse(&text).unwrap()
    };
    let mut loadline = Loadline::start(config("[\"lo\"]")).await.unwrap();
    let port = loadline.host().unwrap().report_port();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let clients = std::thread::spawn(move || {
        let mut open = Vec::new();
        for number in 0.. {
            if stopped.load(Ordering::Relaxed) || number == 400 {
                return open;
            }
            let address = if number % 2 == 0 { "127.0.0.1" } else { "::1" };
            let address = SocketAddr::new(address.parse().unwrap(), port);
            let mut stream = TcpStream::connect(address).expect("it listens at every moment");
            let bytes = frame(report(&format!("m{number}"), &[]));
            stream.write_all(&u32::try_from(bytes.len()).unwrap().to_be_bytes()).unwrap();
            stream.write_all(&bytes).expect("it is open");
            open.push(stream);
        }
        open
    });
    for round in 0..20 {
        let interfaces = ["[\"lo\", \"absent0\"]", "[\"lo\"]"][round % 2];
        assert_eq!(loadline.apply(&config(interfaces)).await, []);
    }
    stop.store(true, Ordering::Relaxed);
    let open = tokio::task::spawn_blocking(|| clients.join()).await.unwrap().expect("none refused");
    let sent = u64::try_from(open.len()).unwrap();
    assert!(sent > 20, "{sent} connections");
    let mut changes = loadline.host().unwrap().changes();
    let heard = changes.wait_for(|_| loadline.host().unwrap().reports() == sent);
    tokio::time::timeout(PATIENCE, heard).await.expect("each is heard").unwrap();
    loadline.stop().await;
}
