//! The slowest pick while policies are reloaded.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use loadline::config::PoolConfig;
use loadline::pick::{PickRequest, pick};
use loadline::policy::{Kind, built_in};
use loadline::run::{Host, Loadline};
use nix::sys::resource::{UsageWho, getrusage};

use crate::farm::{config, feed, runtime};
use crate::stalls::Stalls;
use crate::turns::cpu_ns;

/// Goal of the slowest pick, in milliseconds.
const RELOAD_PICK_MS: f64 = 2.0;

/// Reloads under constant picks, and as long without any, in turns.
pub(crate) fn bench_reload() -> bool {
    let runtime = runtime();
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
    let (mut good, stalls) = (true, Stalls::watch());
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
            slowest = slowest.or(slowest_pick(host, &stalls, |_| serving() != before));
            took = begin.elapsed();
            quiet = quiet.or(slowest_pick(host, &stalls, |begin| begin.elapsed() > took));
        }
        let verdict = if slowest.own() <= RELOAD_PICK_MS { "" } else { "   MISSED" };
        let what = format!("{kind}, {} KB", bytes / 1_000);
        let took = took.as_secs_f64() * 1e3;
        let SlowPick { stalled, cpu, queued, parked, .. } = slowest;
        println!(
            "{what:<24}{took:>10.1}{:>16.3}{stalled:>9.3}{cpu:>8.3}{queued:>8.3}{parked:>6}{:>10.3}\
             {verdict}",
            slowest.own(),
            quiet.own(),
        );
        good &= slowest.own() <= RELOAD_PICK_MS;
    }
    runtime.block_on(loadline.stop());
    good
}

/// One pick, in milliseconds: by the wall clock, while the machine stood still, on its thread's own
/// clock, and ready to run without a processor; and how often it parked, which only a wait for a
/// thread of ours makes it do.
#[derive(Clone, Copy, Default)]
struct SlowPick {
    wall: f64,
    stalled: f64,
    cpu: f64,
    queued: f64,
    parked: i64,
}

impl SlowPick {
    /// What no machine took.
    fn own(self) -> f64 {
        self.wall - self.stalled
    }

    fn or(self, other: Self) -> Self {
        if other.own() > self.own() { other } else { self }
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

/// Picks faster than this, in milliseconds, are not looked into.
const LOOKED_INTO_MS: f64 = 0.1;

/// The slowest of the picks in bursts of a hundred until `done`, without what the machine took.
/// Between bursts the thread gives way, as a server does that waits for its next request: a loop that
/// never does is interrupted for what it owes to others, in the middle of whatever it measures.
fn slowest_pick(host: &Host, stalls: &Stalls, done: impl Fn(Instant) -> bool) -> SlowPick {
    let (begin, request) = (Instant::now(), PickRequest::default());
    let schedstat = std::fs::File::open("/proc/thread-self/schedstat").expect("the kernel counts");
    let mut slow = Vec::new();
    while !done(begin) {
        assert!(begin.elapsed() < Duration::from_secs(60), "this never ends");
        for _ in 0..100 {
            let before = Counted::now(&schedstat);
            black_box(pick(host.pools(), &request).expect("a target"));
            let end = Instant::now();
            let wall = (end - before.at).as_secs_f64() * 1e3;
            if wall > LOOKED_INTO_MS {
                let after = Counted::now(&schedstat);
                let pick = SlowPick {
                    wall,
                    stalled: 0.0,
                    cpu: after.cpu - before.cpu,
                    queued: after.queued - before.queued,
                    parked: after.parked - before.parked,
                };
                slow.push((before.at, end, pick));
            }
        }
        std::thread::yield_now();
    }
    // Stalls that have just ended are known by now, too.
    let known = slow.into_iter().map(|(begin, end, pick)| SlowPick {
        stalled: stalls.within(begin, end).as_secs_f64() * 1e3,
        ..pick
    });
    known.fold(SlowPick::default(), SlowPick::or)
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
