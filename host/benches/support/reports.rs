//! Rules that go by reports, against the tables of reference runs.
//!
//! Where servers report each at its own phase, drawn once, some rules scatter from draw to draw however long a
//! run is: a server that reports long after the others gets more than its share, and who does depends on the
//! phases. Common random numbers make one draw the same for all periods, so that a row of reference runs is
//! off in all its places alike. A mean over our draws need not be near such a row then: where it is not, it
//! has missed, and draws are looked at one by one, to show how many of them the reference could be. Other
//! readings of "each at its own phase" are far off: own picks at T = 30 have 14.8 with even phases, 14.1
//! with jitter, 18.7 with phases drawn anew each period (reference: 13.1).

use loadline::sim::chooser::Baseline as B;
use loadline::sim::measure::{Estimate, Outcome};
use loadline::sim::rules::Rule;
use loadline::sim::setup::{Setup, Timing};

use crate::references::{LITTLE, REQUESTS_LONG, TOLERANCES, farm, little_holds};
use crate::{PERIODS, Who, runs, runs_of};

/// Draws of phases that are looked at one by one.
const DRAWS: u64 = 40;

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
    println!(
        "standard error of one run of two million requests, as a reference is. Where the mean of five draws of"
    );
    println!("phases has missed, the nearest of {DRAWS} draws stands below.\n");
    let periods = PERIODS.map(|every| format!(" {every} |")).concat();
    println!("| T |{periods}\n|---|{}", "---|".repeat(PERIODS.len()));
    let mut good = true;
    for row in rows() {
        good &= check(&row);
    }
    good
}

/// Prints a row; whether it agrees with the reference.
fn check((name, who, timing, references): &Row) -> bool {
    let there = || PERIODS.iter().zip(references).filter(|(_, reference)| reference.0 > 0.0);
    let job = |every| Setup { every, timing: *timing, requests: REQUESTS_LONG, ..farm() };
    let jobs: Vec<_> = there().map(|(every, _)| (Who::Baseline(*who), job(*every))).collect();
    let references: Vec<_> = there().map(|(_, reference)| *reference).collect();
    let rest = " - |".repeat(PERIODS.len() - jobs.len());
    let (mut good, mut is_near) = (true, true);
    let mut cells = String::new();
    for (reference, outcomes) in references.iter().zip(runs(&jobs)) {
        good &= little_holds(&outcomes, LITTLE);
        let (mean, p99) = of_all(*reference, &outcomes);
        let is_here = nearness([mean.off, p99.off]) <= 1.0;
        let verdict = if is_here { "" } else { " **MISSED**" };
        cells += &format!(" {:.3} / {:.1} ({mean}, {p99}){verdict} |", mean.ours, p99.ours);
        is_near &= is_here;
    }
    println!("| {name} |{cells}{rest}");
    if !is_near && *timing == Timing::Spread {
        let draws = draws(&references, &jobs);
        let agree = draws.iter().filter(|draw| draw.nearness <= 1.0).count();
        let nearest = draws.iter().min_by(|a, b| a.nearness.total_cmp(&b.nearness));
        let Draw { seed, cells, .. } = nearest.expect("some draws");
        println!("| draw {seed}; {agree} of {DRAWS} agree |{cells}{rest}");
    }
    good && is_near
}

/// How far a figure is off its reference.
struct Figure {
    ours: f64,
    off: f64,
    /// Standard error of one more run.
    by_chance: f64,
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.1} ± {:.1}", self.off * 100.0, self.by_chance * 100.0)
    }
}

const FIGURES: [fn(&Outcome) -> f64; 2] =
    [|outcome| outcome.responses.mean(), |outcome| outcome.responses.quantile(0.99)];

/// Mean and 99th percentile of these, against a reference.
fn of_all((mean, p99): (f64, f64), outcomes: &[Outcome]) -> (Figure, Figure) {
    let [mean, p99] = [(0, mean), (1, p99)].map(|(place, reference)| {
        let values: Vec<_> = outcomes.iter().map(FIGURES[place]).collect();
        let ours = Estimate::of(&values).mean;
        Figure { ours, off: ours / reference - 1.0, by_chance: scatter(&values) }
    });
    (mean, p99)
}

/// How far a mean and a 99th percentile are off, over what they may be.
fn nearness(off: [f64; 2]) -> f64 {
    off.iter().zip(TOLERANCES).map(|(off, most)| off.abs() / most).fold(0.0, f64::max)
}

/// A row of one draw of phases.
struct Draw {
    seed: u64,
    cells: String,
    /// Of the place that is off most.
    nearness: f64,
}

/// A row a draw: the same seed has the same phases, in shares of each period.
fn draws(references: &[(f64, f64)], jobs: &[(Who, Setup)]) -> Vec<Draw> {
    let runs = runs_of(jobs, DRAWS);
    let draw = |seed: u64| {
        let mut draw = Draw { seed, cells: String::new(), nearness: 0.0 };
        for ((mean, p99), outcomes) in references.iter().zip(&runs) {
            let outcome = &outcomes[usize::try_from(seed - 1).expect("few")];
            let [ours, p99s] = FIGURES.map(|figure| figure(outcome));
            let off = [ours / mean - 1.0, p99s / p99 - 1.0];
            draw.nearness = draw.nearness.max(nearness(off));
            let [mean, p99] = off.map(|off| off * 100.0);
            draw.cells += &format!(" {ours:.3} / {p99s:.1} ({mean:+.1}, {p99:+.1}) |");
        }
        draw
    };
    (1..=DRAWS).map(draw).collect()
}

/// Standard error of the difference between one more run and the mean of these, as a share of it.
fn scatter(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value / mean - 1.0).powi(2)).sum();
    (squares / (n - 1.0) * (1.0 + 1.0 / n)).sqrt()
}
