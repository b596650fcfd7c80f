//! The comparison: every entrant on every farm with every seed, and the figures of it.
//!
//! Runs are independent and shared out among threads; their order in the result is fixed, so that
//! equal scenarios and seeds give equal figures. Only [`Line::nanoseconds`] depends on the machine.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::chooser::{Baseline, GuestChooser};
use super::figures::{Figures, relate};
use super::measure::Outcome;
use super::scenario::{Point, Scenario};
use super::setup::Setup;
use super::{run, run_baseline};
use crate::policy::{Module, PolicyEngine};

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
                {
                    let outcomes: Vec<_> = of_point.iter().map(|run| &run.outcome).collect();
                    (Figures::of(&point.setup, &outcomes), nanoseconds(&point.setup, &of_point))
                }
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
}

impl Task<'_> {
    fn perform(&self, engine: &PolicyEngine, key: &str) -> Result<Run, String> {
        let Self { entrant, point, seed } = self;
        let begin = Instant::now();
        let outcome = match &entrant.contender {
            Contender::Baseline(baseline) => run_baseline(&point.setup, *seed, *baseline),
            Contender::Strategy(module, settings) => run(&point.setup, *seed, |host| {
                let seed = seed.wrapping_mul(977).wrapping_add(host);
                let guest = GuestChooser::start(engine, &entrant.name, module, settings, seed);
                Ok(Box::new(guest?))
            }),
        };
        let (name, value) = (&entrant.name, &point.label);
        let outcome = outcome
            .map_err(|fault| format!("{name} with {key} = {value}, seed {seed}: {fault}"))?;
        Ok(Run { outcome, took: begin.elapsed() })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a simulation are below 2^53")]
fn nanoseconds(setup: &Setup, runs: &[Run]) -> f64 {
    let took: Duration = runs.iter().map(|run| run.took).sum();
    took.as_secs_f64() * 1e9 / (runs.len() as f64 * setup.requests as f64)
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
        assert!(random.to_jsq > random.to_round_robin);
        assert!((comparison.lines[2].points[0].to_jsq - 1.0).abs() < 1e-9);
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
