//! Signed policies: who may put a policy into the folder, through real files, calls and the real program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use loadline::config::{Config, PublicKey, SignatureMode, SignaturesConfig};
use loadline::policy::Generation;
use loadline::policy::signature::SecretKey;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Process, QUICK, command};
use crate::support::admin::names;
use crate::support::{Farm, PATIENCE, built_in, get, pool, relabelled};

const TOKEN: &str = "a token that nobody guesses";

fn key(number: u8) -> SecretKey {
    SecretKey::new(&[number; 32])
}

fn id(key: &SecretKey) -> String {
    key.public().id().to_string()
}

/// The text of a signature file for this content.
fn signed(key: &SecretKey, bytes: &[u8]) -> String {
    key.sign(Generation::of(bytes), None)
}

fn wanted(mode: SignatureMode, keys: &[&SecretKey]) -> SignaturesConfig {
    SignaturesConfig { mode, keys: keys.iter().map(|key| key.public()).collect() }
}

/// A host with the strategy `mine`, an admin token, two machines, and such signatures wanted.
async fn farm(signatures: SignaturesConfig, files: &[(&str, &[u8])]) -> (Farm, TempDir) {
    let secrets = tempfile::tempdir().unwrap();
    let token = secrets.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_host(pools, files, |host| {
        host.admin_token_file = token;
        host.signatures = signatures;
    })
    .await;
    farm.report(&["a", "b"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    (farm, secrets)
}

fn mine(farm: &Farm) -> Value {
    farm.get("/v1/policies/mine")
}

fn serving(farm: &Farm) -> Option<String> {
    farm.policy("strategy")["generation"].as_str().map(str::to_owned)
}

/// Waits until these bytes serve.
async fn serves(farm: &Farm, bytes: &[u8]) {
    let generation = Some(Generation::of(bytes).to_string());
    farm.until("the generation", |farm| (serving(farm) == generation).then_some(())).await;
}

/// Waits until the file of these bytes waits for its signature; why.
async fn waits(farm: &Farm, bytes: &[u8]) -> String {
    let generation = Generation::of(bytes).to_string();
    let waiting = |farm: &Farm| {
        let waiting = &mine(farm)["waiting"];
        let reason = waiting["reason"].as_str().map(str::to_owned);
        reason.filter(|_| waiting["generation"] == *generation)
    };
    farm.until("the wait", waiting).await
}

/// Waits for the refusal with this number; why.
async fn refused(farm: &Farm, number: u64) -> String {
    let refused = |farm: &Farm| {
        let policy = mine(farm);
        let reason = policy["refused"]["reason"].as_str().map(str::to_owned);
        reason.filter(|_| policy["refusals"] == number)
    };
    farm.until("the refusal", refused).await
}

/// Uploads; status and JSON.
fn put(farm: &Farm, name: &str, bytes: &[u8], signatures: &[&str]) -> (u16, Value) {
    let url = farm.url(&format!("/v1/policies/{name}"));
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let agent = ureq::Agent::new_with_config(config.timeout_global(Some(PATIENCE)).build());
    let mut request = agent.put(&url).header("authorization", format!("Bearer {TOKEN}"));
    for lines in signatures {
        request = request.header("loadline-signature", lines.trim());
    }
    answer(&mut request.send(bytes).unwrap())
}

fn post(farm: &Farm, path: &str) -> (u16, Value) {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let agent = ureq::Agent::new_with_config(config.timeout_global(Some(PATIENCE)).build());
    let request = agent.post(farm.url(path)).header("authorization", format!("Bearer {TOKEN}"));
    answer(&mut request.send_empty().unwrap())
}

fn answer(answer: &mut ureq::http::Response<ureq::Body>) -> (u16, Value) {
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn file_waits_for_its_signature_and_then_serves() {
    let (wasm, key) = (built_in("round-robin"), key(1));
    let (farm, _secrets) =
        farm(wanted(SignatureMode::Require, &[&key]), &[("mine.wasm", &wasm)]).await;
    let why = waits(&farm, &wasm).await;
    assert!(why.contains("no signature yet: `loadline policy sign`"), "{why}");
    let policy = mine(&farm);
    assert_eq!((&policy["state"], &policy["refusals"]), (&"waiting".into(), &0.into()));
    assert_eq!(serving(&farm), None);
    let trouble = farm.policy("strategy")["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("mine has no signature yet"), "{trouble}");
    let (_, metrics) = get(&farm.url("/metrics"), "");
    assert!(metrics.contains("loadline_policy_waiting{policy=\"mine\"} 1"), "{metrics}");
    farm.target("");

    farm.drop_in("mine.wasm.sig", signed(&key, &wasm).as_bytes());
    serves(&farm, &wasm).await;
    let policy = mine(&farm);
    assert_eq!(policy["generations"][0]["signature"]["state"], "good");
    assert_eq!(policy["generations"][0]["signature"]["key"], id(&key));
    assert_eq!(policy["generations"][0]["steps"][0]["step"], "signature");
    assert!(policy.get("waiting").is_none(), "{policy}");
    // The built-in policies need none.
    assert_eq!(
        farm.get("/v1/policies/weighted")["generations"][0]["signature"]["state"],
        "built-in"
    );
    farm.stop().await;
}

/// However the two files of a policy are exchanged, the old one serves until the new one is whole.
#[tokio::test(flavor = "multi_thread")]
async fn signed_policy_is_exchanged_file_by_file_in_either_order() {
    let key = key(1);
    let versions = ["round-robin", "p2c", "random"].map(built_in);
    let first = signed(&key, &versions[0]);
    let files: [(&str, &[u8]); 2] =
        [("mine.wasm", &versions[0]), ("mine.wasm.sig", first.as_bytes())];
    let (farm, _secrets) = farm(wanted(SignatureMode::Require, &[&key]), &files).await;
    serves(&farm, &versions[0]).await;

    farm.drop_in("mine.wasm", &versions[1]);
    let why = waits(&farm, &versions[1]).await;
    assert!(why.contains("the right one is still on its way"), "{why}");
    assert_eq!(serving(&farm), Some(Generation::of(&versions[0]).to_string()));
    assert_eq!(mine(&farm)["state"], "active");
    farm.drop_in("mine.wasm.sig", signed(&key, &versions[1]).as_bytes());
    serves(&farm, &versions[1]).await;

    farm.drop_in("mine.wasm.sig", signed(&key, &versions[2]).as_bytes());
    waits(&farm, &versions[1]).await;
    assert_eq!(serving(&farm), Some(Generation::of(&versions[1]).to_string()));
    farm.drop_in("mine.wasm", &versions[2]);
    serves(&farm, &versions[2]).await;
    let policy = mine(&farm);
    assert_eq!((&policy["refusals"], &policy["loads"]), (&0.into(), &3.into()));
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_signature_is_refused_and_a_right_one_alone_is_a_new_look() {
    let (good, wasm, key, stranger) = (built_in("p2c"), built_in("random"), key(1), key(2));
    let first = signed(&key, &good);
    let files: [(&str, &[u8]); 2] = [("mine.wasm", &good), ("mine.wasm.sig", first.as_bytes())];
    let (farm, _secrets) = farm(wanted(SignatureMode::Require, &[&key]), &files).await;
    serves(&farm, &good).await;

    let foreign = signed(&stranger, &wasm);
    farm.drop_in("mine.wasm.sig", foreign.as_bytes());
    farm.drop_in("mine.wasm", &wasm);
    let why = refused(&farm, 1).await;
    let words = format!(
        "is signed by {}, which is not among host.signatures.keys; sign it with {}",
        id(&stranger),
        id(&key)
    );
    assert!(why.contains(&words), "{why}");
    assert_eq!(mine(&farm)["refused"]["steps"][0]["failed"], why);

    farm.drop_in("mine.wasm.sig", foreign.replace(&id(&stranger), &id(&key)).as_bytes());
    let why = refused(&farm, 2).await;
    assert!(why.contains(&format!("the signature by {} is not genuine", id(&key))), "{why}");
    farm.drop_in("mine.wasm.sig", b"\x00\xff");
    assert!(refused(&farm, 3).await.contains("its signature file is not text"));
    farm.drop_in("mine.wasm.sig", b"-----BEGIN PGP SIGNATURE-----");
    let why = refused(&farm, 4).await;
    assert!(why.contains("that is not \"ed25519 KEY SHA256 SIGNATURE\""), "{why}");
    assert_eq!(serving(&farm), Some(Generation::of(&good).to_string()));
    assert_eq!(mine(&farm)["state"], "active", "the old one");

    farm.drop_in("mine.wasm.sig", signed(&key, &wasm).as_bytes());
    serves(&farm, &wasm).await;
    assert!(mine(&farm).get("refused").is_none());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_changed_without_a_gap_and_an_old_one_vouches_no_more() {
    let (old, new) = (key(1), key(2));
    let versions = ["round-robin", "p2c"].map(built_in);
    let (mut farm, _secrets) = farm(wanted(SignatureMode::Require, &[&old]), &[]).await;
    assert_eq!(put(&farm, "mine", &versions[0], &[&signed(&old, &versions[0])]).0, 200);
    let signer = |farm: &Farm| mine(farm)["generations"][0]["signature"]["key"].clone();
    assert_eq!(signer(&farm), id(&old));

    apply(&mut farm, wanted(SignatureMode::Require, &[&old, &new])).await;
    assert_eq!(put(&farm, "mine", &versions[1], &[&signed(&new, &versions[1])]).0, 200);
    assert_eq!(signer(&farm), id(&new));
    // While both are known, there is a way back.
    assert_eq!(post(&farm, "/v1/policies/mine/rollback").0, 200);
    assert_eq!(signer(&farm), id(&old));
    assert_eq!(post(&farm, "/v1/policies/mine/rollback").0, 200);

    apply(&mut farm, wanted(SignatureMode::Require, &[&new])).await;
    let (status, json) = post(&farm, "/v1/policies/mine/rollback");
    assert_eq!((status, &json["error"]["code"]), (422, &"not_signed".into()), "{json}");
    let newest = Some(Generation::of(&versions[1]).to_string());
    assert_eq!(serving(&farm), newest);
    // What the last known key has signed serves on when that key goes, and it is told.
    let other = key(3);
    apply(&mut farm, wanted(SignatureMode::Require, &[&other])).await;
    assert!(refused(&farm, 1).await.contains("which is not among host.signatures.keys"));
    assert_eq!(serving(&farm), newest);
    assert_eq!(mine(&farm)["generations"][0]["signature"]["state"], "wrong");
    // Signed by both, either key is enough.
    let both = other.sign(Generation::of(&versions[1]), Some(&signed(&new, &versions[1])));
    farm.drop_in("mine.wasm.sig", both.as_bytes());
    farm.until("the pardon", |farm| mine(farm).get("refused").is_none().then_some(())).await;
    assert_eq!(signer(&farm), id(&other));
    farm.stop().await;
}

async fn apply(farm: &mut Farm, signatures: SignaturesConfig) {
    let change = |config: &mut Config| config.host.as_mut().unwrap().signatures = signatures;
    assert_eq!(farm.apply(change).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn unsigned_files_serve_and_are_told_of_where_only_a_warning_is_wanted() {
    let (wasm, key) = (built_in("p2c"), key(1));
    let (mut farm, _secrets) =
        farm(wanted(SignatureMode::Warn, &[&key]), &[("mine.wasm", &wasm)]).await;
    let signature = |farm: &Farm| mine(farm)["generations"][0]["signature"]["state"].clone();
    let unsigned = |farm: &Farm| {
        let (_, metrics) = get(&farm.url("/metrics"), "");
        metrics.contains("loadline_policy_unsigned{policy=\"mine\"} 1")
    };
    serves(&farm, &wasm).await;
    assert_eq!(signature(&farm), "missing");
    assert!(unsigned(&farm));
    let becomes = |state: &'static str| move |farm: &Farm| (signature(farm) == state).then_some(());
    farm.drop_in("mine.wasm.sig", signed(&self::key(9), &wasm).as_bytes());
    farm.until("the wrong signature", becomes("wrong")).await;
    farm.drop_in("mine.wasm.sig", signed(&key, &wasm).as_bytes());
    farm.until("the good signature", becomes("good")).await;
    assert!(!unsigned(&farm));
    let policy = mine(&farm);
    assert_eq!((&policy["loads"], &policy["refusals"]), (&1.into(), &0.into()), "loaded once");
    assert_eq!(farm.policy("strategy")["swaps"], 1);
    // Off, and nobody looks.
    fs::write(farm.folder().join("mine.wasm.sig"), "nonsense").unwrap();
    apply(&mut farm, SignaturesConfig::default()).await;
    assert_eq!(signature(&farm), "off");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_carries_its_signature_and_a_restart_finds_both() {
    let (key, stranger) = (key(1), key(2));
    let wants = || wanted(SignatureMode::Require, &[&key]);
    let (wasm, text) = (built_in("p2c"), b"cpu * 2");
    let (farm, _secrets) = farm(wants(), &[]).await;
    let not_signed = |signatures: &[&str], words: &str| {
        let (status, json) = put(&farm, "mine", &wasm, signatures);
        assert_eq!((status, &json["error"]["code"]), (422, &"not_signed".into()), "{json}");
        let message = json["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert!(
            json["error"]["hint"].as_str().unwrap().contains("in the header loadline-signature")
        );
        assert_eq!(names(farm.folder()), Vec::<String>::new());
    };
    not_signed(&[], "has no signature yet");
    not_signed(&[&signed(&stranger, &wasm)], "which is not among host.signatures.keys");
    not_signed(&[&signed(&key, text)], "the signature is not for");
    not_signed(&["nonsense"], "the signature has a line");

    let lines = [signed(&stranger, &wasm), signed(&key, &wasm)];
    let (status, json) = put(&farm, "mine", &wasm, &[&lines[0], &lines[1]]);
    assert_eq!((status, &json["generations"][0]["signature"]["key"]), (200, &id(&key).into()));
    assert_eq!(put(&farm, "weighted", text, &[&signed(&key, text)]).0, 200);
    let all = ["mine.wasm", "mine.wasm.sig", "weighted.formula", "weighted.formula.sig"];
    assert_eq!(names(farm.folder()), all);
    assert_eq!(fs::read_to_string(farm.folder().join(all[1])).unwrap(), lines.concat());
    // The way back takes the signature with it.
    let second = relabelled(&wasm, 1);
    assert_eq!(put(&farm, "mine", &second, &[&signed(&key, &second)]).0, 200);
    assert_eq!(post(&farm, "/v1/policies/mine/rollback").0, 200);
    let found: Vec<_> =
        all.iter().map(|name| (*name, fs::read(farm.folder().join(name)).unwrap())).collect();
    farm.stop().await;

    let found: Vec<_> = found.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let (again, _secrets) = self::farm(wants(), &found).await;
    assert_eq!(serving(&again), Some(Generation::of(&wasm).to_string()));
    assert_eq!(again.policy("formula")["generation"], Generation::of(text).to_string());
    let config = ureq::Agent::config_builder().http_status_as_error(false).build();
    let agent = ureq::Agent::new_with_config(config);
    let bearer = format!("Bearer {TOKEN}");
    for name in ["mine", "weighted"] {
        let url = again.url(&format!("/v1/policies/{name}"));
        assert_eq!(
            agent.delete(url).header("authorization", &bearer).call().unwrap().status(),
            200
        );
    }
    assert_eq!(names(again.folder()), Vec::<String>::new());
    again.stop().await;
}

#[test]
fn signatures_are_configured_without_slips() {
    let key = key(1).public().to_string();
    let problems = |signatures: &str| {
        let error = Config::parse(&format!("[host]\n[host.signatures]\n{signatures}")).unwrap_err();
        error.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let good = format!("[host]\n[host.signatures]\nmode = \"require\"\nkeys = [{key:?}]");
    let config = Config::parse(&good).unwrap();
    assert_eq!(Config::parse(&config.to_toml()), Ok(config));
    assert!(problems("mode = \"on\"").contains("\"on\" is none of \"off\", \"warn\" and"));
    assert!(problems("mode = \"require\"").contains("host.signatures.keys: is empty"));
    assert!(problems("keys = [\"ed25519:12:34\"]").contains("is not a public key"));
    assert!(problems(&format!("keys = [{key:?}, {key:?}]")).contains("is there twice"));
    let slip = key.replacen(&key[20..24], "0000", 1);
    assert!(problems(&format!("keys = [{slip:?}]")).contains("is mistyped"), "{slip}");
}

/// The program from the first key to a policy that serves, with every word that it says on the way.
#[test]
fn operator_makes_a_key_signs_and_drops_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let policy = |arguments: &[&str]| {
        let output = command(&folder).arg("policy").args(arguments).output().unwrap();
        let Output { status, stdout, stderr } = output;
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        (status.code(), said)
    };
    let (code, said) = policy(&["keygen", "ops.key"]);
    assert_eq!(code, Some(0), "{said}");
    let public = said.split_whitespace().find(|word| word.starts_with("ed25519:")).unwrap();
    public.parse::<PublicKey>().unwrap();
    let secret = fs::read_to_string(path("ops.key")).unwrap();
    let seed = secret.trim().rsplit(':').next().unwrap();
    assert!(!said.contains(seed), "the secret is never printed");
    assert_eq!(fs::metadata(path("ops.key")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(policy(&["keygen", "ops.key"]).0, Some(64));
    assert_eq!(fs::read_to_string(path("ops.key")).unwrap(), secret, "never overwritten");

    fs::write(path("p2c.wasm"), built_in("random")).unwrap();
    let (code, said) = policy(&["verify", "p2c.wasm", "--key", public]);
    assert_eq!(code, Some(1));
    assert!(said.contains("NOT good: has no signature yet"), "{said}");
    let (code, said) = policy(&["sign", "p2c.wasm", "--key", "ops.key"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(seed) && !said.contains("warning"), "{said}");
    let (code, said) = policy(&["verify", "p2c.wasm", "--key", public]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("p2c.wasm: good: ") && said.contains(", signed by "), "{said}");
    assert_eq!(policy(&["verify", "p2c.wasm"]).0, Some(64), "no key at all");
    let stranger = key(9).public().to_string();
    assert!(
        policy(&["verify", "p2c.wasm", "--key", &stranger]).1.contains("NOT good: is signed by")
    );
    fs::set_permissions(path("ops.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(policy(&["sign", "p2c.wasm", "--key", "ops.key"]).1.contains("chmod 600 ops.key"));
    assert_eq!(policy(&["sign", "notes.txt", "--key", "ops.key"]).0, Some(1));

    fs::create_dir(path("policies")).unwrap();
    let pools = "[[pool]]\nname = \"default\"\nstrategy = \"p2c\"";
    let wants = format!("[host.signatures]\nmode = \"require\"\nkeys = [{public:?}]");
    let mut process = Process::start(&folder, &format!("{QUICK}\n{wants}\n{pools}"), &[]);
    let line = process.until("try ");
    let url = line.split_whitespace().last().unwrap().replace("/v1/target", "/v1/policies/p2c");
    // By the keys of the configuration now.
    assert_eq!(policy(&["verify", "p2c.wasm"]).0, Some(0));
    fs::copy(path("p2c.wasm"), path("policies/p2c.wasm")).unwrap();
    let waits = process.until("policy waits for its signature");
    assert!(waits.contains("policies/p2c.wasm"), "{waits}");
    let shown: Value = serde_json::from_str(&get(&url, "application/json").1).unwrap();
    assert_eq!(shown["waiting"]["file"], "policies/p2c.wasm", "{shown}");
    assert_eq!(shown["state"], "active", "the built-in serves");
    fs::copy(path("p2c.wasm.sig"), path("policies/p2c.wasm.sig")).unwrap();
    assert!(process.until("policy loaded").contains("signed by"));
    process.until("policy serves");
    let shown: Value = serde_json::from_str(&get(&url, "application/json").1).unwrap();
    assert_eq!(shown["generations"][0]["signature"]["state"], "good", "{shown}");
    assert_eq!(process.end("-TERM"), Some(0));
}
