//! Fuzzes the parser of formula texts and what it makes of them; see `policies.rs` for what must hold.

#![no_main]

#[path = "../policies.rs"]
#[allow(dead_code, reason = "each target has one of the oracles")]
mod policies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| policies::formula(bytes));
