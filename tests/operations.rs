//! Policies in operation: what an operator can do with them, and what happens to those that fail too
//! often.

mod generations;
mod handover;
mod refusing;
mod uploads;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use loadline::config::{OnFault, PoolConfig};

use crate::support::admin::{TOKEN, bad, call, farm, good, names};
use crate::support::{Farm, PATIENCE, built_in, pool, relabelled, strategy, trapping};

fn mine() -> Vec<PoolConfig> {
    vec![pool("default", "weighted", "mine")]
}

fn state(farm: &Farm, name: &str, generation: &str) -> String {
    let policy = farm.get(&format!("/v1/policies/{name}"));
    let versions = policy["generations"].as_array().unwrap();
    let version = versions.iter().find(|version| version["generation"] == generation);
    version.map_or("gone", |version| version["state"].as_str().unwrap()).to_owned()
}

fn serving(farm: &Farm) -> String {
    farm.policy("strategy")["generation"].as_str().unwrap_or_default().to_owned()
}

/// Picks until this is so; every pick is answered.
fn pick_until(farm: &Farm, what: &str, wanted: impl Fn(&Farm) -> bool) {
    let begin = Instant::now();
    while !wanted(farm) {
        farm.target("");
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_that_fails_too_often_makes_way_for_the_last_good_one() {
    let farm = farm(mine(), &[("mine.wasm", &built_in("least-loaded"))]).await;
    let first = serving(&farm);
    farm.drop_in("mine.wasm", &trapping());
    let out = |farm: &Farm| {
        let quarantined = farm.policy("strategy")["quarantined"][0].clone();
        quarantined.as_str().map(str::to_owned)
    };
    pick_until(&farm, "the quarantine", |farm| out(farm).is_some());
    let failed = out(&farm).unwrap();
    farm.until("the first one's return", |farm| (serving(farm) == first).then_some(())).await;
    assert_eq!(farm.policy("strategy")["faults"], 3);
    assert_eq!(state(&farm, "mine", &failed), "quarantined");
    assert_eq!(state(&farm, "mine", &first), "active");
    // Other bytes are tried, and an operator may insist on those.
    farm.drop_in("mine.wasm", &relabelled(&built_in("random"), 1));
    farm.until("other bytes", |farm| (serving(farm) != first).then_some(())).await;
    assert!(out(&farm).is_some(), "other bytes are no pardon");
    good(&farm, "PUT", "/v1/policies/mine", &built_in("p2c"));
    assert!(out(&farm).is_none(), "a wish is");
    good(&farm, "POST", &format!("/v1/policies/mine/activate?generation={failed}"), b"");
    assert_eq!(state(&farm, "mine", &failed), "active");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn built_in_takes_over_where_nothing_served_before() {
    let pools = vec![pool("default", "weighted", "least-loaded")];
    let farm = farm(pools, &[("least-loaded.wasm", &trapping())]).await;
    let failing = serving(&farm);
    pick_until(&farm, "the built-in", |farm| {
        let serving = serving(farm);
        !serving.is_empty() && serving != failing
    });
    assert_eq!(farm.policy("strategy")["quarantined"][0], failing);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn native_answers_go_on_where_the_pool_wants_them() {
    let mut pools = vec![pool("default", "weighted", "least-loaded")];
    pools[0].on_fault = OnFault::Native;
    let farm = farm(pools, &[("least-loaded.wasm", &trapping())]).await;
    let failing = serving(&farm);
    pick_until(&farm, "the fourth fault", |farm| farm.policy("strategy")["faults"] == 4);
    assert!(farm.policy("strategy").get("quarantined").is_none());
    farm.until("the same one's return", |farm| (serving(farm) == failing).then_some(())).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploaded_policy_serves_at_once_and_is_in_the_folder() {
    let farm = farm(mine(), &[]).await;
    let wasm = built_in("least-loaded");
    let uploaded = good(&farm, "PUT", "/v1/policies/mine", &wasm);
    assert_eq!(uploaded["state"], "active", "{uploaded}");
    assert_eq!(serving(&farm), uploaded["generation"]);
    assert_eq!(fs::read(farm.folder().join("mine.wasm")).unwrap(), wasm);
    let steps = uploaded["generations"][0]["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["check", "compile", "link"]);
    // A text takes the place of the module, and the other way round.
    let formula = good(&farm, "PUT", "/v1/policies/weighted", b"cpu * 3");
    assert_eq!(formula["pools"][0]["as"], "formula", "{formula}");
    assert_eq!(fs::read(farm.folder().join("weighted.formula")).unwrap(), b"cpu * 3");
    good(&farm, "PUT", "/v1/policies/weighted", &built_in("weighted"));
    assert!(!farm.folder().join("weighted.formula").exists());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_policy_is_not_taken() {
    let farm = farm(mine(), &[("mine.wasm", &built_in("least-loaded"))]).await;
    let first = serving(&farm);
    let path = "/v1/policies/mine";
    assert_eq!(bad(&farm, "PUT", path, b"\0asm nonsense"), (422, "policy_refused".to_owned()));
    assert_eq!(bad(&farm, "PUT", path, b"cpu * "), (422, "policy_refused".to_owned()));
    assert!(announced(&farm, path, 17 << 20).starts_with("HTTP/1.1 413 "));
    let odd = "/v1/policies/..%2Fx";
    assert_eq!(bad(&farm, "PUT", odd, b"1"), (400, "bad_parameter".to_owned()));
    assert_eq!(bad(&farm, "DELETE", "/v1/policies/none", b""), (404, "unknown_policy".to_owned()));
    assert_eq!(bad(&farm, "POST", &format!("{path}/rollback"), b""), (409, "not_kept".to_owned()));
    let unknown = format!("{path}/activate?generation=00");
    assert_eq!(bad(&farm, "POST", &unknown, b""), (409, "not_kept".to_owned()));
    assert_eq!(
        bad(&farm, "POST", &format!("{path}/activate"), b""),
        (400, "bad_parameter".to_owned())
    );
    assert_eq!(serving(&farm), first);
    assert_eq!(names(farm.folder()), ["mine.wasm"]);
    farm.stop().await;
}

/// It compiles, and no pool that wants it could use it: a restart would find nothing that serves.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_start_is_not_taken_and_a_restart_finds_the_good_one() {
    let wasm = built_in("least-loaded");
    let farm = farm(mine(), &[("mine.wasm", &wasm)]).await;
    let first = serving(&farm);
    let trap = |function: &str| strategy(&format!("(func {function} unreachable)"));
    for (bad_one, words) in [
        (trap("$configure (param i32 i32 i64) (result i32)"), "configure trapped"),
        (trap("$pick (param i64 i32 f64 i64 i64) (result i32)"), "pick trapped"),
        (built_in("weighted"), "is a formula"),
    ] {
        let (status, answer) = call(&farm, "PUT", "/v1/policies/mine", Some(TOKEN), &bad_one);
        assert_eq!((status, &answer["error"]["code"]), (422, &"policy_refused".into()), "{answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(
            said.contains("as the strategy of pool \"default\"") && said.contains(words),
            "{said}"
        );
        assert_eq!(fs::read(farm.folder().join("mine.wasm")).unwrap(), wasm);
        assert_eq!(serving(&farm), first);
    }
    let found = fs::read(farm.folder().join("mine.wasm")).unwrap();
    farm.stop().await;
    let again = Farm::with_files(mine(), &[("mine.wasm", &found)]).await;
    assert_eq!(serving(&again), first);
    again.stop().await;
}

/// A file that takes the compiler long holds up no rollback.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_waits_for_no_compilation() {
    let farm = farm(mine(), &[]).await;
    for label in [1, 2] {
        good(&farm, "PUT", "/v1/policies/mine", &relabelled(&built_in("p2c"), label));
    }
    let second = serving(&farm);
    let chain = "(local.get 1) i32.add ".repeat(1_500_000);
    let long = strategy(&format!("(func $leave (param i32 i32) local.get 0 {chain} drop)"));
    let is_loading = |farm: &Farm| {
        let all = farm.get("/v1/policies");
        let mut all = all.as_array().unwrap().iter();
        all.any(|of| of["name"] == "other" && of["state"] == "loading").then_some(())
    };
    farm.drop_in("other.wasm", &long);
    farm.until("the compilation", is_loading).await;
    good(&farm, "POST", "/v1/policies/mine/rollback", b"");
    assert_ne!(serving(&farm), second);
    is_loading(&farm).expect("it goes on");
    farm.stop().await;
}

/// What is answered to who announces so many bytes and waits for a word before sending them.
fn announced(farm: &Farm, path: &str, length: usize) -> String {
    let mut stream = TcpStream::connect(farm.host().http_address()).unwrap();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_is_one_call_and_a_restart_finds_it() {
    let farm = farm(mine(), &[]).await;
    let versions: Vec<_> = (0..3).map(|label| relabelled(&built_in("p2c"), label)).collect();
    let generations: Vec<String> = versions
        .iter()
        .map(|wasm| {
            good(&farm, "PUT", "/v1/policies/mine", wasm)["generation"].as_str().unwrap().to_owned()
        })
        .collect();
    let rolled = good(&farm, "POST", "/v1/policies/mine/rollback", b"");
    assert_eq!(rolled["generation"], generations[1]);
    assert_eq!(serving(&farm), generations[1]);
    assert_eq!(fs::read(farm.folder().join("mine.wasm")).unwrap(), versions[1]);
    // Back again: the one before that call. And to the oldest by its name.
    good(&farm, "POST", "/v1/policies/mine/rollback", b"");
    assert_eq!(serving(&farm), generations[2]);
    let oldest = format!("/v1/policies/mine/activate?generation={}", &generations[0][..6]);
    let active = good(&farm, "POST", &oldest, b"");
    assert_eq!(serving(&farm), generations[0]);
    assert_eq!(active["generations"].as_array().unwrap().len(), 3);
    assert_eq!(state(&farm, "mine", &generations[2]), "previous");

    let found = fs::read(farm.folder().join("mine.wasm")).unwrap();
    farm.stop().await;
    let again = Farm::with_files(mine(), &[("mine.wasm", &found)]).await;
    assert_eq!(serving(&again), generations[0]);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_to_the_built_in_takes_the_file_away() {
    let pools = vec![pool("default", "weighted", "least-loaded")];
    let farm = farm(pools, &[]).await;
    let built_in = serving(&farm);
    good(&farm, "PUT", "/v1/policies/least-loaded", &built_in_as("random", 9));
    assert_ne!(serving(&farm), built_in);
    good(&farm, "POST", "/v1/policies/least-loaded/rollback", b"");
    assert_eq!(serving(&farm), built_in);
    assert_eq!(names(farm.folder()), Vec::<String>::new());
    farm.stop().await;
}

fn built_in_as(name: &str, label: u8) -> Vec<u8> {
    relabelled(&built_in(name), label)
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_need_the_token_and_questions_do_not() {
    let farm = farm(mine(), &[]).await;
    let wasm = built_in("p2c");
    for token in [None, Some("wrong"), Some(""), Some(&TOKEN[1..])] {
        let (status, json) = call(&farm, "PUT", "/v1/policies/mine", token, &wasm);
        assert_eq!((status, &json["error"]["code"]), (401, &"unauthorised".into()), "{token:?}");
    }
    let (status, _) = call(&farm, "GET", "/v1/policies/weighted", None, b"");
    assert_eq!(status, 200);
    farm.stop().await;

    let off = Farm::with_pools(mine()).await;
    for path in ["/v1/policies/mine/rollback", "/v1/policies/mine/activate?generation=0"] {
        let (status, json) = call(&off, "POST", path, Some(TOKEN), b"");
        assert_eq!((status, &json["error"]["code"]), (403, &"admin_off".into()));
    }
    off.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_policy_gives_its_name_back() {
    let farm = farm(mine(), &[("mine.wasm", &built_in("least-loaded"))]).await;
    assert!(!serving(&farm).is_empty());
    good(&farm, "DELETE", "/v1/policies/mine", b"");
    assert_eq!(farm.policy("strategy")["state"], "native");
    assert_eq!(farm.get("/v1/policies/mine")["state"], "removed");
    assert_eq!(farm.target(""), "b", "natively the lowest load");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_file_is_used_on_for_the_grace() {
    let pools = mine();
    let files: [(&str, &[u8]); 1] = [("mine.wasm", &built_in("least-loaded"))];
    let grace = Duration::from_hours(1);
    let mut farm = Farm::with_host(pools, &files, |host| host.removal_grace = grace).await;
    farm.report(&["a"], &[("cpu", 0.9), ("memory", 0.9)]);
    farm.eligible(1).await;
    let first = serving(&farm);
    fs::remove_file(farm.folder().join("mine.wasm")).unwrap();
    let removed = |farm: &Farm| (farm.get("/v1/policies/mine")["state"] == "removed").then_some(());
    farm.until("the removal to be seen", removed).await;
    assert_eq!(serving(&farm), first);
    // It comes back in time: nothing was lost, nothing is compiled again.
    farm.drop_in("mine.wasm", files[0].1);
    let back = |farm: &Farm| (farm.get("/v1/policies/mine")["state"] == "active").then_some(());
    farm.until("its return", back).await;
    assert_eq!(serving(&farm), first);
    assert_eq!(farm.policy("strategy")["swaps"], 1);
    farm.stop().await;
}
