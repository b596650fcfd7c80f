//! Reloads without end under constant queries: good and bad modules in turns, dropped into the folder.
//!
//! Twenty in `cargo test`; a thousand, with the figures that count, on a machine that does nothing else:
//!
//!   LOADLINE_STRAIN=20 cargo test --release -p loadline-tests reloads -- --nocapture

use std::time::{Duration, Instant};

use serde_json::Value;

use super::strain;
use crate::support::host::{Holds, HostProcess};
use crate::support::load::Load;
use crate::support::{built_in, relabelled, strategy};

/// Reloads of a short run, and of each part of a long one.
const RELOADS: [u64; 2] = [20, 50];
/// What a long run asks of every pick.
const SLOWEST: Duration = Duration::from_millis(5);
/// Shares of a run after which is looked at what the process holds: it may grow before the first.
const LOOKS: u64 = 10;

/// The module of one turn: two good ones and three bad ones, no two alike.
fn module(turn: u64) -> (Vec<u8>, bool) {
    let label = |wasm: &[u8]| {
        turn.to_le_bytes().iter().take(4).fold(wasm.to_vec(), |wasm, byte| relabelled(&wasm, *byte))
    };
    let trap = "(func $configure (param i32 i32 i64) (result i32) unreachable)";
    match turn % 5 {
        0 => (label(&built_in("balanced")), true),
        1 => (label(&built_in("balanced")[..20_000]), false), // ends in the middle
        2 => (label(&built_in("p2c")), true),
        3 => (label(&strategy(trap)), false),
        _ => (label(&built_in("weighted")), false), // a formula
    }
}

/// Waits until this turn's module serves, or is said to be bad.
async fn done(host: &HostProcess, before: &Value, good: bool) -> Value {
    let policy = |host: &HostProcess| host.get("/v1/policies/mine");
    let (serving, tried) = (before["pools"][0]["swaps"].clone(), before["loads"].clone());
    host.until("the reload", |host| {
        let now = policy(host);
        let is_loaded = now["loads"] != tried || now["refusals"] != before["refusals"];
        let is_told = now["pools"][0]["trouble"].is_string() || now["refused"].is_object();
        if good { now["pools"][0]["swaps"] != serving } else { is_loaded && is_told }
    })
    .await;
    policy(host)
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_constant_queries_fail_no_pick_and_leave_nothing_behind() {
    let pools = "[[pool]]\nname = \"default\"\nstrategy = \"mine\"\n";
    let host = HostProcess::with(pools, &[("mine.wasm", &built_in("balanced"))]);
    let machines: Vec<_> = (0..100).map(|number| format!("m-{number}")).collect();
    let machines: Vec<_> = machines.iter().map(|name| (&**name, 0.5)).collect();
    host.report(1, &machines).await;
    let load = Load::start(&host, 2);
    let reloads = if strain() > 1 { RELOADS[1] * strain() } else { RELOADS[0] };
    let begin = Instant::now();
    let (mut held, mut now): (Vec<Holds>, _) = (Vec::new(), host.get("/v1/policies/mine"));
    for turn in 1..=reloads {
        let (bytes, good) = module(turn);
        let reload = Instant::now();
        load.phase(1);
        host.drop_in("mine.wasm", &bytes);
        now = done(&host, &now, good).await;
        load.phase(0);
        tokio::time::sleep(reload.elapsed() / 4).await; // as a measure of a quiet host
        if turn % (reloads / LOOKS) == 0 {
            held.push(host.holds());
        }
    }
    let took = begin.elapsed();
    let (asked, cpu) = (load.stop(), host.cpu_clock().now());
    let picks = &host.get("/v1/pools")[0]["picks"];
    eprintln!("{reloads} reloads in {took:.1?}, {cpu:.1?} of CPU: {picks}");
    for (phase, waits) in ["quiet", "reload"].iter().zip(&asked.phases) {
        eprintln!("{phase:>8}: {waits}");
    }
    held.iter().for_each(|held| eprintln!("{held:?}"));
    assert!(asked.bad.is_empty(), "{:?}", asked.bad);
    // A hundred reloads of a long run, ten of a short one, find everything in use for the first time.
    let first = held[if strain() > 1 { 0 } else { held.len() / 2 - 1 }];
    let last = held[held.len() - 1];
    assert!(last.bytes < first.bytes + (8 << 20), "memory grows");
    assert!(last.threads <= first.threads + 1, "threads are left");
    assert!(last.handles <= first.handles + 2, "handles are left");
    assert!(last.maps <= first.maps + 40, "maps are left");
    if strain() > 1 {
        let slowest = asked.phases[1].slowest;
        assert!(slowest.served() <= SLOWEST, "a pick was slower than {SLOWEST:?}: {slowest}");
    }
}
