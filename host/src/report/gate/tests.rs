//! Stamps, networks and names.

use super::*;
use crate::report::{Key, Metrics, State};

const NOW: Present = Present { wall_ms: 1_790_000_000_000, up_ms: 3_600_000 };
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));

fn report(machine: &str, sent_ms: u64) -> Report<'_> {
    Report {
        farm: "default",
        machine,
        boot: 1,
        seq: 1,
        interval_ms: 1_000,
        delay_ms: 0,
        state: State::Ready,
        weight: 1.0,
        metrics: Metrics::default(),
        services: Vec::new(),
        labels: Vec::new(),
        sent_ms,
        hops: 0,
    }
}

fn signed() -> Gate {
    let key = Key::new(1, b"0123456789abcdef").expect("a good key");
    Gate { keyring: Keyring::new(vec![key]), rules: Vec::new(), skew_max_ms: 60_000 }
}

fn network(text: &str) -> Network {
    text.parse().unwrap_or_else(|()| panic!("{text}"))
}

#[test]
fn stamps_far_from_this_clock_are_refused_with_skew_and_limit() {
    let gate = signed();
    for skew_s in -400..=400_i64 {
        let sent_ms = NOW.wall_ms.saturating_add_signed(skew_s * 1_000);
        let admitted = gate.admit(&report("a", sent_ms), HERE, NOW, || false);
        assert_eq!(admitted.is_ok(), skew_s.abs() <= 60, "{skew_s}");
    }
    let ahead = gate.admit(&report("a", NOW.wall_ms + 130_500), HERE, NOW, || true);
    let said = ahead.expect_err("too far ahead").to_string();
    assert!(said.starts_with("sent 130 s ahead by its clock; reports.max_skew is 60 s"), "{said}");
    let said = gate.admit(&report("a", 7), HERE, NOW, || true).expect_err("of 1970").to_string();
    assert!(said.contains(" s ago by its clock"), "{said}");
    assert_eq!(gate.admit(&report("a", 0), HERE, NOW, || true), Err(Barred::Unstamped));
}

#[test]
fn what_was_sent_before_the_start_brings_nobody_to_life() {
    let gate = signed();
    let just_started = Present { up_ms: 5_000, ..NOW };
    let sent_ago = |ms| report("a", NOW.wall_ms - ms);
    assert_eq!(gate.admit(&sent_ago(4_999), HERE, just_started, || false), Ok(()));
    let captured = gate.admit(&sent_ago(5_002), HERE, just_started, || false);
    assert_eq!(captured, Err(Barred::BeforeStart { age_s: 5 }));
    // Boot and sequence tell copies of a machine's reports once it is known.
    assert_eq!(gate.admit(&sent_ago(5_002), HERE, just_started, || true), Ok(()));
}

/// At whichever microsecond host and machine started, sent and looked at their clocks.
#[test]
fn what_was_sent_right_after_the_start_counts() {
    let gate = signed();
    let start_us = 1_790_000_000_000_050_u64;
    for sent_us in start_us..start_us + 3_000 {
        let report = report("a", sent_us / 1_000);
        for now_us in [sent_us, sent_us + 20, sent_us + 500, sent_us + 999, sent_us + 1_000] {
            let now = Present { wall_ms: now_us / 1_000, up_ms: (now_us - start_us) / 1_000 };
            assert_eq!(gate.admit(&report, HERE, now, || false), Ok(()), "{sent_us} {now_us}");
        }
    }
}

#[test]
fn clocks_are_not_compared_without_keys_or_where_it_is_not_wanted() {
    let unsigned = Gate { skew_max_ms: 60_000, ..Gate::default() };
    let any = Gate { skew_max_ms: 0, ..signed() };
    for gate in [unsigned, any] {
        for sent_ms in [0, 1, u64::MAX] {
            assert_eq!(gate.admit(&report("a", sent_ms), HERE, NOW, || false), Ok(()));
        }
    }
}

#[test]
fn the_first_rule_that_fits_a_name_says_where_it_may_be() {
    let rule = |machines: &str, of: &[&str]| Rule {
        machines: machines.to_owned(),
        networks: of.iter().map(|text| network(text)).collect(),
    };
    let rules = vec![rule("web-*", &["10.0.0.0/8", "fd00::/8"]), rule("*", &["192.168.1.7"])];
    let gate = Gate { rules, ..Gate::default() };
    let from = |machine, from: &str| {
        let from = from.parse().expect("an address");
        gate.admit(&report(machine, 0), from, NOW, || false).is_ok()
    };
    assert!(from("web-1", "10.255.0.1") && from("web-1", "fd12::1"));
    assert!(from("web-1", "::ffff:10.0.0.1"), "the same address on a socket of both families");
    assert!(
        !from("web-1", "11.0.0.1") && !from("web-1", "192.168.1.7") && !from("web-1", "fe80::1")
    );
    assert!(from("db", "192.168.1.7") && !from("db", "10.0.0.1"));
    let barred = gate.admit(&report("web-1", 0), IpAddr::from([11, 0, 0, 1]), NOW, || true);
    assert!(barred.expect_err("elsewhere").to_string().contains("\"web-*\""));
}

#[test]
fn networks_are_written_as_usual() {
    for good in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.1/32", "::/0", "fd00::/8", "10.1.2.0/23"] {
        assert_eq!(network(good).to_string(), good);
    }
    assert_eq!(network("10.0.0.1").to_string(), "10.0.0.1/32");
    assert!(network("0.0.0.0/0").contains(HERE) && !network("::/0").contains(HERE));
    for bad in ["10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "::1/129", "", "/8", "a/8", "10.0.0.0/-1"]
    {
        assert!(bad.parse::<Network>().is_err(), "{bad}");
    }
}

#[test]
fn a_star_is_any_characters() {
    for (pattern, name, expected) in [
        ("web", "web", true),
        ("web", "web-1", false),
        ("web-*", "web-", true),
        ("*", "", true),
        ("*-1", "web-1", true),
        ("a*a", "a", false),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-c-b", false),
        ("*b*", "abc", true),
        ("a**c", "abc", true),
        ("ä*", "äö", true),
    ] {
        assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
    }
}
