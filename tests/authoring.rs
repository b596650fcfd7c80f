//! `loadline policy`: from a new crate to a policy that decides, and what each command says of good and
//! bad files.

use std::path::Path;
use std::process::{Command, Output};

use loadline::policy::Generation;
use loadline::policy::signature::SecretKey;
use serde_json::Value;

use crate::support::{Farm, built_in, importing_strategy, pool, program, strategy};

/// Runs `loadline policy` in this folder.
fn policy(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    command.arg("policy").args(arguments).output().unwrap()
}

#[track_caller]
fn good(folder: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = policy(folder, arguments);
    let complaint = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), &*complaint), (Some(0), ""), "{arguments:?}");
    String::from_utf8(stdout).unwrap()
}

#[track_caller]
fn bad(folder: &Path, arguments: &[&str], code: i32, words: &str) {
    let Output { status, stdout, stderr } = policy(folder, arguments);
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?} does not say {words:?}: {said}");
}

/// Where crates are built that `policy new` made; kept, so that the SDK is built once.
const BUILT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/authoring");

/// Runs cargo in such a crate, without a network.
fn cargo(folder: &Path, arguments: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(folder).arg("--offline").args(arguments).args(["--target-dir", BUILT]);
    // What the outer cargo was told holds for its own build.
    for name in ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    let Output { status, stderr, .. } = cargo.output().unwrap();
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
}

fn sdk() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/policy").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn new_policy_is_built_edited_dropped_in_and_decides() {
    let folder = tempfile::tempdir().unwrap();
    good(folder.path(), &["new", "heaviest", "--kind", "strategy", "--sdk", &sdk()]);
    let crate_folder = folder.path().join("heaviest");
    // One line is edited: the highest load instead of the lowest.
    let source = crate_folder.join("src/lib.rs");
    let text = std::fs::read_to_string(&source).unwrap();
    let highest =
        "fleet.eligible().iter().max_by(|a, b| a.load.total_cmp(&b.load)).map(|c| c.slot)";
    std::fs::write(&source, text.replace("fleet.eligible().min_by_load()", highest)).unwrap();
    cargo(&crate_folder, &["build", "--target", "wasm32-unknown-unknown"]);
    let built = Path::new(BUILT).join("wasm32-unknown-unknown/debug/heaviest.wasm");
    let checked = good(folder.path(), &["check", built.to_str().unwrap()]);
    assert!(checked.contains("good: strategy heaviest 0.1.0"), "{checked}");

    let mut farm = Farm::with_pools(vec![pool("default", "weighted", "heaviest")]).await;
    farm.report(&["light"], &[("cpu", 0.1), ("memory", 0.1)]);
    farm.report(&["heavy"], &[("cpu", 0.9), ("memory", 0.9)]);
    farm.eligible(2).await;
    farm.drop_in("heaviest.wasm", &std::fs::read(&built).unwrap());
    let serves = |farm: &Farm| (farm.policy("strategy")["state"] == "active").then_some(());
    farm.until("the new policy", serves).await;
    assert_eq!(farm.target(""), "heavy");
    farm.stop().await;
}

#[test]
fn new_crates_pass_their_own_tests() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["formula", "strategy"] {
        let name = format!("my-{kind}");
        let said = good(folder.path(), &["new", &name, "--kind", kind, "--sdk", &sdk()]);
        assert!(said.contains("cargo build --release --target wasm32-unknown-unknown"), "{said}");
        cargo(&folder.path().join(&name), &["test"]);
    }
}

/// The repository is above the crate, or above where the command is given; else there is only the registry,
/// and that is said.
#[test]
fn new_crate_takes_the_sdk_of_the_repository_that_is_at_hand() {
    let (repository, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sdk = repository.path().join("sdk/policy");
    std::fs::create_dir_all(sdk.join("wit")).unwrap();
    std::fs::write(sdk.join("wit/policy.wit"), "").unwrap();
    let depends_on_it = |folder: &Path| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        manifest.contains("sdk/policy\"")
    };
    let path = |name: &str| elsewhere.path().join(name).to_str().unwrap().to_owned();
    good(repository.path(), &["new", "here"]);
    assert!(depends_on_it(&repository.path().join("here")));
    let said = good(&sdk, &["new", "there", "--path", &path("there")]);
    assert!(depends_on_it(&elsewhere.path().join("there")) && !said.contains("registry"), "{said}");
    let said = good(elsewhere.path(), &["new", "alone"]);
    assert!(!depends_on_it(&elsewhere.path().join("alone")));
    assert!(said.contains("loadline-sdk comes from the registry; --sdk DIR names"), "{said}");
}

#[test]
fn new_overwrites_nothing_and_wants_a_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("mine")).unwrap();
    bad(folder.path(), &["new", "mine"], 64, "mine is there already");
    bad(folder.path(), &["new", "My_Policy"], 64, "lower-case letters, digits and '-'");
    bad(folder.path(), &["new", "x", "--sdk", "mine"], 64, "not the SDK's folder");
}

/// A folder with these files.
fn with_files(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[test]
fn check_prints_every_step_and_stops_at_the_first_that_fails() {
    let trap = "(func $pick (param i64 i32 f64 i64 i64) (result i32) unreachable)";
    let wasi = "(import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32)))";
    let folder = with_files(&[
        ("p2c.wasm", &built_in("p2c")),
        ("mine.formula", b"cpu * 2"),
        ("typo.formula", b"cpu * "),
        ("traps.wasm", &strategy(trap)),
        ("cut.wasm", &built_in("p2c")[..500]),
        ("notes.txt", b"cpu"),
        ("wasi.wasm", &importing_strategy(wasi, "")),
    ]);
    let steps = |file: &str| {
        let said = good(folder.path(), &["check", file]);
        let names = said.lines().filter(|line| line.starts_with("  "));
        names
            .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let starts = ["start", "settings", "configure", "trial"];
    let module = [&["read", "check", "compile", "link"], &starts[..]].concat();
    assert_eq!(steps("p2c.wasm"), module);
    let text = [&["read", "parse", "check", "compile", "link"], &starts[..]].concat();
    assert_eq!(steps("mine.formula"), text);
    bad(folder.path(), &["check", "typo.formula"], 1, "not good: line 1, column 6");
    bad(folder.path(), &["check", "traps.wasm"], 1, "trial");
    bad(folder.path(), &["check", "traps.wasm"], 1, "FAILED");
    bad(folder.path(), &["check", "traps.wasm"], 1, "not good: pick trapped");
    bad(folder.path(), &["check", "cut.wasm"], 1, "not valid WebAssembly");
    bad(folder.path(), &["check", "wasi.wasm"], 1, "wasi = \"trap\"");
    good(folder.path(), &["check", "wasi.wasm", "--wasi-trap"]);
    bad(folder.path(), &["check", "notes.txt"], 1, "NAME.wasm or NAME.formula");
    bad(folder.path(), &["check", "gone.wasm"], 1, "there is no such file");
    bad(
        folder.path(),
        &["check", "p2c.wasm", "--settings", "{\"x\":1}"],
        1,
        "refuses its settings",
    );
}

/// Who has no good file is told how to get one, by every command.
#[test]
fn files_and_keys_that_are_not_there_or_have_no_good_name_are_told_with_what_to_do() {
    let folder = with_files(&[
        ("my_policy.wasm", &built_in("p2c")),
        ("my policy.wasm", &built_in("p2c")),
        ("loops.wasm", &strategy("(func $leave (param i32 i32) (loop (br 0)))")),
    ]);
    good(folder.path(), &["keygen", "ops.key"]);
    let public = folder.path().join("ops.key");
    let sign = |file: &'static str| ["sign", file, "--key", public.to_str().unwrap()];
    for (file, words) in [
        ("my-policy.wasm", "cargo writes _ for -, did you mean my_policy.wasm?"),
        ("other.wasm", "writes target/wasm32-unknown-unknown/release/NAME.wasm"),
        ("other.formula", "write an expression such as cpu * 0.7"),
        ("my policy.wasm", "pools cannot name it: rename it to NAME.wasm"),
    ] {
        for command in ["check", "run", "bench"] {
            bad(folder.path(), &[command, file], 1, words);
        }
        bad(folder.path(), &sign(file), 1, words);
    }
    bad(folder.path(), &["inspect", "my-policy.wasm"], 1, "did you mean my_policy.wasm?");
    bad(folder.path(), &["sign", "my_policy.wasm", "--key", "none"], 1, "keygen none makes one");
    bad(folder.path(), &["keygen", "no/such/ops.key"], 64, "make the folder no/such first");
    let limit = "leave took longer than 50ms (host.limits.batch)";
    bad(folder.path(), &["check", "loops.wasm"], 1, limit);
}

/// What a host's configuration allows a policy, it allows here.
#[test]
fn limits_are_those_of_the_configuration() {
    let wasi = "(import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32)))";
    let config =
        "[host.limits]\nfile = \"4KiB\"\n[[host.policy]]\nname = \"wasi\"\nwasi = \"trap\"\n";
    let folder = with_files(&[
        ("loadline.toml", config.as_bytes()),
        ("p2c.wasm", &built_in("p2c")),
        ("wasi.wasm", &importing_strategy(wasi, "")),
    ]);
    good(folder.path(), &["check", "wasi.wasm"]);
    for command in ["check", "inspect", "run", "bench"] {
        bad(folder.path(), &[command, "p2c.wasm"], 1, "longer than the 4096 bytes it may have");
    }
    std::fs::write(folder.path().join("loadline.toml"), "[host.limits]\nfile = 4\n").unwrap();
    bad(folder.path(), &["check", "p2c.wasm"], 64, "host.limits.file");
}

/// Whose signature a host wants is looked at here, too, and what else is wrong comes first.
#[test]
fn signatures_are_those_that_the_configuration_wants() {
    let key = SecretKey::new(&[1; 32]);
    let config = |mode: &str| {
        format!("[host.signatures]\nmode = \"{mode}\"\nkeys = [\"{}\"]\n", key.public())
    };
    let file = built_in("p2c");
    let folder = with_files(&[
        ("p2c.wasm", &file),
        ("cut.wasm", &file[..500]),
        ("loadline.toml", config("require").as_bytes()),
    ]);
    let put = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    bad(folder.path(), &["check", "cut.wasm"], 1, "not good: not valid WebAssembly");
    let why = "not good: has no signature yet: `loadline policy sign` makes one, beside the file \
               (host.signatures.mode = \"require\")";
    bad(folder.path(), &["check", "p2c.wasm"], 1, why);
    let step = |said: &str, outcome: &str| {
        let line = said.lines().find(|line| line.starts_with("  signature"));
        assert!(line.is_some_and(|line| line.ends_with(outcome)), "{outcome}: {said}");
    };
    put("loadline.toml", config("warn"));
    let said = good(folder.path(), &["check", "p2c.wasm"]);
    step(&said, "warning");
    assert!(
        said.contains("good: strategy p2c") && said.contains("nobody vouches for it"),
        "{said}"
    );

    put("p2c.wasm.sig", SecretKey::new(&[2; 32]).sign(Generation::of(&file), None));
    put("loadline.toml", config("require"));
    bad(folder.path(), &["check", "p2c.wasm"], 1, "which is not among host.signatures.keys");
    put("p2c.wasm.sig", key.sign(Generation::of(&file), None));
    let said = good(folder.path(), &["check", "p2c.wasm"]);
    step(&said, "ok");
    assert!(said.contains(&format!(", signed by {}", key.public().id())), "{said}");
    put("loadline.toml", config("off"));
    assert!(!good(folder.path(), &["check", "p2c.wasm"]).contains("sign"));
}

#[test]
fn inspect_says_what_a_file_is_even_if_it_is_refused() {
    let folder = with_files(&[
        ("p2c.wasm", &built_in("p2c")),
        ("load.formula", b"cpu + (sessions ?? 3)"),
        (
            "wasi.wasm",
            &wat::parse_str(r#"(module (import "wasi_snapshot_preview1" "fd_write" (func)))"#)
                .unwrap(),
        ),
    ]);
    let json = |file: &str| -> Value {
        serde_json::from_str(&good(folder.path(), &["inspect", file, "--json"])).unwrap()
    };
    let strategy = json("p2c.wasm");
    assert_eq!(strategy["policy"]["kind"], "strategy");
    assert_eq!(strategy["policy"]["name"], "p2c");
    assert_eq!(strategy["sdk"], env!("CARGO_PKG_VERSION"));
    assert_eq!(strategy["form"], "core module");
    assert!(strategy["policy"]["settings_schema"].is_object(), "{strategy}");
    let formula = json("load.formula");
    assert_eq!(formula["form"], "formula text");
    assert_eq!(formula["policy"]["metrics"][0]["name"], "cpu");
    let refused = json("wasi.wasm");
    assert_eq!(refused["imports"][0], "wasi_snapshot_preview1");
    assert!(refused["policy"]["refused"].as_str().unwrap().contains("WASI"), "{refused}");
    let text = good(folder.path(), &["inspect", "load.formula"]);
    assert!(text.contains("metrics     cpu, sessions"), "{text}");
}

#[test]
fn run_decides_on_a_fleet_from_a_file_and_explains() {
    let fleet =
        br#"[{"name": "a", "load": 0.5, "metrics": {"cpu": 0.5}}, {"name": "b", "load": 0.1},
        {"name": "c", "load": 0.0, "eligible": false, "metrics": {"cpu": 0.0}}]"#;
    let folder = with_files(&[
        ("least.wasm", &built_in("least-loaded")),
        ("load.formula", b"cpu * 2"),
        ("fleet.json", fleet),
        ("bad.json", b"{}"),
    ]);
    let said = good(folder.path(), &["run", "least.wasm", "--fleet", "fleet.json"]);
    assert!(said.ends_with("picks b\n"), "{said}");
    assert!(said.contains("not eligible"), "{said}");
    let many =
        good(folder.path(), &["run", "least.wasm", "--fleet", "fleet.json", "--picks", "10"]);
    let picked = |machine: &str| {
        let line = many.lines().find(|line| line.split_whitespace().nth(1) == Some(machine));
        line.and_then(|line| line.split_whitespace().nth(7)?.parse::<u32>().ok())
    };
    assert_eq!(picked("a").unwrap() + picked("b").unwrap(), 10, "{many}");
    let loads = good(folder.path(), &["run", "load.formula", "--fleet", "fleet.json"]);
    assert!(loads.contains("1.0000") && loads.contains("unknown"), "{loads}");
    let example = good(folder.path(), &["run", "load.formula"]);
    assert!(example.lines().count() > 4, "{example}");
    bad(
        folder.path(),
        &["run", "least.wasm", "--fleet", "bad.json"],
        64,
        "a list of machines such as",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn run_takes_what_a_host_says_of_its_machines() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    farm.report(&["a"], &[("cpu", 0.9), ("memory", 0.5)]);
    farm.report(&["b"], &[("cpu", 0.1), ("memory", 0.5)]);
    farm.eligible(2).await;
    let fleet = farm.get("/v1/machines").to_string();
    let folder = with_files(&[
        ("least.wasm", &built_in("least-loaded")),
        ("load.formula", b"cpu * 2"),
        ("fleet.json", fleet.as_bytes()),
    ]);
    let said = good(folder.path(), &["run", "least.wasm", "--fleet", "fleet.json"]);
    assert!(said.ends_with("picks b\n"), "{said}");
    let loads = good(folder.path(), &["run", "load.formula", "--fleet", "fleet.json"]);
    assert!(loads.contains("1.8000") && loads.contains("0.2000"), "{loads}");
    farm.stop().await;
}

#[test]
fn bench_measures_each_kind_of_call() {
    let folder = with_files(&[("p2c.wasm", &built_in("p2c")), ("load.formula", b"cpu * 2")]);
    let said = good(folder.path(), &["bench", "p2c.wasm", "--targets", "1000"]);
    for call in ["a pick ", "a pick among three", "an update, per target"] {
        let line = said.lines().find(|line| line.starts_with(call));
        assert!(line.is_some_and(|line| line.contains(" ns")), "{said}");
    }
    let said = good(folder.path(), &["bench", "load.formula"]);
    assert!(said.contains("a report, 64 at once"), "{said}");
}
