//! The program as a process: what it prints, how it stops, what its exit codes say.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use loadline::report::{Key, Keyring, Report, State, wire};

use crate::support::{Farm, PATIENCE, get, program, report};

/// A running process, killed if the test ends early.
pub(crate) struct Process {
    pub(crate) child: Child,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Process {
    /// Starts in a folder of its own with this configuration.
    pub(crate) fn start(folder: &tempfile::TempDir, config: &str, arguments: &[&str]) -> Self {
        std::fs::write(folder.path().join("loadline.toml"), config).unwrap();
        let mut command = command(folder);
        command.args(arguments);
        Self::of(command)
    }

    /// Starts this.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, stderr }
    }

    /// Reads its messages until one contains this.
    pub(crate) fn until(&mut self, words: &str) -> String {
        self.until_with(words, &mut Vec::new())
    }

    /// The same, with those that came before it.
    pub(crate) fn until_with(&mut self, words: &str, seen: &mut Vec<String>) -> String {
        for line in self.stderr.by_ref() {
            let line = line.unwrap();
            if line.contains(words) {
                return line;
            }
            seen.push(line);
        }
        panic!("{words:?} was not said: {seen:#?}");
    }

    /// Sends a signal and waits; the exit code.
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        for line in self.stderr.by_ref() {
            line.unwrap(); // a full pipe must not hold it up
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has ended by itself in a test that passed.
        self.child.kill().ok();
    }
}

pub(crate) fn command(folder: &tempfile::TempDir) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder.path()).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    command
}

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    command(&folder).args(arguments).output().unwrap()
}

pub(crate) const QUICK: &str = r#"
    [agent]
    machine = "here"
    interval = "10s"
    [[agent.metric]]
    name = "cpu"
    source = "system:cpu"
    every = "20ms"
    window = 2
    [[agent.metric]]
    name = "memory"
    source = "system:memory"
    every = "20ms"
    window = 2
    [reports]
    group = "239.255.76.76:0"
    interfaces = ["lo"]
    [host]
    listen = "127.0.0.1:0"
"#;

fn both_roles_in_one_process(signal: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(&folder, QUICK, &[]);
    assert!(process.until("agent ").contains("machine \"here\" reports cpu, memory every 10s"));
    assert!(process.until("pool ").contains("default: formula weighted, strategy balanced"));
    let line = process.until("try ");
    let url = line.split_whitespace().last().unwrap().to_owned();
    process.until("machine reports"); // through a real multicast socket
    let (status, body) = get(&url, "application/json");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"machine\":\"here\""), "{body}");
    assert!(
        body.contains("\"formula\":\"weighted@") && body.contains("\"strategy\":\"balanced@"),
        "{body}"
    );
    assert_eq!(process.end(signal), Some(0));
}

#[test]
fn both_roles_run_in_one_process_and_stop_at_sigterm() {
    both_roles_in_one_process("-TERM");
}

#[test]
fn logs_are_json_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(&folder, QUICK, &["--log-format", "json"]);
    let line = process.until("machine reports");
    let log: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&log["level"], &log["machine"]), (&"INFO".into(), &"here".into()), "{log}");
    assert_eq!(process.end("-TERM"), Some(0));
}

#[test]
fn control_c_stops_it_too() {
    both_roles_in_one_process("-INT");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_process_leaves_when_it_is_stopped() {
    let farm = Farm::new("weighted", "p2c").await;
    let port = farm.host().report_port();
    let config = QUICK.replace(":0\"", &format!(":{port}\""));
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(&folder, &config, &["agent"]);
    farm.eligible(1).await;
    assert_eq!(process.end("-TERM"), Some(0));
    let left = |farm: &Farm| (farm.get("/v1/machines/here")["state"] == "leaving").then_some(());
    farm.until("the leaving report", left).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pick_prints_the_address_or_what_the_host_said() {
    let mut farm = Farm::new("weighted", "p2c").await;
    let url = farm.url("");
    let ask = |arguments: &[&str]| run(&[&["pick", "--host", &url], arguments].concat());
    let nobody = ask(&[]);
    assert_eq!(nobody.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(said.contains("no target of pool \"default\" is eligible"), "{said}");
    let or = ask(&["--or", "10.0.0.9:80"]);
    assert_eq!((or.status.code(), &*or.stdout), (Some(0), &b"10.0.0.9:80\n"[..]));
    farm.report(&["a"], &[]);
    farm.eligible(1).await;
    assert_eq!(ask(&[]).stdout, b"127.0.0.1\n");
    let json = String::from_utf8(ask(&["--json", "--n", "2", "--key", "k"]).stdout).unwrap();
    assert!(json.contains("\"machine\":\"a\""), "{json}");
    farm.stop().await;
}

#[track_caller]
fn check_exit(arguments: &[&str], code: i32, words: &str) {
    let output = run(arguments);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?} does not say {words:?}: {said}");
}

#[test]
fn command_line_teaches_and_its_mistakes_are_64() {
    check_exit(&["--help"], 0, "curl -s localhost:14000/v1/target");
    check_exit(&["pick", "--help"], 0, "--or <ADDRESS>");
    check_exit(&["--version"], 0, "loadline ");
    check_exit(&["hots"], 64, "a similar subcommand exists: 'host'");
    check_exit(
        &["--config", "/nowhere", "config", "check"],
        64,
        "/nowhere: cannot be read: No such file",
    );
    check_exit(&["--log", "loadline=loud", "host"], 1, "--log loadline=loud");
    check_exit(&["config", "default"], 0, "[[agent.metric]]");
    check_exit(&["config", "print"], 0, "listen = \"127.0.0.1:14000\"");
    check_exit(&["config", "check"], 0, "the configuration is good");
}

#[test]
fn configuration_problems_come_all_at_once_with_exit_code_64() {
    let folder = tempfile::tempdir().unwrap();
    let bad = "[host]\nlisten = 1\nmiss = 3\n[agent]\ninterval = \"0s\"\n";
    std::fs::write(folder.path().join("loadline.toml"), bad).unwrap();
    for arguments in [&["config", "check"][..], &["run"], &[]] {
        let output = command(&folder).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        for key in ["host.listen: ", "host.miss: unknown key", "agent.interval: "] {
            assert!(said.contains(key), "{key}: {said}");
        }
    }
}

#[test]
fn port_in_use_is_told_with_a_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config =
        format!("[host]\nlisten = \"{address}\"\n[reports]\ngroup = \"239.255.76.76:0\"\n");
    std::fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let output = command(&folder).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is another host running? set host.listen"), "{said}");
}

/// A process out of descriptors cannot look at its interfaces; that is no reason to leave the groups.
#[test]
fn interfaces_that_cannot_be_listed_stay_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[host]\nlisten = \"127.0.0.1:0\"\n\
                  [reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n";
    let mut process = Process::start(&folder, config, &[]);
    process.until("try ");
    let pid = process.child.id().to_string();
    let limit = |files: &str| {
        Command::new("prlimit").args([&format!("--nofile={files}:"), "--pid", &pid]).status()
    };
    if limit("3").is_err() {
        eprintln!("skipped: there is no prlimit here");
        return;
    }
    process.until("cannot list the network interfaces");
    assert!(limit("1024").unwrap().success());
    let mut seen = Vec::new();
    process.until_with("interfaces can be listed again", &mut seen);
    let left = seen.iter().find(|line| line.contains("no usable") || line.contains("heard here"));
    assert_eq!(left, None);
}

/// A file with `[relay]` alone makes a relay, which follows its secrets like any other process.
#[test]
fn relay_follows_its_keys_and_stops_with_a_connection_open() {
    let folder = tempfile::tempdir().unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = format!(
        "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
         keys = [{{ id = 1, secret_file = \"secret\" }}]\n\
         [relay]\nsend_to = [\"udp://{}\"]\nevery = \"0s\"\n",
        far.local_addr().unwrap()
    );
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef").unwrap();
    let mut relay = Process::start(&folder, &config, &[]);
    let hears = relay.until("hears ");
    let group = hears.split("hears ").nth(1).unwrap().split(' ').next().unwrap();
    let port: u16 = group.rsplit(':').next().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let signal = |relay: &Process, signal: &str| {
        let pid = relay.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    for (seq, text) in [(1, "0123456789abcdef"), (2, "fedcba9876543210")] {
        if seq == 2 {
            std::fs::write(&secret, text).unwrap();
            signal(&relay, "-HUP");
            relay.until("secrets changed");
        }
        let keyring = Keyring::new(vec![Key::new(1, text.as_bytes()).unwrap()]);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let sent_ms = u64::try_from(now).unwrap();
        let frame = wire::encode(&[Report { seq, sent_ms, ..report("a", &[]) }], &keyring).unwrap();
        stream.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(&frame).unwrap();
        let mut bytes = [0; 2_000];
        let len = far.recv(&mut bytes).expect("it went through");
        let reports = wire::decode(&bytes[..len], &keyring).expect("signed with the same key");
        assert_eq!((reports[0].machine, reports[0].seq), ("a", seq));
    }
    signal(&relay, "-TERM");
    let mut seen = Vec::new();
    relay.until_with("stopped", &mut seen);
    assert!(!seen.iter().any(|line| line.contains("in time")), "{seen:#?}");
}

/// Killed, it cannot say that it leaves: its silence does, as soon as the rule says.
#[tokio::test(flavor = "multi_thread")]
async fn killed_agent_is_gone_within_its_rule() {
    let farm = Farm::new("weighted", "p2c").await;
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[agent]\nmachine = \"killed\"\ninterval = \"200ms\"\nmetric = []\n\
         [reports]\ngroup = \"239.255.76.76:{}\"\ninterfaces = [\"lo\"]\n",
        farm.host().report_port()
    );
    let mut agent = Process::start(&folder, &config, &["agent"]);
    let known = |farm: &Farm, alive: bool| {
        let machines = farm.get("/v1/machines");
        machines.as_array().unwrap().iter().find(|machine| machine["alive"] == alive).cloned()
    };
    farm.until("it reports", |farm| known(farm, true)).await;
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let begin = std::time::Instant::now();
    let gone = farm.until("it is gone", |farm| known(farm, false)).await;
    let rule = std::time::Duration::from_millis(gone["gone_after_ms"].as_u64().unwrap());
    let took = begin.elapsed();
    let busy = std::time::Duration::from_secs(1); // of the machine that runs the tests
    assert!(took <= rule + busy, "gone after {took:?}, the rule says {rule:?}");
    farm.stop().await;
}

/// `[agent]` and `[relay]` in one file are both run; the machine's last report goes through, too.
#[test]
fn agent_and_relay_run_in_one_process() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = format!(
        "[agent]\nmachine = \"near\"\ninterval = \"100ms\"\nmetric = []\n\
         [reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
         [relay]\nsend_to = [\"udp://{}\"]\n",
        far.local_addr().unwrap()
    );
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(&folder, &config, &[]);
    process.until("agent ");
    process.until("  relay ");
    process.until("  sends ");
    let next = || {
        let mut frame = [0; 2_048];
        let len = far.recv(&mut frame).unwrap();
        let reports = wire::decode(&frame[..len], &Keyring::default()).unwrap();
        (reports[0].machine.to_owned(), reports[0].hops, reports[0].state)
    };
    assert_eq!(next(), ("near".to_owned(), 1, State::Ready));
    let ended = std::thread::spawn(move || process.end("-TERM"));
    while next().2 != State::Leaving {}
    assert_eq!(ended.join().unwrap(), Some(0));
}

/// Beside a host a relay does not run, and that is said.
#[test]
fn relay_beside_a_host_is_told_to_be_a_process_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{QUICK}\n[relay]\nsend_to = [\"udp://127.0.0.1:9\"]\n");
    let mut process = Process::start(&folder, &config, &[]);
    process.until("[relay] is not run beside [host], which has the report port for itself: start");
    assert_eq!(process.end("-TERM"), Some(0));
    let mut alone = Process::start(&folder, &config, &["host"]);
    let mut said = Vec::new();
    alone.until_with("try ", &mut said);
    assert!(!said.iter().any(|line| line.contains("relay")), "nobody asked for one: {said:?}");
    assert_eq!(alone.end("-TERM"), Some(0));
}
