//! What leaves a relay is byte for byte what came, but for what is documented: the time in it is added to the
//! age, the hop is counted, and an address that means something else there becomes the one that the
//! report came from.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use loadline::clock::wall_ms;
use loadline::report::{Key, Keyring, Metrics, Report, Service, State, wire};

use crate::process::Process;
use crate::support::net::{Net, throw};
use crate::support::{PATIENCE, report, service};

/// What a service says of its address, and what the relay makes of it for a report from this machine.
type Addresses = [(&'static str, &'static str)];

const FROM_V4: &Addresses = &[
    ("", "10.77.1.2"),
    ("0.0.0.0:80", "10.77.1.2:80"),
    ("[::]:80", "10.77.1.2:80"),
    ("127.0.0.1:81", "10.77.1.2:81"),
    ("http://localhost:82/x?y", "http://10.77.1.2:82/x?y"),
    (":83", "10.77.1.2:83"),
    ("224.0.0.1:84", "10.77.1.2:84"),
    ("10.9.9.9:85", "10.9.9.9:85"),
    ("[fd00::9]:86", "[fd00::9]:86"),
    ("db.example:5432", "db.example:5432"),
    ("https://user@web.example:8443/a/b", "https://user@web.example:8443/a/b"),
];
const FROM_V6: &Addresses = &[
    ("", "[fd77:1::2]"),
    ("127.0.0.1:81", "[fd77:1::2]:81"),
    ("http://[::1]:82/x", "http://[fd77:1::2]:82/x"),
    ("10.9.9.9:85", "10.9.9.9:85"),
];
/// On the machine itself its loopback is where its services are.
const FROM_LOOPBACK: &Addresses = &[
    ("", "127.0.0.1"),
    ("127.0.0.1:81", "127.0.0.1:81"),
    ("0.0.0.0:80", "127.0.0.1:80"),
    ("10.9.9.9:85", "10.9.9.9:85"),
];
const SECRET: &str = "0123456789abcdef";

fn signed() -> Keyring {
    Keyring::new(vec![Key::new(9, SECRET.as_bytes()).unwrap()])
}

/// A report with something in every field.
fn full<'a>(machine: &'a str, names: &'a [String], addresses: &'a Addresses) -> Report<'a> {
    let offered = |(name, (address, _)): (&'a String, &'a (&'static str, &'static str))| Service {
        weight: 2.5,
        metrics: Metrics { names: vec!["queue", "x.y"].into(), values: vec![-0.0, 1e308] },
        accepted: u64::MAX,
        completed: 7,
        in_flight: 3,
        labels: vec![("zone", "ä \" <b>")],
        ..service(name, address)
    };
    Report {
        boot: 1_790_000_000_123,
        seq: u64::from(u32::MAX) + 5,
        interval_ms: 2_000,
        delay_ms: 11,
        state: State::Draining,
        weight: 0.125,
        metrics: Metrics {
            names: vec!["cpu", "ünïcode"].into(),
            values: vec![0.1 + 0.2, f64::NAN],
        },
        services: names.iter().zip(addresses).map(offered).collect(),
        labels: vec![("a", ""), ("b", "c")],
        sent_ms: wall_ms(),
        ..report(machine, &[])
    }
}

/// Has a report relayed, and compares all of what leaves; at which address the other side saw it come from.
fn check(
    sent: &Report<'_>,
    addresses: &Addresses,
    (keyring, again): (&Keyring, &Keyring),
    far: &UdpSocket,
    send: impl FnOnce(Vec<u8>),
) -> IpAddr {
    let begin = Instant::now();
    send(wire::encode(std::slice::from_ref(sent), keyring).unwrap());
    let mut bytes = [0; 65_536];
    let (len, from) = far.recv_from(&mut bytes).expect("it went through");
    let there = wire::decode(&bytes[..len], again).unwrap();
    let waited_ms = u64::from(there[0].delay_ms - sent.delay_ms);
    let took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap();
    assert!(waited_ms <= took_ms, "{waited_ms} ms in the relay, {took_ms} on the whole way");
    let mut expected = Report { delay_ms: there[0].delay_ms, hops: 1, ..sent.clone() };
    if expected.services.is_empty() {
        expected.services.push(Service::implied()); // whose address the other side could not know
    }
    for (service, (_, address)) in expected.services.iter_mut().zip(addresses) {
        service.address = address;
    }
    let expected = wire::encode(&[expected], again).unwrap();
    assert_eq!(&bytes[..len], &*expected, "{there:#?}");
    from.ip()
}

fn names(addresses: &Addresses) -> Vec<String> {
    (0..addresses.len()).map(|number| format!("service-{number}")).collect()
}

/// Machines of both families on one network, a host at either address of the other; signed and not.
#[test]
fn what_leaves_is_what_came_but_for_age_hops_and_addresses() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, SECRET).unwrap();
    let keys = format!("keys = [{{ id = 9, secret_file = {:?} }}]", secret.path());
    for (keys, keyring) in [("", Keyring::default()), (&*keys, signed())] {
        let Some(mut net) = Net::lan(&["r", "a"]) else { return };
        net.bridge(2);
        net.machine("far");
        for (machine, number) in [("r", 1), ("far", 2)] {
            net.plug(machine, 2, number);
            net.address(machine, 2, number);
        }
        for (there, relay, from, addresses) in [
            ("10.77.2.2:12000", "10.77.2.1", "10.77.1.2", FROM_V4),
            ("[fd77:2::2]:12000", "fd77:2::1", "fd77:1::2", FROM_V6),
        ] {
            let at: SocketAddr = there.parse().unwrap();
            let far = net.within("far", move || UdpSocket::bind(at).unwrap());
            far.set_read_timeout(Some(PATIENCE)).unwrap();
            let relaying = net.relay(
                "r",
                &format!(
                    "[reports]\ninterfaces = [\"e1\"]\n{keys}\n\
                     [relay]\nevery = \"0s\"\nsend_to = [\"udp://{there}\"]"
                ),
            );
            let from: IpAddr = from.parse().unwrap();
            let to = SocketAddr::from(if from.is_ipv4() {
                (IpAddr::from([10, 77, 1, 1]), 12_000)
            } else {
                ("fd77:1::1".parse().unwrap(), 12_000)
            });
            let names = names(addresses);
            let of_machine = full("whole", &names, addresses);
            let nothing = Report { services: Vec::new(), ..full("bare", &[], addresses) };
            for sent in [of_machine, nothing] {
                let send = |frame: Vec<u8>| net.within("a", move || throw(from, to, &frame));
                let seen = check(&sent, addresses, (&keyring, &keyring), &far, send);
                assert_eq!(seen, relay.parse::<IpAddr>().unwrap(), "the relay's own address");
            }
            assert_eq!(relaying.stop(), 2);
        }
    }
}

/// Resident bytes of a process.
fn memory(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// One destination is away for long, and the reports are as long as they may be: the other one gets all of them,
/// and what waits for the first is bounded.
#[test]
fn destination_that_is_away_costs_a_relay_little_memory() {
    const REPORTS: u64 = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let far = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let away = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let config = format!(
        "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
         [relay]\nsend_to = [\"tcp://{away}\", \"udp://{}\"]\nevery = \"0s\"\n",
        far.local_addr().unwrap()
    );
    let mut relay = Process::start(&folder, &config, &[]);
    let port = report_port(&mut relay);
    let names: Vec<_> = (0..250).map(|n| format!("{n:03}-{}", "x".repeat(220))).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let metrics = Metrics { values: vec![0.5; names.len()], names: names.into() };
    let sender = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let mut bytes = vec![0; 65_536];
    let mut pass_on = |seq| {
        let report = Report { seq, metrics: metrics.clone(), ..report("large", &[]) };
        let frame = wire::encode(&[report], &Keyring::default()).unwrap();
        sender.send_to(&frame, ("127.0.0.1", port)).unwrap();
        far.recv(&mut bytes).expect("it went through")
    };
    (1..=100).for_each(|seq| assert!(pass_on(seq) > 55_000));
    let before = memory(&relay);
    (101..=REPORTS).for_each(|seq| assert!(pass_on(seq) > 55_000));
    let after = memory(&relay);
    eprintln!("{} MB, and {} MB when 50 MB more were relayed", before >> 20, after >> 20);
    assert!(after < before + (16 << 20), "{before} and then {after} bytes");
    assert_eq!(relay.end("-TERM"), Some(0));
}

/// The port at which a relay says that it hears.
fn report_port(relay: &mut Process) -> u16 {
    let hears = relay.until("hears ");
    let group = hears.split("hears ").nth(1).unwrap().split(' ').next().unwrap();
    group.rsplit(':').next().unwrap().parse().unwrap()
}

/// The program on loopback; its first key signs, so what came by another one leaves by that.
#[test]
fn relay_of_one_machine_changes_no_more_and_signs_by_its_first_key() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first"), SECRET).unwrap();
    std::fs::write(folder.path().join("second"), "fedcba9876543210").unwrap();
    let far = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = format!(
        "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
         keys = [{{ id = 9, secret_file = \"first\" }}, {{ id = 2, secret_file = \"second\" }}]\n\
         [relay]\nsend_to = [\"udp://{}\"]\nevery = \"20ms\"\n",
        far.local_addr().unwrap()
    );
    let mut relay = Process::start(&folder, &config, &[]);
    let to = SocketAddr::from(([127, 0, 0, 1], report_port(&mut relay)));
    let second = Keyring::new(vec![Key::new(2, b"fedcba9876543210").unwrap()]);
    let names = names(FROM_LOOPBACK);
    let begin = Instant::now();
    let mut sent = full("whole", &names, FROM_LOOPBACK);
    // A machine that is new here must have sent since the relay started.
    sent.sent_ms = wall_ms();
    let send = |frame: Vec<u8>| throw(to.ip(), to, &frame);
    let from = check(&sent, FROM_LOOPBACK, (&second, &signed()), &far, send);
    assert!(
        from.is_loopback() && begin.elapsed() >= Duration::from_millis(20),
        "it waits for more"
    );
    assert_eq!(relay.end("-TERM"), Some(0));
}
