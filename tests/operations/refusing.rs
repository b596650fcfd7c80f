//! `on_fault = "refuse"`: the one way in which a policy makes a request fail, said and counted, and over when
//! the policy is back.

use loadline::config::{OnFault, PoolConfig};

use super::{mine, serving};
use crate::support::admin::farm;
use crate::support::{Farm, built_in, get, trapping};

fn refusing() -> Vec<PoolConfig> {
    let mut pools = mine();
    pools[0].on_fault = OnFault::Refuse;
    pools
}

/// Requests that were refused, where operators and programs look.
fn refused(farm: &Farm) -> (u64, u64) {
    let shown = farm.get("/v1/pools")[0]["picks"]["refused"].as_u64().unwrap();
    (shown, farm.metric("picks_refused_total{pool=\"default\"}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_where_the_pool_wants_no_native_answer() {
    let farm = farm(refusing(), &[]).await;
    assert_eq!(farm.get_error("/v1/target"), (503, "policy_failed".to_owned()));
    assert_eq!(refused(&farm), (1, 1));
    farm.drop_in("mine.wasm", &built_in("least-loaded"));
    farm.until("the strategy", |farm| (!serving(farm).is_empty()).then_some(())).await;
    assert_eq!(farm.target(""), "b");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trap_refuses_requests_until_the_guest_is_back() {
    let farm = farm(refusing(), &[("mine.wasm", &trapping())]).await;
    let trapping = serving(&farm);
    assert!(!trapping.is_empty(), "{}", farm.policy("strategy"));
    // It has no answer of its own before it traps: that is no fault, and is answered natively.
    let refusal = loop {
        let (status, body) = get(&farm.url("/v1/target"), "application/json");
        if status != 200 {
            break (status, body);
        }
        assert_eq!(refused(&farm), (0, 0));
    };
    assert_eq!(refusal.0, 503, "{}", refusal.1);
    assert!(refusal.1.contains("\"code\":\"policy_failed\""), "{}", refusal.1);
    let words = "the strategy of pool \\\"default\\\" does not serve (trap), and its on_fault is \\\"refuse\\\"";
    assert!(refusal.1.contains(words), "{}", refusal.1);
    assert!(refusal.1.contains("GET /v1/pools shows what is wrong with it"), "{}", refusal.1);
    let (shown, counted) = refused(&farm);
    assert!(shown >= 1 && shown == counted, "{shown}, {counted}");
    assert_eq!(farm.policy("strategy")["state"], "native");
    // Rebuilt after its back-off, it serves again, and so does the pool.
    let is_back = |farm: &Farm| (serving(farm) == trapping).then_some(());
    farm.until("the guest's return", is_back).await;
    assert_eq!(get(&farm.url("/v1/target"), "application/json").0, 200);
    assert_eq!(refused(&farm), (shown, counted));
    farm.stop().await;
}
