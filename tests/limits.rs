//! What policies may use: all of them, or one by its name, by what happens to those that want more.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadline::config::{Config, HostConfig, LimitsConfig, PolicyConfig, Wasi};
use loadline::policy::guest::Request;
use loadline::policy::{Limits, Module, PolicyEngine, StrategyGuest};

use crate::support::{Farm, built_in, formula, pool, strategy};

const KIB: usize = 1 << 10;

/// A host where `mine` may use something else than the others.
async fn farm(
    files: &[(&str, &[u8])],
    all: LimitsConfig,
    mine: LimitsConfig,
    pools: &[(&str, &str)],
) -> Farm {
    let named = |(index, (formula, strategy)): (usize, &(&str, &str))| {
        let name = if index == 0 { "default".to_owned() } else { format!("other-{index}") };
        pool(&name, formula, strategy)
    };
    let pools = pools.iter().enumerate().map(named).collect();
    Farm::with_host(pools, files, |host| {
        host.limits = all;
        host.by_policy = vec![policy(mine)];
    })
    .await
}

fn policy(limits: LimitsConfig) -> PolicyConfig {
    PolicyConfig { name: "mine".to_owned(), wasi: Wasi::Refuse, limits }
}

fn trouble(farm: &Farm, pool: usize, kind: &str) -> String {
    farm.get("/v1/pools")[pool][kind]["trouble"].as_str().unwrap_or_default().to_owned()
}

/// The same strategy under two names: what is wrong with each.
async fn troubles(wasm: &[u8], all: LimitsConfig, mine: LimitsConfig) -> [String; 2] {
    let files = [("mine.wasm", wasm), ("theirs.wasm", wasm)];
    let pools = [("weighted", "mine"), ("weighted", "theirs")];
    let farm = farm(&files, all, mine, &pools).await;
    let told = [trouble(&farm, 0, "strategy"), trouble(&farm, 1, "strategy")];
    farm.stop().await;
    told
}

fn all() -> LimitsConfig {
    LimitsConfig::default()
}

const MILLIS: fn(u64) -> Duration = Duration::from_millis;
const SPIN: &str = "(loop (br 0)) unreachable";

#[tokio::test(flavor = "multi_thread")]
async fn times_are_those_of_the_policy_or_of_all() {
    let pick = strategy(&format!("(func $pick (param i64 i32 f64 i64 i64) (result i32) {SPIN})"));
    let quick = LimitsConfig { pick: MILLIS(3), ..all() };
    let [mine, theirs] = troubles(&pick, all(), quick).await;
    assert!(mine.contains("pick took longer than 3ms"), "{mine}");
    assert!(theirs.contains("pick took longer than 10ms"), "{theirs}");

    let configure = "(func $configure (param i32 i32 i64) (result i32) (loop (br 0)) unreachable)";
    let (slow, quick) = (MILLIS(120), MILLIS(60));
    let limits = |configure| LimitsConfig { configure, ..all() };
    let [mine, theirs] = troubles(&strategy(configure), limits(slow), limits(quick)).await;
    assert!(mine.contains("configure took longer than 60ms"), "{mine}");
    assert!(theirs.contains("configure took longer than 120ms"), "{theirs}");

    let evaluate = format!("(func $evaluate (param i64 i32 i32 i32 i32) (result i32) {SPIN})");
    let limits = LimitsConfig { batch: MILLIS(7), ..all() };
    let files: [(&str, &[u8]); 1] = [("mine.wasm", &formula(&evaluate))];
    let farm = farm(&files, all(), limits, &[("mine", "p2c")]).await;
    let said = trouble(&farm, 0, "formula");
    assert!(said.contains("evaluate took longer than 7ms"), "{said}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_file_are_those_of_the_policy_or_of_all() {
    let grows = strategy(
        "(func $update (param i64 i32 i32 i32) (if (i32.lt_s (memory.grow (i32.const 16))
            (i32.const 0)) (then unreachable)))",
    );
    let small = LimitsConfig { memory: 512 * KIB, ..all() };
    let [mine, theirs] = troubles(&grows, all(), small.clone()).await;
    assert!(mine.contains("update needed more than the 524288 bytes of memory"), "{mine}");
    assert_eq!(theirs, "");
    let [mine, theirs] = troubles(&grows, small, all()).await;
    assert_eq!(mine, "");
    assert!(theirs.contains("update needed more than the 524288 bytes"), "{theirs}");

    let short = LimitsConfig { file: 100, ..all() };
    let [mine, theirs] = troubles(&grows, short, all()).await;
    assert_eq!(mine, "");
    assert!(
        theirs.contains("longer than the 100 bytes it may have: raise host.limits.file"),
        "{theirs}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn compiler_is_given_up_when_its_time_is_over() {
    let chain = "(local.get 0) i32.add ".repeat(2_000);
    let long = format!("(func (param i32) (result i32) local.get 0 {chain})");
    let large = strategy(&long.repeat(300));
    let quick = LimitsConfig { load: Duration::from_secs(1), ..all() };
    let files = [("mine.wasm", &large[..])];
    let farm = farm(&files, all(), quick, &[("weighted", "mine")]).await;
    let said = trouble(&farm, 0, "strategy");
    assert!(said.contains("still compiling after 1s (host.limits.load)"), "{said}");
    farm.stop().await;
}

/// A change takes effect at once, and one that is too little keeps what serves.
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_changed_while_it_runs() {
    let wasm = built_in("round-robin");
    let pools = [("weighted", "mine")];
    let short = LimitsConfig { file: 100, ..all() };
    let mut farm = farm(&[("mine.wasm", &wasm)], all(), short, &pools).await;
    let serves = |farm: &Farm| farm.policy("strategy")["state"] == "active";
    assert!(!serves(&farm));
    let change = |limits: LimitsConfig| {
        move |config: &mut Config| config.host.as_mut().unwrap().by_policy[0].limits = limits
    };
    assert_eq!(farm.apply(change(all())).await, Vec::<String>::new());
    assert!(serves(&farm), "{}", farm.policy("strategy"));
    farm.apply(change(LimitsConfig { memory: 64 * KIB, ..all() })).await;
    let said = trouble(&farm, 0, "strategy");
    assert!(said.contains("instantiate needed more than the 65536 bytes of memory"), "{said}");
    assert!(serves(&farm), "the old guest");
    farm.apply(change(LimitsConfig { memory: 64 << 20, ..all() })).await;
    assert_eq!(trouble(&farm, 0, "strategy"), "");
    // What stays as it is starts nothing anew.
    let served = |farm: &Farm| farm.get("/v1/policies/mine")["pools"][0]["steps"].clone();
    let before = served(&farm);
    farm.apply(|config| config.pools[0].health.max_ejected = 0.2).await;
    assert_eq!(served(&farm), before, "each start has its own times");
    farm.stop().await;
}

#[test]
fn log_line_is_cut_where_it_is_too_long() {
    let limits = Limits::from(&LimitsConfig { log_line: 16, ..all() });
    let engine = PolicyEngine::new(limits).unwrap();
    let logs = "(data (i32.const 512) \"0123456789abcdefXYZ\")
        (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (call $log (i32.const 3) (i32.const 512) (i32.const 19)) i32.const 128)";
    let module = Module::from_wasm(&engine, &strategy(logs)).unwrap();
    let mut guest = StrategyGuest::start(&engine, &Arc::from("mine"), &module, "{}", 1).unwrap();
    let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
    let written = Arc::clone(&lines);
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || Lines(Arc::clone(&written)));
    let request = Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random: 0 };
    let picked = tracing::subscriber::with_default(subscriber.finish(), || guest.pick(request));
    assert_eq!(picked, Ok(None));
    let lines = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
    assert!(lines.contains("0123456789abcdef…") && !lines.contains('X'), "{lines}");
}

/// What was written.
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_not_said_of_a_policy_is_what_is_said_of_all() {
    let host = |text: &str| -> HostConfig {
        Config::parse(&format!("[host]\n{text}")).unwrap().host.unwrap()
    };
    let read = host(
        "[host.limits]\npick = \"2ms\"\nmemory = \"64MiB\"\n[[host.policy]]\nname = \"mine\"\npick = \"5ms\"",
    );
    assert_eq!(read.limits, LimitsConfig { pick: MILLIS(2), memory: 64 << 20, ..all() });
    let mine = LimitsConfig { pick: MILLIS(5), memory: 64 << 20, ..all() };
    assert_eq!(read.by_policy, [policy(mine)]);
    let config = Config { host: Some(read), ..Config::default() };
    assert_eq!(Config::parse(&config.to_toml()), Ok(config));

    let wrong = "[host.limits]\npick = \"2s\"\nfile = 100\nlog_line = \"1MB\"\nmemroy = \"1MiB\"
        [[host.policy]]\nload = \"0s\"\n[[host.policy]]\nname = \"a\"\n[[host.policy]]\nname = \"a\"";
    let problems = Config::parse(&format!("[host]\n{wrong}")).unwrap_err().to_string();
    for words in [
        "host.limits.pick: \"2s\" is not between 1ms and 1s",
        "host.limits.file: 100 is not a size from \"1B\" to \"1GiB\"",
        "host.limits.log_line: \"1MB\" is not a size from \"16B\" to \"64KiB\"",
        "host.limits.memroy: unknown key, did you mean memory?",
        "host.policy[0].name: is missing",
        "host.policy[0].load: \"0s\" is not between 1s and 10m",
        "host.policy: two policies are named \"a\"",
    ] {
        assert!(problems.contains(words), "{words}\n{problems}");
    }
}
