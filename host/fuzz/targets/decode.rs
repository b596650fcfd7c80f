//! Fuzzes the decoder of report frames; see `oracles.rs` for what must hold.

#![no_main]

#[path = "../oracles.rs"]
mod oracles;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracles::decode(bytes));
