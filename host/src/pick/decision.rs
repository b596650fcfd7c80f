//! Why that target: what was seen at the moment of each of the last picks.
//!
//! A pick copies the views of a pool of up to [`ROSTER_MAX`] targets, as the strategy was told them.
//! Of a larger pool it keeps the chosen ones and [`NEIGHBOURS`] of the nearest by load, with their
//! numbers of that moment: looking for the very nearest costs O(n), so they are found in the pool's
//! ranking, which is made beside the picks and as old as `order_age_ms` says; their names, which no pick
//! needs and would each cost a cache miss, are looked up when the record is read. A request that asks
//! to be explained pays for the exact [`ROSTER_MAX`]. Memory is a ring of records, as long as
//! configured, whose buffers are used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::constraint::TargetLabels;
use super::health::Why;
use super::pool::Pool;
use super::pool::sieve::Sieve;
use super::table::{ROSTER_MAX, Roster, Row, Table, Tally};
use crate::policy::Decider;

/// Targets of a large pool that are kept beside the chosen ones.
pub const NEIGHBOURS: usize = 5;

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
    /// Who chose: the strategy, or why it was not asked.
    pub strategy: Result<Decider, Arc<str>>,
    /// Whose loads these are; `None`: the last good ones, without a formula.
    pub formula: Option<Decider>,
    /// What was seen.
    pub scene: Scene,
}

/// The request of a decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The client's key as strategies see it, 0: none.
    pub key_hash: u64,
    /// Targets wanted.
    pub n: usize,
    /// Machines not wanted.
    pub excluded: usize,
    /// What was wanted of labels; `None`: nothing.
    pub constraint: Option<Box<str>>,
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
    /// Of a large pool: age of the order in which the nearest by load were found, 0: exact; `None`:
    /// there was none yet, the chosen ones are alone.
    pub order_age_ms: Option<u32>,
    /// Slots and names of the candidates, in their order: of all, or else of some.
    roster: Option<Roster>,
    some: Vec<(u32, Who)>,
}

/// Who a candidate is.
#[derive(Debug, Clone)]
enum Who {
    Named(Arc<str>),
    /// To be looked up: the target's number on every host.
    Identity(u64),
}

impl Who {
    fn named(row: &Row) -> Self {
        Self::Named(Arc::clone(&row.named.machine))
    }
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
    /// Why the request did not want it; `None`: it did.
    pub unwanted: Option<Unwanted>,
}

/// Why a request does not want a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// It names the machine.
    Excluded,
    /// It wants other labels.
    Labels,
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
    fn of(row: &Row, slot: u32, now_ms: u64, unwanted: Option<Unwanted>) -> Self {
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
            unwanted,
        }
    }
}

/// What of a pool a scene is to hold.
pub(super) struct Focus<'s> {
    pub(super) chosen: &'s [u32],
    pub(super) sieve: &'s Sieve<'s>,
    /// The very nearest ones of a large pool, at O(n).
    pub(super) explain: bool,
    pub(super) now_ms: u64,
}

impl Focus<'_> {
    fn candidate(&self, slot: u32, row: &Row, labels: &TargetLabels) -> Candidate {
        Candidate::of(row, slot, self.now_ms, self.sieve.drops(slot, labels))
    }
}

/// The last decisions.
#[derive(Debug)]
pub(super) struct Decisions {
    next: AtomicU64,
    /// Tells this run's decisions from another's.
    run: u32,
    ring: RwLock<Vec<Place>>,
}

/// One record of the ring.
type Place = Mutex<Option<Decision>>;

impl Decisions {
    /// A memory for so many; 0: for none.
    pub(super) fn new(len: usize) -> Self {
        let ring = RwLock::new(empty_ring(len));
        Self { next: AtomicU64::new(0), run: fastrand::u32(..), ring }
    }

    /// Remembers so many from now on; the newest of those that are known stay.
    pub(super) fn resize(&self, len: usize) {
        let mut ring = self.ring.write();
        if ring.len() == len {
            return;
        }
        let known = std::mem::replace(&mut *ring, empty_ring(len));
        let mut known: Vec<_> = known.into_iter().filter_map(Mutex::into_inner).collect();
        known.sort_unstable_by_key(|decision| decision.number);
        for decision in known {
            if let Some(place) = place(&ring, decision.number) {
                *place.lock() = Some(decision);
            }
        }
    }

    /// A number for a pick, and an empty scene if it is to be remembered.
    pub(super) fn begin(&self) -> (u64, Option<Scene>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let ring = self.ring.read();
        let Some(place) = place(&ring, number) else { return (number, None) };
        let before = place.lock().take();
        let mut scene = before.map(|decision| decision.scene).unwrap_or_default();
        scene.clear();
        (number, Some(scene))
    }

    /// Keeps a pick in the place of the oldest one.
    pub(super) fn keep(&self, decision: Decision) {
        if let Some(place) = place(&self.ring.read(), decision.number) {
            *place.lock() = Some(decision);
        }
    }

    /// Decisions remembered at most.
    pub(super) fn len(&self) -> usize {
        self.ring.read().len()
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
        let ring = self.ring.read();
        let mut found = Vec::new();
        for number in (next.saturating_sub(ring.len() as u64)..next).rev() {
            let Some(place) = place(&ring, number) else { break };
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
        let ring = self.ring.read();
        let decision = place(&ring, number)?.lock();
        decision.as_ref().filter(|decision| decision.number == number).map(look)
    }
}

fn empty_ring(len: usize) -> Vec<Place> {
    (0..len).map(|_| Mutex::default()).collect()
}

fn place(ring: &[Place], number: u64) -> Option<&Place> {
    let place = number.checked_rem(ring.len() as u64)?;
    ring.get(usize::try_from(place).ok()?)
}

impl Scene {
    /// Whether every target of the pool is among the candidates.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.candidates.len() == self.tally.targets
    }

    /// The candidates with their slots and machines; those without a name are gone.
    pub fn named(&self) -> impl Iterator<Item = (u32, Option<&Arc<str>>, &Candidate)> {
        let all = self.roster.iter().flat_map(|roster| roster.iter());
        let all = all.map(|(slot, machine)| (*slot, Some(machine)));
        let some = self.some.iter().map(|(slot, who)| match who {
            Who::Named(machine) => (*slot, Some(machine)),
            Who::Identity(_) => (*slot, None),
        });
        all.chain(some).zip(&self.candidates).map(|((slot, machine), of)| (slot, machine, of))
    }

    /// A candidate's machine.
    #[must_use]
    pub fn name_of(&self, slot: u32) -> Option<Arc<str>> {
        self.named().find(|(named, ..)| *named == slot)?.1.cloned()
    }

    /// Candidates that may have been picked and had the load of the chosen one.
    #[must_use]
    pub fn tied(&self) -> usize {
        let first = self.named().find(|(slot, ..)| Some(slot) == self.chosen.first());
        let Some((_, _, first)) = first else { return 0 };
        let is_tied = |of: &&Candidate| {
            let could_be = of.why_not.is_none() && of.unwanted.is_none();
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
        let Some(roster) = table.roster() else { return self.take_some(table, focus) };
        self.candidates.reserve(roster.len());
        for (slot, _) in &*roster {
            let row = table.get(*slot);
            let of = |row| focus.candidate(*slot, row, table.labels(*slot));
            self.candidates.extend(row.map(of));
        }
        self.roster = Some(roster);
    }

    /// Of a large pool: the chosen ones and those nearest to them.
    fn take_some(&mut self, table: &mut Table, focus: &Focus<'_>) {
        for slot in focus.chosen {
            self.add(table, *slot, focus, Who::named);
        }
        if focus.explain {
            self.take_nearest(table, focus);
        } else {
            table.want_ranking();
            self.take_near(table, focus);
        }
    }

    /// The very nearest, by a look at all of them.
    fn take_nearest(&mut self, table: &Table, focus: &Focus<'_>) {
        self.order_age_ms = Some(0);
        let others = nearest(table, focus.chosen);
        let others = others.into_iter().filter(|slot| !focus.chosen.contains(slot));
        for slot in others.take(ROSTER_MAX.saturating_sub(focus.chosen.len())) {
            self.add(table, slot, focus, Who::named);
        }
    }

    /// Those near by the last ranking.
    fn take_near(&mut self, table: &Table, focus: &Focus<'_>) {
        let load = self.candidates.first().map_or(f64::NAN, |chosen| chosen.load);
        let Some(ranking) = table.ranking() else { return };
        self.order_age_ms = Some(ranking.age_ms(focus.now_ms));
        let mut near = [0; 2 * NEIGHBOURS]; // some may be gone
        let others = ranking.near(load).filter(|slot| !focus.chosen.contains(slot));
        let len = near.iter_mut().zip(others).map(|(place, slot)| *place = slot).count();
        let row = |slot: &u32| Some((*slot, table.get(*slot)?));
        // They are all over the memory: asked for together, they come together.
        near[..NEIGHBOURS.min(len)].iter().filter_map(row).for_each(|(_, row)| row.fetch());
        let near = near[..len].iter().filter_map(row).filter(|(_, row)| ranking.knows(row));
        for (slot, _) in near.take(NEIGHBOURS) {
            self.add(table, slot, focus, |row| Who::Identity(row.fresh.identity));
        }
    }

    fn add(&mut self, table: &Table, slot: u32, focus: &Focus<'_>, who: fn(&Row) -> Who) {
        let Some(row) = table.get(slot) else { return };
        self.some.push((slot, who(row)));
        self.candidates.push(focus.candidate(slot, row, table.labels(slot)));
    }

    /// Names those that are still where they were.
    pub(super) fn resolve(&mut self, table: &Table) {
        for (slot, who) in &mut self.some {
            if let Who::Identity(identity) = who
                && let Some(row) = table.get(*slot)
                && row.fresh.identity == *identity
            {
                *who = Who::Named(Arc::clone(&row.named.machine));
            }
        }
    }

    /// Forgets everything but its buffers.
    fn clear(&mut self) {
        self.chosen.clear();
        self.candidates.clear();
        self.some.clear();
        self.roster = None;
        self.order_age_ms = None;
    }
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
