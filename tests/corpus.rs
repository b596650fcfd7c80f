//! The inputs kept for the fuzz targets, without a fuzzer: each must hold what its target checks.

use std::path::Path;

#[path = "../host/fuzz/oracles.rs"]
mod oracles;
#[path = "../host/fuzz/policies.rs"]
mod policies;

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

/// A fuzzer finds out by itself what follows from a key, not how it is written.
#[test]
fn every_key_is_in_a_kept_configuration() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/fuzz/corpus/configure");
    let kept = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<u8> =
        kept.flat_map(|file| [std::fs::read(file).unwrap(), b"\n".to_vec()].concat()).collect();
    let kept = String::from_utf8_lossy(&kept);
    let is_written = |key: &str| {
        let is_of_key = |rest: &str| rest.is_empty() || rest.starts_with(" = ");
        kept.lines().any(|line| line.strip_prefix(key).is_some_and(is_of_key))
    };
    let lines = loadline::config::DEFAULT_FILE.lines().map(|line| line.trim_start_matches("# "));
    let is_key = |c: char| c == '_' || c.is_ascii_lowercase();
    let keys = lines.filter_map(|line| match line.split_once(" = ") {
        Some((key, _)) => Some(key).filter(|key| key.chars().all(is_key)),
        None => line.split(' ').next().filter(|table| table.starts_with('[')),
    });
    let missing: Vec<_> = keys.filter(|key| !is_written(key)).collect();
    assert!(missing.is_empty(), "write them into every-key or every-key-of-a-host: {missing:?}");
}

#[test]
fn kept_formula_texts_are_compiled_or_refused() {
    each("formula", policies::formula);
}

#[test]
fn kept_policy_files_start_or_are_refused() {
    each("module", policies::module);
}
