//! Faults that were found once, each as the test that found it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use loadline::report::Report;
use serde_json::Value;

use crate::support::{Farm, formula, pool, report, strategy};

/// A formula of one metric, `cpu`, that runs `body` before it answers the metric as the load.
fn evaluate(body: &str) -> String {
    format!(
        "(func $evaluate (param i64 i32 i32 i32 i32) (result i32) (local $i i32)
            {body}
            (i32.store (i32.const 192) (local.get 3)) (i32.store (i32.const 196) (local.get 2))
            i32.const 192)"
    )
}

async fn farm_with_formula(mine: &str) -> Farm {
    let pools = vec![pool("default", "mine", "least-loaded")];
    let files: [(&str, &[u8]); 1] = [("mine.wasm", &formula(mine))];
    let farm = Farm::with_files(pools, &files).await;
    assert_eq!(farm.policy("formula")["state"], "active", "{}", farm.policy("formula"));
    farm
}

/// Scoring each datagram before looking at the next let reports age in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn slow_formula_does_not_bury_the_fleet() {
    let slow = evaluate(
        "(local.set $i (i32.const 8000000))
         (loop (br_if 0 (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))",
    );
    let mut farm = farm_with_formula(&slow).await;
    let names: Vec<_> = (0..200).map(|number| format!("m{number}")).collect();
    for name in &names {
        farm.send(&Report { interval_ms: 200, ..report(name, &[("cpu", 1.0)]) });
    }
    farm.eligible(200).await; // all at once, before the first is called gone
    farm.stop().await;
}

/// A formula that fails on the present fleet took the old one's loads with it.
#[tokio::test(flavor = "multi_thread")]
async fn formula_that_fails_on_the_fleet_does_not_replace_the_old_one() {
    let mut farm = farm_with_formula(&evaluate("nop")).await;
    farm.report(&["a", "b"], &[("cpu", 7.0)]);
    farm.eligible(2).await;
    let old = farm.policy("formula")["generation"].clone();
    let fails = evaluate(
        "(if (local.get 2) (then (if (f64.eq (f64.load (local.get 3)) (f64.const 7))
            (then unreachable))))",
    );
    farm.drop_in("mine.wasm", &formula(&fails));
    let trouble = |farm: &Farm| farm.policy("formula")["trouble"].as_str().map(str::to_owned);
    let trouble = farm.until("the refusal", trouble).await;
    assert!(trouble.contains("is not used: evaluate trapped"), "{trouble}");
    assert_eq!(farm.policy("formula")["generation"], old);
    assert_eq!(farm.get("/v1/target")["load"], 7.0);
    farm.stop().await;
}

/// One that fails on the old one's state could not get in while the old one served.
#[tokio::test(flavor = "multi_thread")]
async fn formula_that_fails_on_the_old_state_starts_without_it() {
    let keeps = "(func $save (result i32) (i32.store (i32.const 192) (i32.const 224))
        (i32.store (i32.const 196) (i32.const 3)) (i32.const 192))";
    let mut farm = farm_with_formula(keeps).await;
    farm.report(&["a"], &[("cpu", 7.0)]);
    farm.eligible(1).await;
    let old = farm.policy("formula")["generation"].clone();
    let fails = "(func $restore (param i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 3)) (then unreachable)) (i32.const 1))";
    farm.drop_in("mine.wasm", &formula(fails));
    let news = |farm: &Farm| (farm.policy("formula")["generation"] != old).then_some(());
    farm.until("the new one", news).await;
    let policy = farm.policy("formula");
    assert_eq!((&policy["trouble"], &policy["faults"]), (&Value::Null, &0.into()), "{policy}");
    farm.report(&["a"], &[("cpu", 8.0)]);
    farm.until("a load of it", |farm| (farm.get("/v1/target")["load"] == 8.0).then_some(())).await;
    farm.stop().await;
}

/// The same of a strategy.
#[tokio::test(flavor = "multi_thread")]
async fn strategy_that_fails_on_the_old_state_starts_without_it() {
    let keeps = "(func $save (result i32) (i32.store (i32.const 192) (i32.const 224))
        (i32.store (i32.const 196) (i32.const 3)) (i32.const 192))";
    let fails = "(func $restore (param i32 i32) (result i32)
        (if (i32.eq (local.get 1) (i32.const 3)) (then unreachable)) (i32.const 1))";
    let mut farm = Farm::with_files(
        vec![pool("default", "weighted", "mine")],
        &[("mine.wasm", &strategy(keeps))],
    )
    .await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let old = farm.policy("strategy")["generation"].clone();
    farm.drop_in("mine.wasm", &strategy(fails));
    let news = |farm: &Farm| (farm.policy("strategy")["generation"] != old).then_some(());
    farm.until("the new one", news).await;
    assert_eq!(farm.policy("strategy")["faults"], 0);
    assert_eq!(farm.target(""), "a");
    farm.stop().await;
}

/// The old formula failed when it was to save, the new one at the first load: neither came back.
#[tokio::test(flavor = "multi_thread")]
async fn formula_comes_back_though_old_and_new_one_fail_at_the_swap() {
    let notes = evaluate(
        "(if (local.get 2) (then (if (f64.eq (f64.load (local.get 3)) (f64.const 7))
            (then (i32.store (i32.const 3000) (i32.const 1))))))",
    );
    let traps = "(func $save (result i32) (if (i32.load (i32.const 3000)) (then unreachable))
        (i32.store (i32.const 192) (i32.const 0)) (i32.store (i32.const 196) (i32.const 0))
        (i32.const 192))";
    let mut farm = farm_with_formula(&format!("{notes}{traps}")).await;
    farm.report(&["a"], &[("cpu", 7.0)]);
    farm.eligible(1).await;
    let fails = evaluate(
        "(if (local.get 2) (then (if (f64.eq (f64.load (local.get 3)) (f64.const 7))
            (then unreachable))))",
    );
    farm.drop_in("mine.wasm", &formula(&fails));
    let trouble = |farm: &Farm| farm.policy("formula")["trouble"].as_str().map(str::to_owned);
    farm.until("the fault", trouble).await;
    assert_eq!(farm.get("/v1/target")["load"], 7.0, "the last good one");
    farm.report(&["a"], &[("cpu", 8.0)]);
    farm.until("a load again", |farm| (farm.get("/v1/target")["load"] == 8.0).then_some(())).await;
    farm.stop().await;
}

/// Every change put off the look at the folder, so that a busy neighbour hid all of them.
#[tokio::test(flavor = "multi_thread")]
async fn policy_is_noticed_while_its_neighbours_change() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a"], &[("cpu", 1.0), ("memory", 1.0)]);
    farm.eligible(1).await;
    let done: Arc<AtomicBool> = Arc::default();
    let (notes, stop) = (farm.folder().join("notes.txt"), Arc::clone(&done));
    let neighbour = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            std::fs::write(&notes, "busy").unwrap();
            std::thread::yield_now();
        }
    });
    farm.drop_in("weighted.formula", b"42");
    let serves = |farm: &Farm| (farm.get("/v1/target")["load"] == 42.0).then_some(());
    farm.until("the formula", serves).await;
    done.store(true, Ordering::Relaxed);
    neighbour.join().unwrap();
    farm.stop().await;
}

/// Loading the built-in in its place cleared the refusal of the file.
#[tokio::test(flavor = "multi_thread")]
async fn refused_override_of_a_built_in_stays_told() {
    let pools = vec![pool("default", "weighted", "p2c")];
    let farm = Farm::with_files(pools, &[("p2c.wasm", b"garbage")]).await;
    let policy = farm.get("/v1/policies/p2c");
    assert_eq!(policy["state"], "active");
    assert_eq!(policy["origin"], "built-in");
    assert!(policy["refused"]["reason"].as_str().unwrap().contains("not WebAssembly"), "{policy}");
    farm.stop().await;
}

/// Names were compared with every target for each rank, under the pool's locks.
#[tokio::test(flavor = "multi_thread")]
async fn many_exclusions_and_ranks_cost_little_and_are_exact() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    let names: Vec<_> = (0..300).map(|number| format!("m{number:03}")).collect();
    for (name, cpu) in names.iter().zip(1_u32..) {
        farm.report(&[name], &[("cpu", f64::from(cpu)), ("memory", 0.0)]);
    }
    farm.eligible(300).await;
    let answer = farm.get(&format!("/v1/target?n=16&exclude={}", names[..256].join(",")));
    let mut ranked = vec![answer["machine"].clone()];
    let others = answer["others"].as_array().unwrap();
    ranked.extend(others.iter().map(|other| other["machine"].clone()));
    assert_eq!(ranked, names[256..256 + ranked.len()].to_vec());
    assert!(ranked.len() > 1, "{ranked:?}");
    assert_eq!(farm.policy("strategy")["faults"], 0);
    farm.stop().await;
}
