//! What comes back after a pick: outcomes and ejections here, leases and decisions below.

mod decisions;
mod leases;

use std::time::Duration;

use loadline::config::{HealthConfig, PoolConfig};
use serde_json::{Value, json};

use crate::support::{Farm, get, pool, post, strategy};

/// A strategy that picks the eligible target of the lowest key, the lowest slot among equals. `key`
/// computes it from the view at local 2; each pick adds `step`.
fn lowest(key: &str, step: u32) -> Vec<u8> {
    strategy(&format!(
        "(func $row (param i32) (result i32)
            (i32.add (i32.const 200000) (i32.mul (local.get 0) (i32.const 16))))
         (func $update (param i64 i32 i32 i32) (local $row i32)
            (block (loop
                (br_if 1 (i32.eqz (local.get 3)))
                (local.set $row (call $row (i32.load (local.get 2))))
                (i32.store (local.get $row) (i32.load8_u offset=44 (local.get 2)))
                (i32.store offset=4 (local.get $row) {key})
                (local.set 2 (i32.add (local.get 2) (i32.const 80)))
                (local.set 3 (i32.sub (local.get 3) (i32.const 1)))
                (br 0))))
         (func $leave (param i32 i32)
            (block (loop
                (br_if 1 (i32.eqz (local.get 1)))
                (i32.store (call $row (i32.load (local.get 0))) (i32.const 0))
                (local.set 0 (i32.add (local.get 0) (i32.const 4)))
                (local.set 1 (i32.sub (local.get 1) (i32.const 1)))
                (br 0))))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (local $slot i32) (local $best i32) (local $key i32)
            (local.set $best (i32.const -1))
            (loop
                (if (i32.load (call $row (local.get $slot))) (then
                    (if (i32.or (i32.lt_s (local.get $best) (i32.const 0))
                                (i32.lt_u (i32.load offset=4 (call $row (local.get $slot)))
                                          (local.get $key))) (then
                        (local.set $best (local.get $slot))
                        (local.set $key (i32.load offset=4 (call $row (local.get $slot))))))))
                (local.set $slot (i32.add (local.get $slot) (i32.const 1)))
                (br_if 0 (i32.lt_u (local.get $slot) (i32.const 64))))
            (if (i32.lt_s (local.get $best) (i32.const 0)) (then (return (i32.const 128))))
            (i32.store offset=4 (call $row (local.get $best))
                (i32.add (local.get $key) (i32.const {step})))
            (i32.store8 (i32.const 200) (i32.const 1))
            (i32.store (i32.const 204) (local.get $best))
            (i32.const 200))"
    ))
}

/// Latency in microseconds plus a second for the whole error rate.
const SLOWNESS: &str = "(i32.add (i32.load offset=36 (local.get 2))
    (i32.trunc_f32_u (f32.mul (f32.load offset=40 (local.get 2)) (f32.const 1000000))))";
/// Requests inside and on their way.
const IN_FLIGHT: &str =
    "(i32.add (i32.load offset=24 (local.get 2)) (i32.load offset=28 (local.get 2)))";

fn with_health(name: &str, health: HealthConfig) -> PoolConfig {
    PoolConfig { service: "default".to_owned(), health, ..pool(name, "weighted", "mine") }
}

/// These pools of the service `default`, under the strategy, with these machines.
async fn farm(pools: Vec<PoolConfig>, strategy: &[u8], machines: &[&str]) -> Farm {
    let mut farm = Farm::with_files(pools, &[("mine.wasm", strategy)]).await;
    farm.report(machines, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(machines.len()).await;
    farm
}

async fn one_pool(strategy: &[u8], machines: &[&str]) -> Farm {
    farm(vec![with_health("default", HealthConfig::default())], strategy, machines).await
}

#[track_caller]
fn outcomes(farm: &Farm, outcome: &Value, times: usize) {
    let (status, body) =
        post(&farm.url("/v1/outcomes"), &Value::from(vec![outcome.clone(); times]).to_string());
    assert_eq!((status, &*body), (204, ""), "{outcome}");
}

#[track_caller]
fn fail(farm: &Farm, pool: &str, machine: &str, times: usize) {
    outcomes(farm, &json!({"pool": pool, "target": machine, "latency_us": 10, "ok": false}), times);
}

/// A machine's target in a pool.
fn target(farm: &Farm, machine: &str, pool: &str) -> Value {
    let machine = farm.get(&format!("/v1/machines/{machine}"));
    let targets = machine["targets"].as_array().unwrap();
    targets.iter().find(|target| target["pool"] == pool).unwrap().clone()
}

fn pool_named(farm: &Farm, name: &str) -> Value {
    let pools = farm.get("/v1/pools");
    pools.as_array().unwrap().iter().find(|pool| pool["name"] == name).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_reach_the_strategy() {
    let farm = one_pool(&lowest(SLOWNESS, 0), &["a", "b"]).await;
    outcomes(&farm, &json!({"target": "a", "latency_us": 900, "ok": true}), 3);
    outcomes(&farm, &json!({"target": "b", "latency_us": 300, "ok": true}), 1);
    farm.until("the faster one", |farm| (farm.target("") == "b").then_some(())).await;
    // Failures tell more than their latency; the answer's own name will do for a target.
    let decision = farm.get("/v1/target")["decision"].clone();
    outcomes(&farm, &json!({"decision": decision, "latency_us": 1, "ok": false}), 3);
    farm.until("the one without failures", |farm| (farm.target("") == "a").then_some(())).await;
    let seen = target(&farm, "b", "default")["outcomes"].clone();
    assert_eq!(
        (&seen["ok"], &seen["failed"], &seen["latency_us"]),
        (&json!(1), &json!(3), &json!(300))
    );
    assert!((seen["error_rate"].as_f64().unwrap() - 0.75).abs() < 0.01, "{seen}");
    let metrics = get(&farm.url("/metrics"), "").1;
    let line = "loadline_outcomes_total{pool=\"default\",result=\"failed\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    farm.stop().await;
}

/// A target that fails at once has nothing to do, and is not the lightest for that.
#[tokio::test(flavor = "multi_thread")]
async fn fast_failures_attract_no_requests() {
    // The pool of no policy's name is served by native code.
    for strategy in ["least-loaded", "p2c", "nobody-has-it"] {
        let mut farm = Farm::new("weighted", strategy).await;
        farm.report(&["works"], &[("cpu", 0.5), ("memory", 0.5)]);
        farm.report(&["broken"], &[("cpu", 0.0), ("memory", 0.0)]);
        farm.eligible(2).await;
        assert_eq!(farm.target(""), "broken", "{strategy}: nothing is known of failures yet");
        for ok in [true, false, true, false] {
            outcomes(&farm, &json!({"target": "broken", "latency_us": 1, "ok": ok}), 1);
        }
        let is_left = |farm: &Farm| (farm.target("") == "works").then_some(());
        farm.until("the one that works", is_left).await;
        assert!(target(&farm, "broken", "default")["eligible"] == true, "not ejected");
        farm.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_outcomes_are_told_in_few_updates() {
    // Fails after 300 updates: 15 seconds of them, if one comes with every sweep.
    let counting = "(global $updates (mut i32) (i32.const 0))
         (func $update (param i64 i32 i32 i32)
            (global.set $updates (i32.add (global.get $updates) (i32.const 1)))
            (if (i32.gt_u (global.get $updates) (i32.const 300)) (then unreachable)))";
    let farm = one_pool(&strategy(counting), &["a", "b"]).await;
    for machine in ["a", "b", "a"] {
        let outcome = json!({"target": machine, "latency_us": 5, "ok": true});
        outcomes(&farm, &outcome, 1_000);
        (0..100).for_each(|_| outcomes(&farm, &outcome, 1));
    }
    assert_eq!(target(&farm, "a", "default")["outcomes"]["ok"], 2_200);
    assert_eq!(farm.policy("strategy")["faults"], 0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_outcomes_are_refused_by_field_and_unknown_ones_by_name() {
    let farm = one_pool(&lowest(SLOWNESS, 0), &["a"]).await;
    #[track_caller]
    fn check(farm: &Farm, body: &str, status: u16, words: &str) {
        let (found, text) = post(&farm.url("/v1/outcomes"), body);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found, status, "{text}");
        let error = &answer["error"];
        assert!(error["message"].as_str().unwrap().contains(words), "{text}");
        assert!(error["hint"].is_string(), "{text}");
    }
    check(&farm, "{", 400, "not JSON");
    check(&farm, "3", 400, "an outcome is an object");
    check(&farm, r#"{"latency_us": 1, "ok": true}"#, 400, "target: is missing");
    check(&farm, r#"{"target": "a", "latency_us": -1, "ok": true}"#, 400, "latency_us: must be");
    check(&farm, r#"{"target": "a", "latency_us": 1, "ok": 1}"#, 400, "ok: must be");
    check(&farm, r#"{"target": "a", "latency_ms": 1, "ok": true}"#, 400, "latency_ms: unknown");
    check(
        &farm,
        r#"{"target": "a", "decision": "x", "latency_us": 1, "ok": true}"#,
        400,
        "not both",
    );
    check(&farm, r#"[{"target": 7, "latency_us": 1, "ok": true}]"#, 400, "[0].target: must be");
    let many = vec![json!({"target": "a", "latency_us": 1, "ok": true}); 1_001];
    check(&farm, &json!(many).to_string(), 400, "1000 at most");
    check(&farm, r#"{"target": "b", "latency_us": 1, "ok": true}"#, 404, "\"b\" has no target");
    check(&farm, r#"{"pool": "p", "target": "a", "latency_us": 1, "ok": true}"#, 404, "no pool");
    check(&farm, r#"{"decision": "0-0", "latency_us": 1, "ok": true}"#, 404, "not remembered");
    assert_eq!(target(&farm, "a", "default")["outcomes"]["ok"], 0, "nothing was counted");
    let mixed = r#"[{"target": "b", "latency_us": 1, "ok": true},
                    {"target": "a", "latency_us": 1, "ok": true}]"#;
    check(&farm, mixed, 404, "1 of 2 outcomes have no target");
    assert_eq!(target(&farm, "a", "default")["outcomes"]["ok"], 1, "the other one was");
    assert_eq!(get(&farm.url("/v1/outcomes"), "").0, 405);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_target_is_left_out_and_returns_slowly() {
    let quick = HealthConfig {
        ejection_time: Duration::from_millis(50),
        slow_start: Duration::from_secs(3_600),
        ..HealthConfig::default()
    };
    let pools = vec![with_health("default", HealthConfig::default()), with_health("quick", quick)];
    // Slot 0 is `a`: the strategy's choice as long as it may be picked.
    let farm = farm(pools, &lowest("(i32.const 0)", 0), &["a", "b", "c"]).await;
    assert_eq!(farm.target(""), "a");
    fail(&farm, "default", "a", 4);
    assert_eq!(farm.target(""), "a");
    fail(&farm, "default", "a", 1);
    assert_eq!(farm.target(""), "b", "at once");
    let ejected = target(&farm, "a", "default");
    assert_eq!(
        (&ejected["eligible"], &ejected["ejected"]["why"]),
        (&json!(false), &json!("consecutive_failures"))
    );
    assert!(ejected["ejected"]["returns_in_ms"].as_u64().unwrap() <= 30_000, "{ejected}");
    // One of three at most is ejected.
    fail(&farm, "default", "b", 9);
    assert_eq!(farm.target(""), "b");
    let pool = pool_named(&farm, "default");
    assert_eq!((&pool["eligible"], &pool["ejected"]), (&json!(2), &json!(1)));
    // Better an ejected one than none.
    assert_eq!(farm.target("exclude=b,c"), "a");
    assert_eq!(farm.get_error("/v1/target?exclude=a,b,c").0, 503);
    assert_eq!(pool["strategy"]["faults"], 0, "{pool}");

    fail(&farm, "quick", "a", 5);
    let metric = "loadline_ejections_total{pool=\"quick\",why=\"consecutive_failures\"} 1";
    assert!(get(&farm.url("/metrics"), "").1.contains(metric));
    let back = |farm: &Farm| (pool_named(farm, "quick")["eligible"] == 3).then_some(());
    farm.until("the return", back).await;
    assert_eq!(farm.target("pool=quick"), "a");
    let warm = target(&farm, "a", "quick")["warm"].as_f64().unwrap();
    assert!((warm - 0.1).abs() < 1e-6, "{warm}");
    assert_eq!(target(&farm, "a", "quick")["outcomes"]["error_rate"], 0.0, "forgotten");
    farm.stop().await;
}

/// Who chooses by turns, by loads and without a policy: a target with a quarter of its share gets that.
#[tokio::test(flavor = "multi_thread")]
async fn slow_start_gets_its_share_of_every_strategy() {
    let health = HealthConfig {
        ejection_time: Duration::from_millis(50),
        slow_start: Duration::from_secs(3_600),
        slow_start_min: 0.25,
        ..HealthConfig::default()
    };
    let strategies = ["round-robin", "fuzzy", "nobody-has-it"];
    let of =
        |name: &str| PoolConfig { strategy: name.to_owned(), ..with_health(name, health.clone()) };
    let mut farm = Farm::with_pools(strategies.map(of).to_vec()).await;
    let machines = ["a", "b", "c"];
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    for name in strategies {
        let all = |farm: &Farm| (pool_named(farm, name)["eligible"] == 3).then_some(());
        farm.until("all targets", all).await;
        fail(&farm, name, "b", 5);
        farm.until("the return", |farm| {
            let is_back = target(farm, "b", name)["warm"].as_f64().unwrap() < 1.0;
            (is_back && pool_named(farm, name)["eligible"] == 3).then_some(())
        })
        .await;
        let query = format!("pool={name}");
        let mut shares = [0_i32; 3];
        for _ in 0..90 {
            let picked = farm.target(&query);
            shares[machines.iter().position(|machine| *machine == picked).unwrap()] += 1;
        }
        for (share, expected) in shares.iter().zip([40, 10, 40]) {
            assert!((share - expected).abs() <= 1, "{name}: {shares:?}");
        }
    }
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_too_few_left_ejections_are_ignored() {
    let health = HealthConfig { max_ejected: 1.0, ..HealthConfig::default() };
    let pools = vec![with_health("default", health)];
    let mut farm = farm(pools, &lowest("(i32.const 0)", 0), &["a", "b", "c"]).await;
    fail(&farm, "", "a", 5);
    assert_eq!(farm.target(""), "b");
    fail(&farm, "", "b", 5);
    assert_eq!(farm.target(""), "a", "one of three is less than half");
    let pool = pool_named(&farm, "default");
    assert_eq!(
        (&pool["eligible"], &pool["ejected"], &pool["panic"]),
        (&json!(3), &json!(2), &json!(true))
    );
    assert!(get(&farm.url("/metrics"), "").1.contains("loadline_pool_panic{pool=\"default\"} 1"));
    // A fourth one makes two of four: enough.
    farm.report(&["d"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    assert_eq!(farm.target(""), "c");
    assert_eq!(pool_named(&farm, "default")["strategy"]["faults"], 0);
    farm.stop().await;
}
