//! What networks do to processes that are up: links that fail, multicast that is not carried, names that
//! move, peers by TCP that are slow, silent or too many, agents that are killed.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use loadline::report::{Keyring, Report, wire};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::process::Process;
use crate::support::net::{INTERVAL, Net, by, left_out, reports};
use crate::support::{Farm, PATIENCE, get, program, report};

/// The program on a machine of the network, configured by this.
fn run(net: &Net, machine: &str, folder: &tempfile::TempDir, config: &str, role: &str) -> Process {
    fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &net.name(machine)]).arg(program());
    command.args(role.split_whitespace());
    command.current_dir(folder.path()).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    Process::of(command)
}

fn agent_config(machine: &str, reports: &str) -> String {
    format!(
        "[agent]\nmachine = {machine:?}\ninterval = \"{}ms\"\nmetric = []\n[reports]\n{reports}\n",
        INTERVAL.as_millis()
    )
}

/// CPU time of a process in hundredths of a second.
fn cpu_ticks(process: &Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Lets time pass, where that is what is tested.
fn pass(time: Duration) {
    let (_keep, never) = mpsc::channel::<()>();
    assert!(never.recv_timeout(time).is_err());
}

/// O-A15: a link that fails costs a word and no CPU, and reports are sent again when it is back.
#[test]
fn agent_whose_link_is_down_neither_spins_nor_floods_its_log() {
    let Some(net) = Net::lan(&["h", "a"]) else { return };
    let host = net.host("h", reports());
    let folder = tempfile::tempdir().unwrap();
    // By the group and by datagram: both fail.
    let config = agent_config("a", "send_to = [\"udp://10.77.1.1:12000\"]");
    let mut agent = run(&net, "a", &folder, &config, "agent");
    host.lists(&["a"]);
    net.ip("a", "link set e1 down");
    let mut said = Vec::new();
    agent.until_with("cannot send reports", &mut said);
    let seconds = 4;
    let before = cpu_ticks(&agent);
    pass(Duration::from_secs(seconds));
    let ticks = cpu_ticks(&agent) - before;
    eprintln!("a link that is down for {seconds} s: {ticks} hundredths of a second of CPU");
    assert!(ticks <= 10 * seconds, "{ticks} hundredths of a second in {seconds} s");
    net.ip("a", "link set e1 up");
    let again = ["first", "second"].map(|_| agent.until_with("reports are sent again", &mut said));
    assert_eq!(again.iter().filter(|line| line.contains("udp://")).count(), 1, "{again:?}");
    host.lists(&["a"]);
    let warnings = said.iter().filter(|line| line.contains("WARN")).count();
    assert!(warnings <= 4, "{said:#?}");
    agent.end("-TERM");
}

/// Reports that nobody else can hear are told of; that a better way came than loopback or than IPv6 is not
/// called an interface that is down.
#[test]
fn agent_without_a_network_says_that_its_reports_stay_and_when_they_leave() {
    let Some(mut net) = Net::lan(&["h"]) else { return };
    net.machine("a");
    let host = net.host("h", reports());
    let folder = tempfile::tempdir().unwrap();
    let mut agent = run(&net, "a", &folder, &agent_config("a", ""), "agent");
    let alone = agent.until("only loopback is usable: reports stay on this machine");
    assert!(alone.contains("WARN"), "{alone}");
    net.plug("a", 1, 2);
    net.ip("a", "address add fd77:1::2/64 dev e1 nodad");
    let mut said = Vec::new();
    agent.until_with("there is a usable interface: reports leave this machine", &mut said);
    host.offers("a", "[fd77:1::2]");
    net.ip("a", "address add 10.77.1.2/24 dev e1");
    host.offers("a", "10.77.1.2");
    net.ip("a", "link set e1 down");
    // Whichever is first: a report that cannot be sent, or a look at the interfaces.
    let cut = agent.until_with("no reports here: ", &mut said);
    assert!(cut.contains("interface=e1"), "{cut}");
    assert!(!said.iter().any(|line| line.contains("WARN")), "{said:#?}");
    agent.end("-TERM");
}

/// On a machine by itself nothing is wrong with loopback where a host hears it, or where it is named.
#[test]
fn agent_beside_its_host_warns_of_no_missing_network() {
    let Some(mut net) = Net::new() else { return };
    net.machine("a");
    for (interfaces, words) in [("", 1), ("interfaces = [\"lo\"]", 0)] {
        let folder = tempfile::tempdir().unwrap();
        let host = "[host]\nlisten = \"127.0.0.1:0\"";
        let config = format!("{}{host}\n", agent_config("a", interfaces));
        let mut both = run(&net, "a", &folder, &config, "");
        let mut said = Vec::new();
        both.until_with("machine reports", &mut said);
        let of_loopback: Vec<_> =
            said.iter().filter(|line| line.contains("only loopback")).collect();
        assert_eq!(of_loopback.len(), words, "{said:#?}");
        assert!(of_loopback.iter().all(|line| line.contains("INFO")), "{said:#?}");
        both.end("-TERM");
    }
}

/// O-A23: that no multicast comes is said once, and once that it does.
#[test]
fn silence_of_multicast_is_said_once_and_its_end() {
    let Some(net) = Net::lan(&["h", "u", "m"]) else { return };
    net.ip("br", "link set p11 type bridge_slave mcast_flood off");
    let folder = tempfile::tempdir().unwrap();
    let config = "[host]\nlisten = \"127.0.0.1:0\"\n[reports]\nsilence = \"300ms\"\n";
    let mut host = run(&net, "h", &folder, config, "host");
    let _agents = [net.agent("u", by(&["udp://10.77.1.1:12000"])), net.agent("m", reports())];
    let line = host.until("no multicast was heard for 300ms");
    assert!(line.contains("send_to = [\"udp://THIS-HOST:PORT\"] or tcp://"), "{line}");
    pass(Duration::from_secs(1)); // some more times as long
    net.ip("br", "link set p11 type bridge_slave mcast_flood on");
    let mut said = Vec::new();
    host.until_with("multicast is heard", &mut said);
    assert!(!said.iter().any(|line| line.contains("no multicast")), "said once: {said:#?}");
    host.end("-TERM");
}

/// Killed on another machine, an agent is gone by its silence, as soon as the rule says.
#[test]
fn killed_agent_of_another_machine_is_gone_within_its_rule() {
    let Some(net) = Net::lan(&["h", "a", "b"]) else { return };
    let host = net.host("h", reports());
    let folder = tempfile::tempdir().unwrap();
    let mut agent = run(&net, "a", &folder, &agent_config("a", ""), "agent");
    let _other = net.agent("b", reports());
    host.lists(&["a", "b"]);
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let begin = Instant::now();
    host.lists(&["b"]);
    let took = begin.elapsed();
    let rule = host.until("its rule", |machines| {
        machines.iter().find(|machine| machine["name"] == "a")?["gone_after_ms"].as_u64()
    });
    let busy = Duration::from_secs(1); // of the machine that runs the tests
    assert!(took <= Duration::from_millis(rule) + busy, "gone after {took:?}, the rule: {rule} ms");
}

/// Ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// O-C08: a host's name leads to another address; datagrams follow, and so do connections once the old
/// host is gone.
#[test]
fn reports_follow_a_name_that_moves() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let name = "host.loadline.test";
    fs::write(&hosts, format!("127.0.0.2 {name}\n")).unwrap();
    let prepare = format!("mount --bind {} /etc/hosts", hosts.display());
    let can = Command::new("unshare").args(["-m", "sh", "-c", &prepare]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        left_out("this test needs root and mounts");
        return;
    }
    let [old, new] = [2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
    let old_ear = UdpSocket::bind((old, 0)).unwrap();
    let port = old_ear.local_addr().unwrap().port();
    let ears = [old_ear, UdpSocket::bind((new, port)).unwrap()];
    let listener = TcpListener::bind((old, 0)).unwrap();
    let tcp_port = listener.local_addr().unwrap().port();
    let config = format!(
        "[agent]\ninterval = \"100ms\"\nmetric = []\n[reports]\ngroup = []\n\
         send_to = [\"udp://{name}:{port}\", \"tcp://{name}:{tcp_port}\"]\n"
    );
    fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut command = Command::new("unshare");
    let script = format!("{prepare} && exec {} agent", program().display());
    command.args(["-m", "sh", "-c", &script]).current_dir(folder.path()).stderr(Stdio::null());
    let _agent = Killed(command.spawn().unwrap());
    for ear in &ears {
        ear.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut frame = [0; 2_048];
    ears[0].recv(&mut frame).expect("reports at the first address");
    let (connection, _) = listener.accept().unwrap();
    let moved = TcpListener::bind((new, tcp_port)).unwrap();
    fs::write(&hosts, format!("127.0.0.3 {name}\n")).unwrap();
    let begin = Instant::now();
    drop((connection, listener));
    moved.accept().expect("a connection to the second address");
    ears[1].recv(&mut frame).expect("reports at the second address");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

fn framed(report: Report<'_>) -> Vec<u8> {
    let bytes = wire::encode(&[report], &Keyring::default()).unwrap();
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat()
}

/// A peer that begins with something else is closed before the rest comes; one whose frames come in
/// pieces, or several at once, is heard.
#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_connection_count_however_they_are_cut() {
    let farm = Farm::new("weighted", "p2c").await;
    let connect = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, farm.host().report_port())).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut foreign = connect();
    foreign.write_all(&[&60_000_u32.to_be_bytes()[..], b"GE"].concat()).unwrap();
    assert_eq!(foreign.read(&mut [0]).unwrap_or(0), 0, "closed after two bytes of sixty thousand");
    let mut stream = connect();
    for byte in framed(report("bytes", &[])) {
        stream.write_all(&[byte]).unwrap();
    }
    let two = [framed(report("first", &[])), framed(report("second", &[]))].concat();
    let (most, rest) = two.split_at(two.len() - 3);
    stream.write_all(most).unwrap();
    farm.eligible(2).await;
    stream.write_all(rest).unwrap();
    farm.eligible(3).await;
    farm.stop().await;
}

/// A host that may open so many files, with its report port and where it answers.
fn host_with_files(files: usize) -> (Process, u16, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = "[host]\nlisten = \"127.0.0.1:0\"\n[reports]\ngroup = \"239.255.76.76:0\"\n\
                  interfaces = [\"lo\"]\n";
    fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut command = Command::new("sh");
    command.current_dir(folder.path()).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    command.args(["-c", &format!("ulimit -n {files} && exec \"$0\" host")]).arg(program());
    let mut host = Process::of(command);
    let hears = host.until("hears ");
    let group = hears.split("hears ").nth(1).unwrap().split(' ').next().unwrap();
    let port = group.rsplit(':').next().unwrap().parse().unwrap();
    let url = host.until("try ").split_whitespace().last().unwrap().to_owned();
    (host, port, url, folder)
}

/// O-C16: all places for connections are taken; who reports keeps its own, and a new one is admitted.
#[test]
fn silent_connections_make_room_for_those_that_report() {
    let (mut host, port, url, _folder) = host_with_files(128);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut good = connect();
    good.write_all(&framed(report("good", &[]))).unwrap();
    host.until("machine reports");
    // Half of the 128 files are for connections.
    let silent: Vec<_> = (0..150).map(|_| connect()).collect();
    host.until("all TCP connections are taken");
    let mut late = connect();
    late.write_all(&framed(report("late", &[]))).unwrap();
    host.until("machine reports");
    good.write_all(&framed(Report { seq: 2, ..report("good", &[]) })).unwrap();
    let begin = Instant::now();
    let machine = url.replace("/v1/target", "/v1/machines/good");
    while !get(&machine, "application/json").1.contains("\"seq\":2") {
        assert!(begin.elapsed() < PATIENCE, "the one that reports lost its place");
    }
    let files = fs::read_dir(format!("/proc/{}/fd", host.child.id())).unwrap().count();
    assert!(files < 128, "{files} open files");
    drop(silent);
    assert_eq!(host.end("-TERM"), Some(0));
}

fn connect_from(from: Ipv4Addr, to: (Ipv4Addr, u16)) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from(to).into()).unwrap();
    socket.into()
}

/// One peer that connects and reports without end keeps nobody out, and is told of.
#[test]
fn one_address_cannot_take_all_connections() {
    // A quarter of the 1,024 files may be connections of one address.
    let (mut host, port, url, _folder) = host_with_files(1_024);
    let at = |last| (Ipv4Addr::LOCALHOST, port, Ipv4Addr::new(127, 0, 0, last));
    let connect = |(to, port, from)| connect_from(from, (to, port));
    let mut good = connect(at(2));
    good.write_all(&framed(report("good", &[]))).unwrap();
    host.until("machine reports");
    let mut greedy = Vec::new();
    for seq in 1..=266 {
        let mut stream = connect(at(3));
        stream.write_all(&framed(Report { seq, ..report("greedy", &[]) })).unwrap();
        greedy.push(stream);
    }
    let told = host.until("one address has as many TCP connections as it may");
    assert!(told.contains("from=127.0.0.3"), "{told}");
    good.write_all(&framed(Report { seq: 2, ..report("good", &[]) })).unwrap();
    let begin = Instant::now();
    let machine = url.replace("/v1/target", "/v1/machines/good");
    while !get(&machine, "application/json").1.contains("\"seq\":2") {
        assert!(begin.elapsed() < PATIENCE, "the one that reports lost its place");
    }
    assert_eq!(host.end("-TERM"), Some(0));
}

/// O-C16: the machines behind two thousand connections vanish without a word. Their places are free
/// when the silence that their reports promised is over, and a new machine is admitted meanwhile.
#[test]
fn half_open_connections_of_a_lost_network_are_closed() {
    const CONNECTIONS: usize = 2_000;
    /// One alone may not have so many.
    const ADDRESSES: usize = 10;
    let Some(net) = Net::lan(&["h", "far", "a"]) else { return };
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if most < 4 * CONNECTIONS as u64 {
        eprintln!("left out: this test needs {} open files, {most} are allowed", 4 * CONNECTIONS);
        return;
    }
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = "[host]\nlisten = \"127.0.0.1:14000\"\n";
    let mut host = run(&net, "h", &folder, config, "host");
    host.until("try ");
    let files = fs::read_dir(format!("/proc/{}/fd", host.child.id())).unwrap();
    let metric = |name: &str| {
        let page = net.within("h", || get("http://127.0.0.1:14000/metrics", "").1);
        let start = format!("loadline_{name} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("{name}: {page}")).parse::<usize>().unwrap()
    };
    let until = |name, value| {
        let begin = Instant::now();
        while metric(name) != value {
            assert!(begin.elapsed() < PATIENCE, "{name} is {} and not {value}", metric(name));
        }
    };
    let files_before = files.count();
    for last in 100..100 + ADDRESSES {
        net.ip("far", &format!("address add 10.77.1.{last}/24 dev e1"));
    }
    let connections = net.within("far", || {
        let connect = |number| {
            let from = Ipv4Addr::new(10, 77, 1, 100 + u8::try_from(number % ADDRESSES).unwrap());
            let mut stream = connect_from(from, (Ipv4Addr::new(10, 77, 1, 1), 12_000));
            if number % 2 == 0 {
                let name = format!("m{number}");
                let quick = Report { interval_ms: 1_000, ..report(&name, &[]) };
                stream.write_all(&framed(quick)).unwrap();
            }
            stream
        };
        (0..CONNECTIONS).map(connect).collect::<Vec<_>>()
    });
    until("tcp_connections_total", CONNECTIONS);
    net.ip("far", "link del e1");
    let _agent = net.agent("a", by(&["tcp://10.77.1.1:12000"]));
    until("tcp_connections_total", CONNECTIONS + 1);
    assert!(metric("tcp_open") > 1, "those that are lost still count");
    until("tcp_open", 1);
    assert_eq!(metric("tcp_closed_total"), CONNECTIONS, "closed by the host");
    let files = fs::read_dir(format!("/proc/{}/fd", host.child.id())).unwrap().count();
    assert!(files <= files_before + 8, "{files} open files, {files_before} before");
    drop(connections);
    assert_eq!(host.end("-TERM"), Some(0));
}
