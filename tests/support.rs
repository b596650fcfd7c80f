//! A farm in one process: a host on free ports, agents as they are or as hand-made reports.

pub(crate) mod admin;
pub(crate) mod host;
pub(crate) mod large;
pub(crate) mod load;
pub(crate) mod net;
mod stalls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline::clock::WallClock;
use loadline::config::{Config, HostConfig, PoolConfig, ReportsConfig};
use loadline::report::{Keyring, Metrics, Report, Service, State, wire};
use loadline::run::{Host, Loadline};
use loadline::transport::Datagram;
use serde_json::Value;
use tempfile::TempDir;

/// A test that waits longer than this has failed; nothing is ever waited for this long, also on a machine that is full
/// of other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A host with its policies folder.
pub(crate) struct Farm {
    loadline: Option<Loadline>,
    folder: TempDir,
    /// Other folders that it needs.
    kept: Vec<TempDir>,
    seq: u64,
}

impl Farm {
    /// A host with these pools, on loopback and free ports, and an empty policies folder.
    pub(crate) async fn with_pools(pools: Vec<PoolConfig>) -> Self {
        Self::with_files(pools, &[]).await
    }

    /// One pool, `default`, for reports that come like this.
    pub(crate) async fn with_reports(reports: ReportsConfig) -> Self {
        let pools = vec![pool("default", "weighted", "least-loaded")];
        Self::start((reports, pools), &[], |_| {}, WallClock::default()).await
    }

    /// Pools with files in the folder from the start.
    pub(crate) async fn with_files(pools: Vec<PoolConfig>, files: &[(&str, &[u8])]) -> Self {
        Self::with_host(pools, files, |_| {}).await
    }

    /// The same with another `[host]`.
    pub(crate) async fn with_host(
        pools: Vec<PoolConfig>,
        files: &[(&str, &[u8])],
        change: impl FnOnce(&mut HostConfig),
    ) -> Self {
        Self::start((reports(0), pools), files, change, WallClock::default()).await
    }

    /// Pools whose schedules go by this clock.
    pub(crate) async fn with_clock(
        pools: Vec<PoolConfig>,
        files: &[(&str, &[u8])],
        wall: WallClock,
    ) -> Self {
        Self::start((reports(0), pools), files, |_| {}, wall).await
    }

    async fn start(
        (reports, pools): (ReportsConfig, Vec<PoolConfig>),
        files: &[(&str, &[u8])],
        change: impl FnOnce(&mut HostConfig),
        wall: WallClock,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let mut host = HostConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            policies: folder.path().to_owned(),
            removal_grace: Duration::ZERO,
            ..HostConfig::default()
        };
        change(&mut host);
        let host = Some(host);
        let machines = Vec::new();
        let config = Config { agent: None, reports, relay: None, host, machines, pools };
        let loadline = Some(Loadline::start_by(config, wall).await.unwrap());
        Self { loadline, folder, kept: Vec::new(), seq: 0 }
    }

    /// One pool, `default`, with these policies.
    pub(crate) async fn new(formula: &str, strategy: &str) -> Self {
        Self::with_pools(vec![pool("default", formula, strategy)]).await
    }

    pub(crate) fn host(&self) -> &Host {
        self.loadline.as_ref().and_then(Loadline::host).unwrap()
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Config {
        self.loadline.as_ref().unwrap().config().clone()
    }

    /// Changes the configuration; what could not be done.
    pub(crate) async fn apply(&mut self, change: impl FnOnce(&mut Config)) -> Vec<String> {
        let mut config = self.config();
        change(&mut config);
        let problems = self.loadline.as_mut().unwrap().apply(&config).await;
        problems.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host().http_address())
    }

    pub(crate) async fn stop(mut self) {
        self.loadline.take().unwrap().stop().await;
    }

    /// Writes a file of the policies folder at once, as by `mv`.
    pub(crate) fn drop_in(&self, name: &str, bytes: &[u8]) {
        let temporary = self.folder.path().join(format!(".{name}.tmp"));
        std::fs::write(&temporary, bytes).unwrap();
        std::fs::rename(temporary, self.folder.path().join(name)).unwrap();
    }

    /// Keeps a folder as long as itself.
    pub(crate) fn keep(&mut self, folder: TempDir) {
        self.kept.push(folder);
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Delivers a report of each machine with these metrics, by memory.
    pub(crate) fn report(&mut self, machines: &[&str], metrics: &[(&str, f64)]) {
        for machine in machines {
            self.send(&report(machine, metrics));
        }
    }

    /// Delivers one report by memory, with the next sequence number.
    pub(crate) fn send(&mut self, report: &Report<'_>) {
        self.seq += 1;
        let report = Report { seq: self.seq, ..report.clone() };
        self.deliver(wire::encode(&[report], &Keyring::default()).unwrap());
    }

    pub(crate) fn deliver(&self, bytes: Vec<u8>) {
        self.deliver_from(IpAddr::V4(Ipv4Addr::LOCALHOST), bytes);
    }

    pub(crate) fn deliver_from(&self, from: IpAddr, bytes: Vec<u8>) {
        let received = Instant::now();
        self.host().deliver([Datagram { bytes: &bytes, received, from }].into_iter().collect());
    }

    /// Sends raw bytes to the report port over a real socket.
    pub(crate) fn send_udp(&self, bytes: &[u8]) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.send_to(bytes, (Ipv4Addr::LOCALHOST, self.host().report_port())).unwrap();
    }

    /// Sends raw bytes to the group, on loopback.
    pub(crate) fn send_multicast(&self, bytes: &[u8]) {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
        let group = reports(self.host().report_port()).groups.addresses().next().unwrap();
        socket.send_to(bytes, &group.into()).unwrap();
    }

    /// Waits, change by change, until `look` finds what it wants.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.host().changes();
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                changes.borrow_and_update();
                if let Some(found) = look(self) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("{what} did not happen; pools: {:#}", self.get("/v1/pools")),
        }
    }

    /// Waits until so many targets of `default` may be picked.
    pub(crate) async fn eligible(&self, targets: usize) {
        let pools = |farm: &Self| farm.host().pools().get("").unwrap().eligible() == targets;
        self.until(&format!("{targets} eligible targets"), |farm| pools(farm).then_some(())).await;
    }

    /// The JSON of a call that must succeed.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = get(&self.url(path), "application/json");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The status and the error's code of a call that must fail.
    #[track_caller]
    pub(crate) fn get_error(&self, path: &str) -> (u16, String) {
        let (status, body) = get(&self.url(path), "application/json");
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        assert!(body["error"]["message"].is_string(), "{path}: {status} {body}");
        (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
    }

    /// The machine picked for `/v1/target?…`.
    pub(crate) fn target(&self, query: &str) -> String {
        let answer = self.get(&format!("/v1/target?{query}"));
        answer["machine"].as_str().unwrap().to_owned()
    }

    /// The value of a metric, its labels included in its name.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (_, text) = get(&self.url("/metrics"), "");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("loadline_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    }

    /// One of the default pool's policies in `/v1/pools`.
    pub(crate) fn policy(&self, kind: &str) -> Value {
        self.get("/v1/pools")[0][kind].clone()
    }
}

/// Reports on loopback, without any group joined elsewhere.
pub(crate) fn reports(port: u16) -> ReportsConfig {
    let mut reports = ReportsConfig { interfaces: vec!["lo".to_owned()], ..Default::default() };
    reports.groups.port = port;
    reports
}

pub(crate) fn pool(name: &str, formula: &str, strategy: &str) -> PoolConfig {
    PoolConfig {
        formula: formula.to_owned(),
        strategy: strategy.to_owned(),
        ..PoolConfig::new(name)
    }
}

/// A report of a machine without services, every hour: it is gone when the test says so.
pub(crate) fn report<'a>(machine: &'a str, metrics: &[(&'a str, f64)]) -> Report<'a> {
    Report {
        farm: "default",
        machine,
        boot: 1,
        seq: 1,
        interval_ms: 3_600_000,
        delay_ms: 0,
        state: State::Ready,
        weight: 1.0,
        metrics: metrics.iter().copied().collect(),
        services: Vec::new(),
        labels: Vec::new(),
        sent_ms: 0,
        hops: 0,
    }
}

pub(crate) fn service<'a>(name: &'a str, address: &'a str) -> Service<'a> {
    Service {
        name,
        address,
        weight: 1.0,
        metrics: Metrics::default(),
        accepted: 0,
        completed: 0,
        in_flight: 0,
        labels: Vec::new(),
    }
}

/// Status and body of a GET.
pub(crate) fn get(url: &str, accept: &str) -> (u16, String) {
    let call = agent().get(url).header("accept", accept).call();
    let mut answer = call.unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

/// Status and body of a POST of JSON.
pub(crate) fn post(url: &str, body: &str) -> (u16, String) {
    let mut answer = agent().post(url).send(body).unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

/// Status of a DELETE.
pub(crate) fn delete(url: &str) -> u16 {
    agent().delete(url).call().unwrap().status().as_u16()
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build();
    ureq::Agent::new_with_config(config)
}

/// A strategy, its functions in core WebAssembly text. `body` replaces the functions
/// it defines; the rest does the least that the contract allows.
pub(crate) fn strategy(body: &str) -> Vec<u8> {
    guest("strategy", STRATEGY, "", body)
}

/// A strategy that traps on its thirtieth pick: after its trial.
pub(crate) fn trapping() -> Vec<u8> {
    strategy(
        "(global $picks (mut i32) (i32.const 0))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.eq (global.get $picks) (i32.const 30)) (then unreachable))
            i32.const 128)",
    )
}

/// A strategy with imports besides the log.
pub(crate) fn importing_strategy(imports: &str, body: &str) -> Vec<u8> {
    guest("strategy", STRATEGY, imports, body)
}

/// A formula likewise. Its one metric is `cpu`.
pub(crate) fn formula(body: &str) -> Vec<u8> {
    guest("formula", FORMULA, "", body)
}

/// Function name, type, and a body that does the least.
type Part = (&'static str, &'static str, &'static str);

const STRATEGY: &[Part] = &[
    ("describe", "(result i32)", "i32.const 64"),
    ("configure", "(param i32 i32 i64) (result i32)", "i32.const 128"),
    ("update", "(param i64 i32 i32 i32)", ""),
    ("leave", "(param i32 i32)", ""),
    ("pick", "(param i64 i32 f64 i64 i64) (result i32)", "i32.const 128"),
    ("pick-among", "(param i64 i32 f64 i64 i64 i32 i32) (result i32)", "i32.const 128"),
    ("admit", "(param i32) (result i32)", "i32.const 1"),
    ("rebalance", "(param i64) (result i32)", "i32.const 128"),
    ("save", "(result i32)", "i32.const 128"),
    ("restore", "(param i32 i32) (result i32)", "i32.const 1"),
];

const FORMULA: &[Part] = &[
    ("describe", "(result i32)", "i32.const 64"),
    ("metrics", "(result i32)", "i32.const 160"),
    ("configure", "(param i32 i32) (result i32)", "i32.const 128"),
    (
        "evaluate",
        "(param i64 i32 i32 i32 i32) (result i32)",
        // The metric's values are the loads.
        "(i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2)) i32.const 192",
    ),
    ("leave", "(param i32 i32)", ""),
    ("save", "(result i32)", "i32.const 128"),
    ("restore", "(param i32 i32) (result i32)", "i32.const 1"),
];

/// Memory below 4096 is for answers: 64 a description, 128 zeros (ok, none, an empty list), 160 the
/// list of one metric, 192 free. `$heap` is a bump heap that starts again at every call of realloc
/// above one page; `$log` the host's.
fn guest(interface: &str, parts: &[Part], imports: &str, body: &str) -> Vec<u8> {
    let mut functions = String::new();
    for (name, signature, least) in parts {
        let export = format!("(export \"loadline:policy/{interface}@1.0.0#{name}\")");
        let start = format!("(func ${name} ");
        if !body.contains(&start) {
            functions.push_str(&format!("(func ${name} {export} {signature} {least})\n"));
        } else {
            let name =
                format!("(export \"loadline:policy/{interface}@1.0.0#{name}\" (func ${name}))\n");
            functions.push_str(&name);
        }
    }
    let text = format!(
        r#"(module
            (import "loadline:policy/log@1.0.0" "write" (func $log (param i32 i32 i32)))
            {imports}
            (memory (export "memory") 4)
            (global $heap (mut i32) (i32.const 4096))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
                (if (i32.gt_u (i32.add (global.get $heap) (local.get 3)) (i32.const 131072))
                    (then (global.set $heap (i32.const 4096))))
                (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
                (global.set $heap (i32.add (local.get $at) (local.get 3)))
                (local.get $at))
            (data (i32.const 64) "\20\00\00\00\00\00\00\00\20\00\00\00\00\00\00\00\20\00\00\00\00\00\00\00")
            (data (i32.const 160) "\a8\00\00\00\01\00\00\00\e0\00\00\00\03\00\00\00")
            (data (i32.const 224) "cpu")
            {functions}
            {body})"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A built-in policy's module, as the build script made it.
pub(crate) fn built_in(name: &str) -> Vec<u8> {
    loadline::policy::built_in(name).unwrap().to_vec()
}

/// The same policy as another file: one more custom section makes another generation.
pub(crate) fn relabelled(wasm: &[u8], label: u8) -> Vec<u8> {
    [wasm, &[0, 3, 1, b'x', label]].concat()
}

/// Runs blocking HTTP calls on another thread until told to stop; every answer is looked at.
pub(crate) struct Queries {
    stop: Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Answered>>,
}

/// What constant queries got.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    pub(crate) good: usize,
    pub(crate) bad: Vec<String>,
    pub(crate) slowest: Duration,
    /// The strategies and formulas that answered, in order of their first answer.
    pub(crate) policies: Vec<String>,
}

impl Queries {
    pub(crate) fn start(url: String, threads: usize) -> Self {
        let stop: Arc<std::sync::atomic::AtomicBool> = Arc::default();
        let ask = || {
            let (url, stop) = (url.clone(), Arc::clone(&stop));
            std::thread::spawn(move || ask_until(&url, &stop))
        };
        Self { threads: (0..threads).map(|_| ask()).collect(), stop }
    }

    pub(crate) fn stop(self) -> Answered {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut all = Answered::default();
        for thread in self.threads {
            let one = thread.join().unwrap();
            all.good += one.good;
            all.bad.extend(one.bad);
            all.slowest = all.slowest.max(one.slowest);
            all.policies.extend(one.policies);
        }
        all
    }
}

fn ask_until(url: &str, stop: &std::sync::atomic::AtomicBool) -> Answered {
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder().http_status_as_error(false).build(),
    );
    let mut answered = Answered::default();
    // Once at least, however soon it is stopped.
    loop {
        let begin = Instant::now();
        let mut answer = agent.get(url).call().unwrap();
        let body = answer.body_mut().read_to_string().unwrap();
        answered.slowest = answered.slowest.max(begin.elapsed());
        if answer.status() == 200 {
            answered.good += 1;
            let policy = serde_json::from_str::<Value>(&body).unwrap()["policy"].to_string();
            if answered.policies.last() != Some(&policy) {
                answered.policies.push(policy);
            }
        } else {
            answered.bad.push(body);
        }
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return answered;
        }
    }
}

/// The program itself, as a process.
pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_loadline-under-test"))
}

/// Numbers that look random and are the same in every run (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 to one below this.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
