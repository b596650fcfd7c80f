//! Features of WebAssembly that a policy has no use for: each is refused by its name, in a core module, in one
//! inside a component, and by a host that finds it in its folder, with a message that says what to do.

use loadline::policy::Module;

use super::{engine, wat};
use crate::support::{Farm, built_in, pool};

/// A module's content, and the names that the message has for it.
const CORE: &[(&str, &str)] = &[
    ("(memory i64 1)", "memory64"),
    ("(table i64 1 funcref)", "memory64"),
    ("(memory 1) (memory 1)", "multi-memory"),
    ("(memory 1 1 shared)", "threads"),
    ("(memory 1) (func (drop (i32.atomic.load (i32.const 0))))", "threads"),
    ("(type (struct))", "gc"),
    ("(func (drop (ref.i31 (i32.const 1))))", "gc"),
    ("(type $f (func)) (func (param (ref $f)) (call_ref $f (local.get 0)))", "function-references"),
    ("(table 1 externref)", "externref"),
    ("(func (param externref))", "externref"),
    ("(tag)", "exceptions"),
    ("(func (try_table (catch_all 0)))", "exceptions"),
    ("(func try catch_all end)", "legacy-exceptions"),
    (
        "(func (result v128) (f32x4.relaxed_madd (v128.const i64x2 0 0) (v128.const i64x2 0 0)
            (v128.const i64x2 0 0)))",
        "relaxed-simd",
    ),
    (
        "(func (result v128) (i8x16.relaxed_swizzle (v128.const i64x2 0 0) (v128.const i64x2 0 0)))",
        "relaxed-simd",
    ),
    ("(func (return_call 0))", "tail-call"),
    ("(table 1 funcref) (func (return_call_indirect (i32.const 0)))", "tail-call"),
    ("(memory 1 (pagesize 1))", "custom-page-sizes"),
    (
        "(func (result i64 i64) (i64.add128 (i64.const 0) (i64.const 0) (i64.const 0) (i64.const 0)))",
        "wide-arithmetic",
    ),
    ("(type $f (func)) (type $c (cont $f)) (func (param (ref $c)))", "stack-switching"),
    ("(table shared 1 (ref null (shared func)))", "shared-everything-threads"),
    ("(memory 1) (func (memory.discard (i32.const 0) (i32.const 0)))", "memory-control"),
    ("(memory i64 1 1 shared)", "memory64, threads"),
    ("(memory 1) (memory 1) (func (return_call 0))", "multi-memory, tail-call"),
];

#[track_caller]
fn check_told(error: &str, names: &str, what: &str) {
    assert!(error.contains("not valid WebAssembly for this host"), "{what}: {error}");
    let uses = error.split("it uses ").nth(1).unwrap_or_else(|| panic!("{what}: {error}"));
    assert!(uses.starts_with(names), "{what} is {names}: {error}");
    assert!(uses.contains("build it for wasm32-unknown-unknown without that"), "{error}");
}

#[test]
fn features_without_use_for_a_policy_are_refused_by_name() {
    let engine = engine();
    for (text, names) in CORE {
        for module in [format!("(module {text})"), format!("(component (core module {text}))")] {
            let refused = Module::from_wasm(&engine, &wat(&module)).expect_err("a bad module");
            check_told(&refused.to_string(), names, &module);
        }
    }
}

/// What only a component can want.
#[test]
fn features_of_components_are_refused_by_name() {
    for (text, names) in [
        ("(type (future u8))", "async"),
        ("(type (stream u8))", "async"),
        ("(core func (canon task.cancel))", "async"),
        ("(type (list u8 4))", "types of components that are not settled yet"),
        ("(type (map u8 u8))", "types of components that are not settled yet"),
        ("(core func (canon error-context.drop))", "types of components"),
    ] {
        let component = format!("(component {text})");
        let refused = Module::from_wasm(&engine(), &wat(&component)).expect_err("a bad component");
        check_told(&refused.to_string(), names, &component);
    }
}

/// The one feature beyond the first version of WebAssembly for which policies have a use.
#[test]
fn vectors_are_no_feature_that_is_refused() {
    let module = crate::support::strategy(
        "(func (result v128) (f64x2.min (v128.const i64x2 0 0) (v128.const i64x2 1 1)))",
    );
    Module::from_wasm(&engine(), &module).expect("a good strategy");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_that_finds_such_a_file_says_what_it_uses_and_serves_on() {
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &built_in("p2c"))]).await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let serving = farm.policy("strategy")["generation"].clone();
    for (number, (text, names)) in CORE.iter().enumerate() {
        farm.drop_in("mine.wasm", &wat(&format!("(module {text})")));
        let refused = |farm: &Farm| {
            let policy = farm.get("/v1/policies/mine");
            (policy["refusals"] == number + 1).then_some(policy)
        };
        let policy = farm.until(names, refused).await;
        check_told(policy["refused"]["reason"].as_str().unwrap(), names, text);
        assert_eq!(policy["refused"]["steps"][0]["step"], "check");
        assert_eq!(farm.policy("strategy")["generation"], serving);
        assert_eq!(farm.target(""), "a");
    }
    farm.stop().await;
}
