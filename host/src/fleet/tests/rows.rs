//! Rows that are written over and over: as those of a fleet that hears the last report first.

use proptest::prelude::*;

use super::*;
use crate::report::Keyring;
use crate::report::wire::{self, Decoder};

/// What is told of a machine.
fn row(fleet: &Fleet) -> String {
    let (_, machine) = fleet.by_name("a").expect("known");
    let Machine { source, weight, metrics, services, labels, .. } = machine;
    format!("{source} {weight} {metrics:?} {services:?} {labels:?}")
}

fn metrics() -> impl Strategy<Value = Metrics<'static>> {
    let metric = (prop::sample::select(vec!["cpu", "memory", "ä"]), 0.0..9.0);
    prop::collection::vec(metric, 0..3).prop_map(|metrics| metrics.into_iter().collect())
}

fn services() -> impl Strategy<Value = Vec<Service<'static>>> {
    let words = (prop::sample::select(vec!["", ":80", "10.0.0.9:1"]), any::<bool>());
    let service = (words, 0.5..2.0, metrics(), any::<u32>());
    prop::collection::vec(service, 0..3).prop_map(|services| {
        let named = [DEFAULT_SERVICE, "web"].into_iter().zip(services);
        let service = |(name, generated): (_, _)| {
            let ((address, has_label), weight, metrics, in_flight) = generated;
            let labels = if has_label { vec![("zone", "x")] } else { Vec::new() };
            let counts = Service { in_flight, accepted: 7, ..Service::implied() };
            Service { name, address, weight, metrics, labels, ..counts }
        };
        named.map(service).collect()
    })
}

proptest! {
    #[test]
    fn row_tells_the_last_report_however_it_came_about(
        reported in prop::collection::vec((metrics(), services(), 0.5..2.0, any::<bool>()), 1..12),
    ) {
        let none = Keyring::default();
        let (mut borrowed, mut decoded, mut decoder) = (fleet(), fleet(), Decoder::new());
        for ((metrics, services, weight, is_here), seq) in reported.into_iter().zip(1..) {
            let from = if is_here { HERE } else { IpAddr::from([10, 0, 0, 2]) };
            let report = Report { metrics, services, weight, ..report("a", 1, seq) };
            borrowed.apply(&report, from, seq);
            let frame = wire::encode(std::slice::from_ref(&report), &none).expect("good");
            let mut reports = Vec::new();
            decoder.decode_onto(&mut reports, &frame, &none).expect("own frame");
            decoded.apply(&reports[0], from, seq);
            decoder.reuse(reports);
            let mut new = fleet();
            new.apply(&report, from, seq);
            prop_assert_eq!(row(&borrowed), row(&new));
            prop_assert_eq!(row(&decoded), row(&new));
        }
    }
}

#[test]
fn names_of_a_decoder_are_shared_and_stay() {
    let none = Keyring::default();
    let (mut fleet, mut decoder) = (fleet(), Decoder::new());
    let mut names = Vec::new();
    for (machine, seq) in [("a", 1), ("b", 1), ("a", 2), ("b", 2)] {
        let frame = wire::encode(&[report(machine, 1, seq)], &none).expect("a good report");
        let mut reports = Vec::new();
        decoder.decode_onto(&mut reports, &frame, &none).expect("own frame");
        fleet.apply(&reports[0], HERE, seq);
        decoder.reuse(reports);
        names.push(Arc::clone(&fleet.by_name(machine).expect("known").1.metrics.names));
    }
    assert!(names.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1])));
}

#[test]
fn many_are_found_as_each_is() {
    let mut fleet = fleet();
    let reports = ["a", "b", "new", "a"].map(|machine| report(machine, 1, 1));
    for report in &reports[..2] {
        fleet.apply(report, HERE, 0);
    }
    let found = fleet.find_all(&reports);
    let each: Vec<_> = reports.iter().map(|report| fleet.find(report.machine)).collect();
    assert_eq!(found, each);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true]);
}
