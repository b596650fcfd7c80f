//! What the simulator does and tells. Seeds are fixed: the figures are the same everywhere.

mod references;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::chooser::{Baseline, BaselineChooser, Chooser, Servers};
use super::measure::{Estimate, Outcome};
use super::setup::{Arrivals, Content, Discipline, Service, Setup, Speeds, Timing};
use super::*;
use crate::policy::guest::{Request, TargetView};

/// A farm of 20 for tests.
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
fn same_seed_same_run_and_every_strategy_meets_the_same_requests() {
    let farm = Setup { requests: 5_000, loss: 0.1, delay: 0.3, ..small() };
    let run = |seed| run_baseline(&farm, seed, Baseline::P2cReport).expect("no failure");
    let bits = |outcome: &Outcome| outcome.responses.mean().to_bits();
    assert_eq!(bits(&run(1)), bits(&run(1)));
    assert_ne!(bits(&run(1)), bits(&run(2)));
    let [one, other] = [Baseline::Random, Baseline::JsqNow].map(|who| outcome(&farm, who));
    assert_eq!(one.rate.to_bits(), other.rate.to_bits(), "the same arrivals");
}

/// What a host told its strategies, and asked them.
#[derive(Default)]
struct Seen {
    /// With its time in milliseconds.
    told: RefCell<Vec<(u64, TargetView)>>,
    asked: RefCell<Vec<(Request, u32)>>,
    left: Cell<u64>,
}

/// Records what it is told and asked.
struct Witness {
    inner: Box<dyn Chooser>,
    seen: Rc<Seen>,
}

impl Chooser for Witness {
    fn update(&mut self, now_ms: u64, hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        self.seen.told.borrow_mut().extend(targets.iter().map(|target| (now_ms, *target)));
        self.inner.update(now_ms, hosts, targets)
    }

    fn leave(&mut self, slot: u32) -> Result<(), String> {
        self.seen.left.set(self.seen.left.get() + 1);
        self.inner.leave(slot)
    }

    fn pick(&mut self, request: &Request, servers: &Servers<'_>) -> Result<Option<u32>, String> {
        let picked = self.inner.pick(request, servers)?;
        self.seen.asked.borrow_mut().push((*request, picked.expect("baselines always choose")));
        Ok(picked)
    }
}

/// Runs this farm with one seed; what each host's strategy saw.
fn witnessed(setup: &Setup, baseline: Baseline) -> (Vec<Rc<Seen>>, Outcome) {
    let mut all = Vec::new();
    let outcome = run(setup, 1, |host| {
        let inner = Box::new(BaselineChooser::new(baseline, host));
        let seen = Rc::new(Seen::default());
        all.push(Rc::clone(&seen));
        Ok(Box::new(Witness { inner, seen }))
    });
    (all, outcome.expect("no failure"))
}

/// What one host's strategy was told.
fn told(setup: &Setup) -> Vec<(u64, TargetView)> {
    witnessed(setup, Baseline::Random).0[0].told.take()
}

#[test]
fn reports_say_what_the_setup_says() {
    let farm = Setup { servers: 3, requests: 3_000, delay: 0.5, outcomes: false, ..small() };
    let views = told(&farm);
    let late = views.iter().filter(|(now_ms, _)| *now_ms > 0);
    assert!(late.clone().all(|(_, view)| view.age_ms == 500), "half a unit old");
    assert!(late.clone().all(|(_, v)| v.accepted == v.completed + u64::from(v.in_flight)));
    assert!(late.clone().any(|(_, view)| view.picks > 0), "picks since the capture");
    assert!(late.clone().all(|(_, view)| (view.latency_us, view.error_rate) == (0, 0.0)));
    let load = Setup { content: Content::Utilisation, ..farm.clone() };
    assert!(told(&load).iter().all(|(_, view)| view.accepted == 0 && view.load < 1.5));
    let slow = Setup { speeds: Speeds::Halves, speeds_known: true, ..farm };
    assert!(told(&slow).iter().all(|(_, view)| [0.5, 1.5].contains(&view.weight)));
}

#[test]
fn a_crashed_server_is_called_gone_and_returns() {
    let incident = Some((20.0, 60.0));
    let farm = Setup { servers: 3, requests: 300, incident, slowed_to: 0.0, ..small() };
    let seen = witnessed(&farm, Baseline::Random).0.remove(0);
    let told = seen.told.take();
    assert_eq!(seen.left.get(), 1, "gone once");
    let first = told.iter().filter(|(_, view)| view.slot == 0).map(|(now_ms, _)| *now_ms / 1_000);
    let (before, after): (Vec<_>, Vec<_>) = first.partition(|second| *second < 40);
    assert!(before.iter().all(|second| *second <= 20) && after.iter().all(|second| *second >= 60));
    assert!(!after.is_empty(), "heard again");
}

#[test]
fn hosts_bear_loss_as_a_fleet_does() {
    let farm = Setup { servers: 3, requests: 15_000, loss: 0.5, ..small() };
    let seen = witnessed(&farm, Baseline::Random).0.remove(0);
    // Of 10,000 units: three reports in a row are lost every sixteenth time.
    assert!(seen.left.get() <= 3, "only who is not known yet: {}", seen.left.get());
}

#[test]
fn hosts_tell_how_their_own_requests_went() {
    let farm = Setup { servers: 3, hosts: 2, every: 100.0, requests: 3_000, ..small() };
    let (seen, outcome) = witnessed(&farm, Baseline::RoundRobin);
    for seen in &seen {
        let told = seen.told.take();
        let (first, later) = told.split_at(farm.servers);
        assert!(first.iter().all(|(_, view)| view.latency_us == 0), "nothing is known yet");
        let between = later.iter().filter(|(_, view)| view.age_ms % 100_000 > 0);
        assert!(between.clone().count() > 1_000, "not only with reports");
        let sum: f64 = between.clone().map(|(_, view)| f64::from(view.latency_us)).sum();
        // A unit is a second.
        let mean = sum / between.clone().count() as f64 / 1e6;
        assert_near("latency", mean, outcome.responses.mean(), 0.15);
        assert!(between.clone().all(|(_, view)| view.error_rate <= 0.0));
    }
}

#[test]
fn one_report_has_one_time_of_capture() {
    let farm = Setup { servers: 3, every: 10.0, requests: 3_000, ..small() };
    let mut captures = vec![0; farm.servers];
    let views = told(&farm);
    assert!(views.len() > 2_000, "told again with outcomes");
    for (now_ms, view) in views {
        let captured_ms = now_ms - u64::from(view.age_ms);
        let before_ms = std::mem::replace(&mut captures[view.slot as usize], captured_ms);
        let between_ms = captured_ms.abs_diff(before_ms);
        assert!(between_ms == 0 || before_ms == 0 || between_ms > 9_000, "{between_ms} ms later");
    }
}

#[test]
fn strategies_have_their_own_milliseconds() {
    let farm = Setup { servers: 3, requests: 3_000, delay: 0.5, service_ms: 40.0, ..small() };
    let told = told(&farm);
    let (end_ms, _) = told[told.len() - 1];
    assert!((70_000..90_000).contains(&end_ms), "2000 units: {end_ms}");
    let reports = told.iter().filter(|(now_ms, view)| *now_ms > 0 && view.age_ms == 20);
    assert!(reports.clone().count() > 5_000, "half a unit old");
    let late = reports.filter(|(now_ms, _)| *now_ms > 20_000);
    assert!(late.clone().all(|(_, view)| (30_000..120_000).contains(&view.latency_us)));
}

#[test]
fn server_that_fails_fast_looks_empty_and_is_told_as_failing() {
    let farm = Setup { servers: 10, utilisation: 0.8, requests: 20_000, ..small() };
    let failing = Setup { failures: 0.9, ..farm.clone() };
    let (seen, outcome) = witnessed(&failing, Baseline::JsqNow);
    let asked = seen[0].asked.borrow();
    let its = asked.iter().filter(|(_, server)| *server == 0).count();
    assert!(its > asked.len() / 5, "the shortest queue is a trap: {its}");
    let failed = outcome.failed as f64 / outcome.responses.count() as f64;
    assert!(failed > 0.2, "{failed}");
    assert_near("Little", outcome.little(), 1.0, 0.01);
    let told = seen[0].told.borrow();
    let rates = |first: bool| {
        let its =
            told.iter().filter(|(now_ms, view)| *now_ms > 50_000 && (view.slot == 0) == first);
        let rates: Vec<_> = its.map(|(_, view)| f64::from(view.error_rate)).collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    };
    assert_near("error rate", rates(true), 0.9, 0.02);
    assert!(rates(false) <= 0.0);
    let incident = Some((50.0, 100.0));
    let (seen, _) = witnessed(&Setup { incident, slowed_to: 1.0, ..failing }, Baseline::JsqNow);
    let told = seen[0].told.borrow();
    let mut failed = told.iter().filter(|(_, view)| view.error_rate > 0.01);
    let [first, last] = [failed.next(), failed.next_back()].map(|told| told.expect("some").0);
    assert!((50_000..52_000).contains(&first), "{first}");
    assert!((100_000..180_000).contains(&last), "averages fade: {last}");
}

#[test]
fn requests_carry_keys_and_what_moves_is_seen() {
    let farm = Setup { servers: 4, keys: 50, requests: 20_000, ..small() };
    let (seen, random) = witnessed(&farm, Baseline::Random);
    let asked = seen[0].asked.borrow();
    let mut counts = std::collections::HashMap::new();
    asked.iter().for_each(|(request, _)| *counts.entry(request.key).or_insert(0_u64) += 1);
    assert!(counts.len() == 50 && !counts.contains_key(&0));
    let most = counts.values().max().copied().unwrap_or_default();
    assert_near("the most frequent, by Zipf", most as f64 / asked.len() as f64, 0.2223, 0.05);
    assert_near("moved at random", random.moved, 0.75, 0.03);
    /// One key, one server.
    struct ByKey;
    impl Chooser for ByKey {
        fn update(&mut self, _: u64, _: u32, _: &[TargetView]) -> Result<(), String> {
            Ok(())
        }
        fn leave(&mut self, _: u32) -> Result<(), String> {
            Ok(())
        }
        fn pick(&mut self, request: &Request, _: &Servers<'_>) -> Result<Option<u32>, String> {
            Ok(Some((request.key % 4) as u32))
        }
    }
    let fixed = run(&farm, 1, |_| Ok(Box::new(ByKey))).expect("no failure");
    assert!(fixed.moved <= 0.0 && fixed.evenness < random.evenness);
    let without = witnessed(&Setup { keys: 0, ..farm }, Baseline::Random);
    assert!(without.0[0].asked.borrow().iter().all(|(request, _)| request.key == 0));
    assert!(without.1.moved.is_nan());
}

#[test]
fn cost_is_the_work_where_it_is_known() {
    let costs = |costs_known| {
        let farm = Setup { servers: 4, requests: 20_000, costs_known, ..small() };
        let asked = witnessed(&farm, Baseline::Random).0[0].asked.take();
        asked.iter().map(|(request, _)| request.cost).collect::<Vec<_>>()
    };
    let known = costs(true);
    assert_near("mean", known.iter().sum::<f64>() / known.len() as f64, 1.0, 0.03);
    assert!(known.iter().any(|cost| *cost > 3.0));
    assert!(costs(false).iter().all(|cost| cost.to_bits() == 1.0_f64.to_bits()));
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
