//! Rules that go by reports, against the tables of reference runs.
//!
//! A reference run is one, and finite. Where servers report each at its own phase, drawn once, some rules
//! scatter from run to run however long it is: a server that reports long after the others gets more than
//! its share, and who does depends on the phases. So beside each figure stands how far one run of that
//! length is off the mean of ours by chance; the tolerances make no allowance for it. Other readings of the
//! tables are far off: own picks at T = 30 have a mean of 13.2 with phases drawn once (reference: 13.1), 14.8
//! with even ones, 14.1 with jitter, 18.7 with phases drawn anew each period.

use loadline::sim::chooser::Baseline as B;
use loadline::sim::measure::{Estimate, Outcome};
use loadline::sim::rules::Rule;
use loadline::sim::setup::{Setup, Timing};

use crate::references::{LITTLE, REQUESTS_LONG, TOLERANCES, farm, little_holds};
use crate::{PERIODS, Who, runs};

/// A rule with its reference means and 99th percentiles, by [`PERIODS`]; 0: none, or of queues that have not
/// come to rest within a run, which the lowest report makes where reports are rare.
type Row = (&'static str, B, Timing, [(f64, f64); 7]);

/// Reference runs at 0.9 with a hundred servers; the periods with a reference come first.
#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<Row> {
    let (together, spread) = (Timing::Together, Timing::Spread);
    let (basic, aggressive) = (Rule::BasicInterpretation, Rule::AggressiveInterpretation);
    let row = |name, who, timing, means: [f64; 7], p99s: [f64; 7]| {
        (name, who, timing, std::array::from_fn(|place| (means[place], p99s[place])))
    };
    vec![
        row(
            "lowest report, together",
            B::LowestReport,
            together,
            [1.55, 2.25, 4.04, 8.20, 23.9, 0.0, 0.0],
            [7.1, 9.7, 15.4, 28.3, 94.0, 0.0, 0.0],
        ),
        row(
            "P2C, together",
            B::P2cReport,
            together,
            [2.67, 2.75, 2.98, 3.52, 5.08, 8.95, 21.2],
            [9.0, 9.2, 9.9, 11.6, 17.1, 32.2, 77.0],
        ),
        row(
            "P3C, together",
            B::Rule(Rule::LowestOfThree),
            together,
            [2.13, 2.23, 2.60, 3.50, 6.25, 13.6, 39.0],
            [7.6, 7.9, 9.0, 12.2, 22.5, 48.8, 133.0],
        ),
        row(
            "basic interpretation, together",
            B::Rule(basic),
            together,
            [1.48, 1.86, 2.51, 3.44, 4.94, 6.67, 8.34],
            [6.4, 7.2, 9.0, 11.5, 16.1, 22.7, 31.9],
        ),
        row(
            "aggressive interpretation, together",
            B::Rule(aggressive),
            together,
            [1.48, 1.83, 2.41, 3.21, 4.45, 5.91, 7.49],
            [6.4, 7.2, 8.8, 11.2, 15.3, 20.8, 28.6],
        ),
        row(
            "own picks, together",
            B::Rule(Rule::Own),
            together,
            [1.19, 1.47, 1.84, 2.35, 3.06, 3.76, 4.50],
            [5.3, 6.0, 6.9, 8.3, 10.8, 13.9, 17.9],
        ),
        row(
            "drained, together",
            B::Rule(Rule::Drained),
            together,
            [1.19, 1.46, 1.82, 2.34, 3.04, 3.79, 4.42],
            [5.3, 6.0, 6.9, 8.4, 10.8, 13.9, 17.9],
        ),
        row(
            "drained of two, together",
            B::Rule(Rule::DrainedOfTwo),
            together,
            [2.66, 2.70, 2.82, 3.10, 3.65, 4.27, 4.96],
            [8.9, 9.1, 9.4, 10.2, 12.0, 14.8, 18.9],
        ),
        row(
            "lowest report",
            B::LowestReport,
            spread,
            [1.54, 2.23, 3.89, 7.78, 21.8, 66.0, 0.0],
            [7.0, 9.4, 14.5, 25.7, 73.0, 258.0, 0.0],
        ),
        row(
            "P2C",
            B::P2cReport,
            spread,
            [2.68, 2.76, 2.96, 3.52, 5.10, 8.91, 21.3],
            [9.0, 9.2, 9.8, 11.6, 17.3, 32.2, 77.0],
        ),
        row(
            "own picks",
            B::Rule(Rule::Own),
            spread,
            [1.15, 1.37, 1.78, 2.77, 5.67, 13.1, 38.7],
            [5.2, 5.8, 6.7, 8.9, 15.2, 31.6, 87.0],
        ),
        row(
            "drained",
            B::Rule(Rule::Drained),
            spread,
            [1.15, 1.38, 1.77, 2.30, 2.99, 3.75, 4.66],
            [5.2, 5.8, 6.7, 8.2, 10.7, 14.3, 19.1],
        ),
        row(
            "drained of two",
            B::Rule(Rule::DrainedOfTwo),
            spread,
            [2.68, 2.68, 2.80, 3.05, 3.59, 4.21, 5.03],
            [9.0, 9.0, 9.3, 10.0, 12.0, 14.9, 19.8],
        ),
    ]
}

/// Gate 1: rules that go by reports.
pub(crate) fn by_reports() -> bool {
    println!("\n### Rules that go by reports, against reference runs\n");
    println!(
        "Mean and 99th percentile, how far they are off the reference in %, at most 2 and 5, and the"
    );
    println!("standard error of one run of two million requests, as a reference is.\n");
    let periods = PERIODS.map(|every| format!(" {every} |")).concat();
    println!("| T |{periods}\n|---|{}", "---|".repeat(PERIODS.len()));
    let rows = rows();
    let mut good = true;
    for (name, who, timing, references) in &rows {
        let there = || PERIODS.iter().zip(references).filter(|(_, reference)| reference.0 > 0.0);
        let job = |every| Setup { every, timing: *timing, requests: REQUESTS_LONG, ..farm() };
        let jobs: Vec<_> = there().map(|(every, _)| (Who::Baseline(*who), job(*every))).collect();
        let mut cells = String::new();
        for ((_, reference), outcomes) in there().zip(runs(&jobs)) {
            let (cell, is_near) = cell(*reference, &outcomes);
            cells += &cell;
            good &= is_near && little_holds(&outcomes, LITTLE);
        }
        println!("| {name} |{cells}{}", " - |".repeat(PERIODS.len() - jobs.len()));
    }
    good
}

/// What these say of a reference's mean and 99th percentile, and whether they agree.
fn cell((mean, p99): (f64, f64), outcomes: &[Outcome]) -> (String, bool) {
    let of: [fn(&Outcome) -> f64; 2] = [|o| o.responses.mean(), |o| o.responses.quantile(0.99)];
    let [mean, p99] = [(0, mean), (1, p99)].map(|(place, reference)| {
        let values: Vec<_> = outcomes.iter().map(of[place]).collect();
        let ours = Estimate::of(&values).mean;
        (ours, ours / reference - 1.0, scatter(&values))
    });
    let is_near = [mean, p99].iter().zip(TOLERANCES).all(|((_, off, _), most)| off.abs() <= most);
    let off = |(_, off, by_chance): (f64, f64, f64)| {
        format!("{:+.1} ± {:.1}", off * 100.0, by_chance * 100.0)
    };
    let verdict = if is_near { "" } else { " **MISSED**" };
    let cell = format!(" {:.3} / {:.1} ({}, {}){verdict} |", mean.0, p99.0, off(mean), off(p99));
    (cell, is_near)
}

/// Standard error of the difference between one more run and the mean of these, as a share of it.
fn scatter(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value / mean - 1.0).powi(2)).sum();
    (squares / (n - 1.0) * (1.0 + 1.0 / n)).sqrt()
}
