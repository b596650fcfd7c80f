//! The fleet as a strategy sees it: targets by slot, kept up to date by the host's `update` and
//! `leave`.
//!
//! Invariants: `eligible` holds each eligible target once and `position` finds it there, so that a
//! random eligible target costs O(1) and one memory access, at any fleet size; an update or a
//! departure costs O(1) too. The picks of an eligible target are counted there and nowhere else.

mod eligible;
mod judge;

pub use eligible::Eligible;
pub use judge::GoesBy;

use crate::math;
use crate::target::{Candidate, Request, Slot, Target};

/// 2^32: so many values has a draw.
const DRAWS: f64 = 4_294_967_296.0;

/// Not in the dense list of eligible slots.
const ABSENT: u32 = u32::MAX;

/// The targets of one pool.
#[derive(Debug, Default)]
pub struct Fleet {
    targets: Vec<Option<Target>>,
    eligible: Vec<Candidate>,
    position: Vec<u32>,
    among: Option<Vec<Candidate>>,
    /// Something was chosen for this request before: the next best is asked for.
    pub(crate) is_further: bool,
    hosts: u32,
    now_ms: u64,
    /// How many targets are not warm, and how many fail.
    warming: u32,
    failing: u32,
    judging: judge::Judging,
    /// The random bits of the request that is served.
    random: u64,
}

impl Fleet {
    /// The target in a slot, eligible or not.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<Target> {
        let target = (*self.targets.get(slot.index())?)?;
        let candidate = self.eligible.get(self.position[slot.index()] as usize);
        Some(Target { picks: candidate.map_or(target.picks, |counted| counted.picks), ..target })
    }

    /// The target in a slot, if this request may go to it.
    #[must_use]
    pub fn offered(&self, slot: Slot) -> Option<Target> {
        let among = self.among.as_ref();
        let is_among =
            |slots: &Vec<Candidate>| slots.binary_search_by_key(&slot, |c| c.slot).is_ok();
        let target = self.get(slot)?;
        (target.eligible && among.is_none_or(is_among)).then_some(target)
    }

    /// What the load of an eligible target counts as, see [`Candidate::load`].
    #[must_use]
    pub fn load(&self, slot: Slot) -> Option<f64> {
        let place = *self.position.get(slot.index())?;
        self.eligible.get(place as usize).map(|candidate| candidate.load)
    }

    /// All targets, in slot order.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        self.targets.iter().flatten().filter_map(|target| self.get(target.slot))
    }

    /// The targets that this request may go to: all eligible ones or, when the host asks for a
    /// choice among candidates, those of them.
    #[must_use]
    pub fn eligible(&self) -> Eligible<'_> {
        let candidates = self.among.as_deref().unwrap_or(&self.eligible);
        Eligible { fleet: self, candidates, ordered: self.among.is_some() }
    }

    /// The targets that this request may go to, with all that is known of them; slower than
    /// [`eligible`](Self::eligible), which has what most choices need.
    pub fn all_offered(&self) -> impl Iterator<Item = Target> {
        self.eligible().into_iter().filter_map(|candidate| self.get(candidate.slot))
    }

    /// The host asks for a choice among candidates: an index over all targets does not answer it.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.among.is_some()
    }

    /// The first choice of a request that not every target may answer, for its labels. Strategies that go
    /// by turns draw then: whose turn it is among all says nothing fair about some, whoever they are.
    #[must_use]
    pub fn is_drawn(&self) -> bool {
        self.is_limited() && !self.is_further
    }

    /// No target is in its slow start: nobody needs to look.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.warming == 0
    }

    /// Whether a target in its slow start leaves a request that it would get to another one, which it does
    /// with the probability 1 - its share.
    #[must_use]
    pub fn gives_way(&self, slot: Slot, draw: u32) -> bool {
        let is_left = |target: Target| f64::from(draw) >= target.warmth() * DRAWS;
        !self.is_warm() && self.get(slot).is_some_and(is_left)
    }

    /// Bits that break a tie between targets of which nothing else tells which one to take: other ones for
    /// each target and each request, so that of equals each comes as often as the others, wherever they
    /// stand.
    #[must_use]
    pub fn toss(&self, slot: Slot) -> u64 {
        math::mix(self.random ^ (u64::from(slot.0) + 1).wrapping_mul(math::GOLDEN))
    }

    /// Ties are broken by this request's random bits from now on.
    pub(crate) fn serve(&mut self, request: &Request) {
        self.random = request.random;
    }

    /// Hosts that choose for this pool, this one included.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts.max(1)
    }

    /// The host's clock at the last update, in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn update(&mut self, now_ms: u64, hosts: u32, target: Target) {
        self.now_ms = now_ms;
        self.hosts = hosts;
        let slot = target.slot;
        if self.targets.len() <= slot.index() {
            self.targets.resize_with(slot.index() + 1, || None);
            self.position.resize(slot.index() + 1, ABSENT);
        }
        let at = self.position[slot.index()];
        if !target.eligible {
            self.withdraw(slot);
        } else if at == ABSENT {
            self.position[slot.index()] = index_u32(self.eligible.len());
            self.eligible.push(Candidate::from(&target));
        } else {
            self.eligible[at as usize] = Candidate::from(&target);
        }
        self.warming += u32::from(target.warm < 1.0);
        self.failing += u32::from(target.error_rate > 0.0);
        self.forget(slot);
        self.targets[slot.index()] = Some(target);
    }

    pub(crate) fn leave(&mut self, slot: Slot) {
        if self.targets.get(slot.index()).is_some() {
            self.withdraw(slot);
            self.forget(slot);
            self.judging.forget(slot);
        }
    }

    pub(crate) fn count_pick(&mut self, slot: Slot) {
        // Where every target is eligible, place and slot are mostly the same, and the candidate is
        // in the cache: the choice has just read it.
        let mut at = slot.index();
        if self.eligible.get(at).is_none_or(|candidate| candidate.slot != slot) {
            at = self.position.get(at).copied().unwrap_or(ABSENT) as usize;
        }
        if let Some(candidate) = self.eligible.get_mut(at) {
            candidate.picks = candidate.picks.saturating_add(1);
        }
        self.judging.note_pick();
    }

    /// Runs `choose` while `eligible()` shows only those of `slots` that are eligible.
    pub(crate) fn limited_to<T>(
        &mut self,
        mut slots: Vec<Slot>,
        choose: impl FnOnce(&Self) -> T,
    ) -> T {
        slots.sort_unstable();
        slots.dedup();
        let place = |slot: &Slot| self.position.get(slot.index()).copied();
        let candidate = |slot: &Slot| self.eligible.get(place(slot)? as usize).copied();
        self.among = Some(slots.iter().filter_map(candidate).collect());
        let chosen = choose(self);
        self.among = None;
        chosen
    }

    /// Takes a target out of its slot, if there is one.
    fn forget(&mut self, slot: Slot) {
        let old = self.targets[slot.index()].take();
        self.warming -= u32::from(old.is_some_and(|target| target.warm < 1.0));
        self.failing -= u32::from(old.is_some_and(|target| target.error_rate > 0.0));
    }

    /// Takes a target out of the eligible ones, if it is there.
    fn withdraw(&mut self, slot: Slot) {
        let at = std::mem::replace(&mut self.position[slot.index()], ABSENT);
        if at != ABSENT {
            self.eligible.swap_remove(at as usize);
            if let Some(moved) = self.eligible.get(at as usize) {
                self.position[moved.slot.index()] = at;
            }
        }
    }
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(ABSENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn fleet(loads: &[f64]) -> Fleet {
        let mut fleet = Fleet::default();
        for (slot, load) in (0..).zip(loads) {
            fleet.update(0, 1, Target::new(Slot(slot), *load));
        }
        fleet
    }

    #[test]
    fn eligible_list_survives_every_order_of_changes() {
        let mut fleet = fleet(&[1.0; 5]);
        for slot in [4, 0, 2] {
            let mut target = Target::new(Slot(slot), 1.0);
            target.eligible = false;
            fleet.update(0, 1, target);
        }
        fleet.leave(Slot(0));
        let mut seen: Vec<_> = fleet.eligible().iter().map(|known| known.slot.0).collect();
        seen.sort_unstable();
        assert_eq!(seen, [1, 3]);
        fleet.update(0, 1, Target::new(Slot(4), 1.0));
        assert_eq!(fleet.eligible().len(), 3);
        fleet.count_pick(Slot(4));
        assert_eq!(fleet.get(Slot(4)).map(|target| target.picks), Some(1));
        assert_eq!(fleet.targets().count(), 4);
    }

    #[test]
    fn fleet_knows_whether_a_target_is_warming_up() {
        let mut fleet = fleet(&[1.0, 1.0]);
        let cold = Target { warm: 0.2, ..Target::new(Slot(1), 1.0) };
        assert!(fleet.is_warm());
        fleet.update(0, 1, cold);
        fleet.update(0, 1, cold);
        assert!(!fleet.is_warm());
        fleet.leave(Slot(1));
        fleet.leave(Slot(1));
        assert!(fleet.is_warm());
    }

    #[test]
    fn only_eligible_candidates_are_offered() {
        let mut fleet = fleet(&[1.0; 3]);
        fleet.update(0, 1, Target { eligible: false, ..Target::new(Slot(2), 1.0) });
        let offered = |fleet: &Fleet| {
            (0..4).filter(|slot| fleet.offered(Slot(*slot)).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(offered(&fleet), [0, 1]);
        assert_eq!(fleet.limited_to(vec![Slot(2), Slot(1)], |fleet| offered(fleet)), [1]);
    }

    #[test]
    fn candidates_that_are_gone_are_not_offered() {
        let mut fleet = fleet(&[1.0, 2.0]);
        fleet.leave(Slot(0));
        let offered = fleet.limited_to(vec![Slot(0), Slot(7)], |fleet| fleet.eligible().len());
        assert_eq!(offered, 0);
        assert_eq!(fleet.eligible().len(), 1, "the limit ends with the choice");
    }
}
