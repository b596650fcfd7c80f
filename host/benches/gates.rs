//! How well strategies choose, in the simulator: its own figures against closed forms and reference
//! runs, and `balanced` against its goals.
//!
//! Prints Markdown; the last whole run is kept in `gates.md` beside this file. Strategies run natively
//! here (guest and twin choose alike: `tests/twins.rs`). A figure is the mean over five seeds with its
//! 95 % interval, at utilisation 0.9 and 100 servers unless said otherwise; times are in units of one
//! mean service time. A missed goal is printed as such and ends the run with an error. It takes some
//! minutes; a word runs what contains it: `cargo bench --bench gates -- hosts`.

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark's output is its purpose")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use loadline::sim::chooser::{Baseline, Chooser};
use loadline::sim::measure::{Estimate, Outcome, reacted_after};
use loadline::sim::setup::{Content, Setup, Speeds, Timing};
use loadline::sim::{run, run_baseline};
use loadline_sdk::Strategy;
use native::Native;
use parking_lot::Mutex;
use policy_balanced::Balanced;
use policy_least_loaded::LeastLoaded;

#[path = "support/native.rs"]
mod native;
#[path = "support/references.rs"]
mod references;
#[path = "support/reports.rs"]
mod reports;

const SEEDS: u64 = 5;
/// Of one seed.
const REQUESTS: u64 = 400_000;
const PERIODS: [f64; 7] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
/// Mean responses at 0.9: of one queue for a hundred servers, below which nobody gets, and of servers
/// drawn at random.
const BEST: f64 = 1.0217;
const RANDOM: f64 = 10.0;

fn main() -> ExitCode {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let sections: [(&str, Section); 11] = [
        ("closed forms", references::closed_forms),
        ("reference runs", reports::by_reports),
        ("reference farms", references::other_farms),
        ("reference slow-down", references::slow_down),
        ("one host", one_host),
        ("several hosts", several_hosts),
        ("unequal speeds", unequal_speeds),
        ("faults", faults),
        ("failures", failures),
        ("loads only", loads_only),
        ("claims", claims),
    ];
    let mut good = true;
    for (name, section) in sections {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(&**word)) {
            good &= section();
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints its figures; whether its goals are met.
type Section = fn() -> bool;

/// Who chooses.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    Baseline(Baseline),
    Balanced,
    LeastLoaded,
}

impl Who {
    fn run(self, setup: &Setup, seed: u64) -> Outcome {
        let outcome = match self {
            Self::Baseline(baseline) => run_baseline(setup, seed, baseline),
            Self::Balanced => run(setup, seed, twin::<Balanced>),
            Self::LeastLoaded => run(setup, seed, twin::<LeastLoaded>),
        };
        outcome.expect("native strategies do not fail")
    }
}

fn twin<S: Strategy>(host: u64) -> Result<Box<dyn Chooser>, String> {
    Ok(Box::new(Native::<S>::start("{}", host)?))
}

/// Without outcomes, which of all that run here only `balanced` hears, and only where requests fail.
fn base() -> Setup {
    Setup { requests: REQUESTS, outcomes: false, ..Setup::default() }
}

/// Every setup with every seed, on all cores; in order.
fn runs(jobs: &[(Who, Setup)]) -> Vec<Vec<Outcome>> {
    runs_of(jobs, SEEDS)
}

/// The same with seeds 1 to so many.
pub(crate) fn runs_of(jobs: &[(Who, Setup)], seeds: u64) -> Vec<Vec<Outcome>> {
    let count = jobs.len() * usize::try_from(seeds).expect("few");
    let outcomes: Mutex<Vec<_>> = Mutex::new((0..count).map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((who, setup)) = jobs.get(number % jobs.len()).filter(|_| number < count)
            else {
                return;
            };
            let outcome = who.run(setup, (number / jobs.len()) as u64 + 1);
            outcomes.lock()[number] = Some(outcome);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let mut sorted: Vec<Vec<_>> = jobs.iter().map(|_| Vec::new()).collect();
    for (number, outcome) in outcomes.into_inner().into_iter().enumerate() {
        sorted[number % jobs.len()].push(outcome.expect("every run has ended"));
    }
    sorted
}

fn mean(outcomes: &[Outcome]) -> Estimate {
    let means: Vec<_> = outcomes.iter().map(|outcome| outcome.responses.mean()).collect();
    Estimate::of(&means)
}

/// Runs these over all report periods and prints a line each; the means.
fn sweep(title: &str, rows: &[(&str, Who, Setup)]) -> Vec<Vec<Estimate>> {
    println!("\n### {title}\n");
    let periods = PERIODS.map(|every| format!(" {every} |")).concat();
    println!("| T |{periods}\n|---|{}", "---|".repeat(PERIODS.len()));
    let job = |(_, who, setup): &(&str, Who, Setup)| {
        PERIODS.map(|every| (*who, Setup { every, ..setup.clone() }))
    };
    let jobs: Vec<_> = rows.iter().flat_map(job).collect();
    let means: Vec<_> = runs(&jobs).iter().map(|outcomes| mean(outcomes)).collect();
    let table: Vec<Vec<_>> = means.chunks(PERIODS.len()).map(<[_]>::to_vec).collect();
    for ((name, _, _), means) in rows.iter().zip(&table) {
        let cells = means.iter().map(|mean| format!(" {:.3} ± {:.3} |", mean.mean, mean.within));
        println!("| {name} |{}", cells.collect::<String>());
    }
    println!();
    table
}

/// Prints a goal and whether it is met.
fn goal(what: &str, figure: f64, limit: f64) -> bool {
    let good = figure <= limit;
    println!("- {what}: {figure:.3}, goal {limit:.3}{}", if good { "" } else { " **MISSED**" });
    good
}

/// Prints a figure that has no goal, because nobody has it in his hands or it is no gate.
fn shown(what: &str, figure: f64) {
    println!("- {what}: {figure:.3}, no goal");
}

fn at(table: &[Estimate], period: f64) -> f64 {
    let place = PERIODS.iter().position(|every| every.total_cmp(&period).is_eq());
    table[place.expect("a period of the sweep")].mean
}

/// The worst of these over those.
fn worst_ratio(these: &[Estimate], those: &[Estimate]) -> f64 {
    let ratios = these.iter().zip(those).map(|(this, that)| this.mean / that.mean);
    ratios.fold(0.0, f64::max)
}

/// Gate 2.
fn one_host() -> bool {
    let turns = Who::Baseline(Baseline::RoundRobin);
    let rows = [
        ("balanced", Who::Balanced, base()),
        ("round robin", turns, base()),
        ("P2C on reports", Who::Baseline(Baseline::P2cReport), base()),
        ("lowest report", Who::Baseline(Baseline::LowestReport), base()),
        ("balanced, outcomes told", Who::Balanced, Setup { outcomes: true, ..base() }),
        ("balanced, delay 0.5", Who::Balanced, Setup { delay: 0.5, ..base() }),
        ("balanced, at 0.7", Who::Balanced, Setup { utilisation: 0.7, ..base() }),
        ("round robin, at 0.7", turns, Setup { utilisation: 0.7, ..base() }),
        ("balanced, 20 servers", Who::Balanced, Setup { servers: 20, ..base() }),
    ];
    let table = sweep("One host, counts reported every T", &rows);
    let quality = |period| (at(&table[0], period) - BEST) / (RANDOM - BEST);
    let mut good = goal("quality at T = 1 (0 best, 1 random)", quality(1.0), 0.10);
    good &= goal("quality at T = 10", quality(10.0), 0.24);
    good &= goal("worst over round robin", worst_ratio(&table[0], &table[1]), 1.0);
    for every in [1.0, 10.0] {
        let setup = Setup { every, timing: Timing::Together, ..base() };
        let random = Who::Baseline(Baseline::Random);
        let herds = runs(&[(Who::Balanced, setup.clone()), (random, setup)]);
        let share = |outcomes: &[Outcome]| {
            Estimate::of(&outcomes.iter().map(|o| o.herd_share).collect::<Vec<_>>()).mean
        };
        let what = format!("herding index at T = {every}, reports together");
        good &= goal(&what, share(&herds[0]) / share(&herds[1]), 1.0);
    }
    good
}

/// Gate 3.
fn several_hosts() -> bool {
    let mut good = true;
    for hosts in [4, 16] {
        let setup = Setup { hosts, ..base() };
        let report = Who::Baseline(Baseline::P2cReport);
        let rows = [
            ("balanced", Who::Balanced, setup.clone()),
            ("P2C on reports", report, setup.clone()),
            ("round robin", Who::Baseline(Baseline::RoundRobin), setup),
        ];
        let table = sweep(&format!("{hosts} hosts that do not know of each other"), &rows);
        good &= goal("worst over P2C on reports", worst_ratio(&table[0], &table[1]), 1.05);
        for period in [1.0, 3.0] {
            let ratio = at(&table[0], period) / at(&table[1], period);
            good &= goal(&format!("over P2C on reports at T = {period}"), ratio, 1.0);
        }
        for period in [30.0, 100.0] {
            let ratio = at(&table[0], period) / at(&table[2], period);
            good &= goal(&format!("over round robin at T = {period}"), ratio, 1.05);
        }
    }
    good
}

/// Gate 4: references are the drained minimum with known speeds.
fn unequal_speeds() -> bool {
    let with = |speeds, utilisation| Setup { speeds, utilisation, ..base() };
    let cases = [
        ("half 0.5, half 1.5, at 0.9", with(Speeds::Halves, 0.9), [1.97, 2.90]),
        ("half 0.5, half 1.5, at 0.7", with(Speeds::Halves, 0.7), [1.48, 2.20]),
        ("a tenth 0.2, at 0.9", with(Speeds::SlowTenth, 0.9), [1.91, 3.31]),
        ("a tenth 0.2, at 0.7", with(Speeds::SlowTenth, 0.7), [1.25, 1.76]),
    ];
    let row =
        |(name, setup, _): &(&'static str, Setup, [f64; 2])| (*name, Who::Balanced, setup.clone());
    let rows: Vec<_> = cases.iter().map(row).collect();
    let table = sweep("Unequal speeds that nobody configured: balanced", &rows);
    let mut good = true;
    for ((name, _, known), means) in cases.iter().zip(&table) {
        for (period, known) in [1.0, 10.0].into_iter().zip(known) {
            let what = format!("{name}, T = {period}, over known speeds");
            good &= goal(&what, at(means, period) / known, 1.3);
        }
    }
    good
}

/// Runs of a slow-down: they are short and many.
pub(crate) const SLOWED_SEEDS: u64 = 300;

/// The mean share of a slowed server by unit, over many runs, and its longest queue.
fn slowed(who: Who, setup: &Setup) -> (Vec<f64>, f64) {
    let outcomes = runs_of(&[(who, setup.clone())], SLOWED_SEEDS).remove(0);
    let queues: Vec<_> = outcomes.iter().map(|outcome| outcome.reaction_queue as f64).collect();
    (shares_by_unit(&outcomes), Estimate::of(&queues).mean)
}

/// The mean share of the first server by unit of its incident.
pub(crate) fn shares_by_unit(outcomes: &[Outcome]) -> Vec<f64> {
    let units = outcomes.iter().map(|outcome| outcome.reaction.len()).min().unwrap_or(0);
    let share = |unit| outcomes.iter().map(|outcome| outcome.reaction[unit]).sum::<f64>();
    (0..units).map(|unit| share(unit) / outcomes.len() as f64).collect()
}

/// Gate 5.
fn faults() -> bool {
    println!("\n### A server that is slowed 5 times; crashes; loss of reports\n");
    let mut good = true;
    for every in [1.0, 3.0, 10.0] {
        let setup = Setup { every, ..references::slowed_farm() };
        let (shares, queue) = slowed(Who::Balanced, &setup);
        let below = reacted_after(&shares).unwrap_or(shares.len());
        let what = format!("T = {every}: units until its share over five is below 0.4 of fair");
        good &= goal(&what, below as f64, 2.0 * every + 3.0);
        good &= goal(&format!("T = {every}: its longest queue"), queue, 10.0);
    }
    for every in [1.0, 10.0] {
        let incident = Some((200.0, 400.0));
        let setup = Setup { every, incident, slowed_to: 0.0, requests: 90 * 500, ..base() };
        let picks: u64 =
            (1..=SEEDS).map(|seed| Who::Balanced.run(&setup, seed).picks_of_dead).sum();
        let what = format!("T = {every}: picks of a crashed server after the dead rule");
        good &= goal(&what, picks as f64, 0.0);
    }
    let lossy = |loss| ("balanced", Who::Balanced, Setup { loss, ..base() });
    let rows = [
        lossy(0.0),
        ("10 % lost", Who::Balanced, lossy(0.1).2),
        ("50 % lost", Who::Balanced, lossy(0.5).2),
        ("round robin", Who::Baseline(Baseline::RoundRobin), base()),
    ];
    let table = sweep("Reports lost on the way to a host", &rows);
    for period in [1.0, 10.0] {
        let what = format!("10 % loss at T = {period}, over no loss");
        good &= goal(&what, at(&table[1], period) / at(&table[0], period), 1.05);
    }
    let half_lost = |period| {
        let what = format!("50 % loss at T = {period}, over round robin");
        (what, at(&table[2], period) / at(&table[3], period))
    };
    for (what, ratio) in [10.0, 30.0].map(half_lost) {
        good &= goal(&what, ratio, 1.0);
    }
    // Forty reports a run, of which half get lost: speeds are being learned all the time.
    let (what, ratio) = half_lost(100.0);
    shown(&what, ratio);
    good
}

/// Not a gate: a server that fails nine of ten requests in a twentieth of their time, and looks empty.
fn failures() -> bool {
    println!("\n### A server of 20 that fails fast, at 0.7\n");
    println!("| | requests that fail | mean of the others |\n|---|---|---|");
    let (servers, utilisation) = (20, 0.7);
    let farm = Setup { servers, utilisation, failures: 0.9, outcomes: true, ..base() };
    let cases = [
        ("balanced", Who::Balanced, true),
        ("balanced without outcomes", Who::Balanced, false),
        ("least-loaded", Who::LeastLoaded, true),
        ("round robin", Who::Baseline(Baseline::RoundRobin), true),
        ("JSQ now", Who::Baseline(Baseline::JsqNow), true),
    ];
    let job =
        |(_, who, outcomes): &(_, Who, bool)| (*who, Setup { outcomes: *outcomes, ..farm.clone() });
    let jobs: Vec<_> = cases.iter().map(job).collect();
    for ((name, _, _), outcomes) in cases.iter().zip(runs(&jobs)) {
        let share = |outcome: &Outcome| {
            let failed = outcome.failed as f64;
            failed / (failed + outcome.responses.count() as f64)
        };
        let failed = Estimate::of(&outcomes.iter().map(share).collect::<Vec<_>>());
        let (percent, within) = (failed.mean * 100.0, failed.within * 100.0);
        println!("| {name} | {percent:.2} ± {within:.2} % | {:.3} |", mean(&outcomes).mean);
    }
    true
}

/// Gate 6.
fn loads_only() -> bool {
    let setup = Setup { content: Content::Utilisation, ..base() };
    let rows = [
        ("balanced", Who::Balanced, setup.clone()),
        ("round robin", Who::Baseline(Baseline::RoundRobin), setup.clone()),
        ("least-loaded", Who::LeastLoaded, setup.clone()),
        ("P2C on reports", Who::Baseline(Baseline::P2cReport), setup.clone()),
        ("balanced, 16 hosts", Who::Balanced, Setup { hosts: 16, ..setup.clone() }),
        (
            "round robin, 16 hosts",
            Who::Baseline(Baseline::RoundRobin),
            Setup { hosts: 16, ..setup },
        ),
    ];
    let table = sweep("Only loads reported: utilisation of the last T with 5 % noise", &rows);
    let mut good = goal("worst over round robin", worst_ratio(&table[0], &table[1]), 1.0);
    good &= goal("worst over least-loaded", worst_ratio(&table[0], &table[2]), 1.0);
    good
}

/// Not a gate: what hosts would gain by telling each other what they hand out.
fn claims() -> bool {
    for hosts in [4, 16] {
        let with = |claims| Setup { hosts, claims, requests: REQUESTS / 2, ..base() };
        let rows = [
            ("no claims", Who::Balanced, with(0.0)),
            ("every 1", Who::Balanced, with(1.0)),
            ("every 0.25", Who::Balanced, with(0.25)),
            ("every 0.05", Who::Balanced, with(0.05)),
        ];
        sweep(&format!("{hosts} hosts that claim what they hand out"), &rows);
    }
    true
}
