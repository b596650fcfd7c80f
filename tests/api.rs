//! The HTTP API: what it answers, and what it says when it cannot.

use serde_json::Value;

use crate::support::{Farm, get, pool};

async fn farm() -> Farm {
    let pools = vec![pool("default", "weighted", "least-loaded"), pool("web", "weighted", "p2c")];
    let mut farm = Farm::with_pools(pools).await;
    for (machine, cpu) in [("a", 0.1), ("b", 0.2), ("c", 0.3)] {
        farm.report(&[machine], &[("cpu", cpu), ("memory", 0.0)]);
    }
    farm.eligible(3).await;
    farm
}

#[tokio::test(flavor = "multi_thread")]
async fn target_answers_json_text_ranks_and_exclusions() {
    let farm = farm().await;
    let answer = farm.get("/v1/target?n=3");
    assert_eq!(answer["machine"], "a");
    assert_eq!(answer["pool"], "default");
    let others: Vec<_> =
        answer["others"].as_array().unwrap().iter().map(|other| &other["machine"]).collect();
    assert_eq!(others, ["b", "c"]);
    assert!(answer["decision"].is_string());

    let first = farm.get("/v1/target")["decision"].clone();
    assert_ne!(first, farm.get("/v1/target")["decision"], "every decision has its own name");
    assert!(farm.get("/v1/target").get("others").is_none());
    assert_eq!(farm.target("exclude=a"), "b");
    assert_eq!(farm.target("exclude=a,b&key=client%201"), "c");
    assert_eq!(farm.target("exclude=a&exclude=c"), "b");
    assert_eq!(farm.get_error("/v1/target?exclude=a,b,c"), (503, "nobody_eligible".to_owned()));
    assert_eq!(get(&farm.url("/v1/target"), "text/plain"), (200, "127.0.0.1\n".to_owned()));
    // Ranked and excluded targets were not picked: the order did not change.
    let picks = |machine: &str| {
        let machine = farm.get(&format!("/v1/machines/{machine}"));
        machine["targets"][0]["picks"].as_u64().unwrap()
    };
    assert_eq!((picks("b"), picks("c")), (2, 1));
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_code_and_a_message() {
    let farm = farm().await;
    #[track_caller]
    fn check(farm: &Farm, path: &str, status: u16, code: &str) {
        assert_eq!(farm.get_error(path), (status, code.to_owned()), "{path}");
    }
    check(&farm, "/v1/target?pool=wep", 404, "unknown_pool");
    check(&farm, "/v1/target?pool=web", 503, "nobody_eligible");
    check(&farm, "/v1/target?n=0", 400, "bad_parameter");
    check(&farm, "/v1/target?n=17", 400, "bad_parameter");
    check(&farm, "/v1/target?n=x", 400, "bad_parameter");
    check(&farm, "/v1/target?polo=web", 400, "bad_parameter");
    check(&farm, "/v1/target?key=%ff", 400, "bad_parameter");
    let excluded = vec!["m"; 257].join(",");
    check(&farm, &format!("/v1/target?exclude={excluded}"), 400, "bad_parameter");
    check(&farm, "/v1/target?ticket=x", 501, "not_implemented");
    for lease in ["999ms", "1h1s", "30", "-1s", ""] {
        check(&farm, &format!("/v1/target?lease={lease}"), 400, "bad_parameter");
    }
    check(&farm, "/v1/target?explain=yes", 400, "bad_parameter");
    check(&farm, "/v1/decisions?limit=0", 400, "bad_parameter");
    check(&farm, "/v1/decisions?page=2", 400, "bad_parameter");
    check(&farm, "/v1/decisions?pool=wep", 404, "unknown_pool");
    check(&farm, "/v1/decisions/00000000-0", 404, "unknown_decision");
    check(&farm, "/v1/targets", 404, "no_such_call");
    check(&farm, "/v1/machines/nobody", 404, "unknown_machine");
    check(&farm, "/v1/policies/nothing", 404, "unknown_policy");

    let (_, body) = get(&farm.url("/v1/target?pool=wep"), "application/json");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["hint"], "did you mean web?");
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder().http_status_as_error(false).build(),
    );
    let answer = agent.get(farm.url("/v1/target?pool=web")).call().unwrap();
    assert_eq!(answer.headers()["retry-after"], "1");
    let answer = agent.post(farm.url("/v1/target")).send_empty().unwrap();
    assert_eq!(answer.status(), 405);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_apart_from_readiness() {
    let mut farm = Farm::new("weighted", "p2c").await;
    assert_eq!(get(&farm.url("/healthz"), "").0, 200);
    assert_eq!(get(&farm.url("/readyz"), "").0, 503);
    farm.report(&["a"], &[]);
    farm.eligible(1).await;
    assert_eq!(get(&farm.url("/readyz"), "").0, 200);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_and_pools_say_what_serves() {
    let farm = farm().await;
    let policies = farm.get("/v1/policies");
    let by_name = |name: &str| {
        let policies = policies.as_array().unwrap();
        policies.iter().find(|policy| policy["name"] == name).unwrap().clone()
    };
    assert_eq!(by_name("weighted")["state"], "active");
    assert_eq!(by_name("weighted")["kind"], "formula");
    assert_eq!(by_name("weighted")["origin"], "built-in");
    assert_eq!(by_name("weighted")["pools"].as_array().unwrap().len(), 2);
    assert_eq!(by_name("random")["state"], "idle");
    assert_eq!(farm.get("/v1/policies/p2c"), by_name("p2c"));
    let pools = farm.get("/v1/pools");
    assert_eq!(pools[0]["strategy"]["state"], "active");
    assert_eq!(pools[0]["eligible"], 3);
    let metrics = get(&farm.url("/metrics"), "").1;
    for line in [
        "loadline_machines{state=\"alive\"} 3",
        "loadline_targets{pool=\"default\",state=\"eligible\"} 3",
        "loadline_policy_native{pool=\"default\",policy=\"weighted\",kind=\"formula\"} 0",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    farm.stop().await;
}
