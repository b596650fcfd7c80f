//! Uploads that take the compiler long: nothing else waits for them, and whoever sent one is told how it goes.

use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;

use super::{mine, serving};
use crate::support::admin::{TOKEN, call, farm, good};
use crate::support::{Farm, PATIENCE, built_in, pool, relabelled, strategy};

/// A strategy that takes the compiler some seconds.
fn long(label: u8) -> Vec<u8> {
    let chain = "(local.get 1) i32.add ".repeat(1_000_000);
    let wasm = strategy(&format!("(func $leave (param i32 i32) local.get 0 {chain} drop)"));
    relabelled(&wasm, label)
}

fn generation(wasm: &[u8]) -> String {
    loadline::policy::Generation::of(wasm).to_string()
}

/// Status, where to look, and JSON of an upload by a client that waits so long.
fn put(url: &str, wasm: &[u8], prefer: &str) -> (u16, Option<String>, Value) {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build();
    let call = ureq::Agent::new_with_config(config)
        .put(url)
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("prefer", prefer);
    let mut answer = call.send(wasm).unwrap();
    let see = answer.headers().get("location").map(|see| see.to_str().unwrap().to_owned());
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), see, serde_json::from_str(&text).unwrap_or_default())
}

/// The same on a thread of its own.
fn put_beside(farm: &Farm, name: &str, wasm: Vec<u8>) -> JoinHandle<(u16, Option<String>, Value)> {
    let url = farm.url(&format!("/v1/policies/{name}"));
    std::thread::spawn(move || put(&url, &wasm, ""))
}

fn entry(farm: &Farm, name: &str) -> Option<Value> {
    let all = farm.get("/v1/policies");
    all.as_array().unwrap().iter().find(|policy| policy["name"] == name).cloned()
}

fn is_loading(farm: &Farm, name: &str, wasm: &[u8]) -> Option<()> {
    (entry(farm, name)?["loading"] == *generation(wasm)).then_some(())
}

async fn until_loading(farm: &Farm, name: &str, wasm: &[u8]) {
    farm.until("the compilation", |farm| is_loading(farm, name, wasm)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_wish_and_no_file_waits_for_an_upload_that_is_compiled() {
    let farm = farm(mine(), &[]).await;
    let versions = [1, 2].map(|label| relabelled(&built_in("p2c"), label));
    versions.iter().for_each(|wasm| drop(good(&farm, "PUT", "/v1/policies/mine", wasm)));
    let slow = long(0);
    let upload = put_beside(&farm, "other", slow.clone());
    until_loading(&farm, "other", &slow).await;

    good(&farm, "POST", "/v1/policies/mine/rollback", b"");
    assert_eq!(serving(&farm), generation(&versions[0]));
    let second = format!("/v1/policies/mine/activate?generation={}", generation(&versions[1]));
    good(&farm, "POST", &second, b"");
    assert_eq!(serving(&farm), generation(&versions[1]));
    good(&farm, "POST", "/v1/policies/random/shadow", b"");
    good(&farm, "DELETE", "/v1/policies/random/shadow", b"");
    is_loading(&farm, "other", &slow).expect("it is compiled all the time");
    good(&farm, "PUT", "/v1/policies/mine", &built_in("round-robin"));
    assert_eq!(serving(&farm), generation(&built_in("round-robin")));
    farm.drop_in("weighted.formula", b"cpu * 5");
    let scored = |farm: &Farm| (farm.get("/v1/target")["load"].as_f64() == Some(0.5)).then_some(());
    farm.until("the formula that was dropped in", scored).await;
    good(&farm, "DELETE", "/v1/policies/mine", b"");

    let (status, see, answer) = upload.join().unwrap();
    assert_eq!((status, see), (200, None), "{answer}");
    assert_eq!(answer["generation"], *generation(&slow));
    assert_eq!(answer["upload"]["state"], "used");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_wait_is_told_where_to_look() {
    let farm = farm(mine(), &[]).await;
    let path = "/v1/policies/mine";
    let slow = long(0);
    let (status, see, answer) = put(&farm.url(path), &slow, "respond-async");
    assert_eq!((status, see.as_deref()), (202, Some(path)), "{answer}");
    assert_eq!(answer["see"], path);
    let upload = |farm: &Farm| entry(farm, "mine").map(|of| of["upload"].clone());
    let is = |state: &'static str| {
        move |farm: &Farm| upload(farm).filter(|upload| upload["state"] == state)
    };
    let compiling = farm.until("its compilation", is("compiling")).await;
    assert_eq!(compiling["generation"], *generation(&slow));
    farm.until("its use", is("used")).await;
    assert_eq!(serving(&farm), generation(&slow));

    // What is wrong is told there, too, and changes nothing.
    let trap = strategy("(func $configure (param i32 i32 i64) (result i32) unreachable)");
    for (bad, words) in [(&b"\0asm nonsense"[..], "not WebAssembly"), (&trap, "configure trapped")]
    {
        let (status, ..) = put(&farm.url(path), bad, "respond-async, wait=0");
        // Of what is known at once it is told at once.
        assert!([202, 422].contains(&status), "{status}");
        let refused = |farm: &Farm| {
            upload(farm).filter(|upload| upload["generation"] == *generation(bad))?["reason"]
                .as_str()
                .map(str::to_owned)
        };
        let reason = farm.until("the refusal", refused).await;
        assert!(reason.contains(words), "{reason}");
        assert_eq!(serving(&farm), generation(&slow));
    }
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_word_counts_and_not_the_last_compilation() {
    let farm = farm(mine(), &[]).await;
    let versions = [1, 2].map(|label| relabelled(&built_in("p2c"), label));
    versions.iter().for_each(|wasm| drop(good(&farm, "PUT", "/v1/policies/mine", wasm)));
    let (slow, slower) = (long(0), long(1));
    let first = put_beside(&farm, "mine", slow.clone());
    until_loading(&farm, "mine", &slow).await;
    good(&farm, "POST", "/v1/policies/mine/rollback", b"");
    let (status, _, answer) = first.join().unwrap();
    assert_eq!((status, &answer["error"]["code"]), (409, &"overtaken".into()), "{answer}");
    let second = put_beside(&farm, "mine", slower.clone());
    until_loading(&farm, "mine", &slower).await;
    let last = built_in("round-robin");
    good(&farm, "PUT", "/v1/policies/mine", &last);
    assert_eq!(second.join().unwrap().0, 409);
    let policy = farm.get("/v1/policies/mine");
    assert_eq!(
        (&policy["generation"], &policy["loading"]),
        (&generation(&last).into(), &Value::Null)
    );
    let kept = policy["generations"].to_string();
    assert!(![slow, slower].iter().any(|wasm| kept.contains(&generation(wasm))), "{kept}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_uploads_than_are_compiled_at_once_are_asked_to_come_again() {
    let farm = farm(mine(), &[]).await;
    let uploads: Vec<_> = [("a", long(0)), ("b", long(1))]
        .into_iter()
        .map(|(name, wasm)| (name, wasm.clone(), put_beside(&farm, name, wasm)))
        .collect();
    for (name, wasm, _) in &uploads {
        until_loading(&farm, name, wasm).await;
    }
    let (status, answer) = call(&farm, "PUT", "/v1/policies/c", Some(TOKEN), &built_in("p2c"));
    assert_eq!((status, &answer["error"]["code"]), (503, &"busy".into()), "{answer}");
    for (name, wasm, upload) in uploads {
        let (status, _, answer) = upload.join().unwrap();
        assert_eq!((status, &answer["generation"]), (200, &generation(&wasm).into()), "{name}");
    }
    good(&farm, "PUT", "/v1/policies/c", &built_in("p2c"));
    farm.stop().await;
}

/// A configuration that waits for its policies to compile holds up nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn changed_configuration_waits_for_its_files_and_nobody_for_it() {
    let mut farm = farm(mine(), &[]).await;
    let versions = [1, 2].map(|label| relabelled(&built_in("p2c"), label));
    versions.iter().for_each(|wasm| drop(good(&farm, "PUT", "/v1/policies/mine", wasm)));
    let slow = long(0);
    farm.drop_in("other.wasm", &slow);
    until_loading(&farm, "other", &slow).await;
    let url = farm.url("/v1/policies/mine/rollback");
    let rollback = tokio::task::spawn_blocking(move || {
        let call = ureq::post(&url).header("authorization", format!("Bearer {TOKEN}"));
        let status = call.send_empty().unwrap().status();
        (status.as_u16(), Instant::now())
    });
    let change = async {
        let problems =
            farm.apply(|config| config.pools.push(pool("more", "weighted", "other"))).await;
        (problems, Instant::now())
    };
    let ((problems, changed), rolled) = tokio::join!(change, rollback);
    let (status, rolled) = rolled.unwrap();
    assert_eq!((problems, status), (Vec::new(), 200));
    assert!(rolled < changed, "the rollback waited for the configuration");
    assert_eq!(serving(&farm), generation(&versions[0]));
    // The new pool has its guests from the start.
    let more = farm.get("/v1/pools")[1].clone();
    assert_eq!(more["strategy"]["generation"], *generation(&slow), "{more}");
    assert_eq!(more["strategy"]["swaps"], 1);
    farm.stop().await;
}
