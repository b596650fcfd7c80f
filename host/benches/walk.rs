//! What the guests cost: picks and formula batches through Wasm against their native twins, and the
//! slowest pick while policies are reloaded, and what it costs to remember why a target was picked.
//!
//! Guest and twin run in the same process in turns of 10 ms (`BLOCK`), in changing order, on thread
//! CPU time; printed are the best time of each and the median difference and ratio of the turns, so
//! that a noisy machine disturbs both alike. A missed goal is printed as such and ends the run with
//! an error. `cargo bench` runs everything; a word runs what contains it: `cargo bench -- pick`.

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark's output is its purpose")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline::config::{Config, HostConfig, PoolConfig, ReportsConfig};
use loadline::pick::{PickRequest, key_hash, pick};
use loadline::policy::guest::{Request, TargetView};
use loadline::policy::{FormulaGuest, Kind, Limits, Module, PolicyEngine, StrategyGuest, built_in};
use loadline::report::{Keyring, Metrics, Report, State, wire};
use loadline::run::{Host, Loadline};
use loadline::transport::Datagram;
use loadline_sdk::{FormulaRunner, Slot, Strategy};
use native::Native;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use policy_balanced::Balanced;
use policy_p2c::P2c;
use policy_weighted::Weighted;

#[path = "support/native.rs"]
mod native;

const BLOCK: Duration = Duration::from_millis(10);
const BLOCKS: usize = 60;
/// Priority of the process while reloads are timed, where it may be set.
const AHEAD_OF_OTHERS: i32 = -15;
/// Goals, in nanoseconds above the native twin, as a multiple of it, and in milliseconds.
const BALANCED_RATIO: f64 = 2.5;
const PICK_ABOVE_NS: f64 = 250.0;
const FORMULA_ABOVE_NS: f64 = 60.0;
const RELOAD_PICK_MS: f64 = 2.0;
/// Goal of `/v1/target` with its decision remembered, as a ratio.
const DECISION_RATIO: f64 = 1.05;

fn main() -> ExitCode {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(&**word));
    let mut good = true;
    if runs("pick") {
        println!("one pick                                    guest ns  native ns   above  ratio");
        let (above, times) = (Goal::Above(PICK_ABOVE_NS), Goal::Ratio(BALANCED_RATIO));
        for targets in [100, 10_000, 100_000] {
            good &= bench_pick::<P2c>("p2c", targets, 1, &[above]);
        }
        for hosts in [1, 4] {
            for targets in [100, 10_000] {
                good &= bench_pick::<Balanced>("balanced", targets, hosts, &[above]);
            }
            good &= bench_pick::<Balanced>("balanced", 100_000, hosts, &[above, times]);
        }
    }
    if runs("formula") {
        println!("one report of a batch                       guest ns  native ns   above  ratio");
        for rows in [1, 64, 1_024] {
            good &= bench_formula("weighted", rows);
            good &= bench_formula("text", rows);
        }
    }
    if runs("decision") {
        println!("decision remembered          with us  without   ratio");
        for targets in [10, 50, 1_000, 10_000] {
            good &= bench_decision(targets);
        }
    }
    if runs("reload") {
        // Threads of the machine that take a core for milliseconds, such as the kernel's own when it
        // looks for memory to reclaim, would count as ours. What we start inherits the priority.
        if rustix::process::setpriority_process(None, AHEAD_OF_OTHERS).is_err() {
            println!("the priority may not be set here: other programs' time counts as ours");
        }
        println!(
            "reload, 10 000 targets    load ms   slowest pick ms   cpu   queued   parked   quiet"
        );
        good &= bench_reload();
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// CPU time of this thread.
fn cpu_ns() -> f64 {
    time_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn time_ns(clock: ClockId) -> f64 {
    Duration::from(clock_gettime(clock).expect("this clock exists")).as_secs_f64() * 1e9
}

/// Nanoseconds a call, over one block.
fn block(call: &mut impl FnMut()) -> f64 {
    block_by(ClockId::CLOCK_THREAD_CPUTIME_ID, call)
}

fn block_by(clock: ClockId, call: &mut impl FnMut()) -> f64 {
    let (start, begin, mut calls) = (Instant::now(), time_ns(clock), 0.0);
    while start.elapsed() < BLOCK {
        for _ in 0..16 {
            call();
        }
        calls += 16.0;
    }
    (time_ns(clock) - begin) / calls
}

/// What a guest may cost.
#[derive(Clone, Copy)]
enum Goal {
    /// Nanoseconds more than the native twin.
    Above(f64),
    /// Times the native twin.
    Ratio(f64),
}

/// Runs both in turns; prints a line; whether the median of the turns, divided among `per` items, is
/// within the goal.
fn compare(
    name: &str,
    per: f64,
    goals: &[Goal],
    mut guest: impl FnMut(),
    mut native: impl FnMut(),
) -> bool {
    let mut turns = Vec::new();
    for turn in 0..BLOCKS {
        let (guest, native) = if turn % 2 == 0 {
            (block(&mut guest), block(&mut native))
        } else {
            let native = block(&mut native);
            (block(&mut guest), native)
        };
        turns.push((guest / per, native / per));
    }
    let best = |of: fn(&(f64, f64)) -> f64| turns.iter().map(of).fold(f64::INFINITY, f64::min);
    let above = median(turns.iter().map(|(guest, native)| guest - native).collect());
    let ratio = median(turns.iter().map(|(guest, native)| guest / native).collect());
    let good = goals.iter().all(|goal| match goal {
        Goal::Above(ns) => above <= *ns,
        Goal::Ratio(times) => ratio <= *times,
    });
    let verdict = if good { "" } else { "   MISSED" };
    println!(
        "{name:<42}{:>10.1}{:>11.1}{above:>8.1}{ratio:>7.1}{verdict}",
        best(|turn| turn.0),
        best(|turn| turn.1),
    );
    good
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn engine() -> PolicyEngine {
    PolicyEngine::new(Limits::default()).expect("an engine")
}

fn module(engine: &PolicyEngine, name: &str) -> Module {
    Module::from_wasm(engine, built_in(name).expect("a built-in")).expect("a good module")
}

/// One pick of a strategy through its guest and natively, at a tenth less than what the targets can
/// do, as far as the strategy learns that from their reports; of every `hosts` requests one comes to
/// this host.
fn bench_pick<S: Strategy>(name: &str, targets: u32, hosts: u32, goals: &[Goal]) -> bool {
    let engine = engine();
    let module = module(&engine, name);
    let mut guest = StrategyGuest::start(&engine, &Arc::from(name), &module, "{}", 1)
        .expect("a strategy that starts");
    let Native(mut native) = Native::<S>::start("{}", 1).expect("no settings");
    let mut requests = Requests::new(targets, hosts);
    let mut accepted = vec![0_u64; targets as usize];
    for second in 0..5_u32 {
        let view = |slot: u32| {
            let accepted = accepted[slot as usize];
            let in_flight = accepted.min(u64::from(slot % 3));
            TargetView {
                in_flight: slot % 3,
                accepted,
                completed: accepted - in_flight,
                ..TargetView::new(slot, f64::from(slot % 97) / 97.0)
            }
        };
        let (now_ms, views) = (u64::from(second) * 1_000, (0..targets).map(view));
        let views: Vec<_> = views.collect();
        for views in views.chunks(1_024) {
            guest.update(now_ms, hosts, views).expect("an update");
            native.update(now_ms, hosts, views.iter().map(native::target));
        }
        while requests.now_ms < f64::from(second + 1) * 1e3 {
            let request = requests.next();
            let picked = guest.pick(request).expect("a pick");
            let twin = native.pick(&native::request(request)).map(|slot| slot.0);
            assert_eq!(picked, twin, "guest and twin choose alike");
            accepted[picked.expect("a target") as usize] += u64::from(hosts);
        }
    }
    let mut twins = requests.clone();
    compare(
        &format!("{name}, {targets} targets, {}", of_hosts(hosts)),
        1.0,
        goals,
        || {
            black_box(guest.pick(requests.next()).expect("a pick"));
        },
        || {
            black_box(native.pick(&native::request(twins.next())));
        },
    )
}

fn of_hosts(hosts: u32) -> String {
    if hosts == 1 { "this host alone".to_owned() } else { format!("1 host of {hosts}") }
}

/// Requests that a target completes in a second.
const PER_SECOND: u32 = 5;

/// Requests to one of `hosts`, at nine tenths of what so many targets complete.
#[derive(Clone)]
struct Requests {
    random: fastrand::Rng,
    now_ms: f64,
    gap_ms: f64,
}

impl Requests {
    fn new(targets: u32, hosts: u32) -> Self {
        let all = 0.9 * f64::from(targets) * f64::from(PER_SECOND);
        let gap_ms = 1e3 * f64::from(hosts) / all;
        Self { random: fastrand::Rng::with_seed(7), now_ms: 0.0, gap_ms }
    }

    fn next(&mut self) -> Request {
        self.now_ms += self.gap_ms;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hours")]
        let now_ms = self.now_ms as u64;
        Request { key: 0, class: 0, cost: 1.0, now_ms, random: self.random.u64(..) }
    }
}

/// `weighted` as Rust, or the same as text.
fn bench_formula(form: &str, rows: u32) -> bool {
    let engine = engine();
    let module = match form {
        "text" => Module::from_text(&engine, "0.5 * max(cpu, 0) + 0.5 * max(memory, 0)")
            .expect("a good text"),
        name => module(&engine, name),
    };
    let mut guest = FormulaGuest::start(&engine, &Arc::from(form), &module, "{}")
        .expect("a formula that starts");
    let mut native = FormulaRunner::<Weighted>::default();
    native.configure("{}").expect("good settings");
    let slots: Vec<_> = (0..rows).collect();
    let values: Vec<_> = (0..rows * 2).map(|value| f64::from(value % 89) / 89.0).collect();
    let loads = guest.evaluate(0, &slots, &values).expect("loads");
    let twins = native.evaluate(0, slots.iter().copied().map(Slot), &values);
    assert_eq!(loads, twins, "guest and twin compute alike");
    // A single row pays for the whole call: the goal is for batches.
    let goal = Goal::Above(if rows < 64 { f64::INFINITY } else { FORMULA_ABOVE_NS });
    compare(
        &format!("{form}, {rows} a batch"),
        f64::from(rows),
        &[goal],
        || {
            black_box(guest.evaluate(0, &slots, black_box(&values)).expect("loads"));
        },
        || {
            let slots = slots.iter().copied().map(Slot);
            black_box(native.evaluate(0, slots, black_box(&values)));
        },
    )
}

/// The same host with and without a memory for decisions: `pick` by itself, and `/v1/target` over a
/// kept connection, on the CPU time of all threads; and a pick whose lease is ended at once, which the
/// guest hears of before the next one.
fn bench_decision(targets: usize) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let start = |decisions| {
        let mut config = config(folder.path(), PoolConfig::new("default"));
        config.host = config.host.map(|host| HostConfig { decisions, ..host });
        runtime.block_on(Loadline::start(config)).expect("a host")
    };
    let hosts = [start(1_024), start(0)];
    let [with, without] = hosts.each_ref().map(|loadline| loadline.host().expect("a host"));
    [with, without].iter().for_each(|host| feed(host, targets));
    let request = PickRequest::default();
    let picks = |host| {
        let request = &request;
        move || _ = black_box(pick(Host::pools(host), request).expect("a target"))
    };
    let thread = ClockId::CLOCK_THREAD_CPUTIME_ID;
    ratio(&format!("pick, {targets} targets"), thread, f64::INFINITY, picks(with), picks(without));
    let leased = PickRequest { lease: Some(Duration::from_secs(30)), ..PickRequest::default() };
    let lease = || {
        let lease = pick(without.pools(), &leased).expect("a target").lease;
        assert!(without.pools().close_lease(&lease.expect("a lease")), "it is open");
    };
    let name = format!("lease or not, {targets}");
    ratio(&name, thread, f64::INFINITY, lease, picks(without));
    let http = |host: &Host| {
        let mut client = TcpStream::connect(host.http_address()).expect("a connection");
        client.set_nodelay(true).expect("a socket option");
        move || get_target(&mut client)
    };
    let process = ClockId::CLOCK_PROCESS_CPUTIME_ID;
    let name = format!("http, {targets} targets");
    // Of still larger pools each neighbour comes from far memory: shown, without a goal.
    let goal = if targets > 1_000 { f64::INFINITY } else { DECISION_RATIO };
    let good = ratio(&name, process, goal, http(with), http(without));
    hosts.into_iter().for_each(|loadline| runtime.block_on(loadline.stop()));
    good
}

/// One request and its whole answer.
fn get_target(client: &mut TcpStream) {
    client.write_all(b"GET /v1/target HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("a request");
    let (mut answer, mut len) = ([0; 4_096], 0);
    while !answer[..len].ends_with(b"}") {
        let read = client.read(&mut answer[len..]).expect("an answer");
        assert!(read > 0, "the connection was closed");
        len += read;
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "a target");
}

/// Runs both in turns; prints a line; whether the median ratio is within the goal.
fn ratio(
    name: &str,
    clock: ClockId,
    goal: f64,
    mut with: impl FnMut(),
    mut without: impl FnMut(),
) -> bool {
    let mut turns = Vec::new();
    for turn in 0..BLOCKS {
        turns.push(if turn % 2 == 0 {
            (block_by(clock, &mut with), block_by(clock, &mut without))
        } else {
            let without = block_by(clock, &mut without);
            (block_by(clock, &mut with), without)
        });
    }
    let us = |of: fn(&(f64, f64)) -> f64| median(turns.iter().map(of).collect()) / 1e3;
    let ratio = median(turns.iter().map(|(with, without)| with / without).collect());
    let verdict = if ratio <= goal { "" } else { "   MISSED" };
    println!("{name:<24}{:>12.2}{:>9.2}{ratio:>8.3}{verdict}", us(|t| t.0), us(|t| t.1));
    ratio <= goal
}

/// A host on free ports with this pool.
fn config(folder: &Path, pool: PoolConfig) -> Config {
    let mut reports = ReportsConfig { interfaces: vec!["lo".to_owned()], ..Default::default() };
    reports.groups.port = 0;
    Config {
        agent: None,
        reports,
        relay: None,
        host: Some(HostConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            policies: folder.to_owned(),
            ..HostConfig::default()
        }),
        machines: Vec::new(),
        pools: vec![pool],
    }
}

/// Reloads under constant picks, and as long without any, in turns.
fn bench_reload() -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let pool = PoolConfig {
        formula: "form".to_owned(),
        strategy: "strat".to_owned(),
        ..PoolConfig::new("default")
    };
    let config = config(folder.path(), pool);
    let write = |name: &str, bytes: &[u8]| {
        let temporary = folder.path().join("temporary");
        std::fs::write(&temporary, bytes).expect("a file");
        std::fs::rename(temporary, folder.path().join(name)).expect("a file");
    };
    let form = built_in("weighted").expect("a built-in");
    write("form.wasm", form);
    write("strat.wasm", &large_strategy(0));
    let loadline = runtime.block_on(Loadline::start(config)).expect("a host");
    let host = loadline.host().expect("a host");
    feed(host, 10_000);
    let mut good = true;
    for (kind, name) in [(Kind::Formula, "form.wasm"), (Kind::Strategy, "strat.wasm")] {
        let (mut slowest, mut quiet) = (SlowPick::default(), SlowPick::default());
        let (mut bytes, mut took) = (0, Duration::ZERO);
        for label in 1..=10 {
            let next = match kind {
                Kind::Formula => [form, &[0, 3, 1, b'x', label]].concat(),
                Kind::Strategy => large_strategy(label),
            };
            bytes = next.len();
            let serving = || host.pools().all()[0].status(kind).serving;
            let before = serving();
            let begin = Instant::now();
            write(name, &next);
            slowest = slowest.or(slowest_pick(host, |_| serving() != before));
            took = begin.elapsed();
            quiet = quiet.or(slowest_pick(host, |begin| begin.elapsed() > took));
        }
        let verdict = if slowest.wall <= RELOAD_PICK_MS { "" } else { "   MISSED" };
        let what = format!("{kind}, {} KB", bytes / 1_000);
        let took = took.as_secs_f64() * 1e3;
        let SlowPick { wall, cpu, queued, parked } = slowest;
        println!(
            "{what:<24}{took:>10.1}{wall:>16.3}{cpu:>8.3}{queued:>8.3}{parked:>6}{:>10.3}{verdict}",
            quiet.wall,
        );
        good &= slowest.wall <= RELOAD_PICK_MS;
    }
    runtime.block_on(loadline.stop());
    good
}

/// One pick, in milliseconds: by the wall clock, on its thread's own clock, and ready to run without
/// a processor; and how often it parked, which only a wait for a thread of ours makes it do. What
/// none of the three accounts for was taken by the machine under it.
#[derive(Clone, Copy, Default)]
struct SlowPick {
    wall: f64,
    cpu: f64,
    queued: f64,
    parked: i64,
}

impl SlowPick {
    fn or(self, other: Self) -> Self {
        if other.wall > self.wall { other } else { self }
    }
}

/// What the kernel counted of a thread so far.
struct Counted {
    at: Instant,
    cpu: f64,
    queued: f64,
    parked: i64,
}

impl Counted {
    fn now(schedstat: &std::fs::File) -> Self {
        let mut text = [0; 64];
        let length = schedstat.read_at(&mut text, 0).expect("the kernel counts");
        let text = str::from_utf8(&text[..length]).expect("numbers");
        let queued = text.split(' ').nth(1).expect("three numbers");
        Self {
            queued: queued.parse::<f64>().expect("a number") / 1e6,
            parked: getrusage(UsageWho::RUSAGE_THREAD)
                .expect("counts")
                .voluntary_context_switches(),
            cpu: cpu_ns() / 1e6,
            at: Instant::now(),
        }
    }
}

/// The slowest of the picks in bursts of a hundred until `done`.
/// Between bursts the thread gives way, as a server does that waits for its next request: a loop that
/// never does is interrupted for what it owes to others, in the middle of whatever it measures.
fn slowest_pick(host: &Host, done: impl Fn(Instant) -> bool) -> SlowPick {
    let (begin, request) = (Instant::now(), PickRequest::default());
    let schedstat = std::fs::File::open("/proc/thread-self/schedstat").expect("the kernel counts");
    let mut slowest = SlowPick::default();
    while !done(begin) {
        assert!(begin.elapsed() < Duration::from_secs(60), "this never ends");
        for _ in 0..100 {
            let before = Counted::now(&schedstat);
            black_box(pick(host.pools(), &request).expect("a target"));
            let wall = before.at.elapsed().as_secs_f64() * 1e3;
            if wall > slowest.wall {
                let after = Counted::now(&schedstat);
                slowest = SlowPick {
                    wall,
                    cpu: after.cpu - before.cpu,
                    queued: after.queued - before.queued,
                    parked: after.parked - before.parked,
                };
            }
        }
        std::thread::yield_now();
    }
    slowest
}

fn feed(host: &Host, machines: usize) {
    let (received, from) = (Instant::now(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let names: Vec<_> = (0..machines).map(|number| format!("machine-{number}")).collect();
    for names in names.chunks(64) {
        let frame = |name: &String| {
            let mut report = report(name);
            // Neighbours by load are nowhere near each other in memory.
            let load = f64::from(u8::try_from(key_hash(name) % 256).expect("a byte")) / 512.0;
            report.metrics.values = vec![0.25 + load, 0.25];
            wire::encode(&[report], &Keyring::default()).expect("a good report")
        };
        let frames: Vec<_> = names.iter().map(frame).collect();
        let datagram = |bytes| Datagram { bytes, received, from };
        host.deliver(frames.iter().map(Vec::as_slice).map(datagram).collect());
    }
    while host.pools().all()[0].eligible() < machines {
        std::thread::yield_now();
    }
}

fn report(machine: &str) -> Report<'_> {
    Report {
        farm: "default",
        machine,
        boot: 1,
        seq: 1,
        interval_ms: 3_600_000,
        delay_ms: 0,
        state: State::Ready,
        weight: 1.0,
        metrics: Metrics { names: vec!["cpu", "memory"], values: vec![0.5, 0.25] },
        services: Vec::new(),
        labels: Vec::new(),
        sent_ms: 0,
        hops: 0,
    }
}

/// A strategy of about 100 KB of code that draws every eighth slot; `label` makes another generation.
fn large_strategy(label: u8) -> Vec<u8> {
    let interface = "loadline:policy/strategy@1.0.0";
    let mut filler = String::new();
    for function in 0..400 {
        filler.push_str(&format!(
            "(func (export \"f{function}\") (param f64) (result f64) local.get 0"
        ));
        for term in 0..20 {
            filler.push_str(&format!(" f64.const {function}.{term} f64.mul local.get 0 f64.add"));
        }
        filler.push(')');
    }
    let text = format!(
        r#"(module
            (memory (export "memory") 20)
            (global $count (mut i64) (i64.const 0))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
            (func (export "{interface}#describe") (result i32) (i32.const 64))
            (func (export "{interface}#configure") (param i32 i32 i64) (result i32) (i32.const 128))
            (func (export "{interface}#update") (param i64 i32 i32 i32)
                (local $count i64)
                (if (i32.eqz (local.get 3)) (then (return)))
                (local.set $count (i64.add (i64.const 1) (i64.load32_u (i32.add (local.get 2)
                    (i32.mul (i32.const 80) (i32.sub (local.get 3) (i32.const 1)))))))
                (if (i64.gt_u (local.get $count) (global.get $count))
                    (then (global.set $count (local.get $count)))))
            (func (export "{interface}#leave") (param i32 i32))
            (func $pick (export "{interface}#pick") (param i64 i32 f64 i64 i64) (result i32)
                (if (i64.eqz (global.get $count)) (then (return (i32.const 128))))
                (i32.store8 (i32.const 200) (i32.const 1))
                (i64.store32 (i32.const 204) (i64.and (i64.const -8)
                    (i64.rem_u (local.get 4) (global.get $count))))
                (i32.const 200))
            (func (export "{interface}#pick-among") (param i64 i32 f64 i64 i64 i32 i32) (result i32)
                (i32.const 128))
            (func (export "{interface}#admit") (param i32) (result i32) (i32.const 1))
            (func (export "{interface}#rebalance") (param i64) (result i32) (i32.const 128))
            (func (export "{interface}#save") (result i32) (i32.const 128))
            (func (export "{interface}#restore") (param i32 i32) (result i32) (i32.const 1))
            (data (i32.const 64) "\20\00\00\00\00\00\00\00\20\00\00\00\00\00\00\00\20\00\00\00\00\00\00\00")
            {filler})"#
    );
    let core = wat::parse_str(text).expect("good text");
    [&*core, &[0, 3, 1, b'x', label]].concat()
}
