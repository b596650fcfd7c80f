//! Files that are no good policies: each is refused with a message that says what to do, whatever it
//! is made of, and nothing panics.

mod counts;
mod deep;
mod features;
mod initialiser;

use std::sync::Arc;

use loadline::policy::{Limits, Module, PolicyEngine, StrategyGuest};
use wit_component::ComponentEncoder;

use crate::support::{Farm, built_in, formula, pool, strategy};

fn engine() -> PolicyEngine {
    PolicyEngine::new(Limits::default()).unwrap()
}

#[track_caller]
fn check_refused(bytes: &[u8], words: &str) {
    let error = Module::from_wasm(&engine(), bytes).expect_err("a bad module").to_string();
    assert!(error.contains(words), "{error}\ndoes not say {words:?}");
}

fn wat(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

/// A module's names may hold anything, and are logged.
#[test]
fn names_in_a_module_forge_no_line() {
    for text in [
        r#"(module (import "a\nERROR all is lost\1b[31m" "b" (func)))"#,
        r#"(module (func (export "loadline:policy/formula@7.0.0\nERROR#evaluate")))"#,
        r#"(module (func (export "a\nb")) (func (export "a\nb")))"#,
    ] {
        let error = Module::from_wasm(&engine(), &wat(text)).expect_err("a bad module").to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn cut_and_damaged_files_are_refused_at_every_place() {
    let good = built_in("p2c");
    let engine = engine();
    let mut refused = 0;
    for part in 0..100 {
        let cut = good.len() * part / 100;
        assert!(Module::from_wasm(&engine, &good[..cut]).is_err(), "cut at {cut}");
        let mut damaged = good.clone();
        damaged[cut] ^= 0x55;
        refused += usize::from(Module::from_wasm(&engine, &damaged).is_err());
    }
    // Names, constants and the like can change without making a module invalid.
    assert!(refused > 10, "{refused}");
    assert!(Module::from_wasm(&engine, &good).is_ok());
}

#[test]
fn components_and_core_modules_are_both_taken() {
    let core = built_in("p2c");
    let component =
        ComponentEncoder::default().module(&core).unwrap().validate(true).encode().unwrap();
    assert!(Module::from_wasm(&engine(), &component).is_ok());
    for part in 1..50 {
        let cut = &component[..component.len() * part / 50];
        assert!(Module::from_wasm(&engine(), cut).is_err());
    }
}

#[test]
fn foreign_imports_are_named_with_a_way_out() {
    let wasi = r#"(module (import "wasi_snapshot_preview1" "fd_write" (func)))"#;
    check_refused(&wat(wasi), "imports wasi_snapshot_preview1");
    check_refused(&wat(wasi), "use wasm32-unknown-unknown instead");
    check_refused(&wat(r#"(module (import "env" "now" (func)))"#), "imports env, which a policy");
    let component = r#"(component (import "wasi:clocks/wall-clock@0.2.0" (instance)))"#;
    check_refused(&wat(component), "imports wasi:clocks/wall-clock@0.2.0");
}

#[test]
fn modules_without_a_policy_say_how_to_build_one() {
    check_refused(&wat("(module)"), "build it with loadline-sdk");
    check_refused(&wat("(component)"), "exports neither");
    check_refused(
        &wat(r#"(module (func (export "run")))"#),
        "exports neither loadline:policy/formula@1",
    );
}

#[test]
fn other_versions_of_the_contract_are_named() {
    for version in ["2.0.0", "0.9.0"] {
        let text = format!(r#"(module (func (export "loadline:policy/strategy@{version}#pick")))"#);
        let words = format!("speaks loadline:policy/strategy@{version}, this host speaks");
        check_refused(&wat(&text), &words);
    }
    let component =
        r#"(component (instance $i) (export "loadline:policy/formula@3.0.0" (instance $i)))"#;
    check_refused(&wat(component), "speaks loadline:policy/formula@3.0.0");
}

/// What a module says of its own component type is untrusted: packages that depend on each other in
/// a circle once overflowed the stack of the parser that read them.
#[test]
fn component_type_of_a_core_module_is_not_read() {
    for section in [&b"garbage"[..], b"\0asm\x0d\0\x01\0", &[0xff; 100]] {
        let name = b"component-type:wit-bindgen:x";
        let mut bytes = strategy("");
        let size = u8::try_from(name.len() + section.len() + 1).unwrap();
        assert!(size < 128 || size - 128 < 128);
        bytes.push(0);
        bytes.extend(if size < 128 { vec![size] } else { vec![size, 1] });
        bytes.push(u8::try_from(name.len()).unwrap());
        bytes.extend(name);
        bytes.extend(section);
        assert!(Module::from_wasm(&engine(), &bytes).is_ok());
    }
    let text = wasmprinter::print_bytes(built_in("least-loaded")).unwrap();
    // In the code and in what it carries.
    check_refused(&wat(&text.replace("@1.0.0", "@1.7.0")), "speaks loadline:policy/strategy@1.7.0");
    check_refused(&wat(&text.replace("@1.0.0", "@2.0.0")), "speaks loadline:policy/strategy@2.0.0");
}

#[test]
fn missing_and_mistyped_exports_are_named() {
    let engine = engine();
    for (name, wrong) in [
        ("describe", "(func $describe (param i32) (result i32) i32.const 0)"),
        ("pick", "(func $pick (result i32) i32.const 0)"),
        ("save", "(func $save (param i32))"),
    ] {
        let error = Module::from_wasm(&engine, &strategy(wrong)).expect_err("a wrong type");
        assert!(error.to_string().contains(name), "{error}");
    }
    let missing = r#"(module (memory (export "memory") 1)
        (func (export "loadline:policy/strategy@1.0.0#describe") (result i32) i32.const 0))"#;
    check_refused(&wat(missing), "does not fit the contract");
    let both = r#"(module (func (export "loadline:policy/strategy@1.0.0#save"))
        (func (export "loadline:policy/formula@1.0.0#save")))"#;
    check_refused(&wat(both), "a file holds one policy: build one file of each");
}

#[test]
fn huge_or_many_tables_and_memories_do_not_start() {
    let engine = engine();
    for (body, words) in [
        ("(table 4000000000 funcref)", "instantiate trapped"),
        (&*"(table 1 funcref)".repeat(17), "instantiate trapped"),
        ("(data (i32.const 262143) \"ab\")", "instantiate trapped"),
    ] {
        let module = Module::from_wasm(&engine, &strategy(body)).unwrap();
        let started = StrategyGuest::start(&engine, &Arc::from("x"), &module, "{}", 1);
        let error = started.map(|_| ()).expect_err("no start").to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// A loop in any function, and in the start function, ends at its deadline and is told.
#[tokio::test(flavor = "multi_thread")]
async fn loop_in_any_function_keeps_the_policy_out() {
    let pools = vec![pool("default", "form", "strat")];
    let mut farm = Farm::with_pools(pools).await;
    farm.report(&["a"], &[("cpu", 1.0)]);
    farm.eligible(1).await;
    let spin = "(loop (br 0)) unreachable";
    let strategies = [
        ("instantiate", "(start $spin) (func $spin (loop (br 0)))".to_owned()),
        ("describe", format!("(func $describe (result i32) {spin})")),
        ("configure", format!("(func $configure (param i32 i32 i64) (result i32) {spin})")),
        ("update", format!("(func $update (param i64 i32 i32 i32) {spin})")),
        ("leave", format!("(func $leave (param i32 i32) {spin})")),
        ("pick", format!("(func $pick (param i64 i32 f64 i64 i64) (result i32) {spin})")),
        (
            "pick-among",
            format!("(func $pick-among (param i64 i32 f64 i64 i64 i32 i32) (result i32) {spin})"),
        ),
        ("save", format!("(func $save (result i32) {spin})")),
        ("restore", format!("(func $restore (param i32 i32) (result i32) {spin})")),
    ];
    for (name, body) in strategies {
        check_kept_out(&farm, "strategy", "strat.wasm", &strategy(&body), name).await;
    }
    let formulas = [
        ("metrics", format!("(func $metrics (result i32) {spin})")),
        ("evaluate", format!("(func $evaluate (param i64 i32 i32 i32 i32) (result i32) {spin})")),
    ];
    for (name, body) in formulas {
        check_kept_out(&farm, "formula", "form.wasm", &formula(&body), name).await;
    }
    farm.stop().await;
}

async fn check_kept_out(farm: &Farm, kind: &str, file: &str, bytes: &[u8], name: &str) {
    farm.drop_in(file, bytes);
    let words = format!("{name} took longer than");
    let told = |farm: &Farm| {
        let trouble = farm.policy(kind)["trouble"].as_str()?.to_owned();
        trouble.contains(&words).then_some(())
    };
    farm.until(&words, told).await;
    assert_eq!(farm.target(""), "a", "native answers meanwhile");
}
