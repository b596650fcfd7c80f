//! The features of WebAssembly that guests may use, and which of the others a file wants.
//!
//! Invariant: the same features are off here and in the engine's settings.

use wasmparser::{Validator, WasmFeatures};

/// What a policy has no use for, each by the name that compilers have for it.
const REFUSED: [(&str, WasmFeatures); 17] = [
    ("memory64", WasmFeatures::MEMORY64),
    ("multi-memory", WasmFeatures::MULTI_MEMORY),
    ("threads (atomics)", WasmFeatures::THREADS),
    ("shared-everything-threads", WasmFeatures::SHARED_EVERYTHING_THREADS),
    ("function-references", WasmFeatures::FUNCTION_REFERENCES),
    ("gc", WasmFeatures::GC.union(WasmFeatures::CUSTOM_DESCRIPTORS)),
    ("exceptions (exception-handling)", WasmFeatures::EXCEPTIONS),
    ("legacy-exceptions (exception-handling)", WasmFeatures::LEGACY_EXCEPTIONS),
    ("relaxed-simd", WasmFeatures::RELAXED_SIMD),
    ("tail-call", WasmFeatures::TAIL_CALL),
    ("stack-switching", WasmFeatures::STACK_SWITCHING),
    ("custom-page-sizes", WasmFeatures::CUSTOM_PAGE_SIZES),
    ("memory-control", WasmFeatures::MEMORY_CONTROL),
    ("wide-arithmetic", WasmFeatures::WIDE_ARITHMETIC),
    ("externref (reference-types)", WasmFeatures::GC_TYPES),
    ("async (futures, streams and tasks of components)", ASYNC),
    ("types of components that are not settled yet", UNSETTLED),
];

const ASYNC: WasmFeatures = WasmFeatures::CM_ASYNC
    .union(WasmFeatures::CM_ASYNC_STACKFUL)
    .union(WasmFeatures::CM_MORE_ASYNC_BUILTINS)
    .union(WasmFeatures::CM_THREADING);

const UNSETTLED: WasmFeatures = WasmFeatures::CM_VALUES
    .union(WasmFeatures::CM_ERROR_CONTEXT)
    .union(WasmFeatures::CM_FIXED_LENGTH_LISTS)
    .union(WasmFeatures::CM_MAP)
    .union(WasmFeatures::CM_GC);

/// The features that guests may use.
pub(super) fn allowed() -> WasmFeatures {
    REFUSED.iter().fold(WasmFeatures::default(), |allowed, (_, refused)| allowed - *refused)
}

/// Those that a file cannot do without, for people; `None`: it is no good with all of them.
pub(super) fn wanted(bytes: &[u8]) -> Option<String> {
    let all = REFUSED.iter().fold(allowed(), |all, (_, refused)| all | *refused);
    let is_valid = |features| Validator::new_with_features(features).validate_all(bytes).is_ok();
    if !is_valid(all) {
        return None;
    }
    let wanted = REFUSED.iter().filter(|(_, refused)| !is_valid(all - *refused));
    let wanted: Vec<_> = wanted.map(|(name, _)| *name).collect();
    (!wanted.is_empty()).then(|| wanted.join(", "))
}
