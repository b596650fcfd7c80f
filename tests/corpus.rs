//! The inputs kept for the fuzz targets, without a fuzzer: each must hold what its target checks.

use std::path::Path;

#[path = "../host/fuzz/oracles.rs"]
mod oracles;

/// Every kept input of a target, by name.
fn each(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/fuzz/corpus").join(target);
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        check(&std::fs::read(entry.unwrap().path()).unwrap());
        checked += 1;
    }
    assert!(checked > 0, "no inputs in {}", folder.display());
}

#[test]
fn kept_frames_decode_or_are_refused() {
    each("decode", oracles::decode);
}

#[test]
fn kept_configurations_are_taken_or_refused() {
    each("configure", oracles::configure);
}
