//! Decision records: why that target, of small pools and large ones.

use loadline::report::{Report, State};
use serde_json::{Value, json};

use super::{fail, one_pool, outcomes};
use crate::support::{Farm, strategy};

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
    let filtered = json!({"gone_now": 0, "not_ready": 1, "ejected": 1, "excluded": 1, "labels": 0, "unknown_load": 1});
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
    let chosen = first["chosen"].as_array().unwrap();
    let chosen: Vec<_> = chosen.iter().filter_map(Value::as_str).collect();
    // Of equals either is first.
    assert!([["a", "b"], ["b", "a"]].contains(&[chosen[0], chosen[1]]), "{first}");
    assert_eq!((&first["tied"], &candidate(&first, chosen[1])["rank"]), (&json!(2), &json!(2)));
    let (_, second) = decision(&farm, "");
    assert_eq!(candidate(&second, chosen[0])["picks"], 1);
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
    farm.get(&format!("/v1/target?{}", without(101))); // of equals m100 has fewer picks now
    let (_, decision) = decision(&farm, &without(100));
    assert_eq!((&decision["chosen"], &decision["targets"]), (&json!(["m100"]), &json!(200)));
    assert_eq!(
        (&decision["candidates_complete"], &decision["candidates_shown"]),
        (&json!(false), &json!(6))
    );
    assert!(decision["order_age_ms"].is_u64(), "{decision}");
    let mut seen = machines(&decision);
    assert_eq!(seen[..2], ["m100", "m101"], "the chosen one, and its equal");
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 6);
    assert!(seen[0] >= "m098" && seen[5] <= "m103", "{seen:?}");
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
    farm.get(&format!("/v1/target?lease=30s&{},m101", without(100)));
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
