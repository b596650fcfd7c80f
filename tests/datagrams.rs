//! What arrives at a report port and is no report of this farm, at every listener; and an agent that has more to
//! say than a frame holds.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};

use loadline::clock::wall_ms;
use loadline::report::{Key, Keyring, Report, wire};
use socket2::SockRef;

use crate::process::Process;
use crate::support::host::HostProcess;
use crate::support::net::{Net, reports};
use crate::support::{PATIENCE, Random, report};

/// The group of [`HostProcess`].
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 76);
/// Bytes before the payload of an unsigned frame.
const HEADER: usize = 8;
/// Datagrams that fit into the smallest receive buffer.
const BURST: usize = 100;

fn frame(machine: &str) -> Vec<u8> {
    wire::encode(&[report(machine, &[("cpu", 0.5)])], &Keyring::default()).unwrap()
}

/// Nothing, little, text, every piece of a good frame, good MessagePack of another shape, nested without end,
/// and noise; none of it is a report.
fn junk() -> Vec<Vec<u8>> {
    let good = frame("good");
    let payload = |bytes: &[u8]| [&good[..HEADER], bytes].concat();
    let mut junk = vec![vec![], vec![0], b"L".to_vec(), b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    junk.extend((1..good.len()).map(|len| good[..len].to_vec()));
    junk.push([&*good, b"more"].concat());
    for shape in [
        &b"\xc0"[..],
        b"\x90",
        b"\x91\xc0",
        b"\x91\x90",
        b"\x80",
        b"\xa4text",
        b"\x91\x81\xa1a\x01",
    ] {
        junk.push(payload(shape));
    }
    for nested in [0x91, 0x81, 0xdd, 0xdf, 0xc7] {
        junk.push(payload(&[nested; 2_000]));
        junk.push(payload(&[nested; 60_000]));
    }
    let mut random = Random::new(16);
    let noise = |len| (0..len).map(|_| random.byte()).collect::<Vec<_>>();
    junk.extend((1..200).map(|number| number * 7).map(noise));
    junk.retain(|bytes| wire::decode(bytes, &Keyring::default()).is_err());
    junk
}

/// Sends each of these, no more at once than any receive buffer holds.
async fn throw_all(host: &HostProcess, to: SocketAddr, junk: &[Vec<u8>]) {
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    if to.is_ipv4() {
        SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    }
    for some in junk.chunks(BURST) {
        let before = host.metric("loadline_datagrams_total");
        some.iter().for_each(|bytes| assert_eq!(socket.send_to(bytes, to).unwrap(), bytes.len()));
        let all = before + some.len() as u64;
        host.until("all taken", |host| host.metric("loadline_datagrams_total") == all).await;
    }
}

fn rejected(host: &HostProcess) -> BTreeMap<String, u64> {
    let all = host.metrics().into_iter();
    let reason = |name: String| name.split('"').nth(1).map(str::to_owned);
    all.filter(|(name, count)| name.contains("reports_rejected") && *count > 0)
        .filter_map(|(name, count)| Some((reason(name)?, count)))
        .collect()
}

/// O-A16: every listener of a host.
#[tokio::test(flavor = "multi_thread")]
async fn junk_is_counted_at_every_listener_and_ends_none() {
    let host = HostProcess::start();
    let junk = junk();
    let places: [IpAddr; 3] =
        [Ipv4Addr::LOCALHOST.into(), GROUP.into(), Ipv6Addr::LOCALHOST.into()];
    let mut reports = 0;
    for (ip, machine) in places.into_iter().zip(["direct", "group", "direct6"]) {
        let to = SocketAddr::new(ip, host.report_port);
        throw_all(&host, to, &junk).await;
        throw_all(&host, to, &[frame(machine)]).await;
        reports += 1;
        assert_eq!(
            host.metric("loadline_reports_total"),
            reports,
            "{machine}: what is good counts"
        );
    }
    let counted: u64 = rejected(&host).values().sum();
    assert_eq!(counted, 3 * junk.len() as u64, "{:?}", rejected(&host));
    let connect = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, host.report_port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let framed =
        |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    for bytes in &junk {
        let mut stream = connect();
        // It may be closed before all is written.
        stream.write_all(&framed(bytes)).ok();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed, with or without a reset");
    }
    connect().write_all(&framed(&frame("connected"))).unwrap();
    host.until("the last report", |host| host.metric("loadline_reports_total") == 4).await;
    let mut complaints = host.complaints();
    complaints.retain(|line| line.contains("report refused"));
    // One a reason and source.
    assert!(complaints.len() <= 2 * rejected(&host).len(), "{complaints:#?}");
}

/// O-A16: and a relay's.
#[test]
fn junk_ends_no_relay() {
    let folder = tempfile::tempdir().unwrap();
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = format!(
        "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
         [relay]\nsend_to = [\"udp://{}\"]\nevery = \"0s\"\n",
        far.local_addr().unwrap()
    );
    let mut relay = Process::start(&folder, &config, &[]);
    let hears = relay.until("hears ");
    let group = hears.split("hears ").nth(1).unwrap().split(' ').next().unwrap();
    let port: u16 = group.rsplit(':').next().unwrap().parse().unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SockRef::from(&sender).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    for (ip, machine) in [(Ipv4Addr::LOCALHOST, "direct"), (GROUP, "group")] {
        for some in junk().chunks(BURST) {
            for bytes in some {
                sender.send_to(bytes, (ip, port)).unwrap();
            }
            // The first of them goes through.
            sender.send_to(&frame(machine), (ip, port)).unwrap();
        }
        let mut bytes = [0; 2_000];
        let len = far.recv(&mut bytes).expect("the good report went through");
        let there = wire::decode(&bytes[..len], &Keyring::default()).unwrap();
        assert_eq!(there[0].machine, machine);
    }
    assert_eq!(relay.end("-TERM"), Some(0));
}

/// O-A17: neighbours that go on and on, one of another farm, one of another version, and three whose keys are not
/// this farm's, cost a line each; how many they were is counted by reason.
#[tokio::test(flavor = "multi_thread")]
async fn neighbours_cost_a_line_each_and_are_counted_by_reason() {
    const EACH: usize = 2_000;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    let keys = format!("keys = [{{ id = 1, secret_file = {:?} }}]", secret.path());
    let host = HostProcess::with_reports(&keys);
    let ring = |id, secret: &[u8]| Keyring::new(vec![Key::new(id, secret).unwrap()]);
    let good = ring(1, b"0123456789abcdef");
    let sent_ms = wall_ms();
    let here = Report { sent_ms, ..report("here", &[("cpu", 0.5)]) };
    let there = Report { farm: "neighbour", ..here.clone() };
    let encode = |report: &Report<'_>, ring: &Keyring| {
        wire::encode(std::slice::from_ref(report), ring).unwrap()
    };
    let mut newer = encode(&here, &good);
    newer[2] += 1;
    let neighbours = [
        ("other_farm", encode(&there, &good)),
        ("version", newer),
        ("unsigned", encode(&here, &Keyring::default())),
        ("unknown_key", encode(&here, &ring(2, b"0123456789abcdef"))),
        ("bad_tag", encode(&here, &ring(1, b"fedcba9876543210"))),
    ];
    let to = SocketAddr::from((GROUP, host.report_port));
    let all: Vec<_> =
        (0..EACH).flat_map(|_| neighbours.iter().map(|(_, bytes)| bytes.clone())).collect();
    throw_all(&host, to, &all).await;
    let expected =
        neighbours.iter().map(|(reason, _)| ((*reason).to_owned(), EACH as u64)).collect();
    assert_eq!(rejected(&host), expected);
    let complaints = host.complaints();
    let of_source = |line: &&String| line.contains("report refused");
    assert_eq!(complaints.iter().filter(of_source).count(), 4, "{complaints:#?}");
    assert!(complaints.len() <= 6, "{complaints:#?}");
    throw_all(&host, to, &[encode(&here, &good)]).await;
    assert_eq!(host.metric("loadline_reports_total"), 1, "the farm's own count meanwhile");
}

/// O-A19: more metrics with long names than a frame holds: the machine is listed and stays, what does not fit is
/// left out, and one line says how much a report holds.
#[test]
fn agent_with_too_much_to_say_stays_listed_and_says_what_is_left_out() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", reports());
    let folder = tempfile::tempdir().unwrap();
    let push = folder.path().join("push");
    let mut config = format!(
        "[agent]\nmachine = \"a\"\ninterval = \"100ms\"\nmetric = []\npush = \"unix:{}\"\n",
        push.display()
    );
    for service in 0..2 {
        config += &format!("[[agent.service]]\nname = \"s{service}\"\n");
        for metric in 0..250 {
            let name = format!("{metric}-{}", "x".repeat(200));
            config += &format!("[[agent.service.metric]]\nname = \"{name}\"\nsource = \"push\"\n");
        }
    }
    std::fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", &net.name("a")]).arg(crate::support::program()).arg("agent");
    command.current_dir(folder.path()).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    let mut agent = Process::of(command);
    let told = agent.until("the report is too large, these were left out");
    assert!(told.contains("65000 bytes") && told.contains("metrics="), "{told}");
    host.lists(&["a"]);
    let seq = |machines: &[serde_json::Value]| machines.first()?["seq"].as_u64();
    let first = host.until("its reports", seq);
    host.until("twenty more", |machines| (seq(machines)? > first + 20).then_some(()));
    assert_eq!(host.metric("machines_gone_total"), 0);
    assert_eq!(agent.end("-TERM"), Some(0));
}
