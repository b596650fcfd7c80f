//! The simulator against theory and against reference runs of another one.
//!
//! Closed forms are computed by hand or taken from the literature named in `config/scenarios`. The
//! reference runs, here and in `reports.rs`, are those of an independent simulator that meets the closed
//! forms to 0.3 %; its figures are rounded to three digits.

use loadline::sim::chooser::Baseline as B;
use loadline::sim::measure::{Estimate, Outcome, reacted_after};
use loadline::sim::rules::Rule;
use loadline::sim::setup::{Discipline, Service, Setup, Speeds, Timing};

use crate::{REQUESTS, SLOWED_SEEDS, Who, runs, runs_of, shares_by_unit};

/// Share by which a mean, a 99th and a 99.9th percentile may be off.
pub(crate) const TOLERANCES: [f64; 3] = [0.02, 0.05, 0.08];
/// Shares by which Little's law may be missed, because requests are inside at both ends of a run: of the
/// closed forms, whose runs are long, and of the reference runs.
const LITTLE_LONG: f64 = 0.005;
pub(crate) const LITTLE: f64 = 0.01;

/// Name, who and where; mean, p99 and p99.9 (0: no reference).
type Case = (&'static str, B, Setup, [f64; 3]);

/// Of closed forms, which are exact, and of reference runs that some rules make scatter: as many as those.
pub(crate) const REQUESTS_LONG: u64 = 2_000_000;

pub(crate) fn farm() -> Setup {
    Setup { requests: REQUESTS, outcomes: false, ..Setup::default() }
}

fn at(utilisation: f64) -> Setup {
    Setup { utilisation, ..farm() }
}

/// Prints a figure, what it should be and how far it may be from that.
fn agrees(what: &str, figure: f64, reference: f64, tolerance: f64) -> bool {
    let off = figure / reference - 1.0;
    let good = off.abs() <= tolerance;
    let verdict = if good { "" } else { " **MISSED**" };
    println!("| {what} | {figure:.4} | {reference:.4} | {:+.2} %{verdict} |", off * 100.0);
    good
}

fn figure(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    Estimate::of(&outcomes.iter().map(of).collect::<Vec<_>>()).mean
}

/// Mean, 99th and 99.9th percentile.
fn figures(outcomes: &[Outcome]) -> [f64; 3] {
    let quantile = |share| figure(outcomes, |outcome| outcome.responses.quantile(share));
    [figure(outcomes, |outcome| outcome.responses.mean()), quantile(0.99), quantile(0.999)]
}

pub(crate) fn little_holds(outcomes: &[Outcome], within: f64) -> bool {
    let little = figure(outcomes, Outcome::little);
    let good = (little - 1.0).abs() < within;
    if !good {
        println!("| Little's law | {little:.4} | 1 | **MISSED** |");
    }
    good
}

/// Runs these and prints a line each.
fn check(cases: &[Case], within: f64) -> bool {
    println!("| | simulated | reference | off |\n|---|---|---|---|");
    let jobs: Vec<_> =
        cases.iter().map(|(_, who, setup, _)| (Who::Baseline(*who), setup.clone())).collect();
    let mut good = true;
    for ((name, _, _, references), outcomes) in cases.iter().zip(runs(&jobs)) {
        let names = [(*name).to_owned(), "its p99".to_owned(), "its p99.9".to_owned()];
        let figures = names.iter().zip(figures(&outcomes)).zip(references.iter().zip(TOLERANCES));
        for ((what, figure), (reference, tolerance)) in figures {
            good &= *reference <= 0.0 || agrees(what, figure, *reference, tolerance);
        }
        good &= little_holds(&outcomes, within);
    }
    good
}

/// Gate 1: what theory says.
fn cases() -> Vec<Case> {
    let at = |utilisation| Setup { requests: REQUESTS_LONG, ..at(utilisation) };
    let law = |service, utilisation| Setup { service, ..at(utilisation) };
    let shared = |service, utilisation| Setup {
        discipline: Discipline::Shared,
        ..law(service, utilisation)
    };
    let many = |utilisation| Setup { servers: 1_000, ..at(utilisation) };
    let few = |servers| Setup { servers, ..at(0.9) };
    vec![
        ("M/M/1 at 0.5", B::Random, at(0.5), [2.0, 9.21, 13.8]),
        ("M/M/1 at 0.7", B::Random, at(0.7), [3.333, 15.4, 23.0]),
        ("M/M/1 at 0.8", B::Random, at(0.8), [5.0, 23.0, 34.5]),
        ("M/M/1 at 0.9", B::Random, at(0.9), [10.0, 46.1, 69.1]),
        ("M/D/1 at 0.7", B::Random, law(Service::Fixed, 0.7), mean(2.1667)),
        ("M/D/1 at 0.9", B::Random, law(Service::Fixed, 0.9), mean(5.5)),
        ("M/G/1 at 0.7, log-normal", B::Random, law(Service::LogNormal, 0.7), mean(3.333)),
        // 0.3 · E[S²] / (2 · 0.7), E[S²] = (0.99 · 0.5² + 0.01 · 50²) / 0.995².
        ("M/G/1 at 0.3, bimodal", B::Random, law(Service::Bimodal, 0.3), mean(6.4650)),
        ("M/M/1-PS at 0.7", B::Random, shared(Service::Exponential, 0.7), mean(3.333)),
        ("M/D/1-PS at 0.7", B::Random, shared(Service::Fixed, 0.7), mean(3.333)),
        ("M/G/1-PS at 0.7, log-normal", B::Random, shared(Service::LogNormal, 0.7), mean(3.333)),
        ("M/G/1-PS at 0.5, bimodal", B::Random, shared(Service::Bimodal, 0.5), mean(2.0)),
        ("E100/M/1 (round robin) at 0.5", B::RoundRobin, at(0.5), mean(1.2619)),
        ("E100/M/1 (round robin) at 0.7", B::RoundRobin, at(0.7), mean(1.8905)),
        ("E100/M/1 (round robin) at 0.8", B::RoundRobin, at(0.8), mean(2.7157)),
        ("E100/M/1 (round robin) at 0.9", B::RoundRobin, at(0.9), mean(5.2268)),
        ("P2C, 1,000 servers, at 0.5", B::P2cNow, many(0.5), [1.2657, 5.58, 8.18]),
        ("P2C, 1,000 servers, at 0.7", B::P2cNow, many(0.7), [1.6145, 6.56, 9.37]),
        ("P2C, 1,000 servers, at 0.8", B::P2cNow, many(0.8), [1.9474, 7.37, 10.3]),
        ("P2C, 1,000 servers, at 0.9", B::P2cNow, many(0.9), [2.6141, 8.79, 11.9]),
        ("P3C, 1,000 servers, at 0.5", B::P3cNow, many(0.5), mean(1.1252)),
        ("P3C, 1,000 servers, at 0.7", B::P3cNow, many(0.7), mean(1.3568)),
        ("P3C, 1,000 servers, at 0.9", B::P3cNow, many(0.9), mean(2.0279)),
        ("M/M/100 at 0.8", B::Central, at(0.8), mean(1.00098)),
        ("M/M/100 at 0.9", B::Central, at(0.9), mean(1.02169)),
        ("M/M/100 at 0.95", B::Central, at(0.95), mean(1.10129)),
        ("M/M/10 at 0.9", B::Central, few(10), mean(1.66873)),
        ("M/M/2 at 0.9", B::Central, few(2), mean(5.26316)),
    ]
}

/// Gate 1: closed forms.
pub(crate) fn closed_forms() -> bool {
    println!("\n### Closed forms\n");
    check(&cases(), LITTLE_LONG)
}

/// Gate 1: other farms.
pub(crate) fn other_farms() -> bool {
    println!("\n### Other farms, against reference runs\n");
    let mut good = check(&unequal_cases(), LITTLE);
    println!();
    good &= check(&other_cases(), LITTLE);
    println!();
    good & herds()
}

const fn mean(mean: f64) -> [f64; 3] {
    [mean, 0.0, 0.0]
}

const DRAINED: B = B::Rule(Rule::Drained);

/// Who sees all queues, and speeds that differ.
fn unequal_cases() -> Vec<Case> {
    let speeds = |speeds, utilisation| Setup { speeds, ..at(utilisation) };
    let known =
        |speeds, utilisation, every| Setup { speeds, every, speeds_known: true, ..at(utilisation) };
    let (halves, tenth) = (Speeds::Halves, Speeds::SlowTenth);
    vec![
        ("JSQ now at 0.7", B::JsqNow, at(0.7), [1.0003, 4.61, 6.88]),
        ("JSQ now at 0.9", B::JsqNow, at(0.9), [1.0686, 4.89, 7.32]),
        ("JSQ now at 0.95", B::JsqNow, at(0.95), [1.228, 5.43, 7.97]),
        ("P2C now at 0.7", B::P2cNow, at(0.7), mean(1.621)),
        ("P2C now at 0.9", B::P2cNow, at(0.9), mean(2.657)),
        ("P2C now at 0.95", B::P2cNow, at(0.95), mean(3.457)),
        ("halves at 0.7: random by speed", B::SpeedRandom, speeds(halves, 0.7), mean(3.34)),
        ("halves at 0.7: P2C now", B::P2cNow, speeds(halves, 0.7), mean(2.61)),
        ("halves at 0.7: JSQ now", B::JsqNow, speeds(halves, 0.7), mean(1.069)),
        ("halves at 0.7: SED", B::SedNow, speeds(halves, 0.7), [0.855, 3.71, 0.0]),
        ("halves at 0.7: never queue", B::NeverQueueNow, speeds(halves, 0.7), [0.762, 4.26, 0.0]),
        ("halves at 0.9: P2C now", B::P2cNow, speeds(halves, 0.9), mean(5.79)),
        ("halves at 0.9: JSQ now", B::JsqNow, speeds(halves, 0.9), mean(1.120)),
        ("halves at 0.9: SED", B::SedNow, speeds(halves, 0.9), [1.629, 6.12, 0.0]),
        ("halves at 0.9: never queue", B::NeverQueueNow, speeds(halves, 0.9), [0.984, 6.14, 0.0]),
        ("a slow tenth at 0.7: P2C now", B::P2cNow, speeds(tenth, 0.7), mean(2.09)),
        ("a slow tenth at 0.7: JSQ now", B::JsqNow, speeds(tenth, 0.7), [1.114, 0.0, 16.9]),
        ("a slow tenth at 0.7: SED", B::SedNow, speeds(tenth, 0.7), [1.000, 0.0, 6.95]),
        ("a slow tenth at 0.7: never queue", B::NeverQueueNow, speeds(tenth, 0.7), mean(1.001)),
        ("a slow tenth at 0.9: JSQ now", B::JsqNow, speeds(tenth, 0.9), [1.192, 0.0, 19.3]),
        ("a slow tenth at 0.9: SED", B::SedNow, speeds(tenth, 0.9), [1.119, 0.0, 7.5]),
        (
            "a slow tenth at 0.9: never queue",
            B::NeverQueueNow,
            speeds(tenth, 0.9),
            [1.132, 0.0, 14.3],
        ),
        ("halves at 0.7: drained, T = 1", DRAINED, known(halves, 0.7, 1.0), mean(1.48)),
        ("halves at 0.7: drained, T = 10", DRAINED, known(halves, 0.7, 10.0), mean(2.20)),
        ("halves at 0.9: drained, T = 1", DRAINED, known(halves, 0.9, 1.0), mean(1.97)),
        ("halves at 0.9: drained, T = 10", DRAINED, known(halves, 0.9, 10.0), mean(2.90)),
        ("a slow tenth at 0.7: drained, T = 1", DRAINED, known(tenth, 0.7, 1.0), mean(1.25)),
        ("a slow tenth at 0.7: drained, T = 10", DRAINED, known(tenth, 0.7, 10.0), mean(1.76)),
        ("a slow tenth at 0.9: drained, T = 1", DRAINED, known(tenth, 0.9, 1.0), mean(1.91)),
        ("a slow tenth at 0.9: drained, T = 10", DRAINED, known(tenth, 0.9, 10.0), mean(3.31)),
    ]
}

/// Other utilisations, more servers, delay, loss and several hosts.
fn other_cases() -> Vec<Case> {
    let own = B::Rule(Rule::Own);
    let every = |utilisation, every| Setup { every, ..at(utilisation) };
    let many = |every| Setup { servers: 1_000, every, ..farm() };
    let hosts = |hosts, every| Setup { hosts, every, ..farm() };
    let (late, lossy) = (|delay| Setup { delay, ..farm() }, |loss| Setup { loss, ..farm() });
    vec![
        ("at 0.7, T = 1: drained", DRAINED, every(0.7, 1.0), mean(1.22)),
        ("at 0.7, T = 1: P2C", B::P2cReport, every(0.7, 1.0), mean(1.85)),
        ("at 0.7, T = 1: lowest", B::LowestReport, every(0.7, 1.0), mean(1.87)),
        ("at 0.7, T = 10: drained", DRAINED, every(0.7, 10.0), mean(1.72)),
        ("at 0.7, T = 10: P2C", B::P2cReport, every(0.7, 10.0), mean(3.07)),
        ("at 0.7, T = 10: lowest", B::LowestReport, every(0.7, 10.0), mean(5.24)),
        ("at 0.95, T = 1: drained", DRAINED, every(0.95, 1.0), mean(2.18)),
        ("at 0.95, T = 1: P2C", B::P2cReport, every(0.95, 1.0), mean(3.78)),
        ("at 0.95, T = 10: drained", DRAINED, every(0.95, 10.0), mean(3.96)),
        ("at 0.95, T = 10: P2C", B::P2cReport, every(0.95, 10.0), mean(6.38)),
        ("1,000 servers, T = 1: lowest", B::LowestReport, many(1.0), mean(3.73)),
        ("1,000 servers, T = 1: P2C", B::P2cReport, many(1.0), mean(2.95)),
        ("1,000 servers, T = 1: own picks", own, many(1.0), mean(1.73)),
        ("1,000 servers, T = 1: drained", DRAINED, many(1.0), mean(1.71)),
        ("1,000 servers, T = 10: P2C", B::P2cReport, many(10.0), mean(5.07)),
        ("1,000 servers, T = 10: drained", DRAINED, many(10.0), mean(2.93)),
        ("delay 0.5, T = 1: drained", DRAINED, late(0.5), mean(2.03)),
        ("delay 2, T = 1: drained", DRAINED, late(2.0), mean(2.61)),
        ("delay 2, T = 1: drained of two", B::Rule(Rule::DrainedOfTwo), late(2.0), mean(3.27)),
        ("10 % lost, T = 1: drained", DRAINED, lossy(0.1), mean(1.82)),
        ("50 % lost, T = 1: drained", DRAINED, lossy(0.5), mean(2.18)),
        ("10 % lost, T = 1: P2C", B::P2cReport, lossy(0.1), mean(3.04)),
        ("50 % lost, T = 1: P2C", B::P2cReport, lossy(0.5), mean(3.55)),
        ("4 hosts, T = 1: own picks", own, hosts(4, 1.0), mean(2.50)),
        ("4 hosts, T = 10: own picks", own, hosts(4, 10.0), mean(9.38)),
        ("4 hosts, T = 1: drained", DRAINED, hosts(4, 1.0), mean(2.58)),
        ("4 hosts, T = 10: drained", DRAINED, hosts(4, 10.0), mean(5.42)),
        ("16 hosts, T = 1: lowest", B::LowestReport, hosts(16, 1.0), mean(3.94)),
        ("16 hosts, T = 1: P2C", B::P2cReport, hosts(16, 1.0), mean(2.96)),
        ("16 hosts, T = 1: drained", DRAINED, hosts(16, 1.0), mean(3.61)),
        ("16 hosts, T = 10: drained", DRAINED, hosts(16, 10.0), mean(6.33)),
    ]
}

/// Shares of the most picked server in a period, reports together.
fn herds() -> bool {
    println!(
        "| largest share in a report period | simulated | reference | off |\n|---|---|---|---|"
    );
    let basic = Rule::BasicInterpretation;
    let cases = [
        ("random", B::Random, [0.0445, 0.0193]),
        ("round robin", B::RoundRobin, [0.0125, 0.0105]),
        ("lowest report", B::LowestReport, [0.127, 0.076]),
        ("P2C on reports", B::P2cReport, [0.052, 0.027]),
        ("basic interpretation", B::Rule(basic), [0.067, 0.023]),
        ("drained", DRAINED, [0.023, 0.013]),
    ];
    let mut good = true;
    for (name, who, references) in cases {
        for (every, reference) in [1.0, 10.0].into_iter().zip(references) {
            let setup = Setup { every, timing: Timing::Together, ..farm() };
            let outcomes = runs(&[(Who::Baseline(who), setup)]).remove(0);
            let share = figure(&outcomes, |outcome| outcome.herd_share);
            // References of two digits are rounded by up to 4 %.
            good &= agrees(&format!("{name}, T = {every}"), share, reference, 0.08);
        }
    }
    good
}

/// Gate 1: a server of twenty that is slowed five times. References: units until its share is below
/// 0.4 of fair, and picks in a hundred units beyond its fair 14 (0: not given).
pub(crate) fn slow_down() -> bool {
    println!("\n### A server that is slowed 5 times, against reference runs\n");
    println!("| | units until below 0.4 | reference | picks too many | reference |");
    println!("|---|---|---|---|---|");
    let basic = B::Rule(Rule::BasicInterpretation);
    let (spread, together) = (Timing::Spread, Timing::Together);
    let cases = [
        ("round robin", B::RoundRobin, 1.0, spread, "never", 56.0),
        ("P2C now", B::P2cNow, 1.0, spread, "5", 8.0),
        ("JSQ now", B::JsqNow, 1.0, spread, "1", 5.0),
        ("P2C on reports, T = 1", B::P2cReport, 1.0, spread, "5", 8.0),
        ("P2C on reports, T = 10", B::P2cReport, 10.0, spread, "12", 10.0),
        ("drained, T = 1", DRAINED, 1.0, spread, "2", 6.0),
        ("drained, T = 3", DRAINED, 3.0, spread, "5", 8.0),
        ("drained, T = 10", DRAINED, 10.0, spread, "19", 12.0),
        ("basic interpretation, T = 1", basic, 1.0, together, "3", 7.0),
        ("basic interpretation, T = 10", basic, 10.0, together, "16", 12.0),
    ];
    let mut good = true;
    for (name, who, every, timing, reference, picks) in cases {
        let setup = Setup { every, timing, ..slowed_farm() };
        let outcomes = runs_of(&[(Who::Baseline(who), setup)], SLOWED_SEEDS).remove(0);
        let reacted = reacted_after(&shares_by_unit(&outcomes));
        let reacted = reacted.map_or("never".to_owned(), |units| units.to_string());
        let excess = figure(&outcomes, |outcome| outcome.excess);
        let is_near = (excess - picks).abs() <= 1.0 + 0.05 * picks;
        let verdict = if is_near { "" } else { " **MISSED**" };
        println!("| {name} | {reacted} | {reference} | {excess:.1} | {picks}{verdict} |");
        good &= is_near;
    }
    good
}

/// Twenty servers of which one is slowed, some time after the start.
pub(crate) fn slowed_farm() -> Setup {
    let incident = Some((120.0, 220.0));
    Setup { servers: 20, utilisation: 0.7, requests: 14 * 260, incident, ..farm() }
}
