//! Generations that are kept of a name: so many and no more, and each can be gone back to.

use std::fs;

use super::{mine, serving, state};
use crate::support::admin::{TOKEN, call, farm, good};
use crate::support::{Farm, built_in, relabelled};

/// Generations of a name that are kept.
const KEPT: usize = 5;

fn kept(farm: &Farm) -> Vec<String> {
    let policy = farm.get("/v1/policies/mine");
    let versions = policy["generations"].as_array().unwrap().iter();
    versions.map(|version| version["generation"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_generations_the_oldest_go_and_each_that_is_kept_serves_again() {
    let farm = farm(mine(), &[]).await;
    let (mut dropped, mut generations) = (Vec::new(), Vec::new());
    for label in 0..7 {
        let wasm = relabelled(&built_in("p2c"), label);
        let generation = loadline::policy::Generation::of(&wasm).to_string();
        farm.drop_in("mine.wasm", &wasm);
        let serves = |farm: &Farm| (serving(farm) == generation).then_some(());
        farm.until("the dropped generation", serves).await;
        dropped.push(wasm);
        generations.push(generation);
        let newest = generations.iter().rev().take(KEPT).cloned();
        assert_eq!(kept(&farm), newest.collect::<Vec<_>>(), "newest first");
    }
    for gone in &generations[..2] {
        assert_eq!(state(&farm, "mine", gone), "gone");
        let activate = format!("/v1/policies/mine/activate?generation={gone}");
        let (status, answer) = call(&farm, "POST", &activate, Some(TOKEN), b"");
        assert_eq!((status, &answer["error"]["code"]), (409, &"not_kept".into()), "{answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(
            said.contains(&format!("kept: {}", generations[6])),
            "names those that are: {said}"
        );
        assert_eq!(serving(&farm), generations[6]);
    }
    // The oldest that is kept first, then each other one: none of them pushes another out.
    for place in 2..7 {
        let activate = format!("/v1/policies/mine/activate?generation={}", generations[place]);
        let active = good(&farm, "POST", &activate, b"");
        assert_eq!(active["generation"], *generations[place]);
        assert_eq!(serving(&farm), generations[place]);
        let decider = farm.get("/v1/target")["policy"]["strategy"].clone();
        assert_eq!(decider, format!("mine@{}", generations[place]));
        assert_eq!(fs::read(farm.folder().join("mine.wasm")).unwrap(), dropped[place]);
        assert_eq!(kept(&farm).len(), KEPT);
    }
    assert_eq!(kept(&farm), generations[2..].iter().rev().cloned().collect::<Vec<_>>());
    farm.stop().await;
}
