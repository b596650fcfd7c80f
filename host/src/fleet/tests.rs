//! Order, liveness and loss by virtual time.

mod liveness;
mod names;
mod rows;

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::*;
use crate::report::DEFAULT_SERVICE;
use crate::report::{Metrics, Service};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn report(machine: &str, boot: u64, seq: u64) -> Report<'_> {
    Report {
        farm: "farm",
        machine,
        boot,
        seq,
        interval_ms: 1_000,
        delay_ms: 0,
        state: State::Ready,
        weight: 1.0,
        metrics: Metrics { names: vec!["cpu"].into(), values: vec![0.5] },
        services: Vec::new(),
        labels: Vec::new(),
        sent_ms: 0,
        hops: 0,
    }
}

fn fleet() -> Fleet {
    Fleet::new("farm".to_owned(), 3)
}

/// Silence after which a machine of which one report was heard is gone.
const NEWCOMER_MS: u64 = 6_500;

fn alive(fleet: &Fleet) -> Vec<&str> {
    fleet.machines().filter(|(_, m)| m.alive).map(|(_, m)| &*m.name).collect()
}

#[test]
fn older_report_does_not_replace_newer() {
    let mut fleet = fleet();
    let first = fleet.apply(&report("a", 5, 7), HERE, 0);
    let Applied::Joined(id) = first else { panic!("a new machine") };
    assert_eq!(fleet.apply(&report("a", 5, 7), HERE, 1), Applied::Duplicate);
    assert_eq!(fleet.apply(&report("a", 5, 6), HERE, 1), Applied::Older);
    assert_eq!(fleet.apply(&report("a", 4, 99), HERE, 1), Applied::OldBoot);
    let restarted = fleet.apply(&report("a", 6, 1), HERE, 1);
    assert_eq!(restarted, Applied::Changed(id));
    let foreign = Report { farm: "other", ..report("a", 9, 9) };
    assert_eq!(fleet.apply(&foreign, HERE, 1), Applied::ForeignFarm);
}

/// By two interfaces, of which one has an address of its link alone.
#[test]
fn source_of_one_link_is_the_last_choice() {
    let [link, wide]: [IpAddr; 2] = ["fe80::2", "10.0.0.2"].map(|ip| ip.parse().expect("one"));
    let mut fleet = fleet();
    let mut hear = |seq, from| {
        let applied = fleet.apply(&report("a", 1, seq), from, seq);
        let (_, machine) = fleet.machines().next().expect("it is known");
        let is_changed = !matches!(applied, Applied::Duplicate);
        (is_changed, machine.source, machine.services[0].address.to_string())
    };
    let by = |is_changed, source: IpAddr, address: &str| (is_changed, source, address.to_owned());
    assert_eq!(hear(1, link), by(true, link, "[fe80::2]"), "nothing else is known");
    assert_eq!(hear(1, wide), by(true, wide, "10.0.0.2"), "a better one");
    for seq in 2..20 {
        assert_eq!(hear(seq, link), by(true, wide, "10.0.0.2"), "it came first");
        assert_eq!(hear(seq, wide), by(false, wide, "10.0.0.2"));
    }
    for seq in 20..23 {
        assert_eq!(hear(seq, link), by(true, wide, "10.0.0.2"), "lost by the other way");
    }
    assert_eq!(hear(23, link), by(true, link, "[fe80::2]"), "the other way is no more");
    assert_eq!(hear(24, wide), by(true, wide, "10.0.0.2"));
    assert_eq!(hear(24, link), by(false, wide, "10.0.0.2"));
}

#[test]
fn gone_is_said_once_and_the_next_report_brings_it_back() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 1, 1), HERE, 0);
    assert!(fleet.expire(NEWCOMER_MS).is_empty());
    assert_eq!(fleet.expire(NEWCOMER_MS + 1).len(), 1);
    assert!(fleet.expire(NEWCOMER_MS + 2).is_empty());
    assert!(alive(&fleet).is_empty());
    fleet.apply(&report("a", 1, 9), HERE, 10_000);
    assert_eq!(alive(&fleet), ["a"]);
}

/// A virtual machine that is restored from a snapshot: the same boot, lower numbers.
#[test]
fn lower_numbers_count_when_the_machine_is_gone() {
    let mut fleet = fleet();
    let sent = |seq, sent_ms| Report { sent_ms, ..report("a", 1, seq) };
    let Applied::Joined(id) = fleet.apply(&sent(100, 0), HERE, 0) else { panic!("it is new") };
    assert_eq!(fleet.apply(&sent(40, 0), HERE, 1_000), Applied::Older);
    fleet.expire(7_000);
    assert_eq!(fleet.apply(&sent(100, 0), HERE, 7_000), Applied::Duplicate);
    assert_eq!(fleet.apply(&sent(40, 0), HERE, 7_000), Applied::Joined(id));
    assert_eq!(fleet.apply(&sent(41, 90), HERE, 8_000), Applied::Changed(id));
    assert_eq!(fleet.get(id).expect("it is there").loss.lost, 0);
    // With a stamp only what is newer.
    fleet.expire(20_000);
    assert_eq!(fleet.apply(&sent(20, 90), HERE, 20_000), Applied::Older);
    assert_eq!(fleet.apply(&sent(20, 0), HERE, 20_000), Applied::Older);
    assert_eq!(fleet.apply(&sent(20, 91), HERE, 20_000), Applied::Joined(id));
    // Who has left does not come back by an old report.
    fleet.apply(&Report { state: State::Leaving, ..sent(21, 92) }, HERE, 21_000);
    assert_eq!(fleet.apply(&sent(20, 93), HERE, 22_000), Applied::Older);
}

#[test]
fn one_late_report_is_no_death() {
    let mut fleet = fleet();
    for seq in 1..100 {
        // Every third report is lost, the others are late by up to 900 ms.
        let received_ms = seq * 1_000 + (seq * 7_919) % 900;
        assert!(fleet.expire(received_ms).is_empty());
        if seq % 3 != 0 {
            fleet.apply(&report("a", 1, seq), HERE, received_ms);
        }
    }
    let (_, machine) = fleet.by_name("a").expect("known");
    assert_eq!(machine.loss.lost, 32);
}

#[test]
fn leaving_takes_out_at_once() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 1, 1), HERE, 0);
    fleet.apply(&Report { state: State::Leaving, ..report("a", 1, 2) }, HERE, 10);
    assert!(alive(&fleet).is_empty());
    assert!(fleet.expire(11).is_empty());
}

#[test]
fn what_is_gone_is_forgotten_and_its_number_used_again() {
    let mut fleet = fleet();
    let Applied::Joined(first) = fleet.apply(&report("a", 1, 1), HERE, 0) else {
        panic!("a new machine");
    };
    fleet.expire(NEWCOMER_MS + 1);
    fleet.expire(FORGET_AFTER_MS + 1);
    assert_eq!(fleet.machines().count(), 0);
    assert_eq!(fleet.apply(&report("b", 1, 1), HERE, 0), Applied::Joined(first));
    assert!(fleet.by_name("a").is_none());
}

#[test]
fn age_counts_from_the_capture() {
    let mut fleet = fleet();
    fleet.apply(&Report { delay_ms: 300, ..report("a", 1, 1) }, HERE, 1_000);
    let (_, machine) = fleet.by_name("a").expect("known");
    assert_eq!((machine.received_ms, machine.captured_ms), (1_000, 700));
}

#[test]
fn same_metric_names_are_shared() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 1, 1), HERE, 0);
    fleet.apply(&report("b", 1, 1), HERE, 0);
    fleet.apply(&report("b", 1, 2), HERE, 0);
    let names = |name| &fleet.by_name(name).expect("known").1.metrics.names;
    assert!(Arc::ptr_eq(names("a"), names("b")));
}

#[test]
fn not_a_number_is_not_reported() {
    let mut fleet = fleet();
    let metrics = Metrics { names: vec!["cpu", "memory"].into(), values: vec![f64::NAN, 0.25] };
    fleet.apply(&Report { metrics, ..report("a", 1, 1) }, HERE, 0);
    let (_, machine) = fleet.by_name("a").expect("known");
    assert_eq!(machine.metrics.get("cpu"), None);
    assert_eq!(machine.metrics.get("memory"), Some(0.25));
}

#[test]
fn services_come_change_and_go() {
    let mut fleet = fleet();
    let service = |name, address| Service {
        name,
        address,
        weight: 2.0,
        metrics: Metrics::default(),
        accepted: 0,
        completed: 0,
        in_flight: 3,
        labels: Vec::new(),
    };
    fleet.apply(&report("a", 1, 1), HERE, 0);
    assert_eq!(&*fleet.by_name("a").expect("known").1.services[0].name, DEFAULT_SERVICE);
    let services = vec![service("web", "10.0.0.1:80"), service("api", "")];
    fleet.apply(&Report { services, ..report("a", 1, 2) }, HERE, 0);
    let machine = fleet.by_name("a").expect("known").1;
    assert_eq!(&*machine.services[0].address, "10.0.0.1:80");
    assert_eq!(&*machine.services[1].address, "127.0.0.1");
    assert_eq!(machine.services[1].in_flight, 3);
}
