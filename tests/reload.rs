//! Policies are replaced while it runs: no pick fails, what is broken changes nothing, state goes on.

use std::fs::{self, File};

use crate::support::{Farm, Queries, built_in, pool, relabelled, strategy};

/// A host whose default pool uses `mine.wasm` as its strategy, with machines.
async fn farm_with(mine: &[u8], machines: &[&str]) -> Farm {
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", mine)]).await;
    farm.report(machines, &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(machines.len()).await;
    farm
}

/// Waits until another generation serves as `kind`; its name.
async fn next_generation(farm: &Farm, kind: &str, old: &str) -> String {
    let serves = |farm: &Farm| {
        let generation = farm.policy(kind)["generation"].as_str()?.to_owned();
        (generation != old).then_some(generation)
    };
    farm.until("the next generation", serves).await
}

fn generation(farm: &Farm, kind: &str) -> String {
    farm.policy(kind)["generation"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn wasm_is_replaced_under_constant_queries_without_a_failed_pick() {
    let farm = farm_with(&built_in("round-robin"), &["a", "b", "c"]).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    let mut serving = generation(&farm, "strategy");
    for round in 0..4 {
        let next = if round % 2 == 0 { "p2c" } else { "round-robin" };
        farm.drop_in("mine.wasm", &relabelled(&built_in(next), round));
        serving = next_generation(&farm, "strategy", &serving).await;
    }
    let decides = |farm: &Farm| {
        let answer = farm.get("/v1/target");
        answer["policy"]["strategy"].as_str()?.contains(&serving).then_some(())
    };
    farm.until("an answer by the last one", decides).await;
    let answered = queries.stop();
    assert!(answered.bad.is_empty(), "{:?}", answered.bad);
    assert!(answered.good > 100, "{answered:?}");
    assert!(answered.policies.len() > 2, "several decided: {answered:?}");
    assert_eq!(farm.get("/v1/pools")[0]["picks"]["nobody_eligible"], 0);
    assert_eq!(farm.policy("strategy")["swaps"], 5);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn formula_text_is_replaced_under_constant_queries_without_a_failed_pick() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a", "b"], &[("cpu", 0.5), ("memory", 0.1)]);
    farm.eligible(2).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    let mut serving = generation(&farm, "formula");
    for factor in 1..5 {
        farm.drop_in("weighted.formula", format!("cpu * {factor}").as_bytes());
        serving = next_generation(&farm, "formula", &serving).await;
        let load = farm.get("/v1/target")["load"].as_f64().unwrap();
        assert!((load - 0.5 * f64::from(factor)).abs() < 1e-12, "scored anew at once: {load}");
    }
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 100, "{answered:?}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_file_keeps_the_old_generation_and_says_why() {
    let good = built_in("round-robin");
    let farm = farm_with(&good, &["a", "b"]).await;
    let serving = generation(&farm, "strategy");
    let cases: [(&[u8], &str); 6] = [
        (b"", "the file is empty"),
        (b"not a module", "no WebAssembly header"),
        (&good[..good.len() / 2], "not valid WebAssembly"),
        (b"\x7fELF\x02\x01", "precompiled or native code"),
        (b"\0asm\x01\0\0\0", "exports neither loadline:policy/formula@1"),
        (b"(module)", "WebAssembly text"),
    ];
    for (number, (bytes, reason)) in cases.iter().enumerate() {
        farm.drop_in("mine.wasm", bytes);
        let refused = |farm: &Farm| {
            let policy = farm.get("/v1/policies/mine");
            (policy["refusals"] == number + 1).then_some(policy)
        };
        let policy = farm.until("the refusal", refused).await;
        let said = policy["refused"]["reason"].as_str().unwrap();
        assert!(said.contains(reason), "{said}");
        assert_eq!(policy["state"], "active");
        assert_eq!(generation(&farm, "strategy"), serving);
        farm.target("");
    }
    // Good bytes again: nothing is refused any more.
    farm.drop_in("mine.wasm", &relabelled(&good, 1));
    next_generation(&farm, "strategy", &serving).await;
    assert!(farm.get("/v1/policies/mine").get("refused").is_none());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn module_that_does_not_start_changes_nothing() {
    let farm = farm_with(&built_in("round-robin"), &["a"]).await;
    let serving = generation(&farm, "strategy");
    let trap = strategy("(func $pick (param i64 i32 f64 i64 i64) (result i32) unreachable)");
    let spin = strategy("(func $describe (result i32) (loop (br 0)) unreachable)");
    let configure = |body: &str| {
        strategy(&format!("(func $configure (param i32 i32 i64) (result i32) {body})"))
    };
    let unwilling = configure(
        "(i32.store8 (i32.const 200) (i32.const 1)) (i32.store (i32.const 204) (i32.const 224))
         (i32.store (i32.const 208) (i32.const 3)) i32.const 200",
    );
    let cases: [(&[u8], &str); 6] = [
        (&unwilling, "mine refuses its settings: cpu"),
        (&configure("unreachable"), "configure trapped"),
        (&configure("(loop (br 0)) unreachable"), "configure took longer than 1s"),
        (
            &built_in("weighted"),
            "mine is a formula, and the pool wants a strategy here: name it as the pool's formula instead, \
             or put a strategy into its file",
        ),
        (&trap, "pick trapped"),
        (&spin, "describe took longer than 1s"),
    ];
    for (bytes, words) in cases {
        farm.drop_in("mine.wasm", bytes);
        let trouble = |farm: &Farm| {
            let policy = farm.policy("strategy");
            policy["trouble"].as_str().is_some_and(|said| said.contains(words)).then_some(policy)
        };
        let policy = farm.until(words, trouble).await;
        assert_eq!(policy["generation"], serving);
        assert_eq!(policy["faults"], 0);
        farm.target("");
    }
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_a_policy_refuses_are_told() {
    let mut refused = pool("default", "weighted", "p2c");
    refused.formula_settings = serde_json::json!({ "weights": { "cpu": -1 } });
    let farm = Farm::with_pools(vec![refused]).await;
    let trouble = farm.policy("formula")["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("weighted refuses its settings: weights.cpu: -1"), "{trouble}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn round_goes_on_over_a_reload() {
    let farm = farm_with(&built_in("round-robin"), &["a", "b", "c"]).await;
    let serving = generation(&farm, "strategy");
    assert_eq!([farm.target(""), farm.target("")], ["a", "b"]);
    farm.drop_in("mine.wasm", &relabelled(&built_in("round-robin"), 7));
    next_generation(&farm, "strategy", &serving).await;
    assert_eq!([farm.target(""), farm.target("")], ["c", "a"]);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_overrides_the_built_in_and_its_removal_gives_it_back() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.1)]);
    farm.eligible(1).await;
    let built_in = generation(&farm, "formula");
    farm.drop_in("weighted.formula", b"7");
    let text = next_generation(&farm, "formula", &built_in).await;
    assert_eq!(farm.get("/v1/target")["load"], 7.0);
    fs::remove_file(farm.folder().join("weighted.formula")).unwrap();
    assert_eq!(next_generation(&farm, "formula", &text).await, built_in);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_that_comes_later_is_taken_up() {
    let mut farm = Farm::new("weighted", "mine").await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.1)]);
    farm.eligible(1).await;
    let answer = farm.get("/v1/target");
    assert_eq!(answer["machine"], "a", "native answers until then");
    assert!(answer["policy"]["strategy"].as_str().unwrap().starts_with("native"), "{answer}");
    let trouble = farm.policy("strategy")["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("drop mine.wasm or mine.formula into"), "{trouble}");
    farm.drop_in("mine.wasm", &built_in("random"));
    next_generation(&farm, "strategy", "").await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_is_the_content_not_the_time() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a"], &[("cpu", 1.0), ("memory", 0.1)]);
    farm.eligible(1).await;
    farm.drop_in("weighted.formula", b"cpu * 1");
    let first = next_generation(&farm, "formula", &generation(&farm, "formula")).await;
    let path = farm.folder().join("weighted.formula");
    let time = fs::metadata(&path).unwrap().modified().unwrap();

    // Touched, and loaded no second time: another file that comes after it has been seen.
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    farm.drop_in("other.formula", b"1");
    farm.until("the other file", |farm| {
        let policies = farm.get("/v1/policies");
        policies.as_array().unwrap().iter().any(|policy| policy["name"] == "other").then_some(())
    })
    .await;
    assert_eq!(farm.get("/v1/policies/weighted")["loads"], 2);

    // As long and as old, and other content.
    fs::write(&path, b"cpu * 2").unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    next_generation(&farm, "formula", &first).await;
    assert_eq!(farm.get("/v1/target")["load"], 2.0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_do_not_block_the_start_of_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere"), folder.path().join("x")).unwrap();
    let pools = vec![pool("default", "mine", "p2c"), pool("web", "bad", "p2c")];
    let farm = Farm::with_files(
        pools,
        &[
            ("mine.formula", b"cpu"),
            ("bad.formula", b"cpu +"),
            ("two.formula", b"1"),
            ("two.wasm", &built_in("random")),
            ("latin1.formula", b"caf\xe9"),
            ("notes.txt", b"not a policy"),
            (".hidden.wasm", b"not a policy"),
        ],
    )
    .await;
    assert_eq!(farm.policy("formula")["state"], "active");
    let pools = farm.get("/v1/pools");
    let trouble = pools[1]["formula"]["trouble"].as_str().unwrap();
    assert!(trouble.contains("line 1, column 6: found the end"), "{trouble}");
    let reason = |name: &str| {
        let policy = farm.get(&format!("/v1/policies/{name}"));
        policy["refused"]["reason"].as_str().unwrap().to_owned()
    };
    assert!(
        reason("two")
            .contains("two.formula has the same policy name and is used: remove one of them")
    );
    assert!(reason("latin1").contains("not UTF-8 text: save it as UTF-8"));
    let names: Vec<_> = farm
        .get("/v1/policies")
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| policy["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        !names.iter().any(|name| name.contains("notes") || name.contains("hidden")),
        "{names:?}"
    );
    farm.stop().await;
}
