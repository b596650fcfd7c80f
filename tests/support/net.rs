//! A network of namespaces: machines on bridges, made for one test and gone with it.
//!
//! Needs root and `ip`. Hosts and agents run in this process, each on threads of its own that live in
//! the machine's namespace; the test waits for changes of the host, never for time to pass.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use loadline::config::{
    AgentConfig, Config, HostConfig, MetricConfig, MetricSource, PoolConfig, ReportsConfig,
    SystemMetric,
};
use loadline::run::{Loadline, RunningRelay};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::{PATIENCE, get};

/// Time between two reports of a test's agent.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// Namespaces of one test: `br` holds the bridges, the others are machines.
pub(crate) struct Net {
    prefix: String,
    machines: Vec<String>,
}

/// A host or an agent in a machine's namespace.
pub(crate) struct Node {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    changes: watch::Receiver<u64>,
    http: Option<SocketAddr>,
    namespace: PathBuf,
    /// The host's report port; 0 for an agent.
    pub(crate) port: u16,
    folder: tempfile::TempDir,
}

impl Net {
    /// An empty network; `None`, with a message, where this process may not make one.
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ll{}x{number}", std::process::id());
        let mut net = Self { prefix, machines: Vec::new() };
        let made = Command::new("ip").args(["netns", "add", &net.name("br")]).output();
        match made {
            Ok(output) if output.status.success() => {
                net.machines.push("br".to_owned());
                Some(net)
            }
            other => {
                left_out(&format!("network namespaces need root and ip: {other:?}"));
                None
            }
        }
    }

    /// Machines on one bridge: `lan` 1 is 10.77.1.0/24 and fd77:1::/64, the first machine's number 1.
    pub(crate) fn lan(machines: &[&str]) -> Option<Self> {
        let mut net = Self::new()?;
        net.bridge(1);
        for machine in machines {
            net.machine(machine);
        }
        for (number, machine) in (1..).zip(machines) {
            net.plug(machine, 1, number);
            net.address(machine, 1, number);
        }
        Some(net)
    }

    pub(crate) fn name(&self, machine: &str) -> String {
        format!("{}{machine}", self.prefix)
    }

    /// A bridge that is up; it floods multicast as a simple switch does.
    pub(crate) fn bridge(&mut self, lan: u8) {
        let bridge = format!("b{lan}");
        self.ip("br", &format!("link add {bridge} type bridge mcast_snooping 0"));
        self.ip("br", &format!("link set {bridge} up"));
    }

    /// A machine with loopback alone.
    pub(crate) fn machine(&mut self, machine: &str) {
        run_ip(&format!("netns add {}", self.name(machine)));
        self.machines.push(machine.to_owned());
        self.ip(machine, "link set lo up");
    }

    /// A cable from a machine to a bridge, up: `e1` on lan 1.
    pub(crate) fn plug(&self, machine: &str, lan: u8, number: u8) {
        let (br, there) = (self.name("br"), self.name(machine));
        self.ip("br", &format!("link add p{lan}{number} type veth peer name e{lan} netns {there}"));
        debug_assert!(!br.is_empty());
        self.ip("br", &format!("link set p{lan}{number} master b{lan} up"));
        self.ip(machine, &format!("link set e{lan} up"));
    }

    /// Both families' addresses, usable at once.
    pub(crate) fn address(&self, machine: &str, lan: u8, number: u8) {
        self.ip(machine, &format!("address add 10.77.{lan}.{number}/24 dev e{lan}"));
        self.ip(machine, &format!("address add fd77:{lan}::{number}/64 dev e{lan} nodad"));
    }

    /// `ip` in a namespace; it must succeed.
    #[track_caller]
    pub(crate) fn ip(&self, machine: &str, arguments: &str) {
        run_ip(&format!("-n {} {arguments}", self.name(machine)));
    }

    /// Runs in a machine's namespace, on a thread of its own.
    pub(crate) fn within<T: Send + 'static>(
        &self,
        machine: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        within(self.namespace(machine), work)
    }

    pub(crate) fn namespace(&self, machine: &str) -> PathBuf {
        PathBuf::from(format!("/run/netns/{}", self.name(machine)))
    }

    /// A host on a machine. Its HTTP port is its own loopback's.
    pub(crate) fn host(&self, machine: &str, reports: ReportsConfig) -> Node {
        self.start(machine, reports, None)
    }

    /// An agent that samples nothing, every 100 ms, under its machine's name.
    pub(crate) fn agent(&self, machine: &str, reports: ReportsConfig) -> Node {
        self.start(machine, reports, Some(quick_agent(machine)))
    }

    /// The same under another configuration.
    pub(crate) fn start(
        &self,
        machine: &str,
        reports: ReportsConfig,
        agent: Option<AgentConfig>,
    ) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let host = agent.is_none().then(|| HostConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            policies: folder.path().to_owned(),
            ..HostConfig::default()
        });
        let config = Config {
            agent,
            reports,
            relay: None,
            host,
            machines: Vec::new(),
            pools: vec![PoolConfig::new("default")],
        };
        let namespace = self.namespace(machine);
        let (stop, stopped) = oneshot::channel();
        let (started, ready) = mpsc::channel();
        let there = namespace.clone();
        let thread = std::thread::spawn(move || {
            runtime_within(there).block_on(async {
                let loadline = Loadline::start(config).await.unwrap();
                let host = loadline.host();
                let (_, nothing) = watch::channel(0);
                let changes = host.map_or(nothing, loadline::run::Host::changes);
                let http = host.map(loadline::run::Host::http_address);
                let port = host.map_or(0, loadline::run::Host::report_port);
                started.send((changes, http, port)).unwrap();
                stopped.await.ok(); // dropped: the test has ended
                loadline.stop().await;
            });
        });
        let (changes, http, port) = ready.recv().unwrap();
        let (stop, thread) = (Some(stop), Some(thread));
        Node { stop, thread, changes, http, namespace, port, folder }
    }
}

impl Net {
    /// A relay on a machine that hears already; it ends with what is returned.
    pub(crate) fn relay(&self, machine: &str, config: &str) -> Relaying {
        let config = Config::parse(config).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, hears) = mpsc::channel();
        let there = self.namespace(machine);
        let thread = std::thread::spawn(move || {
            runtime_within(there).block_on(async {
                let relay = RunningRelay::start(&config).unwrap();
                started.send(()).unwrap();
                stopped.await.ok(); // dropped: the test has ended
                let relayed = relay.relayed();
                relay.stop().await;
                relayed
            })
        });
        hears.recv().unwrap();
        Relaying { stop, thread }
    }
}

/// A relay that runs.
pub(crate) struct Relaying {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<u64>,
}

impl Relaying {
    /// Ends it; how many reports went through.
    pub(crate) fn stop(self) -> u64 {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for machine in &self.machines {
            // A test that failed half-way may have left less than there should be.
            Command::new("ip").args(["netns", "del", &self.name(machine)]).status().ok();
        }
    }
}

impl Node {
    /// Waits until the host finds so: `look` gets what `/v1/machines` says.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        let begin = std::time::Instant::now();
        let mut changes = self.changes.clone();
        loop {
            changes.borrow_and_update();
            let machines = self.json("/v1/machines");
            if let Some(found) = look(machines.as_array().unwrap()) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what} did not happen: {machines:#}");
            let wait = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let change = async { tokio::time::timeout(PATIENCE, changes.changed()).await };
            let changed = wait.block_on(change);
            assert!(changed.is_ok(), "{what} did not happen, nothing did: {machines:#}");
        }
    }

    /// Waits until exactly these machines are alive.
    #[track_caller]
    pub(crate) fn lists(&self, expected: &[&str]) {
        self.until(&format!("only {expected:?} alive"), |machines| {
            let mut alive: Vec<_> = machines.iter().filter(|m| m["alive"] == true).collect();
            alive.sort_by_key(|machine| machine["name"].as_str().unwrap().to_owned());
            let names: Vec<_> = alive.iter().map(|m| m["name"].as_str().unwrap()).collect();
            (names == expected).then_some(())
        });
    }

    /// Waits until the host offers this address for a machine.
    #[track_caller]
    pub(crate) fn offers(&self, machine: &str, address: &str) {
        self.until(&format!("{machine} at {address}"), |machines| {
            let machine = machines.iter().find(|m| m["name"] == machine && m["alive"] == true)?;
            (machine["targets"][0]["address"] == address).then_some(())
        });
    }

    /// The JSON of a call.
    pub(crate) fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path)).unwrap()
    }

    pub(crate) fn text(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.http.expect("a host"));
        let (status, body) = within(self.namespace.clone(), move || get(&url, "application/json"));
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.text("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("loadline_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    }

    /// Says that it leaves, and ends.
    pub(crate) fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap();
        drop(self.folder);
    }
}

/// Says why a test of namespaces or mounts is left out here; LOADLINE_NETNS=required makes that a failure.
#[track_caller]
pub(crate) fn left_out(why: &str) {
    let is_required = std::env::var_os("LOADLINE_NETNS").is_some_and(|wish| wish == "required");
    assert!(!is_required, "LOADLINE_NETNS=required, and {why}");
    eprintln!("left out: {why}");
}

/// An agent that samples only what costs nothing.
pub(crate) fn quick_agent(machine: &str) -> AgentConfig {
    AgentConfig {
        machine: machine.to_owned(),
        interval: INTERVAL,
        metrics: vec![MetricConfig {
            every: Duration::from_millis(50),
            window: 2,
            ..MetricConfig::new("cpu", MetricSource::system(SystemMetric::Cpu))
        }],
        ..AgentConfig::default()
    }
}

/// Reports as they are by default.
pub(crate) fn reports() -> ReportsConfig {
    ReportsConfig { silence: Duration::ZERO, ..ReportsConfig::default() }
}

/// Reports without any group, to these destinations.
pub(crate) fn by(destinations: &[&str]) -> ReportsConfig {
    let list: Vec<_> = destinations.iter().map(|to| format!("{to:?}")).collect();
    configured(&format!("group = []\nsend_to = [{}]", list.join(", ")))
}

/// `[reports]` as written.
pub(crate) fn configured(text: &str) -> ReportsConfig {
    Config::parse(&format!("[host]\n[reports]\n{text}")).unwrap().reports
}

/// Sends one datagram.
pub(crate) fn throw(from: IpAddr, to: SocketAddr, bytes: &[u8]) {
    let socket = std::net::UdpSocket::bind((from, 0)).unwrap();
    socket.send_to(bytes, to).unwrap();
}

fn within<T: Send + 'static>(namespace: PathBuf, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        enter(namespace);
        work()
    });
    thread.join().unwrap()
}

fn runtime_within(namespace: PathBuf) -> tokio::runtime::Runtime {
    enter(namespace);
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Moves this thread, and those it starts from now on.
fn enter(namespace: PathBuf) {
    setns(File::open(namespace).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
}

#[track_caller]
fn run_ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}");
}
