//! What picks take while a large policy compiles, on the same two cores, against quiet moments of the same run.
//!
//! Half a megabyte in `cargo test`; ten, with the figures that count, on a machine that does nothing else:
//!
//!   LOADLINE_STRAIN=20 cargo test --release -p loadline-tests compiles -- --nocapture

use std::time::{Duration, Instant};

use super::strain;
use crate::support::built_in;
use crate::support::host::HostProcess;
use crate::support::large::large_strategy;
use crate::support::load::Load;

/// Bytes of the policy in a short run.
const BYTES: usize = 500_000;
/// Compilations, each of another policy.
const ROUNDS: u64 = 3;
/// What 99 of 100 picks may take while a policy compiles, against quiet ones.
const RATIO_MAX: f64 = 3.0;
/// A quiet moment, at least.
const QUIET: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn picks_go_on_while_a_large_policy_compiles() {
    let bytes = BYTES * usize::try_from(strain()).unwrap();
    let pools = "[[pool]]\nname = \"default\"\nstrategy = \"mine\"\n";
    let host = HostProcess::with(pools, &[("mine.wasm", &built_in("p2c"))]);
    let machines: Vec<_> = (0..100).map(|number| format!("m-{number}")).collect();
    let machines: Vec<_> = machines.iter().map(|name| (&**name, 0.5)).collect();
    host.report(1, &machines).await;
    let load = Load::start(&host, 2);
    for round in 1..=ROUNDS {
        let took = compile(&host, &load, bytes, round).await;
        tokio::time::sleep(took.max(QUIET)).await; // as a measure of a quiet host
    }
    let asked = load.stop();
    for (phase, waits) in ["quiet", "compile"].iter().zip(&asked.phases) {
        eprintln!("{phase:>8}: {waits}");
    }
    let [quiet, busy] = asked.phases.each_ref().map(|waits| waits.quantile(990).as_secs_f64());
    let ratio = busy / quiet;
    eprintln!("ratio of the 99 %: {ratio:.2}");
    assert!(asked.bad.is_empty(), "{:?}", asked.bad);
    if strain() > 1 {
        assert!(ratio <= RATIO_MAX, "99 of 100 picks took {ratio:.2} times as long as quiet ones");
    }
}

/// Drops a large policy in and waits until it serves; how long it was loading.
async fn compile(host: &HostProcess, load: &Load, bytes: usize, round: u64) -> Duration {
    let state = |host: &HostProcess| host.get("/v1/policies/mine")["state"].clone();
    let policy = large_strategy(bytes, round);
    host.drop_in("mine.wasm", &policy);
    host.until("the beginning", |host| state(host) == "loading").await;
    let begin = Instant::now();
    load.phase(1);
    host.until("the end", |host| state(host) != "loading").await;
    load.phase(0);
    let took = begin.elapsed();
    let serves =
        |host: &HostProcess| host.get("/v1/policies/mine")["pools"][0]["swaps"] == round + 1;
    host.until("another generation", serves).await;
    let steps = &host.get("/v1/policies/mine")["generations"][0]["steps"];
    eprintln!("{} bytes compiled in {took:.1?}: {steps}", policy.len());
    took
}
