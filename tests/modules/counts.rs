//! How many instances, tables and memories a guest may have: what every kind of policy needs, and no crowd.

use std::sync::Arc;

use loadline::config::Wasi;
use loadline::policy::{
    FormulaGuest, Kind, Limits, Module, PolicyEngine, StartError, StrategyGuest, built_in_names,
};
use wit_component::ComponentEncoder;

use super::{engine, wat};
use crate::support::{built_in, formula, importing_strategy, strategy};

fn start(engine: &PolicyEngine, wasm: &[u8]) -> Result<(), StartError> {
    let module = Module::from_wasm(engine, wasm).unwrap();
    let name = Arc::from("mine");
    match module.kind() {
        Kind::Formula => FormulaGuest::start(engine, &name, &module, "{}").map(drop),
        Kind::Strategy => StrategyGuest::start(engine, &name, &module, "{}", 1).map(drop),
    }
}

#[track_caller]
fn check_starts(engine: &PolicyEngine, what: &str, wasm: &[u8]) {
    if let Err(error) = start(engine, wasm) {
        panic!("{what}: {error}");
    }
}

#[test]
fn every_kind_of_policy_has_what_it_needs() {
    let engine = engine();
    for name in built_in_names() {
        let core = built_in(name);
        check_starts(&engine, name, &core);
        let component = ComponentEncoder::default().module(&core).unwrap().encode().unwrap();
        check_starts(&engine, &format!("{name} as a component"), &component);
    }
    check_starts(&engine, "a strategy by hand", &strategy(""));
    check_starts(&engine, "a formula by hand", &formula(""));
    let all = "let busy = cpu ?? 0.5; busy > 1 ? max(busy, ln(memory)) ^ 2 : has(x) && sqrt(busy)";
    for text in ["1", "cpu * 0.7 + memory * 0.3", all] {
        let text = text.replace(" ^ 2", "");
        let module = Module::from_text(&engine, &text).unwrap();
        FormulaGuest::start(&engine, &Arc::from("text"), &module, "{}").unwrap();
    }
    // With tables of its own, an initialiser, and two versions of WASI.
    let trapping = Limits { wasi: Wasi::Trap, ..Limits::default() };
    let trapping = PolicyEngine::new(trapping).unwrap();
    let imports = "(import \"wasi_snapshot_preview1\" \"proc_exit\" (func (param i32)))
        (import \"wasi_unstable\" \"fd_close\" (func (param i32) (result i32)))";
    let body = "(table 8 funcref) (table 2 funcref) (func (export \"_initialize\"))";
    check_starts(&trapping, "a reactor with WASI", &importing_strategy(imports, body));
}

/// A component with so many instances of a module with this in it.
fn with_instances(count: usize, of: &str) -> Vec<u8> {
    let core = ComponentEncoder::default().module(&built_in("random")).unwrap().encode().unwrap();
    let text = wasmprinter::print_bytes(core).unwrap();
    let (rest, _) = text.rsplit_once(')').unwrap();
    let instances = "(core instance (instantiate $more))".repeat(count);
    wat(&format!("{rest} (core module $more {of}) {instances})"))
}

#[test]
fn crowds_do_not_start() {
    let engine = engine();
    for (what, wasm) in [
        ("tables", strategy(&"(table 1 funcref)".repeat(4))),
        ("instances", with_instances(9, "")),
        ("memories", with_instances(2, "(memory 1)")),
    ] {
        let refused = start(&engine, &wasm).expect_err(what).to_string();
        assert!(
            refused.contains("instantiate trapped: resource limit exceeded")
                && refused.contains("count too high"),
            "{what}: {refused}"
        );
    }
    check_starts(&engine, "some instances", &with_instances(3, ""));
    check_starts(&engine, "one more memory", &with_instances(1, "(memory 1)"));
}
