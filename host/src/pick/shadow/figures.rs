//! What a shadow run has shown: who agreed, what failed, how long it took, how work would have been
//! spread, and where the two differed most.
//!
//! Compared are picks of the live pool with what the candidate chose for the same request; of a formula,
//! also the loads. Lists are bounded. Of loads only relations are compared, because their units are
//! their authors'.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::mirror::{Mirror, Target};
use crate::policy::CallError;
use crate::policy::guest::{Request, TargetView};
use crate::quantiles::Quantiles;

/// Entries of each list that is shown.
const LIST_MAX: usize = 10;
/// Names of missing metrics that are shown.
const MISSING_MAX: usize = 16;
/// Pairs of targets whose order by both formulas is compared, at a look.
const PAIRS: usize = 512;
/// Loads that differ by less, relative to the larger, are alike: another order of additions.
const ALIKE: f64 = 1e-9;

/// Everything counted so far.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Picks that were compared.
    pub picks: u64,
    /// Of them: both chose the same target.
    pub agreed: u64,
    /// Of them: native code had chosen for the live pool.
    pub native: u64,
    /// Of them: the candidate named nobody, which a live pool answers natively.
    pub no_answer: u64,
    /// Picks that were not compared because the candidate was being fed or built anew.
    pub not_ready: u64,
    /// Picks that were not compared because the shadow was behind and its buffer full.
    pub dropped_picks: u64,
    /// Other news that were lost so; the candidate is fed anew then.
    pub dropped_updates: u64,
    /// Times that it was fed anew for that.
    pub fed_anew: u64,
    /// Faults by reason.
    pub faults: BTreeMap<&'static str, u64>,
    /// The last fault.
    pub last_fault: Option<String>,
    /// CPU time of the candidate's picks in microseconds; of a formula, of its batches.
    pub time_us: Quantiles,
    /// Where the two differed most, the worst first.
    pub worst: Vec<Disagreement>,
    /// Of a formula: its loads.
    pub loads: Loads,
}

/// A pick on which the two differed.
#[derive(Debug, Clone)]
pub struct Disagreement {
    /// When, in milliseconds of the host's clock.
    pub at_ms: u64,
    /// The request's key as strategies see it, 0: none.
    pub key_hash: u64,
    /// Its random bits.
    pub random: u64,
    /// Native code had chosen for the live pool.
    pub is_native: bool,
    /// What the live pool chose, as both knew it.
    pub live: Choice,
    /// What the candidate chose; `None`: nobody.
    pub candidate: Option<Choice>,
    /// How much larger the load of the candidate's choice is; infinite where only that one is unknown.
    pub excess: f64,
}

/// A target as it was told at the moment of a pick.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Its machine; `None`: it has left since.
    pub machine: Option<Arc<str>>,
    /// Load and own picks as the live strategy knew them.
    pub live: TargetView,
    /// And as the candidate knew them.
    pub candidate: TargetView,
}

/// Loads of a formula beside the live ones.
#[derive(Debug, Clone, Default)]
pub struct Loads {
    /// Compared.
    pub compared: u64,
    /// Of them: alike.
    pub alike: u64,
    /// Answers that were NaN, infinite or negative.
    pub bad: u64,
    /// Reports without a metric that the candidate needs, and some of the metrics.
    pub without: u64,
    /// By name.
    pub missing: BTreeSet<Arc<str>>,
    /// Difference relative to the larger one, 0 to 1.
    pub difference: Quantiles,
    /// The largest differences.
    pub worst: Vec<LoadPair>,
}

/// A target's load by both.
#[derive(Debug, Clone)]
pub struct LoadPair {
    /// Whose.
    pub machine: Arc<str>,
    /// The live formula's.
    pub live: f64,
    /// The candidate's.
    pub candidate: f64,
    /// Relative to the larger one.
    pub difference: f64,
}

/// How evenly picks were handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    /// The largest share of one target, 0 to 1.
    pub largest_share: f64,
    /// Hand-outs of the target with the most over their mean; NaN: none.
    pub max_over_mean: f64,
    /// Coefficient of variation: standard deviation over mean; NaN: none.
    pub variation: f64,
}

/// The spread of the compared picks, live and as the candidate would have made it.
#[derive(Debug, Clone, Default)]
pub struct Spreads {
    /// Targets among which they were spread: those that may be picked now or were.
    pub targets: usize,
    /// Of the live pool.
    pub live: Spread,
    /// Of the candidate.
    pub candidate: Spread,
    /// Slots with the most different counts, and these: live, and the candidate's.
    pub(super) apart: Vec<(u32, u64, [u64; 2])>,
    /// Share of pairs of targets that both formulas put in the same order; NaN: none is known.
    pub order: f64,
}

impl Figures {
    /// Share of the compared picks on which both chose alike; NaN: none yet.
    #[must_use]
    pub fn agreement(&self) -> f64 {
        self.agreed as f64 / self.picks as f64
    }

    /// All faults.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// A quantile of the candidate's time.
    #[must_use]
    pub fn time(&self, share: f64) -> Duration {
        let us = self.time_us.quantile(share);
        Duration::try_from_secs_f64(us / 1e6).unwrap_or_default()
    }

    pub(super) fn note_fault(&mut self, fault: &CallError) {
        *self.faults.entry(fault.reason()).or_default() += 1;
        self.last_fault = Some(fault.to_string());
    }

    /// Whether a disagreement with this excess is among the worst so far.
    pub(super) fn is_bad(&self, excess: f64) -> bool {
        let last = self.worst.get(LIST_MAX - 1);
        last.is_none_or(|last| excess > last.excess)
    }

    pub(super) fn keep(&mut self, disagreement: Disagreement) {
        let place = self.worst.partition_point(|other| other.excess >= disagreement.excess);
        self.worst.insert(place, disagreement);
        self.worst.truncate(LIST_MAX);
    }
}

impl Disagreement {
    pub(super) fn of(
        request: &Request,
        is_native: bool,
        [live, candidate]: [Option<Choice>; 2],
    ) -> Option<Self> {
        let live = live?;
        let excess = excess(live.live.load, candidate.as_ref().map(|choice| choice.candidate.load));
        let (at_ms, key_hash, random) = (request.now_ms, request.key, request.random);
        Some(Self { at_ms, key_hash, random, is_native, live, candidate, excess })
    }
}

/// How much larger the load of the candidate's choice is.
pub(super) fn excess(live: f64, candidate: Option<f64>) -> f64 {
    let candidate = candidate.unwrap_or(f64::NAN);
    match (live.is_finite(), candidate.is_finite()) {
        (true, true) => candidate - live,
        (true, false) => f64::INFINITY,
        (false, true) => f64::NEG_INFINITY,
        (false, false) => 0.0,
    }
}

impl Loads {
    pub(super) fn compare(&mut self, pair: LoadPair) {
        self.compared += 1;
        self.alike += u64::from(pair.difference <= ALIKE);
        self.difference.add(pair.difference);
        let place = self.worst.partition_point(|other| other.difference >= pair.difference);
        if place < LIST_MAX {
            // The newest of a machine says how it is now.
            self.worst.insert(place, pair.clone());
            let mut seen = BTreeSet::new();
            self.worst.retain(|other| seen.insert(Arc::clone(&other.machine)));
            self.worst.truncate(LIST_MAX);
        }
    }

    pub(super) fn lacks(&mut self, missing: &[Arc<str>]) {
        self.without += 1;
        let room = MISSING_MAX.saturating_sub(self.missing.len());
        self.missing.extend(missing.iter().take(room).cloned());
    }
}

impl LoadPair {
    pub(super) fn new(machine: Arc<str>, live: f64, candidate: f64) -> Self {
        let larger = live.max(candidate);
        let difference = if larger > 0.0 { (live - candidate).abs() / larger } else { 0.0 };
        Self { machine, live, candidate, difference }
    }
}

impl Spreads {
    pub(super) fn of(mirror: &Mirror) -> Self {
        let has_part = |target: &Target| target.live.eligible || target.handed != [0, 0];
        let counts: Vec<_> = mirror
            .targets()
            .filter(|(_, target)| has_part(target))
            .map(|(slot, target)| (slot, target.handed))
            .collect();
        let spread = |who: usize| Spread::of(counts.iter().map(|(_, handed)| handed[who]));
        let apart = |(slot, handed): &(u32, [u64; 2])| {
            let apart = handed[0].abs_diff(handed[1]);
            (apart > 0).then_some((*slot, apart, *handed))
        };
        let mut most: Vec<_> = counts.iter().filter_map(apart).collect();
        most.sort_unstable_by_key(|(slot, apart, _)| (std::cmp::Reverse(*apart), *slot));
        most.truncate(LIST_MAX);
        let order = if mirror.has_loads { order(mirror) } else { f64::NAN };
        let (live, candidate) = (spread(0), spread(1));
        Self { targets: counts.len(), live, candidate, apart: most, order }
    }
}

impl Spread {
    fn of(counts: impl Iterator<Item = u64> + Clone) -> Self {
        let targets = counts.clone().count() as f64;
        let (sum, max) = counts.clone().fold((0, 0), |(sum, max), of| (sum + of, of.max(max)));
        let (sum, max) = (sum as f64, max as f64);
        let mean = sum / targets;
        let squares: f64 = counts.map(|of| (of as f64 - mean).powi(2)).sum();
        let share = if sum > 0.0 { max / sum } else { 0.0 };
        Self {
            largest_share: share,
            max_over_mean: max / mean,
            variation: (squares / targets).sqrt() / mean,
        }
    }
}

/// Share of pairs that both formulas put in the same order, of some pairs.
fn order(mirror: &Mirror) -> f64 {
    let known = |(_, target): (u32, &Target)| {
        let loads = [target.live.load, target.load];
        loads.iter().all(|load| load.is_finite()).then_some(loads)
    };
    let known: Vec<_> = mirror.targets().filter_map(known).collect();
    if known.len() < 2 {
        return f64::NAN;
    }
    let mut same = 0;
    for _ in 0..PAIRS {
        let one = fastrand::usize(..known.len());
        let other = (one + fastrand::usize(1..known.len())) % known.len();
        let by = |who: usize| known[one][who].total_cmp(&known[other][who]);
        same += u32::from(by(0) == by(1));
    }
    f64::from(same) / PAIRS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disagreement(excess: f64) -> Disagreement {
        let view = TargetView::new(0, 0.5);
        let live = Choice { machine: None, live: view, candidate: view };
        let (at_ms, key_hash, random, is_native) = (0, 0, 0, false);
        Disagreement { at_ms, key_hash, random, is_native, live, candidate: None, excess }
    }

    #[test]
    fn the_worst_are_kept_and_their_number_is_bounded() {
        let mut figures = Figures::default();
        for number in 0..1_000 {
            let excess = f64::from(number * 37 % 1_000);
            if figures.is_bad(excess) {
                figures.keep(disagreement(excess));
            }
        }
        let kept: Vec<_> = figures.worst.iter().map(|worst| worst.excess).collect();
        assert_eq!(kept, (990..1_000).rev().map(f64::from).collect::<Vec<_>>());
        let check = |live, candidate, expected: f64| {
            assert!(excess(live, candidate).total_cmp(&expected).is_eq(), "{live} {candidate:?}");
        };
        check(0.5, Some(0.75), 0.25);
        check(0.5, None, f64::INFINITY);
        check(f64::NAN, Some(1.0), f64::NEG_INFINITY);
        check(f64::INFINITY, None, 0.0);
    }

    #[test]
    fn spread_is_that_of_the_picks_compared() {
        let mut mirror = Mirror::default();
        (0..4).for_each(|slot| mirror.told(TargetView::new(slot, 0.5), 0));
        for pick in 0..8 {
            mirror.picked_both(pick % 4, 0, 0);
        }
        let spreads = Spreads::of(&mirror);
        assert_eq!((spreads.targets, spreads.live.max_over_mean), (4, 1.0));
        assert!(spreads.live.variation.abs() < 1e-12);
        assert_eq!((spreads.candidate.largest_share, spreads.candidate.max_over_mean), (1.0, 4.0));
        assert!((spreads.candidate.variation - 3.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(spreads.apart[0], (0, 6, [2, 8]));
    }

    #[test]
    fn loads_are_compared_by_relation() {
        let mut loads = Loads::default();
        for (machine, live, candidate) in
            [("a", 1.0, 1.0), ("b", 2.0, 1.0), ("b", 2.0, 1.5), ("c", 0.0, 0.0)]
        {
            loads.compare(LoadPair::new(machine.into(), live, candidate));
        }
        assert_eq!((loads.compared, loads.alike), (4, 2));
        assert!((loads.worst[0].difference - 0.5).abs() < 1e-12);
        assert_eq!(loads.worst.len(), 3, "one entry a machine");
    }
}
