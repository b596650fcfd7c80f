//! The targets that one request may go to, and the usual ways to choose among them.
//!
//! Invariant: no more is read of a target than a choice needs; where nothing tells targets apart,
//! [`Fleet::toss`] does.

use std::cmp::Ordering;

use super::{ABSENT, Fleet};
use crate::target::{Candidate, Slot, Target};

/// The targets one request may go to.
#[derive(Debug, Clone, Copy)]
pub struct Eligible<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) candidates: &'a [Candidate],
    /// The candidates are sorted by slot, not in the fleet's own dense order.
    pub(super) ordered: bool,
}

impl<'a> Eligible<'a> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.candidates.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// The candidate at a place of the dense order; the order means nothing and changes with the
    /// fleet.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&'a Candidate> {
        self.candidates.get(place)
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> std::slice::Iter<'a, Candidate> {
        self.candidates.iter()
    }

    /// A uniformly drawn one. Cost O(1).
    #[must_use]
    pub fn random(&self, draw: u32) -> Option<&'a Candidate> {
        self.at(scale(draw, self.len()))
    }

    /// One drawn in proportion to weights, which are finite and not negative. Cost O(n).
    #[must_use]
    pub fn random_by(&self, random: u64, weight: impl Fn(&Candidate) -> f64) -> Option<Slot> {
        let weights = || self.iter().map(|known| (known.slot, weight(known)));
        let mut left = crate::math::unit(random) * weights().map(|(_, weight)| weight).sum::<f64>();
        let drawn = weights().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave nobody, and so do weights that are all zero.
        let last =
            || weights().rfind(|(_, weight)| *weight > 0.0).or_else(|| weights().next_back());
        drawn.or_else(last).map(|(slot, _)| slot)
    }

    /// Two different ones, uniformly drawn; twice the same where there is only one. Cost O(1).
    #[must_use]
    pub fn random_pair(&self, draws: (u32, u32)) -> Option<(&'a Candidate, &'a Candidate)> {
        let first = scale(draws.0, self.len());
        let mut second = scale(draws.1, self.len().saturating_sub(1));
        if second >= first && self.len() > 1 {
            second += 1;
        }
        Some((self.at(first)?, self.at(second)?))
    }

    /// The lowest load by [`by_load`](Self::by_load), any one of equals. Cost O(n).
    #[must_use]
    pub fn min_by_load(&self) -> Option<Slot> {
        let toss = |candidate: &Candidate| self.fleet.toss(candidate.slot);
        let order =
            |a: &Candidate, b: &Candidate| self.by_load(a, b).then_with(|| toss(a).cmp(&toss(b)));
        self.iter().min_by(|a, b| order(a, b)).map(|candidate| candidate.slot)
    }

    /// Orders by what loads count as ([`Candidate::load`]); equal ones by picks per share, so that a tie
    /// does not send everything to one target.
    #[must_use]
    pub fn by_load(&self, a: &Candidate, b: &Candidate) -> Ordering {
        match a.load.partial_cmp(&b.load) {
            Some(Ordering::Equal) => self.by_picks(a, b),
            Some(order) => order,
            None => a.load.is_nan().cmp(&b.load.is_nan()).then_with(|| self.by_picks(a, b)),
        }
    }

    /// Orders by picks per share.
    #[cold]
    fn by_picks(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let picks = |known: &Candidate| {
            let target = self.fleet.targets.get(known.slot.index()).and_then(Option::as_ref);
            let counted = target.map(|target| Target { picks: known.picks, ..*target });
            counted.map_or(0.0, |target| self.fleet.picks_per_share(&target))
        };
        picks(a).total_cmp(&picks(b))
    }

    /// The one with the next higher slot, going round at the end. Cost O(1) where most targets are
    /// eligible, O(n) at worst.
    #[must_use]
    pub fn after(&self, slot: Option<Slot>) -> Option<&'a Candidate> {
        let from = slot.map_or(0, |slot| slot.index() + 1);
        if self.ordered {
            let place = self.candidates.partition_point(|known| known.slot.index() < from);
            return self.at(if place < self.len() { place } else { 0 });
        }
        let (before, rest) = self.fleet.position.split_at(from.min(self.fleet.position.len()));
        let mut round = rest.iter().chain(before);
        self.at(*round.find(|place| **place != ABSENT)? as usize)
    }
}

impl<'a> IntoIterator for Eligible<'a> {
    type Item = &'a Candidate;
    type IntoIter = std::slice::Iter<'a, Candidate>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Maps 32 random bits to `0..len` without division (Lemire 2019; bias below len / 2^32).
fn scale(draw: u32, len: usize) -> usize {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the result is below len; only a 32-bit target warns"
    )]
    let place = ((u64::from(draw) * len as u64) >> 32) as usize;
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::tests::fleet;
    use crate::{Request, math};

    #[test]
    fn lowest_load_follows_ties_moves_and_removals() {
        // The list test of the first dynamic load balancer: B, C, A = 20, 30, 40; D = 20; B to 40;
        // D to 45.
        let mut fleet = fleet(&[40.0, 20.0, 30.0]);
        let (b, c, d) = (Slot(1), Slot(2), Slot(3));
        assert_eq!(fleet.eligible().min_by_load(), Some(b));
        fleet.update(0, 1, Target::new(d, 20.0));
        fleet.count_pick(b);
        assert_eq!(fleet.eligible().min_by_load(), Some(d), "a tie goes to the fewer picks");
        fleet.update(0, 1, Target::new(b, 40.0));
        assert_eq!(fleet.eligible().min_by_load(), Some(d));
        fleet.update(0, 1, Target::new(d, 45.0));
        assert_eq!(fleet.eligible().min_by_load(), Some(c));
        fleet.leave(c);
        assert_ne!(fleet.eligible().min_by_load(), Some(c));
    }

    #[test]
    fn target_that_lacks_a_metric_is_the_last_choice() {
        let mut fleet = fleet(&[f64::INFINITY, 1e300]);
        assert_eq!(fleet.eligible().min_by_load(), Some(Slot(1)));
        fleet.leave(Slot(1));
        assert_eq!(fleet.eligible().min_by_load(), Some(Slot(0)));
    }

    #[test]
    fn after_goes_round_and_skips_the_ineligible() {
        let mut fleet = fleet(&[1.0; 4]);
        fleet.leave(Slot(2));
        let next = |fleet: &Fleet, slot| fleet.eligible().after(slot).map(|t| t.slot.0);
        assert_eq!(next(&fleet, None), Some(0));
        assert_eq!(next(&fleet, Some(Slot(1))), Some(3));
        assert_eq!(next(&fleet, Some(Slot(3))), Some(0));
        assert_eq!(next(&fleet, Some(Slot(99))), Some(0));
        let among = |fleet: &mut Fleet, after| {
            fleet.limited_to(vec![Slot(3), Slot(1), Slot(2)], |f| {
                f.eligible().after(after).map(|t| t.slot.0)
            })
        };
        assert_eq!(among(&mut fleet, Some(Slot(1))), Some(3));
        assert_eq!(among(&mut fleet, Some(Slot(3))), Some(1));
    }

    #[test]
    fn pair_is_two_different_targets() {
        let fleet = fleet(&[1.0, 2.0, 3.0]);
        for first in [0, u32::MAX / 2, u32::MAX] {
            for second in [0, u32::MAX / 2, u32::MAX] {
                let (a, b) = fleet.eligible().random_pair((first, second)).expect("three targets");
                assert_ne!(a.slot, b.slot);
            }
        }
    }

    #[test]
    fn of_complete_equals_anyone_is_the_lowest() {
        let mut fleet = fleet(&[0.5, 0.5, 0.9, 0.9, 0.5]);
        let mut counts = [0_u32; 5];
        for random in math::draws(1).take(3_000) {
            fleet.serve(&Request { key: 0, class: 0, cost: 1.0, now_ms: 0, random });
            let lowest = fleet.eligible().min_by_load().expect("five targets");
            counts[lowest.index()] += 1;
        }
        // Five standard deviations of a binomial(3 000, 1/3).
        assert!([0, 1, 4].iter().all(|slot| counts[*slot].abs_diff(1_000) < 129), "{counts:?}");
    }
}
