//! The features of WebAssembly that guests may use, and which of the others a file wants.
//!
//! Invariant: the same features are off here and in the engine's settings.

use wasmparser::{Validator, WasmFeatures};

/// What a policy has no use for, each by the name that compilers have for it.
const REFUSED: [(&str, WasmFeatures); 9] = [
    ("memory64", WasmFeatures::MEMORY64),
    ("multi-memory", WasmFeatures::MULTI_MEMORY),
    ("threads (atomics)", WasmFeatures::THREADS),
    ("gc", WasmFeatures::GC),
    ("exceptions (exception-handling)", WasmFeatures::EXCEPTIONS),
    ("relaxed-simd", WasmFeatures::RELAXED_SIMD),
    ("tail-call", WasmFeatures::TAIL_CALL),
    ("custom-page-sizes", WasmFeatures::CUSTOM_PAGE_SIZES),
    ("wide-arithmetic", WasmFeatures::WIDE_ARITHMETIC),
];

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
