//! The simulator against closed forms, small enough for every run; `cargo bench --bench gates` has the
//! whole grid. Seeds are fixed: the figures are the same everywhere.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::chooser::{Baseline, BaselineChooser, Chooser, Servers};
use super::measure::{Estimate, Outcome};
use super::setup::{Arrivals, Content, Discipline, Service, Setup, Speeds, Timing};
use super::*;
use crate::policy::guest::{Request, TargetView};

/// A farm of 20 for tests: as exact as the forms, and soon warm.
fn small() -> Setup {
    Setup { servers: 20, utilisation: 0.5, requests: 150_000, ..Setup::default() }
}

fn outcome(setup: &Setup, baseline: Baseline) -> Outcome {
    run_baseline(setup, 1, baseline).expect("baselines do not fail")
}

fn assert_near(what: &str, figure: f64, reference: f64, tolerance: f64) {
    let off = (figure / reference - 1.0).abs();
    assert!(off <= tolerance, "{what}: {figure}, should be {reference} within {tolerance}");
}

#[test]
fn random_choice_is_one_queue_a_server() {
    let random = outcome(&small(), Baseline::Random);
    assert_near("M/M/1 mean", random.responses.mean(), 2.0, 0.02);
    assert_near("M/M/1 p99", random.responses.quantile(0.99), 9.21, 0.05);
    assert_near("M/M/1 p99.9", random.responses.quantile(0.999), 13.8, 0.08);
    assert_near("Little", random.little(), 1.0, 0.005);
    let fixed = Setup { service: Service::Fixed, ..small() };
    assert_near("M/D/1", outcome(&fixed, Baseline::Random).responses.mean(), 1.5, 0.02);
}

#[test]
fn shared_processing_does_not_care_for_the_law_of_service() {
    for service in [Service::Exponential, Service::Fixed, Service::LogNormal] {
        let shared = Setup { discipline: Discipline::Shared, service, ..small() };
        let mean = outcome(&shared, Baseline::Random).responses.mean();
        assert_near(&format!("PS, {service:?}"), mean, 2.0, 0.02);
    }
}

#[test]
fn central_queue_is_erlang_c() {
    let two = Setup { servers: 2, utilisation: 0.5, ..small() };
    // M/M/2 at 0.5: W = C / (2 - 1), C = 1/3.
    assert_near("M/M/2", outcome(&two, Baseline::Central).responses.mean(), 4.0 / 3.0, 0.02);
}

#[test]
fn better_information_is_better_in_the_known_order() {
    let farm = Setup { utilisation: 0.7, timing: Timing::Together, ..small() };
    let means = [
        Baseline::Central,
        Baseline::JsqNow,
        Baseline::P2cNow,
        Baseline::P2cReport,
        Baseline::RoundRobin,
        Baseline::Random,
    ]
    .map(|baseline| outcome(&farm, baseline).responses.mean());
    assert!(means.is_sorted(), "{means:?}");
}

#[test]
fn herd_is_seen() {
    let farm =
        Setup { servers: 100, timing: Timing::Together, requests: 50_000, ..Setup::default() };
    let share = |baseline| outcome(&farm, baseline).herd_share;
    assert_near("random", share(Baseline::Random), 0.0445, 0.05);
    assert_near("round robin", share(Baseline::RoundRobin), 0.0125, 0.05);
    assert_near("lowest report", share(Baseline::LowestReport), 0.127, 0.08);
}

#[test]
fn same_seed_same_run_and_every_strategy_meets_the_same_requests() {
    let farm = Setup { requests: 5_000, loss: 0.1, delay: 0.3, ..small() };
    let run = |seed| run_baseline(&farm, seed, Baseline::P2cReport).expect("no failure");
    let bits = |outcome: &Outcome| outcome.responses.mean().to_bits();
    assert_eq!(bits(&run(1)), bits(&run(1)));
    assert_ne!(bits(&run(1)), bits(&run(2)));
    let [one, other] = [Baseline::Random, Baseline::JsqNow].map(|who| outcome(&farm, who));
    assert_eq!(one.rate.to_bits(), other.rate.to_bits(), "the same arrivals");
}

/// Records what it is told.
struct Witness {
    inner: BaselineChooser,
    told: Rc<RefCell<Vec<(u64, TargetView)>>>,
    left: Rc<Cell<u64>>,
}

impl Chooser for Witness {
    fn update(&mut self, now_ms: u64, hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        self.told.borrow_mut().extend(targets.iter().map(|target| (now_ms, *target)));
        self.inner.update(now_ms, hosts, targets)
    }

    fn leave(&mut self, slot: u32) -> Result<(), String> {
        self.left.set(self.left.get() + 1);
        self.inner.leave(slot)
    }

    fn pick(&mut self, request: &Request, servers: &Servers<'_>) -> Result<Option<u32>, String> {
        self.inner.pick(request, servers)
    }
}

fn witnessed(setup: &Setup) -> (Vec<(u64, TargetView)>, u64, Outcome) {
    let (told, left) = <(Rc<_>, Rc<Cell<u64>>)>::default();
    let outcome = run(setup, 1, |host| {
        let inner = BaselineChooser::new(Baseline::Random, host);
        let (told, left) = (Rc::clone(&told), Rc::clone(&left));
        Ok(Box::new(Witness { inner, told, left }))
    });
    let outcome = outcome.expect("no failure");
    (told.take(), left.get(), outcome)
}

#[test]
fn reports_say_what_the_setup_says() {
    let farm = Setup { servers: 3, requests: 3_000, delay: 0.5, ..small() };
    let (told, _, _) = witnessed(&farm);
    let late = told.iter().filter(|(now_ms, _)| *now_ms > 0);
    assert!(late.clone().all(|(_, view)| view.age_ms == 500), "half a unit old");
    assert!(late.clone().all(|(_, v)| v.accepted == v.completed + u64::from(v.in_flight)));
    assert!(late.clone().any(|(_, view)| view.picks > 0), "picks since the capture");
    let load = Setup { content: Content::Utilisation, ..farm.clone() };
    let (told, _, _) = witnessed(&load);
    assert!(told.iter().all(|(_, view)| view.accepted == 0 && view.load < 1.5));
    let slow = Setup { speeds: Speeds::Halves, speeds_known: true, ..farm };
    let (told, _, _) = witnessed(&slow);
    assert!(told.iter().all(|(_, view)| [0.5, 1.5].contains(&view.weight)));
}

#[test]
fn a_crashed_server_is_called_gone_and_returns() {
    let incident = Some((20.0, 60.0));
    let farm = Setup { servers: 3, requests: 300, incident, slowed_to: 0.0, ..small() };
    let (told, left, _) = witnessed(&farm);
    assert_eq!(left, 1, "gone once");
    let first = told.iter().filter(|(_, view)| view.slot == 0).map(|(now_ms, _)| *now_ms / 1_000);
    let (before, after): (Vec<_>, Vec<_>) = first.partition(|second| *second < 40);
    assert!(before.iter().all(|second| *second <= 20) && after.iter().all(|second| *second >= 60));
    assert!(!after.is_empty(), "heard again");
}

#[test]
fn intervals_are_exact_where_they_can_be() {
    let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
    assert_near("mean", estimate.mean, 2.0, 1e-12);
    assert_near("interval", estimate.within, 4.303 / 3.0_f64.sqrt(), 1e-9);
}

#[test]
fn step_is_more_than_all_can_do_and_ends() {
    let farm = Setup { utilisation: 0.6, requests: 20_000, ..small() };
    let longest = |arrivals| outcome(&Setup { arrivals, ..farm.clone() }, Baseline::Central).inside;
    let (even, step) = (longest(Arrivals::Poisson), longest(Arrivals::Step));
    assert!(step > 2.0 * even, "{step} inside instead of {even}");
}
