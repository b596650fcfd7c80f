//! `loadline sim`: every scenario runs, figures repeat, own strategies stand beside the others.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{built_in, program, strategy};

/// Runs `loadline sim` in this folder.
fn sim(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.current_dir(folder).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    command.arg("sim").args(arguments).output().unwrap()
}

/// What it prints if all goes well; nothing is told on the way.
#[track_caller]
fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = sim(folder, arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*complaint), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refuse(folder: &Path, arguments: &[&str], words: &str) {
    let output = sim(folder, arguments);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(64), "{arguments:?}: {said}");
    assert!(said.contains(words), "{arguments:?} does not say {words:?}: {said}");
}

const FAST: [&str; 7] = ["small", "--requests", "500", "--seeds", "2", "--set", "every=[1, 10]"];

/// The fast arguments and these.
fn fast<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&FAST, more].concat()
}

#[test]
fn every_built_in_scenario_runs() {
    let folder = tempfile::tempdir().unwrap();
    let list = good(folder.path(), &["--list"]);
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 16 && names.contains(&"stale"), "{list}");
    for name in names {
        // Incidents, shortened, are within.
        let mut short = vec![name, "--requests", "500", "--seeds", "1"];
        if ["slow-down", "crash"].contains(&name) {
            short.extend(["--set", "incident=[10, 20]"]);
        }
        let text = good(folder.path(), &short);
        let has_incident = short.len() > 5;
        assert_eq!(text.contains(" its queue "), has_incident, "{text}");
        assert!(text.contains("balanced") && text.contains("ns/request"), "{text}");
    }
}

#[test]
fn equal_seeds_give_equal_figures() {
    let folder = tempfile::tempdir().unwrap();
    let run = || good(folder.path(), &fast(&["--json"]));
    let text = run();
    assert_eq!(text, run());
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["values"], serde_json::json!(["1", "10"]));
    let lines = json["lines"].as_array().unwrap();
    let of = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap();
    for line in lines {
        assert_eq!(line["points"].as_array().unwrap().len(), 2, "{line}");
        assert!(line["points"][0]["mean"].as_f64().unwrap() > 0.5, "{line}");
    }
    assert_eq!(of("random")["role"], "baseline");
    assert_eq!(of("random")["points"][0]["quality"], 1.0);
    assert_eq!(of("balanced")["role"], "strategy");
}

#[test]
fn own_strategy_stands_beside_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = built_in("p2c");
    std::fs::write(folder.path().join("mine.wasm"), &bytes).unwrap();
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join("policies/dropped-in.wasm"), &bytes).unwrap();
    let own = ["--strategy", "mine.wasm", "--strategy", "dropped-in", "--strategy", "random"];
    let text = good(folder.path(), &fast(&own));
    for name in ["> mine ", "> dropped-in ", "> random ", "\nbalanced ", "\nrandom ", "> yours"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    // Beside all others, those that the scenario does not name and those of another kind.
    let closely = text.split("\nAt every = 10").nth(1).unwrap();
    for name in ["bounded-hash", "failover", "first-available", "fuzzy", "weighted-random"] {
        assert_eq!(closely.matches(&format!("\n{name} ")).count(), 1, "{name}: {closely}");
    }
    assert!(!text.contains("\nsessions ") && !text.contains("\nweighted "), "formulas: {text}");
    let json: Value =
        serde_json::from_str(&good(folder.path(), &fast(&[own[0], own[1], "--json"]))).unwrap();
    assert_eq!(
        (&json["lines"][0]["name"], &json["lines"][0]["role"]),
        (&"mine".into(), &"own".into())
    );
}

#[test]
fn who_takes_part_can_be_said() {
    let folder = tempfile::tempdir().unwrap();
    let names = |more: &[&str]| {
        let json: Value =
            serde_json::from_str(&good(folder.path(), &fast(&[more, &["--json"]].concat())))
                .unwrap();
        let lines = json["lines"].as_array().unwrap().clone();
        let strategies = lines.into_iter().filter(|line| line["role"] != "baseline");
        strategies.map(|line| line["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let scenario = names(&[]);
    assert_eq!(scenario, ["balanced", "fewest-clients", "p2c", "least-loaded"]);
    let all = names(&["--all"]);
    assert_eq!((&all[..4], all.len()), (&*scenario, 15), "{all:?}");
    assert_eq!(names(&["--only", "prequal,random"]), ["prequal", "random"]);
    let own = ["--only", "prequal", "--strategy", "random", "--strategy", "prequal"];
    assert_eq!(names(&own), ["random", "prequal"], "an own one stands for the built-in");
    refuse(folder.path(), &["--only", "prequl"], "--only: no strategy prequl is built in");
    refuse(folder.path(), &["--only", "p2c", "--all"], "cannot be used with");
}

#[test]
fn tables_show_what_the_farm_is_about() {
    let folder = tempfile::tempdir().unwrap();
    let text = good(folder.path(), &fast(&["--only", "p2c"]));
    for column in [" /jsq-now ", " herding ", " /mean ", " deviation ", " peak ", " evenness"] {
        assert!(text.contains(column), "{column}: {text}");
    }
    assert!(!text.contains("moved %") && !text.contains("The first server"), "{text}");
    let keys = good(folder.path(), &fast(&["--only", "rendezvous", "--set", "keys=50"]));
    assert!(keys.contains(" moved %\n") && keys.contains("\nmoved %: requests whose"), "{keys}");
    let failing = ["--only", "p2c", "--set", "failures=0.5"];
    let failing = good(folder.path(), &fast(&failing));
    assert!(failing.contains("The first server, which fails requests\n"), "{failing}");
    assert!(failing.contains(" failed %\n") && !failing.contains("reacted"), "{failing}");
    let slow = ["--only", "p2c", "--set", "incident=[20, 60]"];
    let slow = good(folder.path(), &fast(&slow));
    assert!(slow.contains("The first server, from 20 to 60 and after it\n"), "{slow}");
    for column in ["reacted", "recovered", "its queue", "excess", "of dead"] {
        assert!(slow.contains(&format!("\n{column}: ")), "{column}: {slow}");
    }
}

#[test]
fn strategy_that_does_not_choose_or_fails_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("silent.wasm"), strategy("")).unwrap();
    let text = good(path, &fast(&["--strategy", "silent.wasm"]));
    assert!(text.contains("2000 requests got no answer from a strategy"), "{text}");
    let traps = "(func $pick (param i64 i32 f64 i64 i64) (result i32) unreachable)";
    std::fs::write(path.join("broken.wasm"), strategy(traps)).unwrap();
    let output = sim(path, &fast(&["--strategy", "broken.wasm"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("broken with every = 1, seed 1: "), "{said}");
}

#[test]
fn csv_and_picture_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = good(folder.path(), &fast(&["--out", "results"]));
    assert!(text.contains("written: results/small.csv, results/small.svg"), "{text}");
    let read =
        |name: &str| std::fs::read_to_string(folder.path().join("results").join(name)).unwrap();
    let csv = read("small.csv");
    let columns: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.iter().all(|count| *count == 17), "{csv}");
    let strategies = text.split("in service times").nth(1).unwrap().lines();
    let strategies = strategies.skip(2).take_while(|line| !line.is_empty());
    let strategies = strategies.filter(|line| !line.starts_with('-')).count();
    assert_eq!(columns.len(), 1 + 2 * 2 * strategies, "{csv}");
    let svg = read("small.svg");
    let picture = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<_> =
        picture.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for wanted in ["balanced", "central", "10", "small: five servers: a fast demonstration"] {
        assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
    }
}

#[test]
fn mistakes_are_told_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let path = folder.path();
    write("not.wasm", b"not a module");
    write("formula.wasm", &built_in("weighted"));
    write(
        "bad.toml",
        b"title = 't'\nabout = 'a'\nstrategies = []\n[setup]\nservrs = 1\n[sweep]\nevery = [1]",
    );
    write(
        "settings.toml",
        b"title = 't'\nabout = 'a'\nstrategies = ['fuzzy']\n[sweep]\nevery = [1]\n[strategy_settings.fuzzy]\nthreshold = -1",
    );
    refuse(path, &["stael"], "no scenario stael, did you mean stale?");
    refuse(path, &["nowhere.toml"], "cannot read nowhere.toml: No such file");
    refuse(path, &["bad.toml"], "setup.servrs: unknown key, did you mean servers?");
    refuse(path, &["settings.toml"], "fuzzy refuses its settings");
    refuse(path, &fast(&["--strategy", "balancd"]), "did you mean balanced?");
    refuse(path, &fast(&["--strategy", "not.wasm"]), "not WebAssembly");
    refuse(path, &fast(&["--strategy", "gone.wasm"]), "gone.wasm: cannot be read");
    refuse(path, &fast(&["--strategy", "formula.wasm"]), "is a formula");
    refuse(path, &fast(&["--set", "evry=1"]), "did you mean every?");
    refuse(path, &fast(&["--at", "2"]), "--at: 2 is not among the values of every: 1, 10");
    refuse(path, &["--requests", "1"], "--requests 1: setup.requests: 1 is not between");
    refuse(path, &["--seeds", "0"], "--seeds");
    let help = good(path, &["--help"]);
    assert!(help.contains("loadline sim unequal --strategy my.wasm"), "{help}");
}
