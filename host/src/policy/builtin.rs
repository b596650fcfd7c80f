//! The policies inside this program, as built from `policies/` by the build script.

include!(concat!(env!("OUT_DIR"), "/builtin.rs"));
