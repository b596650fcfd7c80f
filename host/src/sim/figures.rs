//! What is told of one entrant's runs on one farm: outcomes of all seeds in, [`Figures`] out.
//!
//! Invariants: a figure is the mean over the seeds; what compares with baselines is NaN where they do not
//! take part, and what nothing was measured of is NaN, too.

use serde::Serialize;

use super::compare::{Line, Role};
use super::measure::{Estimate, Outcome, reacted_after, recovered_after};
use super::setup::Setup;

/// Share of the requests inside at the end from which a run may be unstable.
const LEFT_MAX: f64 = 0.05;
/// How much more than its mean is inside at the end of a run that grows all the time: 1.8 if it
/// grows evenly from nothing and a tenth is warm-up, 1 if it does not grow.
const GROWS: f64 = 1.4;

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
    /// Mean response over that of who sees all queues and joins the shortest; NaN without it.
    pub to_jsq: f64,
    /// Largest share of the picks in a report period, over that of random; NaN without it.
    pub herding: f64,
    /// The same, alone.
    pub herd_share: f64,
    /// Time mean of the longest queue.
    pub longest: f64,
    /// The same over the mean queue.
    pub imbalance: f64,
    /// Time mean of the queues' standard deviation.
    pub deviation: f64,
    /// The longest queue of all.
    pub peak: f64,
    /// Jain's index of the picks by speed: 1 all alike, 1/n all to one.
    pub evenness: f64,
    /// Share of the requests whose key went elsewhere the last time; NaN without keys.
    pub moved: f64,
    /// Share of the requests that failed; NaN where none can.
    pub failed: f64,
    /// After an incident, as are the next ones: units until the server has less than 0.4 of its fair
    /// share, over five units; NaN: never.
    pub reacted: f64,
    /// Units from its end until it has 0.8 of that again.
    pub recovered: f64,
    /// The longest queue that it had.
    pub its_queue: f64,
    /// Picks of it beyond what its speed then is worth.
    pub excess: f64,
    /// Picks of it after the dead rule, by all seeds.
    pub picks_of_dead: f64,
    /// Requests for which nobody was chosen.
    pub unanswered: u64,
    /// Whether queues grew all the time in most runs: the farm cannot do it, or they are too short.
    pub unstable: bool,
    /// What each seed gave.
    pub seeds: Vec<Single>,
}

/// What one seed gave; as in [`Figures`].
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "documented there")]
pub struct Single {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub longest: f64,
    pub imbalance: f64,
    pub deviation: f64,
    pub peak: f64,
    pub evenness: f64,
    pub herd_share: f64,
    pub moved: f64,
    pub failed: f64,
    pub unstable: bool,
}

impl Figures {
    /// Of these runs, but for what compares with others.
    pub(super) fn of(setup: &Setup, outcomes: &[&Outcome]) -> Self {
        let seeds: Vec<_> = outcomes.iter().map(|outcome| Single::of(setup, outcome)).collect();
        let average = |value: &dyn Fn(&Single) -> f64| mean(seeds.iter().map(value));
        let means: Vec<_> = seeds.iter().map(|seed| seed.mean).collect();
        let units = |value: fn(&Outcome) -> &[f64]| by_unit(outcomes.iter().map(|of| value(of)));
        let number = |units: Option<usize>| units.map_or(f64::NAN, |units| units as f64);
        let incident = |value: &dyn Fn(&Outcome) -> f64| match setup.incident {
            Some(_) => mean(outcomes.iter().map(|outcome| value(outcome))),
            None => f64::NAN,
        };
        Self {
            within: Estimate::of(&means).within,
            mean: average(&|seed| seed.mean),
            p50: average(&|seed| seed.p50),
            p99: average(&|seed| seed.p99),
            p999: average(&|seed| seed.p999),
            quality: f64::NAN,
            to_round_robin: f64::NAN,
            to_jsq: f64::NAN,
            herding: f64::NAN,
            herd_share: average(&|seed| seed.herd_share),
            longest: average(&|seed| seed.longest),
            imbalance: average(&|seed| seed.imbalance),
            deviation: average(&|seed| seed.deviation),
            peak: average(&|seed| seed.peak),
            evenness: average(&|seed| seed.evenness),
            moved: average(&|seed| seed.moved),
            failed: average(&|seed| seed.failed),
            reacted: number(reacted_after(&units(|outcome| &outcome.reaction))),
            recovered: number(recovered_after(&units(|outcome| &outcome.recovery))),
            its_queue: incident(&|outcome| outcome.reaction_queue as f64),
            excess: incident(&|outcome| outcome.excess),
            picks_of_dead: incident(&|outcome| outcome.picks_of_dead as f64)
                * outcomes.len() as f64,
            unanswered: outcomes.iter().map(|outcome| outcome.unanswered).sum(),
            unstable: 2 * seeds.iter().filter(|seed| seed.unstable).count() > seeds.len(),
            seeds,
        }
    }
}

impl Single {
    fn of(setup: &Setup, outcome: &Outcome) -> Self {
        let quantile = |share| outcome.responses.quantile(share);
        let failed = outcome.failed as f64;
        Self {
            mean: outcome.responses.mean(),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            longest: outcome.longest,
            imbalance: outcome.imbalance,
            deviation: outcome.deviation,
            peak: outcome.peak as f64,
            evenness: outcome.evenness,
            herd_share: outcome.herd_share,
            moved: outcome.moved,
            failed: match setup.failures > 0.0 {
                true => failed / (failed + outcome.responses.count() as f64),
                false => f64::NAN,
            },
            unstable: unstable(setup, outcome),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    Estimate::of(&values.collect::<Vec<_>>()).mean
}

/// The mean share of each unit that all runs have.
fn by_unit<'a>(runs: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let runs: Vec<_> = runs.collect();
    let length = runs.iter().map(|shares| shares.len()).min().unwrap_or(0);
    (0..length).map(|unit| mean(runs.iter().map(|shares| shares[unit]))).collect()
}

/// Whether far more requests are inside at the end than on average, and many.
fn unstable(setup: &Setup, outcome: &Outcome) -> bool {
    let measured = setup.requests - setup.requests / 10;
    let served = outcome.responses.count() + outcome.failed;
    let left = measured.saturating_sub(served) as f64;
    left > LEFT_MAX * measured as f64 && left > GROWS * outcome.inside
}

/// Fills in what compares with baselines at this point.
pub(super) fn relate(lines: &mut [Line], point: usize, setup: &Setup) {
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
    let (round_robin, jsq) = (mean("round-robin"), mean("jsq-now"));
    let herd_share = of("random").map_or(f64::NAN, |figures| figures.herd_share);
    for line in lines {
        let figures = &mut line.points[point];
        figures.quality = (figures.mean - bound) / (random - bound);
        figures.to_round_robin = figures.mean / round_robin;
        figures.to_jsq = figures.mean / jsq;
        figures.herding = figures.herd_share / herd_share;
    }
}
