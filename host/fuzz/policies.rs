//! What must hold for any policy file: one function a fuzz target, bytes in, a panic where it does not
//! hold. Beside `oracles.rs`, because these need the features of a host.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use loadline::policy::inspect::Inspection;
use loadline::policy::trial::{try_formula, try_strategy};
use loadline::policy::{
    FormulaGuest, Kind, Limits, Module, ModuleError, PolicyEngine, StrategyGuest, text,
};

/// A formula's text from anywhere: it is refused at a place that it has, or it becomes a valid module,
/// the same each time and whatever stands in comments.
pub(crate) fn formula(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text::compile(text) {
        Ok(module) => {
            wasmparser::validate(&module).expect("what is emitted is valid");
            let commented = format!("// first\n{text}\n// last");
            if commented.len() <= text::TEXT_BYTES_MAX {
                assert_eq!(text::compile(&commented).as_ref(), Ok(&module));
            }
        }
        Err(error) => {
            let line = text.split('\n').nth(error.line - 1).expect("a line of the text");
            let columns = 1..=line.chars().count() + 1;
            assert!(columns.contains(&error.column), "{error} of {line:?}");
            check_words(&error.what);
        }
    }
}

/// A policy file from anywhere: it can be described, and it is refused with words that fit into one line
/// of a log, or its guest starts and passes its trial, or fails within its limits.
pub(crate) fn module(bytes: &[u8]) {
    let _described = Inspection::of(bytes);
    match Module::from_wasm(engine(), bytes) {
        Ok(module) => start(&module),
        Err(ModuleError::Engine { reason }) => panic!("no engine: {reason}"),
        Err(error) => check_words(&error.to_string()),
    }
}

fn start(module: &Module) {
    let (engine, name, settings) = (engine(), Arc::from("fuzzed"), "{}");
    let failed = match module.kind() {
        Kind::Formula => match FormulaGuest::start(engine, &name, module, settings) {
            Ok(mut guest) => try_formula(&mut guest).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        },
        Kind::Strategy => match StrategyGuest::start(engine, &name, module, settings, 1) {
            Ok(mut guest) => try_strategy(&mut guest).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        },
    };
    if let Some(words) = failed {
        check_words(&words);
    }
}

fn check_words(words: &str) {
    assert!(!words.is_empty(), "refused without a reason");
    assert!(!words.contains(char::is_control), "more than one line: {words:?}");
}

/// One engine with small limits: most inputs are to be over soon.
fn engine() -> &'static PolicyEngine {
    static ENGINE: OnceLock<PolicyEngine> = OnceLock::new();
    let limits = Limits {
        configure: Duration::from_millis(20),
        batch: Duration::from_millis(10),
        memory_bytes: 16 << 20,
        compile_last: false,
        ..Limits::default()
    };
    ENGINE.get_or_init(|| PolicyEngine::new(limits).expect("an engine"))
}
