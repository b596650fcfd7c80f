//! What a report costs a host, from the socket to its load: receive, verify, decode, fleet and formula,
//! against a bare batched drain of the same datagrams; and the same with what a strategy is told.
//!
//! A socket is filled with the datagrams of 5 000 machines, then drained, once by the host's own path
//! and once by `recvmmsg` alone, in changing order; 20 000 machines take turns. Measured is the CPU
//! time of the whole process, with all its threads, in nanoseconds a report; printed are the best of
//! each and the median ratio with the interval that holds nine medians of ten (bootstrap). The goals are
//! for the walk to the load: the pool's strategy is one that is not there, and native code would choose.
//! `random` is told of targets and keeps no index; `balanced` is the default one.
//! A missed goal ends the run with an error. `cargo bench --bench receive`

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark's output is its purpose")]

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loadline::config::{Config, HostConfig, PoolConfig, ReportsConfig};
use loadline::policy::Kind;
use loadline::report::{Key, Keyring, Metrics, Report, State, wire};
use loadline::run::{Host, Loadline};
use loadline::transport::{Receiver, Status, enlarge};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use nix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

const MACHINES: usize = 20_000;
const BLOCK: usize = 5_000;
const ROUNDS: usize = 40;
const SECRET: &[u8] = b"0123456789abcdef";
/// A strategy that there is none of.
const NOBODY: &str = "none";
/// Goals, as multiples of the bare drain.
const UNSIGNED: f64 = 2.0;
const SIGNED: f64 = 3.0;

fn main() -> ExitCode {
    println!("one report, ns of CPU          host     bare   ratio   (90 %)");
    let mut good = true;
    for (strategy, has_goal) in [(NOBODY, true), ("random", false), ("balanced", false)] {
        good &= bench("unsigned", strategy, &Keyring::default(), has_goal.then_some(UNSIGNED));
        let key = Key::new(1, SECRET).expect("a good key");
        good &= bench("signed", strategy, &Keyring::new(vec![key]), has_goal.then_some(SIGNED));
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A socket that is filled before it is drained.
struct Bench {
    runtime: Runtime,
    loadline: Loadline,
    sender: UdpSocket,
    socket: UdpSocket,
    receiver: Receiver,
    keyring: Keyring,
    /// Blocks of reports that the host has got.
    fills: usize,
}

fn bench(what: &str, strategy: &str, keyring: &Keyring, goal: Option<f64>) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bench = Bench::start(folder.path(), strategy, keyring);
    bench.wait_for_policies(strategy);
    for _ in 0..2 * MACHINES / BLOCK {
        bench.by_host(); // everybody is known, and pages are mapped
    }
    let (mut host, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            host.push(bench.by_host());
            bare.push(bench.bare());
        } else {
            bare.push(bench.bare());
            host.push(bench.by_host());
        }
    }
    let ratios: Vec<_> = host.iter().zip(&bare).map(|(host, bare)| host / bare).collect();
    let ratio = median(ratios.clone());
    let (low, high) = interval(&ratios);
    let is_good = goal.is_none_or(|goal| ratio <= goal);
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let name = format!("{what}, {strategy}");
    let (host, bare) = (best(&host), best(&bare));
    let goal = goal.map_or_else(String::new, |goal| {
        format!("   goal {goal:.1}{}", if is_good { "" } else { " missed" })
    });
    println!("{name:<26} {host:>8.0} {bare:>8.0} {ratio:>7.2}   {low:.2} to {high:.2}{goal}");
    bench.end();
    is_good
}

impl Bench {
    fn start(folder: &std::path::Path, strategy: &str, keyring: &Keyring) -> Self {
        let secret = folder.join("secret");
        std::fs::write(&secret, SECRET).expect("written");
        let mut reports = match keyring.signing_id() {
            0 => ReportsConfig::default(),
            _ => {
                let text =
                    format!("[host]\n[reports]\nkeys = [{{ id = 1, secret_file = {secret:?} }}]");
                Config::parse(&text).expect("a good file").reports
            }
        };
        reports.groups.port = 0;
        reports.interfaces = vec!["lo".to_owned()];
        let config = Config {
            agent: None,
            reports,
            relay: None,
            machines: Vec::new(),
            host: Some(HostConfig {
                listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                policies: folder.join("policies"),
                ..HostConfig::default()
            }),
            pools: vec![PoolConfig { strategy: strategy.to_owned(), ..PoolConfig::new("default") }],
        };
        let runtime = Runtime::new().expect("a runtime");
        let loadline = runtime.block_on(Loadline::start(config)).expect("a host");
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        sender.connect(socket.local_addr().expect("an address")).expect("connected");
        let receiver = Receiver::new(&socket, Arc::<Status>::default()).expect("a receiver");
        enlarge(&socket, ReportsConfig::default().receive_buffer).expect("a size");
        socket.set_nonblocking(true).expect("set");
        let keyring = keyring.clone();
        Self { runtime, loadline, sender, socket, receiver, keyring, fills: 0 }
    }

    fn host(&self) -> &Host {
        self.loadline.host().expect("a host")
    }

    /// What compiles beside the walk is not of its cost, and without a formula it would be cheaper.
    fn wait_for_policies(&self, strategy: &str) {
        let pools = self.host().pools().all();
        let kinds =
            [Kind::Formula].into_iter().chain((strategy != NOBODY).then_some(Kind::Strategy));
        let mut changes = self.host().changes();
        for kind in kinds {
            self.runtime.block_on(async {
                while pools[0].serving(kind).is_none() {
                    changes.changed().await.expect("a host that runs");
                }
            });
        }
    }

    /// Fills the socket with the next machines' reports.
    fn fill(&mut self) {
        let blocks = MACHINES / BLOCK;
        let (seq, block) = (1 + (self.fills / blocks) as u64, self.fills % blocks);
        self.fills += 1;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sent_ms = u64::try_from(since.as_millis()).expect("a time");
        for number in block * BLOCK..(block + 1) * BLOCK {
            let name = format!("machine-{number}");
            let load = (number % 256) as f64 / 512.0;
            let report = Report {
                farm: "default",
                machine: &name,
                boot: 1,
                seq,
                interval_ms: 3_600_000,
                delay_ms: 0,
                state: State::Ready,
                weight: 1.0,
                metrics: Metrics { names: vec!["cpu", "memory"].into(), values: vec![load, 0.25] },
                services: Vec::new(),
                labels: Vec::new(),
                sent_ms: if self.keyring.signing_id() == 0 { 0 } else { sent_ms },
                hops: 0,
            };
            let frame = wire::encode(&[report], &self.keyring).expect("a good report");
            self.sender.send(&frame).expect("sent");
        }
    }

    /// The host's path; nanoseconds a report.
    fn by_host(&mut self) -> f64 {
        self.fill();
        let mut changes = self.host().changes();
        let before = self.host().reports();
        let begin = cpu_ns();
        let mut received = 0;
        while received < BLOCK {
            let batch =
                self.receiver.receive(&self.socket).expect("all were sent, none was dropped");
            received += batch.len();
            self.host().deliver(batch);
        }
        self.runtime.block_on(async {
            while self.host().reports() < before + BLOCK as u64 {
                changes.changed().await.expect("a host that runs");
            }
        });
        (cpu_ns() - begin) / BLOCK as f64
    }

    /// The same datagrams, taken from the socket and left alone.
    fn bare(&mut self) -> f64 {
        self.fill();
        self.fills -= 1; // the host has not heard them
        let mut slots = vec![0_u8; 64 * 2_112];
        let begin = cpu_ns();
        let mut received = 0;
        while received < BLOCK {
            // Their types do not let them be used again; it is a hundredth of the call.
            let mut slices: Vec<_> =
                slots.chunks_mut(2_112).map(|slot| [IoSliceMut::new(slot)]).collect();
            let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(64, None);
            let fd = self.socket.as_raw_fd();
            let results = recvmmsg(fd, &mut headers, &mut slices, MsgFlags::MSG_DONTWAIT, None);
            received += results.expect("all were sent, none was dropped").count();
        }
        (cpu_ns() - begin) / BLOCK as f64
    }

    fn end(self) {
        let tally = self.host().pools().all()[0].tally();
        assert_eq!((tally.targets, tally.unknown), (MACHINES, 0), "each has a load");
        self.runtime.block_on(self.loadline.stop());
    }
}

/// CPU time of this process.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("this clock exists");
    Duration::from(time).as_secs_f64() * 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Where nine of ten medians lie, had the rounds been others like them.
fn interval(values: &[f64]) -> (f64, f64) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut again =
        || median((0..values.len()).map(|_| values[random.usize(..values.len())]).collect());
    let mut medians: Vec<_> = (0..1_000).map(|_| again()).collect();
    medians.sort_by(f64::total_cmp);
    (medians[50], medians[949])
}
