//! Labels: requests that want some of them, and failure domains that the next ranks keep away from.

use std::collections::BTreeSet;

use loadline::config::PoolConfig;
use loadline::report::Report;
use serde_json::{Value, json};

use crate::support::{Farm, get, pool, report, service, strategy};

const METRICS: [(&str, f64); 2] = [("cpu", 0.5), ("memory", 0.5)];

/// A farm whose failure domains are zones, with these machines and zones.
async fn farm(policy: &str, files: &[(&str, &[u8])], machines: &[(&str, &str)]) -> Farm {
    let zones = PoolConfig {
        failure_domain: Some("zone".to_owned()),
        ..pool("default", "weighted", policy)
    };
    let mut farm = Farm::with_files(vec![zones], files).await;
    for (machine, zone) in machines {
        in_zone(&mut farm, machine, zone);
    }
    farm.eligible(machines.len()).await;
    farm
}

fn in_zone(farm: &mut Farm, machine: &str, zone: &str) {
    let labels = if zone.is_empty() { Vec::new() } else { vec![("zone", zone)] };
    farm.send(&Report { labels, ..report(machine, &METRICS) });
}

/// Everybody that these queries get in forty answers.
fn picked(farm: &Farm, query: &str) -> BTreeSet<String> {
    (0..40).map(|_| farm.target(query)).collect()
}

/// An answer's machines, best first.
fn ranked(farm: &Farm, query: &str) -> Vec<String> {
    let answer = farm.get(&format!("/v1/target?{query}"));
    let others = answer["others"].as_array().cloned().unwrap_or_default();
    let all = [answer.clone()].into_iter().chain(others);
    all.map(|one| one["machine"].as_str().unwrap().to_owned()).collect()
}

fn set(machines: &[&str]) -> BTreeSet<String> {
    machines.iter().map(|machine| (*machine).to_owned()).collect()
}

const FOUR: [(&str, &str); 4] = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")];

/// The built-in strategies that do not send everything to the first of equals.
const SPREADING: [&str; 13] = [
    "balanced",
    "bounded-hash",
    "fewest-clients",
    "fuzzy",
    "least-loaded",
    "p2c",
    "peak-ewma",
    "prequal",
    "random",
    "rendezvous",
    "round-robin",
    "smooth-weighted",
    "weighted-random",
];

/// Whoever chooses, nobody gets a target that it did not want.
async fn only_wanted(farm: Farm) {
    let policy = farm.policy("strategy");
    assert_eq!(picked(&farm, "where=zone=a"), set(&["a1", "a2"]), "{policy}");
    assert_eq!(picked(&farm, "where=zone%21%3Da"), set(&["b1", "c1"]), "{policy}");
    assert_eq!(picked(&farm, "where=zone=a%7Cb"), set(&["a1", "a2", "b1"]), "{policy}");
    assert_eq!(picked(&farm, "where=zone=a&where=zone!=b&exclude=a2"), set(&["a1"]));
    assert_eq!(ranked(&farm, "where=zone=a&n=4").len(), 2);
    let (status, body) = get(&farm.url("/v1/target?where=zone=q"), "");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 503);
    let message = "no target of pool \"default\" is eligible: 4 known, 0 excluded by the request, \
                   0 fit where=zone=q";
    assert_eq!(body["error"]["message"], message);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_gets_only_what_its_labels_say() {
    for policy in SPREADING {
        only_wanted(farm(policy, &[], &FOUR).await).await;
    }
    let silent = strategy("");
    only_wanted(farm("mine", &[("mine.wasm", &silent)], &FOUR).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_a_service_hide_the_machines_and_change_with_a_report() {
    let mut farm = farm("balanced", &[], &[("a", "a"), ("none", "")]).await;
    assert_eq!(picked(&farm, "where=zone!=a"), set(&["none"]), "no label is no value");
    let mut web = service("default", "10.0.0.9:80");
    web.labels = vec![("zone", "z")];
    let services = vec![web];
    farm.send(&Report { services, labels: vec![("zone", "a")], ..report("a", &METRICS) });
    farm.until("the service's label", |farm| {
        let (status, _) = get(&farm.url("/v1/target?where=zone=z"), "");
        (status == 200).then_some(())
    })
    .await;
    assert_eq!(farm.get_error("/v1/target?where=zone=a").0, 503);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_constraint_says_what_would_be_right() {
    let farm = farm("balanced", &[], &FOUR).await;
    assert_eq!(farm.get_error("/v1/target?where=zone"), (400, "bad_parameter".to_owned()));
    let (_, body) = get(&farm.url("/v1/target?where=zne=a"), "");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["hint"], "no target has a label \"zne\", did you mean \"zone\"?");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_names_what_its_labels_left_out() {
    let farm = farm("balanced", &[], &FOUR).await;
    let answer = farm.get("/v1/target?where=zone=b");
    let decision = farm.get(&format!("/v1/decisions/{}", answer["decision"].as_str().unwrap()));
    assert_eq!(decision["request"]["where"], "zone=b");
    assert_eq!(decision["filtered"]["labels"], 3);
    let out = decision["candidates"].as_array().unwrap().iter();
    let out = out.filter(|one| one["why_not"] == json!("not wanted by its labels"));
    assert_eq!(out.count(), 3);
    farm.stop().await;
}

/// Further ranks, and what comes instead of an excluded machine, are of other zones while there are any.
async fn apart(farm: Farm) {
    let zone = |machine: &String| machine[..1].to_owned();
    for _ in 0..20 {
        let three = ranked(&farm, "n=3");
        assert_eq!(three.iter().map(zone).collect::<BTreeSet<_>>().len(), 3, "{three:?}");
        let all = ranked(&farm, "n=4");
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4, "{all:?}");
    }
    let policy = farm.policy("strategy");
    assert_eq!(picked(&farm, "exclude=a1"), set(&["b1", "c1"]), "{policy}");
    assert_eq!(picked(&farm, "exclude=a1,b1,c1"), set(&["a2"]), "rather that zone than none");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_ranks_are_of_other_failure_domains() {
    for policy in ["balanced", "round-robin", "p2c"] {
        apart(farm(policy, &[], &FOUR).await).await;
    }
    let silent = strategy("");
    apart(farm("mine", &[("mine.wasm", &silent)], &FOUR).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_label_a_target_is_a_domain_of_its_own_and_the_key_can_change() {
    let mut farm = farm("balanced", &[], &[("a1", "a"), ("a2", "a"), ("n1", ""), ("n2", "")]).await;
    let firsts: BTreeSet<String> = ranked(&farm, "n=3").into_iter().collect();
    assert!(!(firsts.contains("a1") && firsts.contains("a2")), "{firsts:?}");
    assert_eq!(picked(&farm, "exclude=n1"), set(&["a1", "a2", "n2"]));
    let problems = farm.apply(|config| config.pools[0].failure_domain = None).await;
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(picked(&farm, "exclude=a1"), set(&["a2", "n1", "n2"]));
    farm.stop().await;
}
