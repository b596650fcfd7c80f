//! Policies in shadow: they see everything, decide nothing, and whatever they do, only they suffer.

use std::fs;

use loadline::config::{PoolConfig, PromoteConfig, ShadowConfig};
use loadline::pick::{PickRequest, pick};
use serde_json::{Value, json};

use crate::support::admin::{TOKEN, bad, call, farm, good};
use crate::support::{Farm, Queries, built_in, pool, relabelled, strategy};

const NEXT: &str = "/v1/policies/next/shadow";

fn pools(strategy: &str) -> Vec<PoolConfig> {
    vec![pool("default", "weighted", strategy)]
}

/// The candidate `next` in shadow of the default pool.
async fn shadowed(live: &str, next: &[u8]) -> Farm {
    let mut pools = pools(live);
    pools[0].shadow = Some(ShadowConfig::new("next"));
    let farm = farm(pools, &[("next.wasm", next)]).await;
    run(&farm, "its beginning", |run| run["state"] == "running").await;
    farm
}

/// Waits until the run of `next` is so.
async fn run(farm: &Farm, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let look = |farm: &Farm| {
        let (status, runs) = call(farm, "GET", NEXT, None, b"");
        (status == 200 && wanted(&runs[0])).then(|| runs[0].clone())
    };
    farm.until(&format!("{what} of {:#}", call(farm, "GET", NEXT, None, b"").1), look).await
}

fn picks(farm: &Farm, count: usize) {
    for _ in 0..count {
        pick(farm.host().pools(), &PickRequest::default()).unwrap();
    }
}

async fn compared(farm: &Farm, count: u64) -> Value {
    run(farm, "enough picks", |run| run["picks"].as_u64() >= Some(count)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_strategy_agrees_on_every_pick_and_live_counts_stay_exact() {
    let mut farm = shadowed("least-loaded", &relabelled(&built_in("least-loaded"), 1)).await;
    for round in 0..10_u32 {
        picks(&farm, 50);
        farm.report(&["a"], &[("cpu", f64::from(round) / 10.0), ("memory", 0.2)]);
        farm.report(&["b"], &[("cpu", 0.4), ("memory", 0.2)]);
    }
    let run = compared(&farm, 500).await;
    assert_eq!((&run["picks"], &run["agreed"]), (&json!(500), &json!(500)), "{run:#}");
    assert_eq!((&run["faults"], &run["worst"]), (&json!(0), &json!([])));
    assert_eq!(run["spread"]["live"], run["spread"]["candidate"]);
    assert!(run["time_us"]["p99"].as_f64() >= run["time_us"]["p50"].as_f64());
    let live = &farm.get("/v1/pools")[0];
    assert_eq!(live["picks"]["by_strategy"], 500, "{live}");
    assert_eq!((&live["strategy"]["swaps"], &live["strategy"]["faults"]), (&json!(1), &json!(0)));
    assert_eq!(live["shadow"]["policy"], "next");
    let policy = farm.get("/v1/policies/next");
    assert_eq!(
        (&policy["state"], &policy["shadows"][0]["pool"]),
        (&json!("shadow"), &json!("default"))
    );
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_the_picks_is_compared_and_the_others_are_told() {
    let farm =
        farm(pools("least-loaded"), &[("next.wasm", &relabelled(&built_in("least-loaded"), 1))])
            .await;
    let begun = good(&farm, "POST", NEXT, br#"{"pool":"default","share":0.3}"#);
    assert_eq!((&begun[0]["policy"], &begun[0]["share"]), (&json!("next"), &json!(0.3)));
    run(&farm, "its beginning", |run| run["state"] == "running").await;
    picks(&farm, 2_000);
    // The last pick is asked about if not by this then by another one.
    let seen = compared(&farm, 400).await;
    let (compared, agreed) = (seen["picks"].as_u64().unwrap(), seen["agreed"].as_u64().unwrap());
    assert!((450..750).contains(&compared), "{seen:#}");
    assert_eq!(compared, agreed, "own picks that it was not asked about are known to it");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_would_have_done_is_told_with_the_worst_disagreements() {
    // Always the first to come, which is the heavier one.
    let farm = shadowed("least-loaded", &built_in("first-available")).await;
    picks(&farm, 40);
    let run = compared(&farm, 40).await;
    assert!(run["agreement"].as_f64() < Some(0.9), "{run:#}");
    assert_eq!(run["spread"]["candidate"]["largest_share"], 1.0, "{run:#}");
    assert_eq!(run["spread"]["candidate"]["max_over_mean"], 2.0);
    let worst = &run["worst"][0];
    assert_eq!(
        (&worst["live"]["machine"], &worst["candidate"]["machine"]),
        (&json!("b"), &json!("a"))
    );
    let load = |who: &str| worst[who]["known_live"]["load"].as_f64().unwrap();
    assert!((load("candidate") - 0.9).abs() < 1e-9 && (load("live") - 0.1).abs() < 1e-9);
    assert!((worst["excess"].as_f64().unwrap() - 0.8).abs() < 1e-9, "{worst}");
    assert!(run["worst"].as_array().unwrap().len() <= 10);
    let live = &run["worst"][1]["live"];
    assert_ne!(live["known_live"]["picks"], live["known_to_candidate"]["picks"], "{live}");
    let apart = &run["spread"]["apart"][0];
    assert_eq!((&apart["live"], &apart["candidate"]), (&json!(0), &json!(40)), "{apart}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_word_promotes_and_a_restart_finds_it() {
    let next = relabelled(&built_in("p2c"), 7);
    let farm = shadowed("least-loaded", &next).await;
    let before = farm.policy("strategy")["generation"].clone();
    good(&farm, "POST", "/v1/policies/next/activate", b"");
    let after = farm.policy("strategy")["generation"].clone();
    assert_ne!(before, after);
    assert_eq!(after, farm.get("/v1/policies/next")["generation"]);
    assert_eq!(fs::read(farm.folder().join("least-loaded.wasm")).unwrap(), next);
    let run = run(&farm, "its end", |run| run["state"] == "promoted").await;
    assert_eq!(run["pool"], "default");
    // It is what serves: it does not run beside itself, now or after a restart.
    assert_eq!(farm.get("/v1/policies/least-loaded")["state"], "active");
    let files: [(&str, &[u8]); 2] = [("next.wasm", &next), ("least-loaded.wasm", &next)];
    let config = farm.config().pools;
    farm.stop().await;
    let again = Farm::with_files(config, &files).await;
    let (_, runs) = call(&again, "GET", NEXT, None, b"");
    assert_eq!(
        (&runs[0]["state"], &runs[0]["why"]),
        (&json!("waiting"), &json!("it is what serves"))
    );
    again.stop().await;
}

fn bounded(agreement: f64) -> Option<ShadowConfig> {
    let promote = PromoteConfig { picks: 100, agreement, ..PromoteConfig::default() };
    Some(ShadowConfig { promote: Some(promote), ..ShadowConfig::new("next") })
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_promoted_when_its_bounds_hold() {
    let next = relabelled(&built_in("least-loaded"), 3);
    let mut pools = pools("least-loaded");
    pools[0].shadow = bounded(1.0);
    // A busy machine is not to break the bound that is not tried here.
    pools[0].shadow.as_mut().unwrap().promote.as_mut().unwrap().p99 =
        std::time::Duration::from_millis(50);
    let farm = farm(pools, &[("next.wasm", &next)]).await;
    run(&farm, "its beginning", |run| run["state"] == "running").await;
    picks(&farm, 99);
    compared(&farm, 99).await;
    assert_ne!(farm.policy("strategy")["generation"], farm.get("/v1/policies/next")["generation"]);
    picks(&farm, 1);
    run(&farm, "its promotion", |run| run["state"] == "promoted").await;
    let serves = |farm: &Farm| {
        let is_it =
            farm.policy("strategy")["generation"] == farm.get("/v1/policies/next")["generation"];
        is_it.then_some(())
    };
    farm.until("the candidate to serve", serves).await;
    assert_eq!(fs::read(farm.folder().join("least-loaded.wasm")).unwrap(), next);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_stopped_when_a_bound_is_broken() {
    let mut pools = pools("least-loaded");
    pools[0].shadow = bounded(0.99);
    let farm = farm(pools, &[("next.wasm", &built_in("first-available"))]).await;
    run(&farm, "its beginning", |run| run["state"] == "running").await;
    picks(&farm, 120);
    let stopped = run(&farm, "its end", |run| run["state"] == "stopped").await;
    let why = stopped["why"].as_str().unwrap();
    assert!(why.starts_with("agreement 0.") && why.ends_with("0.99 is the least"), "{why}");
    assert_eq!(farm.get("/v1/policies/next")["state"], "loaded");
    // Other bytes are tried.
    farm.drop_in("next.wasm", &relabelled(&built_in("first-available"), 1));
    run(&farm, "another run", |run| run["state"] == "running" && run["picks"] == 0).await;
    farm.stop().await;
}

/// A strategy that does this from its thirtieth pick on: after its trial.
fn failing(fault: &str) -> Vec<u8> {
    strategy(&format!(
        "(global $picks (mut i32) (i32.const 0))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (global.set $picks (i32.add (global.get $picks) (i32.const 1)))
            (if (i32.ge_u (global.get $picks) (i32.const 30)) (then {fault}))
            i32.const 128)"
    ))
}

/// Under constant queries the candidate fails until it is stopped, and nobody else notices.
async fn check_fault(fault: &str, reason: &str) {
    let farm = shadowed("least-loaded", &failing(fault)).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    let stopped = run(&farm, "its end", |run| run["state"] == "stopped").await;
    let answered = queries.stop();
    assert_eq!(stopped["faults_by_reason"][reason], 3, "{stopped:#}");
    assert!(stopped["why"].as_str().unwrap().starts_with("it failed 3 times in a minute"));
    assert!(answered.good > 0 && answered.bad.is_empty(), "{answered:?}");
    let by_one = answered.policies.windows(2).all(|two| two[0] == two[1]);
    assert!(by_one, "nobody but the live one answered: {answered:?}");
    let live = farm.policy("strategy");
    assert_eq!((&live["faults"], &live["state"]), (&json!(0), &json!("active")));
    let metrics = crate::support::get(&farm.url("/metrics"), "").1;
    let line = format!(
        "loadline_shadow_faults_total{{pool=\"default\",policy=\"next\",reason=\"{reason}\"}} 3"
    );
    assert!(metrics.contains(&line), "{metrics}");
    assert!(metrics.contains("loadline_shadow_active{pool=\"default\",policy=\"next\"} 0"));
    // Whoever asks again gets another run.
    good(&farm, "POST", NEXT, b"");
    run(&farm, "another run", |run| run["faults"] == 0 && run["state"] != "stopped").await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_that_traps_suffers_alone() {
    check_fault("unreachable", "trap").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_that_loops_suffers_alone() {
    check_fault("(loop (br 0))", "deadline").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_that_grows_suffers_alone() {
    let grow =
        "(loop (br_if 0 (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)))) (unreachable)";
    check_fault(grow, "memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_that_answers_nonsense_suffers_alone() {
    let nonsense = "(i32.store8 (i32.const 200) (i32.const 1)) (i32.store (i32.const 204) (i32.const -1)) \
                    (return (i32.const 200))";
    check_fault(nonsense, "bad_answer").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_candidate_is_left_behind_and_fed_anew() {
    // Some milliseconds a pick: more than it may have is coming.
    let slow = strategy(
        "(func $pick (param i64 i32 f64 i64 i64) (result i32) (local $left i32)
            (local.set $left (i32.const 200000))
            (loop (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
            i32.const 128)",
    );
    let farm = shadowed("least-loaded", &slow).await;
    let seen = |farm: &Farm| call(farm, "GET", NEXT, None, b"").1[0].clone();
    // Every pick is answered by the live one, at its own pace.
    while seen(&farm)["missed"]["dropped"] == 0 {
        picks(&farm, 4_000);
    }
    let run = run(&farm, "being fed anew", |run| run["missed"]["fed_anew"] != 0).await;
    assert_eq!(run["faults"], 0, "{run:#}");
    let picks = &farm.get("/v1/pools")[0]["picks"];
    assert_eq!(picks["native"], 0, "{picks}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_formula_computes_loads_beside_the_live_one() {
    let mut farm =
        farm(pools("least-loaded"), &[("next.formula", b"cpu * 10 + memory * 10")]).await;
    good(&farm, "POST", NEXT, b"");
    run(&farm, "both loads", |run| run["loads"]["compared"] == 2).await;
    picks(&farm, 30);
    let same = compared(&farm, 30).await;
    assert_eq!((&same["as"], &same["agreed"]), (&json!("formula"), &json!(30)), "{same:#}");
    assert_eq!(same["loads"]["same_order"], 1.0);
    let pair = &same["loads"]["worst"][0];
    assert!((pair["difference"].as_f64().unwrap() - 0.95).abs() < 1e-9, "{pair}");
    assert_eq!(farm.target(""), "b");

    // Another text takes its place: the light one looks heavy, and a metric is missing where it is not.
    farm.drop_in("next.formula", b"2 - cpu + gpu * 0");
    run(&farm, "another run", |run| run["loads"]["missing"] == json!(["gpu"])).await;
    for (machine, cpu) in [("a", 0.9), ("b", 0.1)] {
        farm.report(&[machine], &[("cpu", cpu), ("memory", cpu), ("gpu", 1.0)]);
    }
    run(&farm, "both loads", |run| run["loads"]["compared"] == 2).await;
    picks(&farm, 30);
    let other = compared(&farm, 30).await;
    assert_eq!(other["loads"]["same_order"], 0.0, "{other:#}");
    assert!(other["agreement"].as_f64() < Some(1.0));
    assert_eq!(farm.get("/v1/machines/b")["targets"][0]["load"], 0.1, "the live one's");
    good(&farm, "POST", "/v1/policies/next/activate", b"");
    assert_eq!(fs::read(farm.folder().join("weighted.formula")).unwrap(), b"2 - cpu + gpu * 0");
    let load = farm.get("/v1/machines/b")["targets"][0]["load"].as_f64().unwrap();
    assert!((load - 1.9).abs() < 1e-9, "{load}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_may_change_while_one_runs() {
    let mut farm = shadowed("least-loaded", &built_in("p2c")).await;
    let generation = |farm: &Farm| call(farm, "GET", NEXT, None, b"").1[0]["generation"].clone();
    let first = generation(&farm);
    let queries = Queries::start(farm.url("/v1/target"), 2);
    // Another candidate file: another run.
    farm.drop_in("next.wasm", &relabelled(&built_in("p2c"), 1));
    run(&farm, "the new file", |run| run["state"] == "running" && run["generation"] != first).await;
    // One that does not start.
    farm.drop_in("next.wasm", &failing_at_start());
    let is_refused = |run: &Value| run["why"].as_str().is_some_and(|why| why.contains("not start"));
    run(&farm, "the refusal", |run| run["state"] == "stopped" && is_refused(run)).await;
    farm.drop_in("next.wasm", &relabelled(&built_in("p2c"), 2));
    run(&farm, "a good one", |run| run["state"] == "running").await;
    // Another live generation, and another live policy.
    let beside = run(&farm, "its name", |run| run["state"] == "running").await["beside"].clone();
    good(&farm, "PUT", "/v1/policies/least-loaded", &relabelled(&built_in("least-loaded"), 1));
    let is_new = |run: &Value| run["beside"] != beside && run["state"] == "running";
    run(&farm, "the live one's successor", is_new).await;
    let problems = farm.apply(|config| config.pools[0].strategy = "random".to_owned()).await;
    assert!(problems.is_empty(), "{problems:?}");
    let is_random =
        |run: &Value| run["beside"].as_str().is_some_and(|by| by.starts_with("random@"));
    run(&farm, "the other policy", |run| is_random(run) && run["state"] == "running").await;
    // The candidate's file goes.
    fs::remove_file(farm.folder().join("next.wasm")).unwrap();
    let gone = run(&farm, "its absence", |run| run["state"] == "waiting").await;
    assert!(gone["why"].as_str().unwrap().contains("there is no policy next"), "{gone}");
    farm.drop_in("next.wasm", &built_in("p2c"));
    run(&farm, "its return", |run| run["state"] == "running").await;
    // The configuration wants it no more, then again in another way, then the pool goes.
    farm.apply(|config| config.pools[0].shadow = None).await;
    assert_eq!(bad(&farm, "GET", NEXT, b""), (404, "no_shadow".to_owned()));
    farm.apply(|config| {
        config.pools.push(PoolConfig {
            shadow: Some(ShadowConfig { share: 0.5, ..ShadowConfig::new("next") }),
            ..pool("other", "weighted", "least-loaded")
        })
    })
    .await;
    run(&farm, "the other pool's", |run| run["pool"] == "other" && run["state"] == "running").await;
    farm.apply(|config| drop(config.pools.pop())).await;
    assert_eq!(bad(&farm, "GET", NEXT, b""), (404, "no_shadow".to_owned()));
    good(&farm, "POST", NEXT, b"{}");
    let answered = queries.stop();
    assert!(answered.good > 0 && answered.bad.is_empty(), "{answered:?}");
    farm.stop().await; // with one that has just begun
}

/// A strategy whose configure traps.
fn failing_at_start() -> Vec<u8> {
    strategy("(func $configure (param i32 i32 i64) (result i32) unreachable)")
}

#[tokio::test(flavor = "multi_thread")]
async fn wishes_that_cannot_be_followed_say_why() {
    let farm = farm(pools("least-loaded"), &[("next.wasm", &failing_at_start())]).await;
    let (status, answer) = call(&farm, "POST", NEXT, Some(TOKEN), b"");
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("no_shadow")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("configure trapped"), "{answer}");
    for (path, body, expected) in [
        ("/v1/policies/none/shadow", "", (404, "unknown_policy")),
        (NEXT, r#"{"pool":"none"}"#, (404, "unknown_pool")),
        (NEXT, r#"{"generation":"00ff"}"#, (409, "not_kept")),
        (NEXT, r#"{"share":0}"#, (400, "bad_parameter")),
        (NEXT, r#"{"shape":1}"#, (400, "bad_parameter")),
        (NEXT, r#"{"promote":{"agreement":2}}"#, (400, "bad_parameter")),
        ("/v1/policies/least-loaded/shadow", "", (409, "no_shadow")),
    ] {
        let (code, name) = expected;
        assert_eq!(bad(&farm, "POST", path, body.as_bytes()), (code, name.to_owned()), "{body}");
    }
    assert_eq!(bad(&farm, "DELETE", "/v1/policies/p2c/shadow", b""), (409, "no_shadow".to_owned()));
    let (status, _) = call(&farm, "POST", NEXT, None, b"");
    assert_eq!(status, 401);
    // A built-in may be tried, and ended.
    good(&farm, "POST", "/v1/policies/p2c/shadow", b"");
    let ended = good(&farm, "DELETE", "/v1/policies/p2c/shadow?pool=default", b"");
    assert_eq!(ended[0]["policy"], "p2c");
    let is_ended = |farm: &Farm| {
        let run = farm.get("/v1/policies/p2c/shadow")[0].clone();
        (run["state"] == "stopped" && run["why"] == "by an operator").then_some(())
    };
    farm.until("its end", is_ended).await;
    farm.stop().await;
}
