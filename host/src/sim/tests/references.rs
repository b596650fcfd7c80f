//! The simulator against closed forms and reference runs, small enough for every run; `cargo bench
//! --bench gates` has the whole tables. Tolerances: 2 % of a mean, 5 % of a 99th and 8 % of a 99.9th
//! percentile.

use super::*;
use crate::sim::rules::Rule;

/// A farm of 20 without what nobody here listens to: as exact as the forms, and soon warm.
fn small() -> Setup {
    Setup { outcomes: false, ..super::small() }
}

#[track_caller]
fn assert_mean(what: &str, setup: &Setup, baseline: Baseline, reference: f64) -> Outcome {
    let outcome = outcome(setup, baseline);
    assert_near(what, outcome.responses.mean(), reference, 0.02);
    assert_near(&format!("{what}: Little"), outcome.little(), 1.0, 0.005);
    outcome
}

#[track_caller]
fn assert_tails(what: &str, outcome: &Outcome, p99: f64, p999: f64) {
    assert_near(&format!("{what}: p99"), outcome.responses.quantile(0.99), p99, 0.05);
    assert_near(&format!("{what}: p99.9"), outcome.responses.quantile(0.999), p999, 0.08);
}

/// Mean response of n servers in turn: a queue with Erlang arrivals, whose sigma is a fixed point.
fn in_turns(servers: f64, rho: f64) -> f64 {
    let mut sigma = rho;
    for _ in 0..10_000 {
        sigma = (servers * rho / (servers * rho + 1.0 - sigma)).powf(servers);
    }
    1.0 / (1.0 - sigma)
}

/// Mean response of n servers with one queue (Erlang C).
fn one_queue(servers: u32, rho: f64) -> f64 {
    let load = f64::from(servers) * rho;
    let blocked = (1..=servers).fold(1.0, |b, n| load * b / (f64::from(n) + load * b));
    let waits = blocked / (1.0 - rho * (1.0 - blocked));
    1.0 + waits / (f64::from(servers) * (1.0 - rho))
}

/// Mean response of the shortest of `drawn` queues, among very many.
fn shortest_of(drawn: i32, rho: f64) -> f64 {
    let exponent = |level: i32| f64::from(drawn.pow(level as u32) - drawn) / f64::from(drawn - 1);
    (1..12).map(|level| rho.powf(exponent(level))).sum()
}

#[test]
fn forms_give_the_figures_of_the_literature() {
    for (rho, expected) in [(0.5, 1.2619), (0.7, 1.8905), (0.9, 5.2268), (0.99, 50.666)] {
        assert_near("E100/M/1", in_turns(100.0, rho), expected, 1e-4);
    }
    assert_near("D/M/1", in_turns(1e6, 0.9), 5.1787, 1e-4);
    for (servers, rho, wait) in [(2, 0.9, 4.26316), (10, 0.9, 0.66873), (100, 0.95, 0.10129)] {
        assert_near("M/M/n", one_queue(servers, rho), 1.0 + wait, 1e-5);
    }
    for (rho, two, three) in [(0.5, 1.2657, 1.1252), (0.9, 2.6141, 2.0279), (0.99, 5.4320, 3.8578)]
    {
        assert_near("two drawn", shortest_of(2, rho), two, 1e-4);
        assert_near("three drawn", shortest_of(3, rho), three, 1e-4);
    }
}

#[test]
fn random_choice_is_one_queue_a_server() {
    let random = assert_mean("M/M/1", &small(), Baseline::Random, 2.0);
    assert_tails("M/M/1", &random, 9.21, 13.8);
    let fixed = Setup { service: Service::Fixed, ..small() };
    assert_mean("M/D/1", &fixed, Baseline::Random, 1.5);
    let law = Setup { service: Service::LogNormal, ..small() };
    assert_mean("M/G/1, as much spread as exponential", &law, Baseline::Random, 2.0);
}

#[test]
fn shared_processing_does_not_care_for_the_law_of_service() {
    for service in [Service::Exponential, Service::Fixed, Service::LogNormal] {
        let shared = Setup { discipline: Discipline::Shared, service, ..small() };
        assert_mean(&format!("PS, {service:?}"), &shared, Baseline::Random, 2.0);
    }
}

#[test]
fn turns_are_a_queue_with_even_arrivals() {
    let farm = small();
    assert_mean("E20/M/1", &farm, Baseline::RoundRobin, in_turns(20.0, 0.5));
    let fuller = Setup { utilisation: 0.7, ..farm };
    assert_mean("E20/M/1 at 0.7", &fuller, Baseline::RoundRobin, in_turns(20.0, 0.7));
}

#[test]
fn central_queue_is_erlang_c() {
    for (servers, utilisation) in [(2, 0.5), (5, 0.8)] {
        let farm = Setup { servers, utilisation, ..small() };
        let reference = one_queue(u32::try_from(servers).expect("few"), utilisation);
        assert_mean(&format!("M/M/{servers}"), &farm, Baseline::Central, reference);
    }
}

#[test]
fn shortest_of_drawn_ones_is_as_known() {
    let farm = Setup { servers: 500, ..small() };
    let two = assert_mean("two", &farm, Baseline::P2cNow, shortest_of(2, 0.5));
    assert_tails("two", &two, 5.58, 8.18);
    assert_mean("three", &farm, Baseline::P3cNow, shortest_of(3, 0.5));
    let fuller = Setup { servers: 100, utilisation: 0.7, ..small() };
    assert_mean("two of a hundred at 0.7", &fuller, Baseline::P2cNow, 1.621);
}

#[test]
fn shortest_queue_is_as_in_the_reference_run() {
    let farm = Setup { servers: 100, utilisation: 0.7, ..small() };
    let shortest = assert_mean("shortest", &farm, Baseline::JsqNow, 1.0003);
    assert_tails("shortest", &shortest, 4.61, 6.88);
}

#[test]
fn unequal_servers_are_as_in_the_reference_runs() {
    let farm = Setup { servers: 100, utilisation: 0.7, speeds: Speeds::Halves, ..small() };
    let sed = assert_mean("SED, halves", &farm, Baseline::SedNow, 0.855);
    assert_near("its p99", sed.responses.quantile(0.99), 3.71, 0.05);
    let never = assert_mean("never queue, halves", &farm, Baseline::NeverQueueNow, 0.762);
    assert_near("its p99", never.responses.quantile(0.99), 4.26, 0.05);
    assert_mean("shortest, halves", &farm, Baseline::JsqNow, 1.069);
    assert_mean("by speed, halves", &farm, Baseline::SpeedRandom, 1.0 / 0.3);
    let tenth = Setup { speeds: Speeds::SlowTenth, ..farm };
    assert_mean("SED, a slow tenth", &tenth, Baseline::SedNow, 1.0);
    assert_mean("shortest, a slow tenth", &tenth, Baseline::JsqNow, 1.114);
}

#[test]
fn rules_by_reports_are_as_in_the_reference_runs() {
    // At 0.7 little is left to chance in a short run.
    let farm = |every| Setup { servers: 100, utilisation: 0.7, every, ..small() };
    assert_mean("lowest", &farm(1.0), Baseline::LowestReport, 1.87);
    assert_mean("two drawn", &farm(1.0), Baseline::P2cReport, 1.85);
    assert_mean("two drawn, T = 10", &farm(10.0), Baseline::P2cReport, 3.07);
    assert_mean("drained", &farm(1.0), Baseline::Rule(Rule::Drained), 1.22);
    assert_mean("drained, T = 10", &farm(10.0), Baseline::Rule(Rule::Drained), 1.72);
}

#[test]
fn herd_is_seen() {
    let farm = Setup { servers: 100, timing: Timing::Together, utilisation: 0.9, ..small() };
    let share = |baseline| outcome(&farm, baseline).herd_share;
    assert_near("random", share(Baseline::Random), 0.0445, 0.05);
    assert_near("round robin", share(Baseline::RoundRobin), 0.0125, 0.05);
    assert_near("lowest report", share(Baseline::LowestReport), 0.127, 0.08);
    assert_near("two drawn", share(Baseline::P2cReport), 0.052, 0.05);
    assert_near("drained", share(Baseline::Rule(Rule::Drained)), 0.023, 0.08);
    assert_near("water", share(Baseline::Rule(Rule::BasicInterpretation)), 0.067, 0.05);
}
