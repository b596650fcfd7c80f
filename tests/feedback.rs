//! What comes back after a pick, and what is told about it: outcomes, ejection, leases, decisions.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadline::config::{HealthConfig, PoolConfig};
use loadline::pick::feedback::{Feedback, FeedbackTarget};
use loadline::pick::health::Outcome;
use loadline::pick::{PickRequest, pick};
use loadline::report::{Keyring, Report, State, wire};
use serde_json::{Value, json};

use crate::support::{Farm, delete, get, pool, post, strategy};

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

/// Opens a lease; its id and machine.
fn lease(farm: &Farm, query: &str) -> (String, String) {
    let answer = farm.get(&format!("/v1/target?lease=30s{query}"));
    let text = |name: &str| answer[name].as_str().unwrap().to_owned();
    (text("lease"), text("machine"))
}

fn end(farm: &Farm, lease: &str) -> u16 {
    delete(&farm.url(&format!("/v1/leases/{lease}")))
}

fn leases(farm: &Farm, machines: &[&str]) -> Vec<u64> {
    machines.iter().map(|m| target(farm, m, "default")["leases"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_counted_end_once_and_with_their_time() {
    let farm = one_pool(&lowest(IN_FLIGHT, 1), &["a", "b"]).await;
    let (first, machine) = lease(&farm, "");
    assert_eq!(machine, "a");
    let (second, machine) = lease(&farm, "&n=2");
    assert_eq!(machine, "b");
    assert_eq!(leases(&farm, &["a", "b"]), [1, 1]);
    assert!(get(&farm.url("/metrics"), "").1.contains("loadline_leases_open{pool=\"default\"} 2"));
    assert_eq!(end(&farm, &first), 204);
    assert_eq!((end(&farm, &first), end(&farm, "nothing")), (404, 404), "never twice");
    assert_eq!(leases(&farm, &["a", "b"]), [0, 1]);
    // A short one ends by itself.
    farm.get("/v1/target?lease=1s");
    assert_eq!(leases(&farm, &["a", "b"]), [1, 1]);
    let over = |farm: &Farm| (leases(farm, &["a", "b"]) == [0, 1]).then_some(());
    farm.until("the end of its time", over).await;
    assert_eq!(farm.host().pools().open_leases(), 1);
    assert_eq!(end(&farm, &second), 204);
    assert_eq!(farm.host().pools().open_leases(), 0);
    assert!(farm.get("/v1/target").get("lease").is_none());
    // An address alone has its lease in a header.
    let text = ureq::get(farm.url("/v1/target?lease=30s")).header("accept", "text/plain").call();
    let id = text.unwrap().headers()["loadline-lease"].to_str().unwrap().to_owned();
    assert_eq!(end(&farm, &id), 204);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fewest_in_flight_sees_every_release_before_the_next_pick() {
    check_fewest("mine", &[("mine.wasm", &lowest(IN_FLIGHT, 1))]).await;
    check_fewest("fewest-clients", &[]).await;
}

async fn check_fewest(strategy: &str, files: &[(&str, &[u8])]) {
    let machines = ["a", "b", "c", "d"];
    let mut farm = Farm::with_files(vec![pool("default", "weighted", strategy)], files).await;
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(machines.len()).await;
    let open: Vec<_> = (0..8).map(|_| lease(&farm, "")).collect();
    assert_eq!(leases(&farm, &machines), [2, 2, 2, 2]);
    for (id, machine) in &open {
        assert_eq!(end(&farm, id), 204);
        assert_eq!(&lease(&farm, "").1, machine, "the one with room");
    }
    // A report in between moves them from `picks` to `in-flight`: still counted once.
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    let captured = |farm: &Farm| {
        let picks = |machine: &str| target(farm, machine, "default")["picks"] == 0;
        machines.iter().all(|machine| picks(machine)).then_some(())
    };
    farm.until("the report", captured).await;
    assert_eq!(leases(&farm, &machines), [2, 2, 2, 2]);
    let (next, machine) = lease(&farm, "&exclude=a,b,d");
    assert_eq!(machine, "c");
    let mut others: Vec<_> = (0..3).map(|_| lease(&farm, "").1).collect();
    others.sort();
    assert_eq!(others, ["a", "b", "d"]);
    assert_eq!(end(&farm, &next), 204);
    assert_eq!(lease(&farm, "").1, "c");
    assert_eq!(pool_named(&farm, "default")["strategy"]["faults"], 0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_exact_under_sixteen_threads() {
    const ROUNDS: usize = 24;
    let machines = ["a", "b", "c", "d", "e"];
    let farm = one_pool(&lowest(IN_FLIGHT, 1), &machines).await;
    let kept: Vec<String> = std::thread::scope(|scope| {
        let open_and_close = |thread: usize| {
            let farm = &farm;
            move || {
                let mut kept = Vec::new();
                for round in 0..ROUNDS {
                    let (id, machine) = lease(farm, "");
                    if (thread + round).is_multiple_of(3) {
                        kept.push(machine);
                    } else {
                        assert_eq!((end(farm, &id), end(farm, &id)), (204, 404));
                    }
                }
                kept
            }
        };
        let threads: Vec<_> = (0..16).map(|thread| scope.spawn(open_and_close(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(kept.len(), 16 * ROUNDS / 3);
    let mut expected: BTreeMap<&str, u64> = machines.map(|machine| (machine, 0)).into();
    kept.iter().for_each(|machine| *expected.get_mut(&**machine).unwrap() += 1);
    assert_eq!(leases(&farm, &machines), expected.values().copied().collect::<Vec<_>>());
    // From here on one at a time: the strategy levels the counts out exactly.
    let level = leases(&farm, &machines).into_iter().max().unwrap();
    let open = || leases(&farm, &machines).iter().sum::<u64>();
    while open() < level * 5 {
        lease(&farm, "");
    }
    assert_eq!(leases(&farm, &machines), [level; 5]);
    assert_eq!(pool_named(&farm, "default")["strategy"]["faults"], 0);
    farm.stop().await;
}

/// Strategies that count are exact however many ask at once. On a machine so busy that the guest's
/// turn does not come in time some are answered natively; the guest's own turns stay exact.
#[tokio::test(flavor = "multi_thread")]
async fn turns_and_counts_are_exact_under_sixteen_threads() {
    const PICKS: usize = 500;
    let machines = ["a", "b", "c", "d", "e"];
    for strategy in ["round-robin", "smooth-weighted", "fewest-clients"] {
        let mut farm = Farm::new("weighted", strategy).await;
        farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
        farm.eligible(machines.len()).await;
        let picks = std::sync::Mutex::new(BTreeMap::<_, [i64; 2]>::new());
        let ask = || {
            for _ in 0..PICKS {
                let answer = pick(farm.host().pools(), &PickRequest::default()).unwrap();
                let by_guest = usize::from(answer.strategy.is_ok());
                picks.lock().unwrap().entry(answer.target.machine).or_default()[by_guest] += 1;
            }
        };
        std::thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(ask))));
        let picks: Vec<_> = picks.into_inner().unwrap().into_values().collect();
        let spread = |counts: &[i64]| counts.iter().max().unwrap() - counts.iter().min().unwrap();
        let by_native: i64 = picks.iter().map(|[native, _]| native).sum();
        let guest: Vec<_> = picks.iter().map(|[_, guest]| *guest).collect();
        let all: Vec<_> = picks.iter().map(|[native, guest]| native + guest).collect();
        let total = i64::try_from(16 * PICKS).unwrap();
        assert_eq!((picks.len(), all.iter().sum::<i64>()), (5, total), "{strategy}");
        // `fewest-clients` makes up for what was picked without it, the others go on in turn.
        let exact = if strategy == "fewest-clients" { &all } else { &guest };
        let slack = if strategy == "fewest-clients" { 1 + by_native } else { 1 };
        assert!(spread(exact) <= slack, "{strategy}: {picks:?}");
        farm.stop().await;
    }
}

/// Everything at once: targets come, go, are ejected and return while threads pick, lease and report.
async fn check_storm(strategy: &str) {
    let health = HealthConfig {
        consecutive_failures: 2,
        ejection_time: Duration::from_millis(10),
        max_ejected: 1.0,
        slow_start: Duration::from_millis(20),
        ..HealthConfig::default()
    };
    let mut farm =
        Farm::with_pools(vec![PoolConfig { health, ..pool("default", "weighted", strategy) }])
            .await;
    let machines = ["a", "b", "c", "d", "e", "f"];
    farm.report(&machines, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(machines.len()).await;
    let storm = |farm: &Farm, thread: u64| {
        let pools = farm.host().pools();
        let mut request =
            PickRequest { lease: Some(Duration::from_secs(60)), ..PickRequest::default() };
        for round in 0..1_500_u64 {
            let number = thread.wrapping_mul(7_919) + round;
            request.exclude =
                if number.is_multiple_of(5) { vec!["b".to_owned()] } else { Vec::new() };
            let answer = pick(pools, &request).unwrap();
            let target = FeedbackTarget::Decision(answer.decision);
            let outcome = Outcome { latency_us: 10, ok: number.is_multiple_of(3) };
            // Its machine may have left meanwhile, and its decision be forgotten.
            pools.record(&[Feedback { target, outcome }]).ok();
            assert!(pools.close_lease(&answer.lease.unwrap()), "it was open");
        }
    };
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (hosts, done) = (&farm, &done);
        for thread in 0..4 {
            scope.spawn(move || {
                storm(hosts, thread);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut seq = 1_000;
        while done.load(Ordering::Relaxed) < 4 {
            for (machine, state) in [
                ("b", State::Draining),
                ("c", State::Leaving),
                ("b", State::Ready),
                ("c", State::Ready),
                ("d", State::Ready),
            ] {
                seq += 1;
                let report = crate::support::report(machine, &[("cpu", 0.5), ("memory", 0.1)]);
                let report = Report { state, seq, ..report };
                hosts.deliver(wire::encode(&[report], &Keyring::default()).unwrap());
                std::thread::yield_now();
            }
            // A queue that is full drops the newest: the last word of each machine must not be lost.
            while hosts.get("/v1/machines/d")["seq"] != seq {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(farm.host().pools().open_leases(), 0);
    farm.eligible(machines.len()).await;
    assert_eq!(leases(&farm, &machines), [0; 6]);
    let pool = pool_named(&farm, "default");
    assert_eq!((&pool["strategy"]["faults"], &pool["leases"]), (&json!(0), &json!(0)), "{pool}");
    assert_eq!(pool["picks"]["nobody_eligible"], 0);
    assert!(pool["picks"]["by_strategy"].as_u64().unwrap() > 1_000, "{pool}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pick_fails_and_no_lease_is_lost_whatever_happens() {
    check_storm("least-loaded").await;
    check_storm("p2c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_outlive_a_machine_that_goes_and_returns() {
    let mut farm = one_pool(&lowest(IN_FLIGHT, 1), &["a", "b"]).await;
    let (kept, _) = lease(&farm, "&exclude=b");
    let (ended, _) = lease(&farm, "&exclude=b");
    let leaving = crate::support::report("a", &[]);
    farm.send(&Report { state: State::Leaving, ..leaving });
    farm.eligible(1).await;
    assert_eq!(end(&farm, &ended), 204);
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    assert_eq!(leases(&farm, &["a", "b"]), [1, 0]);
    assert_eq!(farm.target(""), "b");
    assert_eq!(end(&farm, &kept), 204);
    assert_eq!(leases(&farm, &["a", "b"]), [0, 0]);
    farm.stop().await;
}

fn decision(farm: &Farm, query: &str) -> (Value, Value) {
    let answer = farm.get(&format!("/v1/target?{query}"));
    let id = answer["decision"].as_str().unwrap();
    let decision = farm.get(&format!("/v1/decisions/{id}"));
    (answer, decision)
}

fn candidate<'d>(decision: &'d Value, machine: &str) -> &'d Value {
    let candidates = decision["candidates"].as_array().unwrap();
    candidates.iter().find(|candidate| candidate["machine"] == machine).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_says_why_that_target() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    farm.report(&["a", "b", "c", "d"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(4).await;
    let state = State::Draining;
    let draining = crate::support::report("d", &[("cpu", 0.5)]);
    farm.send(&Report { state, ..draining });
    farm.eligible(3).await;
    fail(&farm, "", "c", 5);
    let (answer, decision) = decision(&farm, "key=me&exclude=a&lease=30s");
    assert_eq!(answer["machine"], "b");
    assert_eq!(
        (&decision["decision"], &decision["pool"]),
        (&answer["decision"], &json!("default"))
    );
    assert_eq!((&decision["chosen"], &decision["by"]), (&json!(["b"]), &json!("strategy")));
    assert_eq!(decision["formula"], answer["policy"]["formula"]);
    assert_eq!(decision["strategy"], answer["policy"]["strategy"]);
    assert_eq!(
        (&decision["request"]["excluded"], &decision["request"]["lease"]),
        (&json!(1), &json!(true))
    );
    assert!(decision["request"]["key_hash"].is_string());
    let filtered =
        json!({"gone_now": 0, "not_ready": 1, "ejected": 1, "excluded": 1, "unknown_load": 1});
    assert_eq!(decision["filtered"], filtered);
    assert_eq!((&decision["candidates_complete"], &decision["tied"]), (&json!(true), &json!(1)));
    assert_eq!(candidate(&decision, "a")["why_not"], "excluded by the request");
    assert_eq!(candidate(&decision, "c")["why_not"], "ejected: consecutive_failures");
    assert_eq!(candidate(&decision, "d")["why_not"], "not ready");
    let chosen = candidate(&decision, "b");
    assert_eq!((&chosen["rank"], &chosen["load"]), (&json!(1), &json!(0.5)));
    assert_eq!(
        (&chosen["picks"], &chosen["eligible"]),
        (&json!(0), &json!(true)),
        "before the pick"
    );
    assert!(chosen.get("why_not").is_none());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_decision_says_why_it_was_native() {
    let farm = one_pool(&strategy(""), &["a", "b"]).await;
    let (_, first) = decision(&farm, "n=2");
    assert_eq!((&first["by"], &first["why_native"]), (&json!("native"), &json!("no answer")));
    assert_eq!((&first["chosen"], &first["tied"]), (&json!(["a", "b"]), &json!(2)));
    assert_eq!(candidate(&first, "b")["rank"], 2);
    let (_, second) = decision(&farm, "");
    assert_eq!(candidate(&second, "a")["picks"], 1);
    // Newest first, without candidates.
    let all = farm.get("/v1/decisions");
    let ids: Vec<_> = all.as_array().unwrap().iter().map(|one| &one["decision"]).collect();
    assert_eq!(ids, [&second["decision"], &first["decision"]]);
    assert!(all[0].get("candidates").is_none());
    assert_eq!(farm.get("/v1/decisions?pool=default&limit=1").as_array().unwrap().len(), 1);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_pool_is_explained_when_asked() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    for number in 0..60_u32 {
        let load = f64::from(number) / 100.0;
        farm.report(&[&format!("m{number:02}")], &[("cpu", load), ("memory", load)]);
    }
    farm.eligible(60).await;
    let count = |decision: &Value| decision["candidates"].as_array().unwrap().len();
    let exclude: Vec<_> = (0..50).map(|number| format!("m{number:02}")).collect();
    let (_, explained) = decision(&farm, &format!("explain=1&exclude={}", exclude.join(",")));
    assert_eq!((&explained["chosen"], count(&explained)), (&json!(["m50"]), 50));
    // The nearest by load: from m10 to m59.
    assert!(candidate(&explained, "m59").get("why_not").is_none());
    assert_eq!(candidate(&explained, "m11")["why_not"], "excluded by the request");
    assert_eq!(explained["candidates_complete"], false);
    assert_eq!(
        (&explained["candidates_shown"], &explained["order_age_ms"]),
        (&json!(50), &json!(0))
    );
    farm.stop().await;
}

/// The machines of a decision's candidates.
fn machines(decision: &Value) -> Vec<&str> {
    let candidates = decision["candidates"].as_array().unwrap().iter();
    candidates.map(|candidate| candidate["machine"].as_str().unwrap_or("gone")).collect()
}

/// A farm of 200 machines, two of each load, when decisions have an order of them.
async fn two_hundred() -> Farm {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    for number in 0..200_u32 {
        let load = f64::from(number / 2) / 100.0;
        farm.report(&[&format!("m{number:03}")], &[("cpu", load), ("memory", load)]);
    }
    farm.eligible(200).await;
    let is_there = |farm: &Farm| {
        let (_, decision) = decision(farm, &without(190));
        machines(&decision).contains(&"m193").then_some(())
    };
    farm.until("an order of all", is_there).await;
    farm
}

/// The query of a pick of none of the first ones.
fn without(first: u32) -> String {
    let exclude: Vec<_> = (0..first).map(|number| format!("m{number:03}")).collect();
    format!("exclude={}", exclude.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_of_a_large_pool_shows_the_nearest_by_load() {
    let farm = two_hundred().await;
    outcomes(&farm, &json!({"target": "m101", "latency_us": 900, "ok": true}), 1);
    fail(&farm, "", "m103", 5);
    let (_, decision) = decision(&farm, &without(100));
    assert_eq!((&decision["chosen"], &decision["targets"]), (&json!(["m100"]), &json!(200)));
    assert_eq!(
        (&decision["candidates_complete"], &decision["candidates_shown"]),
        (&json!(false), &json!(9))
    );
    assert!(decision["order_age_ms"].is_u64(), "{decision}");
    let mut seen = machines(&decision);
    assert_eq!(seen[..2], ["m100", "m101"], "the chosen one, and its equal");
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 9);
    assert!(seen[0] >= "m096" && seen[8] <= "m105", "{seen:?}");
    let load = |machine| candidate(&decision, machine)["load"].as_f64().unwrap();
    assert!((load("m100") - 0.5).abs() < 1e-9 && (load("m102") - 0.51).abs() < 1e-9, "{decision}");
    assert_eq!(candidate(&decision, "m101")["latency_us"], 900);
    assert_eq!(candidate(&decision, "m103")["why_not"], "ejected: consecutive_failures");
    assert_eq!(candidate(&decision, "m098")["why_not"], "excluded by the request");
    assert_eq!(decision["tied"], 2);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_has_the_numbers_of_the_pick_and_is_gone_when_it_left() {
    let mut farm = two_hundred().await;
    farm.get(&format!("/v1/target?lease=30s&{}", without(100)));
    let (_, before) = decision(&farm, &without(101));
    assert_eq!(before["chosen"], json!(["m101"]));
    let neighbour = candidate(&before, "m100").clone();
    assert_eq!((&neighbour["picks"], &neighbour["load"]), (&json!(1), &json!(0.5)));
    assert!(neighbour.get("gone").is_none() && neighbour.get("rank").is_none(), "{neighbour}");
    let leaving = crate::support::report("m100", &[]);
    farm.send(&Report { state: State::Leaving, ..leaving });
    farm.eligible(199).await;
    // Another one in its slot is not taken for it.
    farm.report(&["stranger"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(200).await;
    let id = before["decision"].as_str().unwrap();
    let after = farm.get(&format!("/v1/decisions/{id}"));
    let candidates = after["candidates"].as_array().unwrap();
    let gone: Vec<_> = candidates.iter().filter(|one| one["gone"] == true).collect();
    assert_eq!((gone.len(), &gone[0]["machine"]), (1, &Value::Null));
    assert_eq!((&gone[0]["picks"], &gone[0]["load"]), (&json!(1), &json!(0.5)));
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_decisions_are_remembered() {
    let farm = Farm::new("weighted", "p2c").await;
    assert_eq!(farm.get("/v1/decisions"), json!([]));
    let mut farm = farm;
    farm.report(&["a"], &[]);
    farm.eligible(1).await;
    let first = farm.get("/v1/target")["decision"].as_str().unwrap().to_owned();
    let request = loadline::pick::PickRequest::default();
    for _ in 0..1_023 {
        loadline::pick::pick(farm.host().pools(), &request).unwrap();
    }
    farm.get(&format!("/v1/decisions/{first}"));
    loadline::pick::pick(farm.host().pools(), &request).unwrap();
    let forgotten = farm.get_error(&format!("/v1/decisions/{first}"));
    assert_eq!(forgotten, (404, "unknown_decision".to_owned()));
    assert_eq!(farm.get("/v1/decisions?limit=1000").as_array().unwrap().len(), 1_000);
    assert_eq!(farm.get("/v1/decisions?pool=").as_array().unwrap().len(), 20);
    farm.stop().await;
}
