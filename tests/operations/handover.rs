//! What a generation hands over to the next one: up to a limit, and where it is more, or none can be had, the
//! fleet is told anew.

use crate::support::host::HostProcess;
use crate::support::{formula, relabelled, strategy};

/// What may be handed over, in bytes.
const STATE_BYTES: usize = 1 << 20;

/// Room for a state at its end, and one of so many bytes once this holds.
fn saving(bytes: usize, condition: &str) -> String {
    format!(
        "(global $heir (mut i32) (i32.const 0))
         (func $save (result i32)
            (i32.store (i32.const 192) (i32.const 262144))
            (i32.store (i32.const 196)
                (select (i32.const {bytes}) (i32.const 0) {condition}))
            i32.const 192)
         (func $restore (param i32 i32) (result i32)
            (global.set $heir (i32.eq (local.get 1) (i32.const {bytes})))
            i32.const 1)
         (func $start (drop (memory.grow (i32.const 32)))) (start $start)"
    )
}

/// Picks slot 1 if it has its predecessor's state, else slot 0, and none of a fleet that it was not told of. Its
/// state is long after more picks than a trial has.
fn heir(bytes: usize) -> Vec<u8> {
    let save = saving(bytes, "(i32.gt_u (global.get $picks) (i32.const 20))");
    strategy(&format!(
        "(global $picks (mut i32) (i32.const 0)) (global $fed (mut i32) (i32.const 0))
         (func $update (param i64 i32 i32 i32)
            (global.set $fed (i32.add (global.get $fed) (local.get 3))))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.lt_u (global.get $fed) (i32.const 2)) (then (return (i32.const 128))))
            (i32.store8 (i32.const 200) (i32.const 1))
            (i32.store (i32.const 204) (global.get $heir))
            i32.const 200)
         {save}"
    ))
}

/// The load is the metric, and 7 for who has its predecessor's state, which is long after some batches.
fn heir_formula(bytes: usize) -> Vec<u8> {
    let save = saving(bytes, "(i32.gt_u (global.get $batches) (i32.const 4))");
    formula(&format!(
        "(global $batches (mut i32) (i32.const 0))
         (func $evaluate (param i64 i32 i32 i32 i32) (result i32)
            (global.set $batches (i32.add (global.get $batches) (i32.const 1)))
            (if (i32.and (global.get $heir) (local.get 2))
                (then (f64.store (local.get 3) (f64.const 7))))
            (i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2))
            i32.const 192)
         {save}"
    ))
}

async fn host(kind: &str, wasm: &[u8]) -> HostProcess {
    let pool = format!("[[pool]]\nname = \"default\"\n{kind} = \"mine\"\n");
    let host = HostProcess::with(&pool, &[("mine.wasm", wasm)]);
    for seq in 1..=8 {
        host.report(seq, &[("a", 0.5)]).await;
    }
    host
}

async fn reload(host: &HostProcess, wasm: &[u8]) -> String {
    let next = relabelled(wasm, 1);
    host.drop_in("mine.wasm", &next);
    let generation = loadline::policy::Generation::of(&next).to_string();
    let policy = |host: &HostProcess| host.get("/v1/policies/mine")["pools"][0].clone();
    host.until("the reload", |host| policy(host)["generation"] == *generation).await;
    let policy = policy(host);
    assert_eq!(policy["state"], "active", "{policy}");
    assert!(policy.get("trouble").is_none_or(serde_json::Value::is_null), "{policy}");
    format!("mine@{generation}")
}

/// Nothing was said of the state, or this.
#[track_caller]
fn check_said(host: &HostProcess, kind: &str, is_too_long: bool) {
    let labels = format!("pool=\"default\",policy=\"mine\",kind=\"{kind}\",reason=\"bad_answer\"");
    let faults = host.metric(&format!("loadline_policy_faults_total{{{labels}}}"));
    assert_eq!(faults, u64::from(is_too_long));
    let words = "save answered nonsense: 1048577 bytes of state, 1048576 are allowed";
    let lines = host.complaints();
    let said = lines.iter().filter(|line| line.contains("policy failed") && line.contains(words));
    assert_eq!(said.count(), usize::from(is_too_long), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn strategys_state_up_to_the_limit_is_handed_over_and_a_longer_one_costs_no_pick() {
    for (bytes, picked) in [(STATE_BYTES, "b"), (STATE_BYTES + 1, "a")] {
        let wasm = heir(bytes);
        let host = host("strategy", &wasm).await;
        host.report(1, &[("b", 0.5)]).await;
        for _ in 0..30 {
            assert_eq!(host.get("/v1/target")["machine"], "a");
        }
        let decider = reload(&host, &wasm).await;
        let answer = host.get("/v1/target");
        assert_eq!(answer["policy"]["strategy"], *decider, "it was told of the fleet: {answer}");
        assert_eq!(answer["machine"], picked, "{bytes} bytes");
        check_said(&host, "strategy", bytes > STATE_BYTES);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn formulas_state_up_to_the_limit_is_handed_over_and_without_it_all_is_scored_anew() {
    for (bytes, load) in [(STATE_BYTES, 7.0), (STATE_BYTES + 1, 0.5)] {
        let wasm = heir_formula(bytes);
        let host = host("formula", &wasm).await;
        assert_eq!(host.get("/v1/target")["load"], 0.5);
        let decider = reload(&host, &wasm).await;
        let answer = host.get("/v1/target");
        assert_eq!(answer["policy"]["formula"], *decider, "{answer}");
        assert_eq!(answer["load"], load, "{bytes} bytes");
        check_said(&host, "formula", bytes > STATE_BYTES);
    }
}
