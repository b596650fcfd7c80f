//! Fuzzes the reader of the configuration file; see `oracles.rs` for what must hold.

#![no_main]

#[path = "../oracles.rs"]
#[allow(dead_code, reason = "each target has one of the oracles")]
mod oracles;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracles::configure(bytes));
