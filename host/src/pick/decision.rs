//! Why that target: what was seen at the moment of each of the last picks.
//!
//! A pick copies the views of a pool of up to [`ROSTER_MAX`] targets, as the strategy was told them.
//! Of a larger pool it keeps the chosen ones alone, because looking for the nearest ones costs O(n), and
//! a mere sample of rows and names that no other pick needs costs cache misses: that is done for
//! requests that ask to be explained. Memory is a ring of records, as long as configured, whose buffers
//! are used again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::health::Why;
use super::pool::Pool;
use super::table::{ROSTER_MAX, Roster, Row, Table, Tally};
use crate::policy::Generation;

/// One pick as it was made.
#[derive(Debug, Clone)]
pub struct Decision {
    /// Its number in this run of the host.
    pub number: u64,
    /// When, in milliseconds of the host's clock.
    pub at_ms: u64,
    /// The pool that was asked.
    pub pool: Arc<Pool>,
    /// What was asked.
    pub request: Asked,
    /// Who chose: the strategy's generation, or why it was not asked.
    pub strategy: Result<Generation, Arc<str>>,
    /// Whose loads these are; `None`: the last good ones, without a formula.
    pub formula: Option<Generation>,
    /// What was seen.
    pub scene: Scene,
}

/// The request of a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// The client's key as strategies see it, 0: none.
    pub key_hash: u64,
    /// Targets wanted.
    pub n: usize,
    /// Machines not wanted.
    pub excluded: usize,
    /// Whether it opened a lease.
    pub has_lease: bool,
}

/// The pool at the moment of a pick, before it was counted.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// The pool's targets by what they were.
    pub tally: Tally,
    /// Whether ejections were ignored.
    pub is_panic: bool,
    /// The table's version: equal in two decisions if nothing changed between them.
    pub version: u64,
    /// Slots of the chosen ones, best first.
    pub chosen: Vec<u32>,
    /// All targets of the pool, or some with the chosen among them.
    pub candidates: Vec<Candidate>,
    /// Slots and names of the candidates, in their order.
    pub names: Roster,
}

/// One target as it was; small, because a pick writes up to [`ROSTER_MAX`] of them.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The formula's answer; NaN: not known.
    pub load: f64,
    /// Capacity relative to the others.
    pub weight: f32,
    /// As the strategy was told, like all that follows.
    pub in_flight: u32,
    /// Picks since the capture of its report.
    pub picks: u32,
    /// Milliseconds since that.
    pub age_ms: u32,
    /// Mean latency of successes in microseconds, 0: none known.
    pub latency_us: u32,
    /// Share of failed outcomes, 0 to 1.
    pub error_rate: f32,
    /// Slow-start share, 0 to 1.
    pub warm: f32,
    /// Why it could not be picked by anybody; `None`: it could.
    pub why_not: Option<WhyNot>,
    /// The request did not want it.
    pub is_excluded: bool,
}

/// Why a target may not be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot {
    /// Not ready for work by what it reported.
    NotReady,
    /// Ejected for its outcomes.
    Ejected(Why),
    /// Its ejection had ended, and the strategy was not told yet.
    Returning,
}

impl Candidate {
    fn of(row: &Row, slot: u32, now_ms: u64, is_excluded: bool) -> Self {
        let view = row.view(slot, now_ms);
        let why_not = match row.health.ejection {
            _ if view.eligible => None,
            _ if !row.is_live() => Some(WhyNot::NotReady),
            Some(ejection) => Some(WhyNot::Ejected(ejection.why)),
            None => Some(WhyNot::Returning),
        };
        #[expect(clippy::cast_possible_truncation, reason = "shown, not reckoned with")]
        let weight = view.weight as f32;
        Self {
            load: view.load,
            weight,
            in_flight: view.in_flight,
            picks: view.picks,
            age_ms: view.age_ms,
            latency_us: view.latency_us,
            error_rate: view.error_rate,
            warm: view.warm,
            why_not,
            is_excluded,
        }
    }
}

/// What of a pool a scene is to hold.
pub(super) struct Focus<'s> {
    pub(super) chosen: &'s [u32],
    pub(super) unwanted: &'s HashSet<u32>,
    /// The nearest ones of a large pool, at O(n).
    pub(super) explain: bool,
    pub(super) now_ms: u64,
}

/// The last decisions.
#[derive(Debug)]
pub(super) struct Decisions {
    next: AtomicU64,
    /// Tells this run's decisions from another's.
    run: u32,
    ring: Vec<Mutex<Option<Decision>>>,
}

impl Decisions {
    /// A memory for so many; 0: for none.
    pub(super) fn new(len: usize) -> Self {
        let ring = (0..len).map(|_| Mutex::default()).collect();
        Self { next: AtomicU64::new(0), run: fastrand::u32(..), ring }
    }

    /// A number for a pick, and an empty scene if it is to be remembered.
    pub(super) fn begin(&self) -> (u64, Option<Scene>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(place) = self.place(number) else { return (number, None) };
        let before = place.lock().take();
        let mut scene = before.map(|decision| decision.scene).unwrap_or_default();
        scene.candidates.clear();
        scene.chosen.clear();
        (number, Some(scene))
    }

    /// Keeps a pick in the place of the oldest one.
    pub(super) fn keep(&self, decision: Decision) {
        if let Some(place) = self.place(decision.number) {
            *place.lock() = Some(decision);
        }
    }

    /// Decisions remembered at most.
    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    /// A decision by its name, if it is remembered.
    pub(super) fn get(&self, name: &str) -> Option<Decision> {
        self.look(name, Decision::clone)
    }

    /// Where a decision sent its client: the pool and the machine.
    pub(super) fn target(&self, name: &str) -> Option<(Arc<Pool>, Arc<str>)> {
        self.look(name, |decision| {
            let machine = decision.scene.name_of(*decision.scene.chosen.first()?)?;
            Some((Arc::clone(&decision.pool), machine))
        })
        .flatten()
    }

    /// The newest decisions first, so many at most, of this pool where one is named.
    pub(super) fn newest(&self, pool: Option<&str>, limit: usize) -> Vec<Decision> {
        let next = self.next.load(Ordering::Relaxed);
        let mut found = Vec::new();
        for number in (next.saturating_sub(self.ring.len() as u64)..next).rev() {
            let Some(place) = self.place(number) else { break };
            let decision = place.lock();
            let fits = |decision: &&Decision| {
                decision.number == number && pool.is_none_or(|pool| decision.pool.name() == pool)
            };
            found.extend(decision.as_ref().filter(fits).cloned());
            if found.len() >= limit {
                break;
            }
        }
        found
    }

    /// What clients call a decision.
    pub(super) fn name(&self, number: u64) -> String {
        format!("{:08x}-{number:x}", self.run)
    }

    fn look<T>(&self, name: &str, look: impl FnOnce(&Decision) -> T) -> Option<T> {
        let (run, number) = name.split_once('-')?;
        let run = u32::from_str_radix(run, 16).ok().filter(|run| *run == self.run);
        let number = run.and_then(|_| u64::from_str_radix(number, 16).ok())?;
        let decision = self.place(number)?.lock();
        decision.as_ref().filter(|decision| decision.number == number).map(look)
    }

    fn place(&self, number: u64) -> Option<&Mutex<Option<Decision>>> {
        let place = number.checked_rem(self.ring.len() as u64)?;
        self.ring.get(usize::try_from(place).ok()?)
    }
}

impl Scene {
    /// Whether every target of the pool is among the candidates.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.candidates.len() == self.tally.targets
    }

    /// The candidates with their slots and names.
    pub fn named(&self) -> impl Iterator<Item = (&(u32, Arc<str>), &Candidate)> {
        self.names.iter().zip(&self.candidates)
    }

    /// A candidate's machine.
    #[must_use]
    pub fn name_of(&self, slot: u32) -> Option<Arc<str>> {
        let named = self.names.iter().find(|(named, _)| *named == slot);
        named.map(|(_, name)| Arc::clone(name))
    }

    /// Candidates that may have been picked and had the load of the chosen one.
    #[must_use]
    pub fn tied(&self) -> usize {
        let first = self.named().find(|((slot, _), _)| Some(slot) == self.chosen.first());
        let Some((_, first)) = first else { return 0 };
        let is_tied = |of: &&Candidate| {
            let could_be = of.why_not.is_none() && !of.is_excluded;
            could_be && of.load.to_bits() == first.load.to_bits()
        };
        self.candidates.iter().filter(is_tied).count()
    }

    /// Copies what is in focus out of the table.
    pub(super) fn take(&mut self, table: &mut Table, focus: &Focus<'_>) {
        self.tally = table.tally();
        self.is_panic = table.is_panic();
        self.version = table.version();
        self.chosen.extend_from_slice(focus.chosen);
        self.names = table.roster().unwrap_or_else(|| some(table, focus));
        self.candidates.reserve(self.names.len());
        for (slot, _) in &*self.names {
            let is_excluded = !focus.unwanted.is_empty() && focus.unwanted.contains(slot);
            let candidate = |row| Candidate::of(row, *slot, focus.now_ms, is_excluded);
            self.candidates.extend(table.get(*slot).map(candidate));
        }
    }
}

/// The chosen targets of a large pool, and the nearest ones where that is wanted.
fn some(table: &Table, focus: &Focus<'_>) -> Roster {
    let name = |slot: u32| Some((slot, Arc::clone(&table.get(slot)?.fresh.machine)));
    let chosen = focus.chosen.iter().copied();
    let others = if focus.explain { nearest(table, focus.chosen) } else { Vec::new() };
    let others = others.into_iter().filter(|slot| !focus.chosen.contains(slot));
    chosen.chain(others).filter_map(name).take(ROSTER_MAX).collect()
}

/// The targets whose loads are nearest to the best chosen one's; those of unknown load last.
fn nearest(table: &Table, chosen: &[u32]) -> Vec<u32> {
    let load = chosen.first().and_then(|slot| table.get(*slot)).map_or(0.0, |row| row.fresh.load);
    let load = if load.is_nan() { 0.0 } else { load };
    let distance = |(slot, row): (u32, &Row)| {
        let apart = (row.fresh.load - load).abs();
        (if apart.is_nan() { f64::INFINITY } else { apart }, slot)
    };
    let mut targets: Vec<_> = table.rows().map(distance).collect();
    if targets.len() > ROSTER_MAX {
        targets.select_nth_unstable_by(ROSTER_MAX, |a, b| a.0.total_cmp(&b.0));
        targets.truncate(ROSTER_MAX);
    }
    targets.sort_by(|a, b| a.0.total_cmp(&b.0));
    targets.into_iter().map(|(_, slot)| slot).collect()
}
