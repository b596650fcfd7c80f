//! Policies by the time of day, on a host whose wall clock is given.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loadline::clock::WallClock;
use loadline::config::{Config, PoolConfig};
use serde_json::Value;

use crate::support::{Farm, Queries, built_in, program, trapping};

/// A pool of the day and the night, in Berlin.
const POOL: &str = r#"
    [host]
    [[pool]]
    name = "default"
    strategy = "least-loaded"
    time_zone = "Europe/Berlin"
    [[pool.schedule]]
    at = "0 8 * * MON-FRI"
    strategy = "round-robin"
    [[pool.schedule]]
    at = "0 18 * * MON-FRI"
    strategy = "dusk"
    formula = "night"
    [[pool.schedule]]
    at = "0 0 * * SAT"
"#;

/// A wall clock that shows what it is set to.
#[derive(Clone)]
struct Given(Arc<AtomicU64>);

impl Given {
    fn at(time: &str) -> Self {
        let given = Self(Arc::default());
        given.set(time);
        given
    }

    fn set(&self, time: &str) {
        let time = humantime::parse_rfc3339(time).unwrap();
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
        self.0.store(u64::try_from(since.as_millis()).unwrap(), Ordering::Relaxed);
    }

    fn clock(&self) -> WallClock {
        let time = Arc::clone(&self.0);
        WallClock::new(move || time.load(Ordering::Relaxed))
    }
}

fn pools(text: &str) -> Vec<PoolConfig> {
    Config::parse(text).unwrap().pools
}

/// A host at this time, with two machines and the night's policies.
async fn farm(given: &Given) -> Farm {
    let files = [("night.formula", &b"1 - cpu"[..])];
    let mut farm = Farm::with_clock(pools(POOL), &files, given.clock()).await;
    farm.report(&["a", "b"], &[("cpu", 0.25), ("memory", 0.25)]);
    farm.eligible(2).await;
    farm
}

/// Waits until the pool has these policies by this entry.
async fn until(farm: &Farm, at: Option<&str>, [formula, strategy]: [&str; 2]) -> Value {
    let name = |of: &Value| {
        of["serving"].as_str().and_then(|name| name.split('@').next()).map(str::to_owned)
    };
    farm.until(&format!("{strategy} by {at:?}"), |farm| {
        let pool = farm.get("/v1/pools")[0].clone();
        let schedule = pool["schedule"].clone();
        let is_so = schedule["in_force"]["at"].as_str() == at
            && name(&pool["formula"]).as_deref() == Some(formula)
            && name(&pool["strategy"]).as_deref() == Some(strategy);
        is_so.then_some(schedule)
    })
    .await
}

const DAY: [&str; 2] = ["weighted", "round-robin"];
const NIGHT: [&str; 2] = ["night", "dusk"];
const OWN: [&str; 2] = ["weighted", "least-loaded"];

#[tokio::test(flavor = "multi_thread")]
async fn schedule_swaps_policies_and_no_query_fails() {
    // A Monday at noon: the host starts with what began at eight.
    let given = Given::at("2026-11-30T11:00:00Z");
    let farm = farm(&given).await;
    farm.drop_in("dusk.wasm", &built_in("p2c"));
    let schedule = until(&farm, Some("0 8 * * MON-FRI"), DAY).await;
    assert_eq!(schedule["time_zone"], "Europe/Berlin");
    assert_eq!(schedule["in_force"]["time"], "2026-11-30T08:00:00+01:00");
    assert_eq!(schedule["next"]["at"], "0 18 * * MON-FRI");
    assert_eq!(schedule["next"]["time"], "2026-11-30T18:00:00+01:00");

    let queries = Queries::start(farm.url("/v1/target"), 2);
    given.set("2026-11-30T17:00:00Z");
    until(&farm, Some("0 18 * * MON-FRI"), NIGHT).await;
    assert_eq!(farm.get("/v1/target")["load"], 0.75, "the night's formula");
    // The machine slept until Saturday, which is the pool's own.
    given.set("2026-12-05T12:00:00Z");
    until(&farm, Some("0 0 * * SAT"), OWN).await;
    // The clock was wrong and is set back.
    given.set("2026-12-01T12:00:00Z");
    let schedule = until(&farm, Some("0 8 * * MON-FRI"), DAY).await;
    assert_eq!(schedule["in_force"]["time"], "2026-12-01T08:00:00+01:00");
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 0, "{:?}", answered.bad);

    let picks = farm.get("/v1/pools")[0]["picks"].clone();
    assert_eq!(picks["nobody_eligible"], 0);
    let (_, metrics) = crate::support::get(&farm.url("/metrics"), "text/plain");
    assert!(metrics.contains("loadline_schedule_switches_total{pool=\"default\"} 3"), "{metrics}");
    assert!(metrics.contains("loadline_schedule_entry{pool=\"default\"} 1"), "{metrics}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_serves_goes_on_until_the_policy_of_the_hour_is_there() {
    let given = Given::at("2026-11-30T11:00:00Z");
    let farm = farm(&given).await;
    until(&farm, Some("0 8 * * MON-FRI"), DAY).await;
    given.set("2026-11-30T17:00:00Z");
    until(&farm, Some("0 18 * * MON-FRI"), ["night", "round-robin"]).await;
    let trouble = farm.policy("strategy")["trouble"].as_str().unwrap().to_owned();
    assert!(trouble.contains("drop dusk.wasm or dusk.formula into"), "{trouble}");
    farm.drop_in("dusk.wasm", &built_in("weighted"));
    let told = |farm: &Farm| {
        let trouble = farm.policy("strategy")["trouble"].as_str().unwrap_or_default().to_owned();
        trouble.contains("dusk is a formula").then_some(())
    };
    farm.until("what is wrong with it", told).await;
    assert_eq!(farm.get("/v1/target")["policy"]["formula"], farm.policy("formula")["serving"]);
    farm.drop_in("dusk.wasm", &built_in("p2c"));
    until(&farm, Some("0 18 * * MON-FRI"), NIGHT).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_schedule_holds_at_once() {
    let given = Given::at("2026-11-30T11:00:00Z");
    let mut farm = farm(&given).await;
    until(&farm, Some("0 8 * * MON-FRI"), DAY).await;
    let text = POOL.replace("0 8 * * MON-FRI", "0 19 * * *");
    assert!(farm.apply(|config| config.pools = pools(&text)).await.is_empty());
    // Last Saturday began after last Friday's evening.
    let schedule = until(&farm, Some("0 19 * * *"), DAY).await;
    assert_eq!(schedule["in_force"]["time"], "2026-11-29T19:00:00+01:00");
    assert!(farm.apply(|config| config.pools[0].schedule.clear()).await.is_empty());
    assert!(farm.get("/v1/pools")[0].get("schedule").is_none());
    assert_eq!(farm.policy("strategy")["policy"], "least-loaded");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_that_was_quarantined_last_night_makes_way_for_its_last_good_one() {
    let given = Given::at("2026-11-30T17:00:00Z");
    let text = POOL.replace("\"dusk\"\n    formula = \"night\"", "\"p2c\"");
    let files = [("p2c.wasm", &*trapping())];
    let mut farm = Farm::with_clock(pools(&text), &files, given.clock()).await;
    farm.report(&["a"], &[("cpu", 0.25), ("memory", 0.25)]);
    farm.eligible(1).await;
    let night = ["weighted", "p2c"];
    until(&farm, Some("0 18 * * MON-FRI"), night).await;
    let failing = farm.policy("strategy")["generation"].clone();
    let queries = Queries::start(farm.url("/v1/target"), 1);
    let is_out = |farm: &Farm| (farm.policy("strategy")["quarantined"][0] == failing).then_some(());
    farm.until("the quarantine", is_out).await;
    until(&farm, Some("0 18 * * MON-FRI"), night).await;
    let good = farm.policy("strategy")["generation"].clone();
    given.set("2026-12-01T12:00:00Z");
    until(&farm, Some("0 8 * * MON-FRI"), DAY).await;
    given.set("2026-12-01T20:00:00Z");
    until(&farm, Some("0 18 * * MON-FRI"), night).await;
    assert_eq!(farm.policy("strategy")["generation"], good, "the built-in, as last night");
    assert!(queries.stop().bad.is_empty());
    farm.stop().await;
}

#[test]
fn bad_schedule_is_refused_with_all_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let text = POOL
        .replace("Europe/Berlin", "Europe/Berlln")
        .replace("0 8 *", "0 25 *")
        .replace("0 0 * * SAT", "00 18 * * 1-5")
        .replace("formula = \"night\"", "formule = \"night\"");
    let check = |text: &str| {
        std::fs::write(folder.path().join("loadline.toml"), text).unwrap();
        let mut command = Command::new(program());
        let output = command.args(["config", "check"]).current_dir(&folder).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = check(&text);
    assert_eq!(code, Some(64), "{said}");
    for what in [
        "pool[0].time_zone: there is no time zone \"Europe/Berlln\": did you mean \"Europe/Berlin\"?",
        "pool[0].schedule[0].at: \"0 25 * * MON-FRI\" is not a cron expression",
        "pool[0].schedule[1].formule: unknown key, did you mean formula?",
        "pool[0].schedule[2].at: begins when schedule[1] does",
    ] {
        assert!(said.contains(what), "{what}\n{said}");
    }
    // Policies of entries are checked as the pool's own.
    let fuzzy = "strategy = \"fuzzy\"\nstrategy_settings = { treshold = 2 }";
    let (code, said) = check(&POOL.replace("strategy = \"dusk\"", fuzzy));
    assert_eq!(code, Some(64), "{said}");
    assert!(
        said.contains("pool \"default\": schedule[1].strategy_settings: fuzzy refuses"),
        "{said}"
    );
}
