//! Golden bytes, refusals, and properties over generated reports and bytes.

mod remembering;

use proptest::prelude::*;

use super::*;
use crate::report::auth::TAG_BYTES;
use crate::report::{Key, METRICS_MAX, Metrics, is_label_value, is_name};

const PLAIN: &str = include_str!("../../../../tests/data/report-v1.hex");
const SIGNED: &str = include_str!("../../../../tests/data/report-v1-signed.hex");
const SECRET: &[u8] = b"0123456789abcdef";

fn golden(text: &str) -> Vec<u8> {
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn report<'a>() -> Report<'a> {
    Report {
        farm: "default",
        machine: "web-1",
        boot: 1_790_000_000_000,
        seq: 7,
        interval_ms: 2_000,
        delay_ms: 3,
        state: State::Ready,
        weight: 1.5,
        metrics: Metrics { names: vec!["cpu", "memory"].into(), values: vec![0.25, 0.5] },
        services: vec![Service {
            name: "web",
            address: "10.0.0.3:8080",
            weight: 1.0,
            metrics: Metrics { names: vec!["sessions"].into(), values: vec![12.0] },
            accepted: 1_000,
            completed: 990,
            in_flight: 10,
            labels: Vec::new(),
        }],
        labels: vec![("zone", "a")],
        sent_ms: 0,
        hops: 0,
    }
}

fn ring(id: u32) -> Keyring {
    Keyring::new(vec![Key::new(id, SECRET).expect("a good key")])
}

#[test]
fn version_1_is_these_bytes_for_ever() {
    let plain = encode(&[report()], &Keyring::default()).expect("a good report");
    assert_eq!(plain, golden(PLAIN));
    assert_eq!(plain.len(), 143);
    assert_eq!(decode(&plain, &Keyring::default()), Ok(vec![report()]));

    let signed = encode(&[report()], &ring(7)).expect("a good report");
    assert_eq!(signed, golden(SIGNED));
    assert_eq!(signed.len(), 159);
    assert_eq!(decode(&signed, &ring(7)), Ok(vec![report()]));
}

#[track_caller]
fn check_refused(frame: &[u8], keyring: &Keyring, reason: &str) {
    let error = decode(frame, keyring).expect_err("a bad frame");
    assert_eq!(error.reason(), reason, "{error}");
}

#[test]
fn bad_frames_are_refused_by_reason() {
    let (plain, none) = (golden(PLAIN), Keyring::default());
    check_refused(b"", &none, "foreign");
    check_refused(b"HTTP/1.1", &none, "foreign");
    check_refused(&plain[..7], &none, "truncated");
    let with = |at: usize, byte: u8| {
        let mut frame = plain.clone();
        frame[at] = byte;
        frame
    };
    check_refused(&with(2, 2), &none, "version");
    check_refused(&with(3, 1), &none, "flags");
    check_refused(&with(8, 0x81), &none, "malformed");
    check_refused(&[&*plain, &[0x91]].concat(), &none, "malformed");
    check_refused(&[&*plain, &[0xc0]].concat(), &none, "malformed");
    for len in 8..plain.len() {
        check_refused(&plain[..len], &none, "malformed");
    }
}

#[test]
fn signatures_are_checked_once_there_are_keys() {
    let (plain, signed) = (golden(PLAIN), golden(SIGNED));
    check_refused(&plain, &ring(7), "unsigned");
    check_refused(&signed, &ring(8), "unknown_key");
    check_refused(&signed, &Keyring::default(), "unknown_key");
    check_refused(&signed[..20], &ring(7), "bad_tag");
    check_refused(&signed[..12], &ring(7), "truncated");
    for at in 4..signed.len() {
        let mut forged = signed.clone();
        forged[at] ^= 1;
        let error = decode(&forged, &ring(7)).expect_err("a forged frame");
        assert!(matches!(error.reason(), "bad_tag" | "unknown_key"), "byte {at}: {error}");
    }
}

#[test]
fn two_keys_overlap_while_they_are_changed() {
    let [old, new] = [7, 8].map(|id| Key::new(id, SECRET).expect("a good key"));
    let both = Keyring::new(vec![new, old]);
    assert!(decode(&golden(SIGNED), &both).is_ok(), "the old key is still accepted");
    assert_eq!(both.signing_id(), 8);
}

#[test]
fn secrets_are_not_printed() {
    assert_eq!(format!("{:?}", Key::new(7, SECRET).expect("a good key")), "Key { id: 7, .. }");
    assert!(Key::new(0, SECRET).is_none() && Key::new(1, b"short").is_none());
}

/// What a later version may send: one more field at the end of a report and of a service.
#[test]
fn unknown_trailing_fields_are_skipped() {
    let mut frame = golden(PLAIN);
    assert_eq!((frame[9], frame[80]), (0x9c, 0x98), "12 fields of a report, 8 of a service");
    let service_end = frame.len() - 8; // before the labels { "zone": "a" }
    frame.extend_from_slice(&[5, 2, 0x93, 1, 2, 3]); // the stamp, the hops, and what nobody knows yet
    // The service's labels { "r": "7" }, and what nobody knows yet.
    frame.splice(service_end..service_end, [0x81, 0xa1, b'r', 0xa1, b'7', 0xc3]);
    (frame[9], frame[80]) = (0x9f, 0x9a);
    let mut stamped = Report { sent_ms: 5, hops: 2, ..report() };
    stamped.services[0].labels = vec![("r", "7")];
    assert_eq!(decode(&frame, &Keyring::default()), Ok(vec![stamped]));
}

/// The golden frame with its weight, 1.5 as nine bytes, and what follows known fields replaced.
fn with_weight(weight: &[u8]) -> Vec<u8> {
    let mut frame = golden(PLAIN);
    let at = frame.windows(9).position(|bytes| bytes == [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
    let at = at.expect("the weight");
    frame.splice(at..at + 9, weight.iter().copied());
    frame
}

#[test]
fn numbers_are_read_in_any_width() {
    let weight = |bytes: &[u8]| {
        decode(&with_weight(bytes), &Keyring::default()).map(|reports| reports[0].weight)
    };
    let floats: [(&[u8], f64); 11] = [
        (&[0x07], 7.0),
        (&[0xcc, 0x80], 128.0),
        (&[0xcd, 1, 0], 256.0),
        (&[0xce, 0, 1, 0, 0], 65_536.0),
        (&[0xcf, 0, 0, 0, 1, 0, 0, 0, 0], 4_294_967_296.0),
        (&[0xd0, 5], 5.0),
        (&[0xd1, 1, 0], 256.0),
        (&[0xd2, 0, 1, 0, 0], 65_536.0),
        (&[0xd3, 0, 0, 0, 1, 0, 0, 0, 0], 4_294_967_296.0),
        (&[0xca, 0x3f, 0xc0, 0, 0], 1.5),
        (&[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0], 1.5),
    ];
    for (bytes, value) in floats {
        assert_eq!(weight(bytes), Ok(value), "{bytes:x?}");
    }
    for negative in [&[0xff][..], &[0xd0, 0x80], &[0xd1, 0xff, 0xff]] {
        assert_eq!(weight(negative), Err(WireError::Field { field: "weight" }), "{negative:x?}");
    }
    for other in [0xc0, 0xc1, 0xc3, 0xa0, 0x90, 0x80] {
        let error = weight(&[other]).expect_err("not a number");
        assert_eq!(error.to_string(), "malformed payload: weight: not a number");
    }
    let mut frame = golden(PLAIN);
    let state = frame.iter().position(|byte| *byte == 0xcb).expect("the weight") - 1;
    for (byte, problem) in [(4, "unknown"), (0xff, "negative"), (0xc0, "not a whole number")] {
        frame[state] = byte;
        let error = decode(&frame, &Keyring::default()).expect_err("no state");
        assert_eq!(error.to_string(), format!("malformed payload: state: {problem}"));
    }
}

/// Any value may follow what is known, nested as deep as it likes.
#[test]
fn every_kind_of_value_is_skipped() {
    let deep = [vec![0x91; 500], vec![0xc0]].concat();
    let long = |start: &[u8], length: usize| [start, &vec![0xc1; length]].concat();
    let values = [
        vec![0x7f],
        vec![0xe0],
        vec![0xc0],
        vec![0xc2],
        vec![0xc3],
        vec![0xa2, 1, 2],
        vec![0x92, 1, 2],
        vec![0x81, 1, 2],
        deep,
        long(&[0xc4, 3], 3),
        long(&[0xc5, 0, 3], 3),
        long(&[0xc6, 0, 0, 0, 3], 3),
        long(&[0xc7, 3, 9], 3),
        long(&[0xc8, 0, 3, 9], 3),
        long(&[0xc9, 0, 0, 0, 3, 9], 3),
        long(&[0xca], 4),
        long(&[0xcb], 8),
        long(&[0xcc], 1),
        long(&[0xcd], 2),
        long(&[0xce], 4),
        long(&[0xcf], 8),
        long(&[0xd0], 1),
        long(&[0xd1], 2),
        long(&[0xd2], 4),
        long(&[0xd3], 8),
        long(&[0xd4, 9], 1),
        long(&[0xd5, 9], 2),
        long(&[0xd6, 9], 4),
        long(&[0xd7, 9], 8),
        long(&[0xd8, 9], 16),
        long(&[0xd9, 3], 3),
        long(&[0xda, 0, 3], 3),
        long(&[0xdb, 0, 0, 0, 3], 3),
        vec![0xdc, 0, 2, 1, 2],
        vec![0xdd, 0, 0, 0, 2, 1, 2],
        vec![0xde, 0, 1, 1, 2],
        vec![0xdf, 0, 0, 0, 1, 1, 2],
    ];
    for value in values {
        let mut frame = golden(PLAIN);
        frame[9] = 0x9f; // a row of 15: the stamp, the hops and the value
        frame.extend_from_slice(&[5, 2]);
        frame.extend_from_slice(&value);
        let stamped = Report { sent_ms: 5, hops: 2, ..report() };
        assert_eq!(decode(&frame, &Keyring::default()), Ok(vec![stamped]), "{value:x?}");
        check_refused(&frame[..frame.len() - 1], &Keyring::default(), "malformed");
        check_refused(&[&*frame, &[0]].concat(), &Keyring::default(), "malformed");
    }
    let never_used = [&golden(PLAIN)[..], &[5, 2, 0xc1]].concat();
    check_refused(&never_used, &Keyring::default(), "malformed");
}

#[track_caller]
fn check_field(bad: &Report<'_>, field: &'static str) {
    let none = Keyring::default();
    assert_eq!(encode(std::slice::from_ref(bad), &none), Err(WireError::Field { field }));
}

#[test]
fn fields_out_of_range_are_named() {
    let services = |name, weight| vec![Service { name, weight, ..report().services.remove(0) }];
    check_field(&Report { interval_ms: 0, ..report() }, "interval_ms");
    check_field(&Report { weight: 0.0, ..report() }, "weight");
    check_field(&Report { weight: f64::NAN, ..report() }, "weight");
    check_field(&Report { services: services("web", -1.0), ..report() }, "weight");
    let twice = [services("web", 1.0), services("web", 1.0)].concat();
    check_field(&Report { services: twice, ..report() }, "service");
    let uneven = Metrics { names: vec!["a"].into(), values: vec![] };
    check_field(&Report { metrics: uneven, ..report() }, "metrics");
}

#[test]
fn names_that_would_look_like_others_are_refused() {
    let check = |bad: &Report<'_>, field| {
        let none = Keyring::default();
        assert_eq!(encode(std::slice::from_ref(bad), &none), Err(WireError::Name { field }));
    };
    for name in ["", "a\nb", "web\u{202e}1", "a\u{2066}b", "\u{200f}a", "a\u{feff}", "a\u{85}"] {
        let metrics = || Metrics { names: vec![name].into(), values: vec![0.0] };
        let service = Service { name, ..report().services.remove(0) };
        check(&Report { machine: name, ..report() }, "machine");
        check(&Report { farm: name, ..report() }, "farm");
        check(&Report { services: vec![service], ..report() }, "service");
        check(&Report { metrics: metrics(), ..report() }, "metrics");
        check(&Report { labels: vec![(name, "")], ..report() }, "label");
        assert!(name.is_empty() || !is_label_value(name));
    }
    check(&Report { farm: &"x".repeat(254), ..report() }, "farm");
    for good in ["ä", "日本", "مرحبا", "नमस्ते", "می\u{200c}خواهم", "<b> & \"c\""]
    {
        assert!(is_name(good), "{good}");
    }
}

/// Names for generated reports; borrowed by them.
const NAMES: [&str; 5] = ["a", "cpu", "vllm.waiting", "ä", "x y"];

fn metrics() -> impl Strategy<Value = Metrics<'static>> {
    let metric = (prop::sample::select(&NAMES[..]), any::<f64>());
    prop::collection::vec(metric, 0..5).prop_map(|pairs| pairs.into_iter().collect())
}

fn services() -> impl Strategy<Value = Vec<Service<'static>>> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>());
    let service = (prop::sample::select(vec!["", "h:1"]), 0.1..9.0, metrics(), numbers);
    prop::collection::vec(service, 0..NAMES.len()).prop_map(|services| {
        let numbered = NAMES.iter().zip(services);
        let service = |(name, generated): (&&'static str, _)| {
            let (address, weight, metrics, (accepted, completed, in_flight)) = generated;
            let labels =
                if accepted % 2 == 0 { Vec::new() } else { vec![(*name, "x"), ("zone", "")] };
            Service { name, address, weight, metrics, accepted, completed, in_flight, labels }
        };
        numbered.map(service).collect()
    })
}

fn reports() -> impl Strategy<Value = Report<'static>> {
    let state = prop::sample::select(vec![State::Ready, State::Draining, State::Leaving]);
    let label = (prop::sample::select(&NAMES[..]), prop::sample::select(&NAMES[..]));
    let labels = prop::collection::vec(label, 0..3);
    let numbers = (any::<u64>(), any::<u64>(), 1..3_600_000_u32, any::<u32>(), any::<u64>());
    (state, metrics(), services(), labels, numbers).prop_map(
        |(state, metrics, services, labels, (boot, seq, interval_ms, delay_ms, sent_ms))| Report {
            sent_ms,
            boot,
            seq,
            interval_ms,
            delay_ms,
            state,
            metrics,
            services,
            labels,
            ..report()
        },
    )
}

/// Equal but for NaN, which is not equal to itself.
fn text(reports: &[Report<'_>]) -> String {
    format!("{reports:?}")
}

proptest! {
    #[test]
    fn no_bytes_panic_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let none = Keyring::default();
        prop_assert!(decode(&bytes, &none).is_err());
        let framed = [b"LL\x01\x00\x00\x00\x00\x00".as_slice(), &bytes].concat();
        // Whatever decodes has passed the checks.
        for report in decode(&framed, &none).unwrap_or_default() {
            prop_assert_eq!(report.check(), Ok(()));
        }
    }

    #[test]
    fn mutated_reports_never_panic(at in 0..143_usize, byte: u8, cut in 0..143_usize) {
        let mut frame = golden(PLAIN);
        frame[at] = byte;
        for report in decode(&frame, &Keyring::default()).unwrap_or_default() {
            prop_assert_eq!(report.check(), Ok(()));
        }
        prop_assert!(decode(&frame[..cut], &Keyring::default()).is_err());
    }

    #[test]
    fn decoding_gives_back_what_was_encoded(sent in prop::collection::vec(reports(), 0..4)) {
        for keyring in [Keyring::default(), ring(9)] {
            let frame = encode(&sent, &keyring).expect("good reports");
            let received = decode(&frame, &keyring).expect("own frame");
            prop_assert_eq!(text(&received), text(&sent));
        }
    }
}

#[test]
fn a_claimed_length_reserves_nothing() {
    // An array of 2^32 - 1 reports, metrics or labels in a few bytes.
    for start in [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0x91, 0xdd, 0xff, 0xff, 0xff, 0xff]] {
        let frame = [b"LL\x01\x00\x00\x00\x00\x00", start].concat();
        check_refused(&frame, &Keyring::default(), "malformed");
    }
    let names = vec!["m"; METRICS_MAX + 1];
    let values = vec![0.0; METRICS_MAX + 1];
    check_field(
        &Report { metrics: Metrics { names: names.into(), values }, ..report() },
        "metrics",
    );
}

/// Nested deeper than any report: refused by its depth, never by the end of the stack.
#[test]
fn nested_payloads_are_refused_signed_or_not() {
    let nested: [&[u8]; 4] = [&[0x91], &[0x81, 0xa1, b'a'], &[0xdd, 0, 0, 0, 1], &[0xc7, 1, 1]];
    for (unit, times) in nested.into_iter().flat_map(|unit| [(unit, 2_000), (unit, 20_000)]) {
        let payload = unit.repeat(times);
        let plain = [b"LL\x01\x00\x00\x00\x00\x00", &*payload].concat();
        check_refused(&plain, &Keyring::default(), "malformed");
        let mut signed = [b"LL\x01\x00\x00\x00\x00\x07", &*payload].concat();
        check_refused(&signed, &ring(7), "bad_tag"); // looked at first
        ring(7).sign(&mut signed);
        check_refused(&signed, &ring(7), "malformed");
    }
}

#[test]
fn a_tag_that_is_cut_or_longer_is_wrong() {
    let signed = golden(SIGNED);
    for len in signed.len() - TAG_BYTES..signed.len() {
        check_refused(&signed[..len], &ring(7), "bad_tag");
    }
    check_refused(&[&*signed, &[0]].concat(), &ring(7), "bad_tag");
    check_refused(&[&*signed, &signed[signed.len() - TAG_BYTES..]].concat(), &ring(7), "bad_tag");
}

#[test]
fn many_reports_are_packed_into_datagrams_and_a_long_one_travels_alone() {
    let names: Vec<_> = (0..100).map(|number| format!("machine-{number}")).collect();
    let long = Report { machine: "long", metrics: many_metrics(), ..report() };
    let mut all: Vec<_> =
        names.iter().map(|machine| Report { machine, hops: 1, ..report() }).collect();
    all.insert(50, long);
    let keyring = ring(3);
    let mut packer = Packer::new(&keyring, crate::report::DATAGRAM_BYTES_MAX);
    for report in &all {
        packer.push(report).expect("a good report");
    }
    assert!(packer.push(&Report { machine: "", ..report() }).is_err(), "and it is left out");
    let frames = packer.finish();
    let longer =
        frames.iter().filter(|frame| frame.len() > crate::report::DATAGRAM_BYTES_MAX).count();
    assert_eq!(longer, 1);
    assert!(frames.len() < 15, "{} frames", frames.len());
    let decoded = frames.iter().flat_map(|frame| decode(frame, &keyring).expect("a good frame"));
    assert_eq!(decoded.collect::<Vec<_>>(), all);
}

fn many_metrics() -> Metrics<'static> {
    let names = vec!["a-metric-with-a-name-of-some-length"; METRICS_MAX];
    Metrics { values: vec![1.0; names.len()], names: names.into() }
}
