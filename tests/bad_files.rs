//! What lies or happens in a policies folder that is no good policy: nothing panics, each is told, what
//! serves goes on, and a good file is taken as ever. From fault reports of other hosts of WebAssembly.

mod neighbours;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use loadline::policy::{Limits, Module, PolicyEngine};
use serde_json::Value;
use wit_component::ComponentEncoder;

use crate::process::{Process, QUICK};
use crate::support::{Farm, Queries, Random, built_in, formula, pool, relabelled, strategy};

fn engine() -> PolicyEngine {
    PolicyEngine::new(Limits { compile_last: false, ..Limits::default() }).unwrap()
}

fn component(core: &[u8]) -> Vec<u8> {
    ComponentEncoder::default().module(core).unwrap().validate(false).encode().unwrap()
}

/// Where its sections end, and where the last one does that is not custom.
fn section_ends(wasm: &[u8]) -> (Vec<usize>, usize) {
    let (mut ends, mut last, mut at) = (Vec::new(), 8, 8);
    while at < wasm.len() {
        let id = wasm[at];
        at += 1;
        let (mut size, mut shift) = (0, 0);
        loop {
            let byte = wasm[at];
            at += 1;
            size |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        at += size;
        ends.push(at);
        if id != 0 {
            last = at;
        }
    }
    (ends, last)
}

#[test]
fn policies_cut_at_each_section_and_anywhere_are_refused() {
    let (engine, mut random) = (engine(), Random::new(1));
    for wasm in [component(&built_in("random")), strategy("")] {
        let (ends, last) = section_ends(&wasm);
        assert!(ends.len() > 5 && ends.last() == Some(&wasm.len()), "{ends:?}");
        // What ends with a section may be a module, without its data for example: it does no harm.
        let refused = ends.iter().filter(|end| Module::from_wasm(&engine, &wasm[..**end]).is_err());
        assert!(refused.count() > 3);
        for _ in 0..200 {
            let cut = random.below(last);
            let is_end = ends.contains(&cut);
            assert!(is_end || Module::from_wasm(&engine, &wasm[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Module::from_wasm(&engine, &wasm).is_ok());
    }
}

#[test]
fn noise_is_refused_with_and_without_a_header() {
    let (engine, mut random) = (engine(), Random::new(2));
    for header in [&b""[..], b"\0", b"\0asm", b"\0asm\x01\0\0\0", b"\0asm\x0d\0\x01\0", b"\x7fELF"]
    {
        for _ in 0..50 {
            let noise = (0..random.below(300)).map(|_| random.byte()).collect::<Vec<_>>();
            assert!(Module::from_wasm(&engine, &[header, &noise].concat()).is_err(), "{noise:?}");
        }
    }
}

#[test]
fn each_export_that_is_missing_or_of_another_type_is_named() {
    let engine = engine();
    for (interface, wasm) in [("strategy", strategy("")), ("formula", formula(""))] {
        let text = wasmprinter::print_bytes(&wasm).unwrap();
        let marker = format!("(export \"loadline:policy/{interface}@1.0.0#");
        let names: Vec<_> =
            text.split(&marker).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(names.len(), if interface == "strategy" { 10 } else { 7 });
        for name in names {
            let start = text.find(&format!("{marker}{name}\"")).unwrap();
            let end = start + text[start..].find('\n').unwrap();
            let without = format!("{}{}", &text[..start], &text[end..]);
            let refused = Module::from_wasm(&engine, &wat::parse_str(&without).unwrap());
            let refused = refused.expect_err(name).to_string();
            assert!(
                refused.contains(name) && refused.contains("does not fit"),
                "{name}: {refused}"
            );
            let odd = format!("(func ${name} (param f32 f32 f32))");
            let odd = if interface == "strategy" { strategy(&odd) } else { formula(&odd) };
            let refused = Module::from_wasm(&engine, &odd).expect_err(name).to_string();
            assert!(refused.contains(name), "{name}: {refused}");
        }
    }
}

#[test]
fn contract_without_or_with_another_version_is_named() {
    let refused = |text: String| {
        Module::from_wasm(&engine(), &wat::parse_str(text).unwrap()).unwrap_err().to_string()
    };
    let none = refused("(module (func (export \"loadline:policy/strategy#pick\")))".to_owned());
    assert!(none.contains("speaks loadline:policy/strategy, this host speaks"), "{none}");
    // A component of a later minor version has all that this host asks for.
    let text = wasmprinter::print_bytes(component(&built_in("random"))).unwrap();
    let other = |version: &str| {
        let text = text.replace("policy/strategy@1.0.0", &format!("policy/strategy@{version}"));
        Module::from_wasm(&engine(), &wat::parse_str(text).unwrap())
    };
    assert!(other("1.1.0").is_ok());
    let refused = other("2.0.0").unwrap_err().to_string();
    assert!(
        refused.contains("speaks loadline:policy/strategy@2.0.0, this host speaks"),
        "{refused}"
    );
}

/// A farm whose strategy `mine` is this, with two machines.
async fn farm(mine: &[u8]) -> Farm {
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", mine)]).await;
    farm.report(&["a", "b"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    farm
}

fn mine(farm: &Farm) -> Value {
    farm.get("/v1/policies/mine")
}

/// Waits until these bytes serve.
async fn serves(farm: &Farm, bytes: &[u8]) {
    let generation = loadline::policy::Generation::of(bytes).to_string();
    let serves = |farm: &Farm| (farm.policy("strategy")["generation"] == *generation).then_some(());
    farm.until("the generation", serves).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_written_slowly_is_activated_once_and_whole() {
    let farm = farm(&built_in("p2c")).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    let next = strategy("(func $save (result i32) i32.const 128)");
    let path = farm.folder().join("mine.wasm");
    let written = next.clone();
    let writer = std::thread::spawn(move || {
        let mut file = File::create(path).unwrap();
        for part in written.chunks(100) {
            file.write_all(part).unwrap();
            std::thread::park_timeout(Duration::from_millis(50)); // so slow is the writer
        }
    });
    serves(&farm, &next).await;
    writer.join().unwrap();
    let policy = mine(&farm);
    assert_eq!((&policy["loads"], &policy["refusals"]), (&2.into(), &0.into()), "{policy}");
    assert!(queries.stop().bad.is_empty());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn swapped_data_link_of_a_mounted_configuration_counts_once() {
    let versions = ["round-robin", "p2c"].map(built_in);
    let farm = Farm::with_pools(vec![pool("default", "weighted", "mine")]).await;
    let path = |name: &str| farm.folder().join(name);
    let put = |round: usize| {
        let folder = format!("..{round}");
        fs::create_dir(path(&folder)).unwrap();
        fs::write(path(&folder).join("mine.wasm"), &versions[round]).unwrap();
        symlink(&folder, path("..data_tmp")).unwrap();
        fs::rename(path("..data_tmp"), path("..data")).unwrap();
    };
    put(0);
    symlink("..data/mine.wasm", path("mine.wasm")).unwrap();
    serves(&farm, &versions[0]).await;
    put(1);
    fs::remove_dir_all(path("..0")).unwrap();
    serves(&farm, &versions[1]).await;
    let policy = mine(&farm);
    assert_eq!((&policy["loads"], &policy["refusals"]), (&2.into(), &0.into()), "{policy}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_of_a_hundred_renames_wins_and_so_does_who_is_made_anew() {
    let wasm = built_in("p2c");
    let farm = farm(&wasm).await;
    let queries = Queries::start(farm.url("/v1/target"), 1);
    for label in 0..100 {
        farm.drop_in("mine.wasm", &relabelled(&wasm, label));
    }
    serves(&farm, &relabelled(&wasm, 99)).await;
    fs::remove_file(farm.folder().join("mine.wasm")).unwrap();
    farm.drop_in("mine.wasm", &relabelled(&wasm, 100));
    serves(&farm, &relabelled(&wasm, 100)).await;
    // Older by its time: brought back by `cp -p`.
    farm.drop_in("mine.wasm", &relabelled(&wasm, 99));
    let old = File::options().write(true).open(farm.folder().join("mine.wasm")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_hours(1)).unwrap();
    serves(&farm, &relabelled(&wasm, 99)).await;
    assert_eq!(mine(&farm)["refusals"], 0);
    assert!(queries.stop().bad.is_empty());
    farm.stop().await;
}

/// Both are taken, each by itself: a request sees the old or the new one of each, never none.
#[tokio::test(flavor = "multi_thread")]
async fn formula_and_strategy_changed_together_both_go() {
    let farm = farm(&built_in("p2c")).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    let next = built_in("round-robin");
    farm.drop_in("mine.wasm", &next);
    farm.drop_in("weighted.formula", b"cpu * 7");
    serves(&farm, &next).await;
    let scored = |farm: &Farm| (farm.get("/v1/target")["load"] == 3.5).then_some(());
    farm.until("the formula", scored).await;
    let answered = queries.stop();
    assert!(answered.bad.is_empty(), "{answered:?}");
    farm.stop().await;
}

/// Named like a policy, or nearly, and none.
fn make_odd_files(folder: &Path) {
    let path = |name: &str| folder.join(name);
    fs::create_dir(path("directory.wasm")).unwrap();
    symlink(path("nowhere"), path("dangling.wasm")).unwrap();
    symlink(path("loop.wasm"), path("loop.wasm")).unwrap();
    symlink("/dev/zero", path("device.wasm")).unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe.wasm")).status().unwrap().success());
    File::create(path("sparse.wasm")).unwrap().set_len(8 << 30).unwrap();
    fs::write(path("locked.wasm"), b"secret").unwrap();
    fs::set_permissions(path("locked.wasm"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"\xff\xfe.wasm")), b"x").unwrap();
    fs::write(path(&format!("{}.wasm", "n".repeat(250))), b"x").unwrap();
    for name in [".hidden.wasm", "mine.wasm~", ".mine.wasm.swp", "mine.wasm.tmp", "4913", ".wasm"] {
        fs::write(path(name), b"x").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_files_are_told_and_hold_nobody_up() {
    let farm = farm(&built_in("p2c")).await;
    make_odd_files(farm.folder());
    let next = relabelled(&built_in("p2c"), 1);
    farm.drop_in("mine.wasm", &next);
    serves(&farm, &next).await;
    for (name, words) in [
        ("directory", "not a regular file"),
        ("dangling", "cannot be read"),
        ("loop", "cannot be read"),
        ("device", "not a regular file"),
        ("pipe", "not a regular file"),
        ("sparse", "longer than the 16777216 bytes"),
        // Root may read it, and finds no policy in it.
        ("locked", ""),
    ] {
        let policy = farm.get(&format!("/v1/policies/{name}"));
        let said = policy["refused"]["reason"].as_str().unwrap_or_default();
        assert!(said.contains(words) && policy["state"] == "refused", "{name}: {policy}");
    }
    let names = farm.get("/v1/policies");
    let names = names.as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap());
    let odd =
        names.filter(|name| name.contains('~') || name.starts_with('.') || name.contains("4913"));
    assert_eq!(odd.collect::<Vec<_>>(), Vec::<&str>::new());
    farm.stop().await;

    // From the start, and nothing else.
    let only =
        Farm::with_files(vec![pool("default", "weighted", "bad")], &[("bad.wasm", b"x")]).await;
    assert_eq!(only.policy("formula")["state"], "active", "the built-in");
    assert_eq!(only.policy("strategy")["state"], "native");
    only.stop().await;
}

/// What lies there under a name that no pool can say is told, once, with what a name may be.
#[test]
fn files_that_cannot_be_named_are_told_once_each() {
    let folder = tempfile::tempdir().unwrap();
    let policies = folder.path().join("policies");
    fs::create_dir(&policies).unwrap();
    for name in
        [&b"my policy.wasm"[..], b"new\nline.formula", b"\xff\xfe.wasm", b"caf\xc3\xa9.wasm"]
    {
        fs::write(policies.join(OsStr::from_bytes(name)), b"1").unwrap();
    }
    for name in [".my policy.wasm", "read me.txt", "my policy.wasm.sig"] {
        fs::write(policies.join(name), b"1").unwrap();
    }
    let mut process = Process::start(&folder, QUICK, &[]);
    let mut seen = Vec::new();
    let told = |seen: &[String], name: &str| {
        let told = seen.iter().filter(|line| line.contains("policy file is not used"));
        told.filter(|line| line.contains(name)).count()
    };
    process.until_with("try ", &mut seen);
    assert_eq!(told(&seen, ""), 4, "{seen:#?}");
    for name in ["my policy.wasm", "new\\nline.formula", "\\xFF\\xFE.wasm", "café.wasm"] {
        assert_eq!(told(&seen, name), 1, "{name}: {seen:#?}");
    }
    assert_eq!(told(&seen, "letters, digits, '-', '_' and inner '.'"), 4, "{seen:#?}");
    // Looks again, and finds one more.
    fs::write(policies.join("one more.formula"), b"1").unwrap();
    process.until_with("one more.formula", &mut seen);
    fs::write(policies.join("good.formula"), b"1").unwrap();
    process.until_with("policy loaded policy=good", &mut seen);
    assert_eq!(told(&seen, ""), 4, "{seen:#?}");
    assert_eq!(process.end("-TERM"), Some(0));
}

#[test]
fn large_modules_are_compiled_or_given_up() {
    let engine = engine();
    let half_a_million = "(local.get 1) i32.add ".repeat(500_000);
    let long = format!("(func $leave (param i32 i32) local.get 0 {half_a_million} drop)");
    let many = "(func (param i32) (result i32) local.get 0)".repeat(50_000);
    for body in [long, many] {
        let loaded = Module::from_wasm(&engine, &strategy(&body));
        let said = loaded.map(|_| ()).map_err(|error| error.to_string());
        assert!(said.as_ref().err().is_none_or(|why| why.contains("still compiling")), "{said:?}");
    }
}

/// Files that change and signals that rain, then the end while something compiles.
#[test]
fn storm_of_changes_and_signals_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("policies")).unwrap();
    let file = folder.path().join("policies/balanced.wasm");
    let wasm = built_in("balanced");
    let mut process = Process::start(&folder, QUICK, &[]);
    process.until("try ");
    let pid = process.child.id().to_string();
    for label in 0..60 {
        fs::write(&file, relabelled(&wasm, label)).unwrap();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }
    let served = process.until("policy serves");
    assert!(served.contains("balanced"), "{served}");
    fs::write(&file, relabelled(&wasm, 200)).unwrap();
    assert_eq!(process.end("-TERM"), Some(0));
}
