//! Guests that misbehave: every request is answered, natively where need be, and what happened is
//! told. The guests are written in WebAssembly text; each behaves well during its trial.

use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline::policy::guest::Request;
use loadline::policy::{CallError, Limits, Module, PolicyEngine, StrategyGuest};
use serde_json::Value;

use crate::support::{Farm, PATIENCE, Queries, formula, pool, strategy};

/// The code `fault`, from the `GOOD_PICKS`-th pick on; slot 0 before.
pub(crate) fn pick(fault: &str) -> Vec<u8> {
    strategy(&format!(
        "(global $picks (mut i32) (i32.const 0))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.gt_u (global.get $picks) (i32.const {GOOD_PICKS})) (then {fault}))
            (if (i32.eqz (global.get $fed)) (then (return (i32.const 128))))
            (i32.store8 (i32.const 200) (i32.const 1))
            (i32.store (i32.const 204) (i32.const 0))
            (i32.const 200))
         (global $fed (mut i32) (i32.const 0))
         (func $update (param i64 i32 i32 i32) (global.set $fed (i32.const 1)))"
    ))
}

/// More than the trial's picks.
pub(crate) const GOOD_PICKS: usize = 50;
const SPIN: &str = "(loop (br 0))";
const GROW: &str =
    "(loop (br_if 0 (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)))) (unreachable)";
const UNKNOWN_SLOT: &str = "(i32.store8 (i32.const 200) (i32.const 1)) (i32.store (i32.const 204) (i32.const -1)) (return (i32.const 200))";

/// A pool with this strategy and two machines; `a` is in slot 0.
async fn farm(mine: &[u8]) -> Farm {
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", mine)]).await;
    assert_eq!(farm.policy("strategy")["state"], "active", "{}", farm.policy("strategy"));
    farm.report(&["a"], &[("cpu", 0.9), ("memory", 0.5)]);
    farm.eligible(1).await;
    farm.report(&["b"], &[("cpu", 0.1), ("memory", 0.5)]);
    farm.eligible(2).await;
    farm
}

/// Picks until the strategy has failed; no pick may fail. Then natively, and the guest returns.
async fn check_pick_fault(fault: &str, reason: &str, words: &str) {
    let farm = farm(&pick(fault)).await;
    for _ in 0..GOOD_PICKS {
        assert_eq!(farm.target(""), "a", "the guest's own choice");
    }
    let answer = farm.get("/v1/target");
    assert_eq!(answer["machine"], "b", "lowest load plus own picks");
    assert_eq!(answer["policy"]["strategy"], format!("native ({reason})"));
    let policy = farm.policy("strategy");
    assert_eq!(policy["faults"], 1);
    let faults = |reason| {
        let labels =
            format!("pool=\"default\",policy=\"mine\",kind=\"strategy\",reason=\"{reason}\"");
        farm.metric(&format!("policy_faults_total{{{labels}}}"))
    };
    for other in CallError::REASONS {
        assert_eq!(faults(other), u64::from(other == reason), "{other}");
    }
    assert!(policy["trouble"].as_str().unwrap().contains(words), "{policy}");
    assert_eq!(farm.get("/v1/pools")[0]["picks"]["native"], 1);
    let returned = |farm: &Farm| (farm.policy("strategy")["state"] == "active").then_some(());
    farm.until("the guest's return", returned).await;
    let nothing = |farm: &Farm| farm.policy("strategy").get("again_in_s").is_none().then_some(());
    farm.until("nothing to start again", nothing).await;
    assert_eq!(farm.target(""), "a");
    farm.stop().await;
}

/// What is started again says when, in both places.
#[tokio::test(flavor = "multi_thread")]
async fn guest_that_is_started_again_says_in_how_many_seconds() {
    let spins = strategy("(func $describe (result i32) (loop (br 0)) unreachable)");
    let pools = vec![pool("default", "weighted", "mine")];
    let farm = Farm::with_files(pools, &[("mine.wasm", &spins)]).await;
    // The first wait is a second, a quarter more or less; the fifth sixteen.
    let is_wait =
        |status: &Value| status["again_in_s"].as_f64().filter(|s| (0.0..=20.0).contains(s));
    farm.until("the wait in /v1/pools", |farm| is_wait(&farm.policy("strategy"))).await;
    let shown = |farm: &Farm| is_wait(&farm.get("/v1/policies/mine")["pools"][0]);
    farm.until("the wait in /v1/policies", shown).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_traps_is_answered_natively_and_rebuilt() {
    check_pick_fault("unreachable", "trap", "pick trapped: wasm trap: wasm `unreachable`").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_loops_is_stopped() {
    check_pick_fault(SPIN, "deadline", "pick took longer than 10ms").await;
}

fn start(engine: &PolicyEngine, body: &str) -> StrategyGuest {
    let module = Module::from_wasm(engine, &strategy(body)).unwrap();
    StrategyGuest::start(engine, &Arc::from("mine"), &module, "{}", 1).unwrap()
}

const REQUEST: Request = Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random: 0 };

/// A log that is slow: each line takes as long as two picks that loop to their deadlines.
struct SlowLog(PolicyEngine);

impl std::io::Write for SlowLog {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let engine = self.0.clone();
        let looping = std::thread::spawn(move || {
            let pick = format!(
                "(func $pick (param i64 i32 f64 i64 i64) (result i32) {SPIN} i32.const 128)"
            );
            for _ in 0..2 {
                let fault = start(&engine, &pick).pick(REQUEST).unwrap_err();
                assert_eq!(fault.reason(), "deadline");
            }
        });
        looping.join().unwrap();
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn guest_whose_thread_does_not_run_is_not_blamed_for_the_time() {
    let engine = PolicyEngine::new(Limits::default()).unwrap();
    let mut guest = start(
        &engine,
        "(func $pick (param i64 i32 f64 i64 i64) (result i32) (local $left i32)
            (local.set $left (i32.const 3))
            (loop
                (call $log (i32.const 1) (i32.const 224) (i32.const 3))
                (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
            i32.const 128)",
    );
    let log = move || SlowLog(engine.clone());
    let subscriber = tracing_subscriber::fmt().with_writer(log).finish();
    let picked = tracing::subscriber::with_default(subscriber, || guest.pick(REQUEST));
    assert_eq!(picked, Ok(None));
}

/// A strategy that never ends a pick, on an engine whose ticker waits like this.
fn check_stood_in_for(beat: impl FnMut() + Send + 'static) -> PolicyEngine {
    let engine = PolicyEngine::with_beat(Limits::default(), beat).unwrap();
    let pick =
        format!("(func $pick (param i64 i32 f64 i64 i64) (result i32) {SPIN} i32.const 128)");
    let fault = start(&engine, &pick).pick(REQUEST).unwrap_err();
    assert_eq!(fault.reason(), "deadline", "ended by nobody but the watchdog");
    assert!(engine.ticker().is_held());
    assert_eq!(engine.ticker().holds(), 1);
    engine
}

#[test]
fn loops_end_though_the_ticker_is_dead() {
    check_stood_in_for(|| panic!("the ticker's thread ends here"));
}

#[test]
fn loops_end_though_the_ticker_is_held_and_it_is_let_go_on() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let engine = check_stood_in_for(move || {
        // Once told it ticks as ever; the channel is closed then.
        if held.recv().is_err() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    });
    drop(release);
    let pick =
        format!("(func $pick (param i64 i32 f64 i64 i64) (result i32) {SPIN} i32.const 128)");
    let begin = Instant::now();
    while engine.ticker().is_held() {
        assert!(begin.elapsed() < PATIENCE);
        assert_eq!(start(&engine, &pick).pick(REQUEST).unwrap_err().reason(), "deadline");
    }
    assert_eq!(engine.ticker().holds(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_grows_memory_is_stopped_at_its_limit() {
    check_pick_fault(GROW, "memory", "pick needed more than the 134217728 bytes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_answers_an_unknown_slot_is_not_believed() {
    check_pick_fault(UNKNOWN_SLOT, "bad_answer", "slot 4294967295 holds no target").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_overflows_its_stack_is_stopped() {
    let recurse =
        "(drop (call $pick (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)))";
    check_pick_fault(recurse, "trap", "call stack exhausted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_picks_a_draining_machine_is_not_believed() {
    let mut farm = farm(&pick("nop")).await;
    assert_eq!(farm.target(""), "a");
    let report = crate::support::report("a", &[]);
    farm.send(&loadline::report::Report { state: loadline::report::State::Draining, ..report });
    farm.eligible(1).await;
    assert_eq!(farm.target(""), "b");
    let trouble = farm.policy("strategy")["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("slot 0 is a and may not be picked"), "{trouble}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_gives_no_answer_is_stood_in_for_and_kept() {
    let farm = farm(&strategy("")).await;
    let answer = farm.get("/v1/target");
    assert_eq!(answer["machine"], "b");
    assert_eq!(answer["policy"]["strategy"], "native (no answer)");
    assert_eq!(farm.policy("strategy")["faults"], 0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_that_fails_in_update_is_replaced_natively_for_all_picks() {
    // The trial's update has eight targets, the farm's one at a time.
    let fault = "(func $update (param i64 i32 i32 i32) (if (i32.eq (local.get 3) (i32.const 1)) (then unreachable)))";
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &strategy(fault))]).await;
    farm.report(&["a"], &[]);
    farm.eligible(1).await;
    assert_eq!(farm.target(""), "a");
    let trouble = farm.policy("strategy")["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("update trapped"), "{trouble}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_is_answered_while_a_guest_fails_again_and_again() {
    let farm = farm(&pick(SPIN)).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    // Fails, is rebuilt after a second, fails again.
    let faults = |farm: &Farm| (farm.policy("strategy")["faults"].as_u64()? >= 2).then_some(());
    farm.until("the second fault", faults).await;
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 100, "{answered:?}");
    assert!(answered.policies.iter().any(|policy| policy.contains("native (deadline)")));
    farm.stop().await;
}

/// A pool with this formula; its one metric is `cpu`.
async fn farm_with_formula(mine: &[u8]) -> Farm {
    let pools = vec![pool("default", "mine", "least-loaded")];
    let farm = Farm::with_files(pools, &[("mine.wasm", mine)]).await;
    let serves = |farm: &Farm| (farm.policy("formula")["state"] == "active").then_some(());
    farm.until("the formula", serves).await;
    farm
}

async fn check_bad_load(evaluate: &str, good: f64, bad: f64) {
    let body = format!(
        "(func $evaluate (param i64 i32 i32 i32 i32) (result i32)
            (if (local.get 2) (then (f64.store (local.get 3) {evaluate})))
            (i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2))
            i32.const 192)"
    );
    let mut farm = farm_with_formula(&formula(&body)).await;
    farm.report(&["a"], &[("cpu", good)]);
    farm.eligible(1).await;
    let load = farm.get("/v1/target")["load"].clone();
    assert!(load.is_number(), "{load}");
    farm.report(&["a"], &[("cpu", bad)]);
    let bad_loads = |farm: &Farm| (farm.get("/v1/pools")[0]["bad_loads"] == 1).then_some(());
    farm.until("the bad load to be counted", bad_loads).await;
    assert_eq!(farm.get("/v1/target")["load"], load, "the last good load");
    assert_eq!(farm.policy("formula")["faults"], 0);
    // A target that never had a good one has none.
    farm.report(&["b"], &[("cpu", bad)]);
    farm.eligible(2).await;
    assert!(farm.get("/v1/machines/b")["targets"][0]["load"].is_null());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_that_are_no_loads_are_answered_with_the_last_good_one() {
    check_bad_load("(f64.sqrt (f64.load (local.get 3)))", 4.0, -4.0).await; // NaN
    check_bad_load("(f64.div (f64.const 1) (f64.load (local.get 3)))", 4.0, 0.0).await; // infinite
    check_bad_load("(f64.load (local.get 3))", 4.0, -4.0).await; // negative
}

async fn check_formula_fault(evaluate: &str, words: &str) {
    // The trial has four rows and none, the farm one.
    let body = format!(
        "(func $evaluate (param i64 i32 i32 i32 i32) (result i32)
            (if (i32.and (i32.eq (local.get 2) (i32.const 1))
                         (f64.gt (f64.load (local.get 3)) (f64.const 5))) (then {evaluate}))
            (i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2))
            i32.const 192)"
    );
    let mut farm = farm_with_formula(&formula(&body)).await;
    farm.report(&["a"], &[("cpu", 2.0)]);
    farm.eligible(1).await;
    farm.report(&["a"], &[("cpu", 6.0)]);
    let fault = |farm: &Farm| (farm.policy("formula")["faults"] == 1).then_some(());
    farm.until("the fault", fault).await;
    let answer = farm.get("/v1/target");
    assert_eq!((answer["machine"].as_str(), answer["load"].as_f64()), (Some("a"), Some(2.0)));
    let trouble = farm.policy("formula")["trouble"].as_str().unwrap_or_default().to_owned();
    assert!(trouble.contains(words), "{trouble}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn formula_that_fails_leaves_the_last_good_loads() {
    check_formula_fault("unreachable", "evaluate trapped").await;
    check_formula_fault(SPIN, "evaluate took longer than 50ms").await;
    check_formula_fault(GROW, "evaluate needed more than").await;
    let too_few = "(i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (i32.const 0)) (return (i32.const 192))";
    check_formula_fault(too_few, "0 loads for 1 targets").await;
}
