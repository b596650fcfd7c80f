//! The comparison: every entrant on every farm with every seed, and the figures of it.
//!
//! Runs are independent and shared out among threads; their order in the result is fixed, so that
//! equal scenarios and seeds give equal figures. Only [`Line::nanoseconds`] depends on the machine.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::chooser::{Baseline, Chooser, GuestChooser};
use super::measure::{Estimate, Outcome};
use super::scenario::{Point, Scenario};
use super::setup::Setup;
use super::{run, run_baseline};
use crate::policy::{Module, PolicyEngine};

/// Share of the requests inside at the end from which a run may be unstable.
const LEFT_MAX: f64 = 0.05;
/// How much more than its mean is inside at the end of a run that grows all the time: 1.8 if it
/// grows evenly from nothing and a tenth is warm-up, 1 if it does not grow.
const GROWS: f64 = 1.4;

/// Who takes part.
pub struct Entrant {
    /// What it is called here.
    pub name: String,
    /// Whether the user put it beside the scenario's.
    pub own: bool,
    /// How it chooses.
    pub contender: Contender,
}

/// How an entrant chooses.
pub enum Contender {
    /// A reference, not a policy.
    Baseline(Baseline),
    /// A policy with its settings, a JSON object.
    Strategy(Box<Module>, String),
}

/// Of whom a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A policy of the scenario.
    Strategy,
    /// A policy of the user's.
    Own,
    /// A reference.
    Baseline,
}

/// One run with its cost.
struct Run {
    outcome: Outcome,
    took: Duration,
}

/// What one entrant showed.
#[derive(Debug, Serialize)]
pub struct Line {
    /// Who.
    pub name: String,
    /// As what.
    pub role: Role,
    /// By point of the sweep.
    pub points: Vec<Figures>,
    /// Cost of a request in the whole simulation, by point. Depends on the machine.
    #[serde(skip)]
    pub nanoseconds: Vec<f64>,
}

/// What one entrant showed on one farm; times in mean service times, means over the seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Mean response.
    pub mean: f64,
    /// Half the width of its 95 % interval; NaN for a single seed.
    pub within: f64,
    /// Response that half of the requests do not exceed.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// 0: as good as the bound, 1: as bad as random; NaN without these baselines.
    pub quality: f64,
    /// Mean response over that of round robin; NaN without it.
    pub to_round_robin: f64,
    /// Largest share of the picks in a report period, over that of random; NaN without it.
    pub herding: f64,
    /// Time mean of the longest queue.
    pub longest: f64,
    /// The same over the mean queue.
    pub imbalance: f64,
    /// Requests for which nobody was chosen.
    pub unanswered: u64,
    /// Whether queues grew all the time in most runs: the farm cannot do it, or they are too short.
    pub unstable: bool,
    /// Largest share of the picks in a report period.
    #[serde(skip)]
    pub herd_share: f64,
    /// What each seed gave.
    pub seeds: Vec<Single>,
}

/// What one seed gave.
#[derive(Debug, Clone, Serialize)]
pub struct Single {
    /// Mean response.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// Time mean of the longest queue.
    pub longest: f64,
    /// Whether queues grew all the time.
    pub unstable: bool,
}

/// A whole comparison.
#[derive(Serialize)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: String,
    /// Its title.
    pub title: String,
    /// The key that is varied.
    pub key: String,
    /// Its values, as they are shown.
    pub values: Vec<String>,
    /// The point that is looked at closely.
    #[serde(rename = "at", serialize_with = "label_of_at")]
    pub point: (usize, String),
    /// The farm at that point.
    pub setup: Setup,
    /// Seeds 1 to this.
    pub seeds: u64,
    /// Own strategies, the scenario's, then the baselines.
    pub lines: Vec<Line>,
}

fn label_of_at<S: Serializer>(at: &(usize, String), serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.1)
}

/// One run to do.
#[derive(Clone, Copy)]
struct Task<'a> {
    entrant: &'a Entrant,
    point: &'a Point,
    seed: u64,
}

/// Hears how many runs of how many are done and whose was the last.
pub type Progress<'a> = &'a (dyn Fn(usize, usize, &str) + Sync);

/// Runs the comparison with seeds 1 to `seeds`.
///
/// # Errors
/// The first run whose policy failed, in words.
pub fn compare(
    engine: &PolicyEngine,
    scenario: &Scenario,
    entrants: &[Entrant],
    seeds: u64,
    progress: Progress<'_>,
) -> Result<Comparison, String> {
    let tasks: Vec<_> = entrants
        .iter()
        .flat_map(|entrant| scenario.points.iter().map(move |point| (entrant, point)))
        .flat_map(|(entrant, point)| (1..=seeds).map(move |seed| Task { entrant, point, seed }))
        .collect();
    let mut runs = perform(engine, &scenario.key, &tasks, progress)?.into_iter();
    let mut lines: Vec<_> = entrants
        .iter()
        .map(|entrant| {
            let points = scenario.points.iter().map(|point| {
                let of_point: Vec<_> = (0..seeds).filter_map(|_| runs.next()).collect();
                (figures(&point.setup, &of_point), nanoseconds(&point.setup, &of_point))
            });
            let (points, nanoseconds) = points.unzip();
            Line { name: entrant.name.clone(), role: entrant.role(), points, nanoseconds }
        })
        .collect();
    for (index, point) in scenario.points.iter().enumerate() {
        relate(&mut lines, index, &point.setup);
    }
    let at = &scenario.points[scenario.at];
    Ok(Comparison {
        scenario: scenario.name.clone(),
        title: scenario.title.clone(),
        key: scenario.key.clone(),
        values: scenario.points.iter().map(|point| point.label.clone()).collect(),
        point: (scenario.at, at.label.clone()),
        setup: at.setup.clone(),
        seeds,
        lines,
    })
}

/// Does all runs, on as many threads as there are processors.
fn perform(
    engine: &PolicyEngine,
    key: &str,
    tasks: &[Task<'_>],
    progress: Progress<'_>,
) -> Result<Vec<Run>, String> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let runs = Mutex::new(Vec::with_capacity(tasks.len()));
    let work = || {
        while let Some((index, task)) = take(&next, tasks) {
            let run = task.perform(engine, key);
            if run.is_err() {
                next.store(tasks.len(), Ordering::Relaxed); // nobody begins another
            }
            runs.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, run));
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(done, tasks.len(), &task.entrant.name);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(tasks.len());
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut runs = runs.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    runs.sort_by_key(|(index, _)| *index);
    runs.into_iter().map(|(_, run)| run).collect()
}

fn take<'a>(next: &AtomicUsize, tasks: &[Task<'a>]) -> Option<(usize, Task<'a>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    tasks.get(index).map(|task| (index, *task))
}

impl Entrant {
    fn role(&self) -> Role {
        match (&self.contender, self.own) {
            (Contender::Baseline(_), _) => Role::Baseline,
            (Contender::Strategy(..), true) => Role::Own,
            (Contender::Strategy(..), false) => Role::Strategy,
        }
    }

    /// A chooser for a host, with random numbers of its own.
    ///
    /// # Errors
    /// The module does not start, in words.
    pub fn chooser(&self, engine: &PolicyEngine, seed: u64) -> Result<Box<dyn Chooser>, String> {
        Ok(match &self.contender {
            Contender::Baseline(baseline) => {
                Box::new(super::chooser::BaselineChooser::new(*baseline, seed))
            }
            Contender::Strategy(module, settings) => {
                Box::new(GuestChooser::start(engine, &self.name, module, settings, seed)?)
            }
        })
    }
}

impl Task<'_> {
    fn perform(&self, engine: &PolicyEngine, key: &str) -> Result<Run, String> {
        let Self { entrant, point, seed } = self;
        let begin = Instant::now();
        let outcome = match entrant.contender {
            Contender::Baseline(baseline) => run_baseline(&point.setup, *seed, baseline),
            Contender::Strategy(..) => run(&point.setup, *seed, |host| {
                entrant.chooser(engine, seed.wrapping_mul(977).wrapping_add(host))
            }),
        };
        let (name, value) = (&entrant.name, &point.label);
        let outcome = outcome
            .map_err(|fault| format!("{name} with {key} = {value}, seed {seed}: {fault}"))?;
        Ok(Run { outcome, took: begin.elapsed() })
    }
}

/// The figures of one entrant's runs on one farm, but for those that compare with others.
fn figures(setup: &Setup, runs: &[Run]) -> Figures {
    let seeds: Vec<_> = runs.iter().map(|run| single(setup, &run.outcome)).collect();
    let means: Vec<_> = seeds.iter().map(|seed| seed.mean).collect();
    let average = |value: &dyn Fn(&Outcome) -> f64| {
        Estimate::of(&runs.iter().map(|run| value(&run.outcome)).collect::<Vec<_>>()).mean
    };
    let Estimate { mean, within } = Estimate::of(&means);
    Figures {
        mean,
        within,
        p50: average(&|outcome| outcome.responses.quantile(0.5)),
        p99: average(&|outcome| outcome.responses.quantile(0.99)),
        p999: average(&|outcome| outcome.responses.quantile(0.999)),
        quality: f64::NAN,
        to_round_robin: f64::NAN,
        herding: f64::NAN,
        longest: average(&|outcome| outcome.longest),
        imbalance: average(&|outcome| outcome.imbalance),
        unanswered: runs.iter().map(|run| run.outcome.unanswered).sum(),
        unstable: 2 * seeds.iter().filter(|seed| seed.unstable).count() > seeds.len(),
        herd_share: average(&|outcome| outcome.herd_share),
        seeds,
    }
}

fn single(setup: &Setup, outcome: &Outcome) -> Single {
    let quantile = |share| outcome.responses.quantile(share);
    Single {
        mean: outcome.responses.mean(),
        p50: quantile(0.5),
        p99: quantile(0.99),
        p999: quantile(0.999),
        longest: outcome.longest,
        unstable: unstable(setup, outcome),
    }
}

/// Whether far more requests are inside at the end than on average, and many.
#[expect(clippy::cast_precision_loss, reason = "counts of a simulation are below 2^53")]
fn unstable(setup: &Setup, outcome: &Outcome) -> bool {
    let measured = setup.requests - setup.requests / 10;
    let left = measured.saturating_sub(outcome.responses.count() + outcome.failed) as f64;
    left > LEFT_MAX * measured as f64 && left > GROWS * outcome.inside
}

#[expect(clippy::cast_precision_loss, reason = "counts of a simulation are below 2^53")]
fn nanoseconds(setup: &Setup, runs: &[Run]) -> f64 {
    let took: Duration = runs.iter().map(|run| run.took).sum();
    took.as_secs_f64() * 1e9 / (runs.len() as f64 * setup.requests as f64)
}

/// Fills in what compares with baselines at this point.
fn relate(lines: &mut [Line], point: usize, setup: &Setup) {
    let of = |name: &str| {
        let is_it = |line: &&Line| line.role == Role::Baseline && line.name == name;
        lines.iter().find(is_it).map(|line| &line.points[point])
    };
    let mean = |name| of(name).map_or(f64::NAN, |figures| figures.mean);
    let bound = match setup.equal_speeds() {
        true => mean("central"),
        false => mean("sed-now").min(mean("never-queue-now")),
    };
    let stable = |name: &&str| of(name).is_some_and(|figures| !figures.unstable);
    let random = ["random", "speed-random"].iter().copied().find(stable);
    let random = random.map_or(f64::NAN, mean);
    let round_robin = mean("round-robin");
    let herd_share = of("random").map_or(f64::NAN, |figures| figures.herd_share);
    for line in lines {
        let figures = &mut line.points[point];
        figures.quality = (figures.mean - bound) / (random - bound);
        figures.to_round_robin = figures.mean / round_robin;
        figures.herding = figures.herd_share / herd_share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(set: &[&str], names: &[&str]) -> Comparison {
        let mut scenario = Scenario::load("small").expect("is built in");
        for written in ["requests=2000", "every=1"].iter().chain(set) {
            scenario.set(written).expect("is good");
        }
        let entrant = |name: &&str| {
            let known = Baseline::NAMES.iter().find(|(known, _)| known == name);
            let (name, baseline) = known.expect("is a baseline");
            let contender = Contender::Baseline(*baseline);
            Entrant { name: (*name).to_owned(), own: false, contender }
        };
        let entrants: Vec<_> = names.iter().map(entrant).collect();
        let engine = PolicyEngine::new(crate::policy::Limits::patient()).expect("starts");
        compare(&engine, &scenario, &entrants, 2, &|_, _, _| {}).expect("baselines do not fail")
    }

    #[test]
    fn random_has_quality_1_and_the_bound_0() {
        let comparison = comparison(&[], &["random", "round-robin", "jsq-now", "central"]);
        let quality = |line: usize| comparison.lines[line].points[0].quality;
        assert!((quality(0) - 1.0).abs() < 1e-9 && quality(3).abs() < 1e-9);
        assert!(quality(2) > 0.0 && quality(2) < 0.5, "{}", quality(2));
        let random = &comparison.lines[0].points[0];
        assert!((random.herding - 1.0).abs() < 1e-9 && random.to_round_robin > 1.0);
        assert!(random.within > 0.0 && random.seeds.len() == 2 && !random.unstable);
    }

    #[test]
    fn a_farm_that_cannot_do_its_work_is_unstable() {
        let unequal = comparison(&["speeds=slow-tenth", "utilisation=0.9"], &["random"]);
        assert!(unequal.lines[0].points[0].unstable);
        let overloaded = comparison(&["utilisation=1.5"], &["jsq-now"]);
        assert!(overloaded.lines[0].points[0].unstable);
        assert!(overloaded.lines[0].points[0].quality.is_nan(), "there is nothing to compare with");
    }
}
