//! Modules that must be initialised before anything else of them is called: reactors, as compilers of C and Go
//! make them. That is done at the start of each guest, within its limits.

use std::sync::Arc;

use loadline::policy::guest::{Request, TargetView};
use loadline::policy::{CallError, Limits, Module, PolicyEngine, StartError, StrategyGuest};
use wit_component::ComponentEncoder;

use super::engine;
use crate::support::{built_in, strategy};

const REQUEST: Request = Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random: 0 };

/// The names under which linkers export what is to be called first.
const NAMES: [&str; 2] = ["_initialize", "__wasm_call_ctors"];

/// A strategy that picks as many slots above 0 as it was initialised times, and this initialiser.
fn reactor(name: &str, signature: &str, code: &str) -> Vec<u8> {
    strategy(&format!(
        "(global $times (mut i32) (i32.const 0))
         (func (export {name:?}) {signature} {code})
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (i32.store8 (i32.const 200) (i32.const 1))
            (i32.store (i32.const 204) (global.get $times))
            i32.const 200)"
    ))
}

fn start(engine: &PolicyEngine, wasm: &[u8]) -> Result<StrategyGuest, StartError> {
    let module = Module::from_wasm(engine, wasm).unwrap();
    StrategyGuest::start(engine, &Arc::from("mine"), &module, "{}", 1)
}

#[test]
fn initialiser_of_a_reactor_is_called_once() {
    let once = "(global.set $times (i32.add (global.get $times) (i32.const 1)))";
    for name in NAMES {
        let core = reactor(name, "", once);
        let mut guest = start(&engine(), &core).unwrap();
        guest.update(0, 1, &[TargetView::new(0, 0.5), TargetView::new(1, 0.5)]).unwrap();
        for _ in 0..3 {
            assert_eq!(guest.pick(REQUEST), Ok(Some(1)), "{name}");
        }
    }
    // A component says by itself what is called first.
    let text = wasmprinter::print_bytes(built_in("random")).unwrap();
    let (rest, _) = text.rsplit_once(')').unwrap();
    let core = wat::parse_str(format!("{rest} (func (export \"_initialize\") unreachable))"));
    let component = ComponentEncoder::default().module(&core.unwrap()).unwrap().encode().unwrap();
    let fault = start(&engine(), &component).map(drop).unwrap_err().to_string();
    assert!(fault.contains("instantiate trapped"), "{fault}");
}

/// Who exports both has the second called by the first.
#[test]
fn constructors_are_not_called_a_second_time() {
    let once = "(global.set $times (i32.add (global.get $times) (i32.const 1)))";
    let named = format!(
        "(global $times (mut i32) (i32.const 0))
         (func $constructors (export \"__wasm_call_ctors\") {once})
         (func (export \"_initialize\") (call $constructors))
         (func $pick (param i64 i32 f64 i64 i64) (result i32)
            (i32.store8 (i32.const 200) (i32.const 1))
            (i32.store (i32.const 204) (global.get $times))
            i32.const 200)"
    );
    let mut guest = start(&engine(), &strategy(&named)).unwrap();
    assert_eq!(guest.pick(REQUEST), Ok(Some(1)));
}

#[test]
fn initialiser_is_bounded_like_every_call() {
    let limits = Limits { configure: std::time::Duration::from_millis(50), ..Limits::default() };
    let engine = PolicyEngine::new(limits).unwrap();
    for name in NAMES {
        let fault = |code: &str| match start(&engine, &reactor(name, "", code)).map(drop) {
            Err(StartError::Call(fault)) => fault,
            other => panic!("{name} {code}: {other:?}"),
        };
        let looping = fault("(loop (br 0))");
        assert!(
            matches!(looping, CallError::Deadline { call: "instantiate", .. }),
            "{name}: {looping}"
        );
        let trap = fault("unreachable").to_string();
        assert!(trap.contains("instantiate trapped"), "{name}: {trap}");
        let hoards =
            "(loop (br_if 0 (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)))) unreachable";
        assert_eq!(fault(hoards).reason(), "memory", "{name}");
    }
}

#[test]
fn initialiser_with_parameters_is_refused_by_name() {
    for name in NAMES {
        let refused = Module::from_wasm(&engine(), &reactor(name, "(param i32)", ""));
        let refused = refused.expect_err("nobody can call it").to_string();
        assert!(refused.contains("`_initialize`") && refused.contains("does not fit"), "{refused}");
    }
}
