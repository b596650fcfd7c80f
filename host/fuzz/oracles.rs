//! What must hold for any input: one function a fuzz target, bytes in, a panic where it does not hold.
//!
//! The fuzz targets call these with what the fuzzer makes up, `tests/corpus.rs` with what is kept.

use loadline::config::{Config, Place, changes};
use loadline::report::{Key, Keyring, Report, wire};

/// A frame from anywhere: decoding returns, and what it returns has passed every check, is the same where
/// frames like it were decoded before, and the same again after a way over the wire, signed or not.
pub(crate) fn decode(bytes: &[u8]) {
    let unsigned = Keyring::default();
    let signed = Keyring::new(vec![Key::new(7, b"0123456789abcdef").expect("long enough")]);
    for keyring in [&unsigned, &signed] {
        check(bytes, keyring);
    }
    // The bytes as a payload: most inputs would otherwise end at the frame's first bytes.
    check(&[b"LL\x01\x00\x00\x00\x00\x00", bytes].concat(), &unsigned);
}

fn check(frame: &[u8], keyring: &Keyring) {
    let decoded = wire::decode(frame, keyring);
    let mut decoder = wire::Decoder::new();
    for _ in 0..3 {
        let mut again = Vec::new();
        let result = decoder.decode_onto(&mut again, frame, keyring);
        match &decoded {
            Ok(reports) => assert_eq!((result, text(&again)), (Ok(()), text(reports))),
            Err(error) => assert_eq!((result, again.len()), (Err(error.clone()), 0)),
        }
        decoder.reuse(again);
    }
    let Ok(reports) = decoded else { return };
    for report in &reports {
        assert_eq!(report.check(), Ok(()), "a report that was let through");
    }
    let sent = wire::encode(&reports, keyring).expect("checked reports have a byte form");
    let received = wire::decode(&sent, keyring).expect("own frame");
    assert_eq!(text(&received), text(&reports));
}

/// Equal but for NaN, which is not equal to itself.
fn text(reports: &[Report<'_>]) -> String {
    format!("{reports:?}")
}

/// A configuration file from anywhere: reading returns; what it takes is the same again when it is
/// printed, and what it refuses is named, with a line that the file has.
pub(crate) fn configure(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(text) {
        Ok(config) => {
            let printed = config.to_toml();
            let again = Config::parse(&printed).expect("what is printed can be read");
            assert_eq!(again.to_toml(), printed);
            assert_eq!(changes(&config, &again), []);
        }
        Err(error) => {
            assert!(!error.problems.is_empty(), "refused without a reason");
            let lines = 1 + bytes.iter().filter(|byte| **byte == b'\n').count();
            for problem in &error.problems {
                assert!(!problem.what.is_empty(), "{}", problem.key);
                if let Some(Place::Line(line)) = &problem.place {
                    assert!((1..=lines).contains(line), "line {line} of {lines}");
                }
            }
        }
    }
}
