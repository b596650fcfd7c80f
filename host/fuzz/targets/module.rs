//! Fuzzes the loader of policy modules and the first calls of a guest; see `policies.rs` for what must
//! hold.
//!
//! Half of the changes are made to the module's meaning, so that it stays valid and is compiled and
//! run; the others to its bytes.

#![no_main]

use wasm_mutate::WasmMutate;

#[path = "../policies.rs"]
#[allow(dead_code, reason = "each target has one of the oracles")]
mod policies;

/// How hard a valid change is looked for.
const FUEL: u64 = 300;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| policies::module(bytes));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let changed = seed.is_multiple_of(2).then(|| changed(&data[..size], seed.into())).flatten();
    match changed.filter(|changed| changed.len() <= max_size) {
        Some(changed) => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        None => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
    }
});

/// A valid module near this one, if this is one: of others the tool itself would panic.
fn changed(module: &[u8], seed: u64) -> Option<Vec<u8>> {
    wasmparser::validate(module).ok()?;
    let mut mutate = WasmMutate::default();
    mutate.seed(seed).fuel(FUEL);
    mutate.run(module).ok()?.next()?.ok()
}
