//! `smooth-weighted`: each target in turn, the more often the more it can take, and evenly in time.
//!
//! *Use it* where requests are alike and targets are not, and loads say nothing or come late: with
//! weights 5, 1, 1 the heavy target is not picked five times running. A target is due every
//! 1 / (weight * slow-start share * (1 - error rate)²) in virtual time, and the one due first is
//! picked. Targets start within their first stride from now, at a place by the golden ratio, so that
//! newcomers neither catch up on the past nor come in a bunch; a changed weight keeps what share of
//! its stride a target has still to wait. Loads do not count.
//!
//! Only the first choice for a request takes a turn: the second best of one is the best of the next.
//! So a request that excludes the target whose turn it is uses that turn up, and whoever answers it
//! keeps its own.
//!
//! *Source*: Waldspurger and Weihl, "Stride scheduling" (1995); the aim is that of nginx's smooth
//! weighted round robin.
//!
//! *Settings*: none. Where each target is in its stride is carried over a reload.
//!
//! *Cost* of a pick: O(log n), O(n) among candidates.

use loadline_sdk::index::{PerSlot, Tournament};
use loadline_sdk::{math, prelude::*};

/// The strategy.
#[derive(Debug, Default)]
pub struct SmoothWeighted {
    /// When each eligible target is due, in virtual time; never before `now`.
    due: Tournament,
    /// Between two turns of a target.
    strides: PerSlot<f64>,
    /// Highest slot seen, plus one.
    slots: u32,
    now: f64,
}

/// Bounds a stride, so that products of a few stay finite.
const STRIDE_MAX: f64 = 1e100;

/// Strides after which virtual time starts at 0 again: a stride must stay far above the last bit of
/// the time it is added to.
const STRIDES_PER_ERA: f64 = 4_294_967_296.0;

impl Strategy for SmoothWeighted {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            match fleet.offered(*slot) {
                Some(target) => self.place(*slot, stride(&target)),
                None => self.due.remove(*slot),
            }
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.due.remove(*slot));
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        if fleet.is_drawn() {
            return fleet
                .eligible()
                .random_by(request.random, |known| 1.0 / self.stride(known.slot));
        }
        if fleet.is_limited() {
            let due = |slot: &Slot| self.due.get(*slot).unwrap_or(f64::INFINITY);
            let slots = fleet.eligible().iter().map(|candidate| candidate.slot);
            return slots.min_by(|a, b| due(a).total_cmp(&due(b)));
        }
        let (slot, due) = self.due.min()?;
        let stride = self.stride(slot);
        self.now = due;
        self.due.set(slot, due + stride);
        if self.now > stride * STRIDES_PER_ERA {
            self.start_era(fleet);
        }
        Some(slot)
    }

    fn save(&self) -> Vec<u8> {
        (0..self.slots).flat_map(|slot| self.to_wait(Slot(slot)).to_le_bytes()).collect()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let (shares, rest) = state.as_chunks();
        let shares: Vec<_> = shares.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if !rest.is_empty() || shares.iter().any(|share| *share < 0.0 || share.is_infinite()) {
            return false;
        }
        for (slot, share) in (0..).map(Slot).zip(shares) {
            if self.due.get(slot).is_some() && !share.is_nan() {
                self.due.set(slot, self.now + f64::from(share) * self.stride(slot));
            }
        }
        true
    }
}

impl SmoothWeighted {
    /// Puts an eligible target where its stride says, new or not.
    fn place(&mut self, slot: Slot, stride: f64) {
        let due = match self.due.get(slot) {
            Some(due) if is_same(self.stride(slot), stride) => due,
            Some(due) => self.now + (due - self.now) * (stride / self.stride(slot)),
            None => self.now + stride * first_share(slot),
        };
        self.due.refresh(slot, due);
        self.strides.set(slot, stride);
        self.slots = self.slots.max(slot.0.saturating_add(1));
    }

    fn stride(&self, slot: Slot) -> f64 {
        self.strides.get(slot).copied().unwrap_or(STRIDE_MAX)
    }

    /// The share of its stride that a target has still to wait; NaN: it has no turn.
    #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to go on with")]
    fn to_wait(&self, slot: Slot) -> f32 {
        let share = |due| (due - self.now) / self.stride(slot);
        self.due.get(slot).map_or(f32::NAN, |due| share(due) as f32)
    }

    /// Starts virtual time at 0 again.
    fn start_era(&mut self, fleet: &Fleet) {
        for candidate in fleet.eligible() {
            if let Some(due) = self.due.get(candidate.slot) {
                self.due.set(candidate.slot, due - self.now);
            }
        }
        self.now = 0.0;
    }
}

fn stride(target: &Target) -> f64 {
    (1.0 / target.share()).clamp(1.0 / STRIDE_MAX, STRIDE_MAX)
}

fn is_same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

/// Where in its first stride a target is due: the golden ratio spreads any row of slots evenly.
fn first_share(slot: Slot) -> f64 {
    math::unit((u64::from(slot.0) + 1).wrapping_mul(math::GOLDEN))
}

export_strategy!(SmoothWeighted);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

    use super::*;

    fn farm(weights: &[f64]) -> StrategyHost<SmoothWeighted> {
        let mut host = StrategyHost::with_loads(&vec![0.5; weights.len()]);
        for (slot, weight) in (0..).zip(weights) {
            host.change(slot, |target| target.weight = *weight);
        }
        host
    }

    fn picks(host: &mut StrategyHost<SmoothWeighted>, count: usize) -> Vec<u32> {
        (0..count).filter_map(|_| host.pick()).map(|slot| slot.0).collect()
    }

    #[test]
    fn every_round_is_exact_and_no_target_comes_in_a_bunch() {
        let mut host = farm(&[5.0, 3.0, 2.0, 1.0]);
        let picks = picks(&mut host, 11 * 100);
        for round in picks.windows(11) {
            let count = |slot| round.iter().filter(|picked| **picked == slot).count();
            let counts = [0, 1, 2, 3].map(count);
            // Any window of a round's length holds each target's turns, give or take one at its ends.
            assert!(counts.iter().zip([5, 3, 2, 1]).all(|(a, b)| a.abs_diff(b) <= 1), "{counts:?}");
        }
        assert!(picks.chunk_by(|a, b| a == b).all(|run| run.len() <= 2), "{picks:?}");
        assert_eq!(host.shares(11_000), [5_000, 3_000, 2_000, 1_000]);
    }

    #[test]
    fn equal_weights_take_turns() {
        let mut host = farm(&[1.0; 7]);
        let picks = picks(&mut host, 70);
        for (place, slot) in picks.iter().enumerate().skip(7) {
            assert_eq!(*slot, picks[place - 7]);
        }
        assert_eq!(host.shares(70), [10; 7]);
    }

    #[test]
    fn newcomer_and_returner_do_not_catch_up() {
        let mut host = farm(&[1.0, 1.0, 1.0]);
        host.change(2, |target| target.eligible = false);
        assert_eq!(host.shares(10_000), [5_000, 5_000, 0]);
        host.change(2, |target| target.eligible = true);
        host.add(0.5);
        assert!(host.shares(40).iter().all(|share| share.abs_diff(10) <= 1));
        host.leave(3);
        host.add(0.5);
        assert!(host.shares(40)[4].abs_diff(10) <= 1);
    }

    #[test]
    fn slow_start_grows_into_a_full_share() {
        let mut host = farm(&[1.0, 1.0]);
        host.change(1, |target| target.warm = 0.25);
        assert_eq!(host.shares(500), [400, 100]);
        host.change(1, |target| target.warm = 1.0);
        assert!(host.shares(500)[1].abs_diff(250) <= 1);
    }

    #[test]
    fn changed_weight_counts_at_once() {
        let mut host = farm(&[1.0, 0.001]);
        assert_eq!(host.shares(10), [10, 0]);
        host.change(1, |target| target.weight = 1.0);
        assert!(host.shares(40)[1].abs_diff(20) <= 1);
    }

    #[test]
    fn reports_do_not_disturb_the_turns() {
        let (mut quiet, mut told) = (farm(&[5.0, 1.0, 1.0]), farm(&[5.0, 1.0, 1.0]));
        for _ in 0..100 {
            (0..3).for_each(|slot| told.change(slot, |target| target.load += 0.1));
            assert_eq!(told.pick(), quiet.pick());
        }
    }

    #[test]
    fn choice_among_candidates_takes_no_turn() {
        let mut host = farm(&[1.0, 1.0, 1.0]);
        for _ in 0..10 {
            assert_eq!(host.pick_among(&[1]), Some(Slot(1)));
        }
        assert_eq!(host.shares(33), [11; 3]);
    }

    #[test]
    fn second_choice_takes_no_turn() {
        let mut host = StrategyHost::<SmoothWeighted>::with_loads(&[0.0; 2]);
        let mut firsts = Vec::new();
        for _ in 0..8 {
            let first = host.pick().expect("two are eligible");
            let rest = [1 - first.0];
            assert_eq!(host.pick_among(&rest), Some(Slot(rest[0])));
            firsts.push(first);
        }
        assert!(firsts.windows(2).all(|pair| pair[0] != pair[1]), "{firsts:?}");
    }

    #[test]
    fn turns_go_on_over_a_reload() {
        let (mut old, mut reloaded) = (farm(&[5.0, 1.0, 1.0]), farm(&[5.0, 1.0, 1.0]));
        assert_eq!(picks(&mut old, 4), picks(&mut reloaded, 4));
        assert_eq!(reloaded.reload("{}"), Ok(true));
        assert_eq!(picks(&mut old, 50), picks(&mut reloaded, 50));
        let mut foreign = SmoothWeighted::default();
        assert!(!foreign.restore(b"no"));
        assert!(!foreign.restore(&f32::INFINITY.to_le_bytes()));
    }

    #[test]
    fn virtual_time_survives_weights_of_any_size() {
        let mut host = farm(&[1e-90]);
        assert_eq!(host.shares(3), [3]);
        for weight in [1.0, 3.0] {
            let slot = host.add(0.5);
            host.change(slot.0, |target| target.weight = weight);
        }
        let shares = host.shares(40_000);
        assert!(shares[0] <= 1, "{shares:?}");
        assert!(shares[1].abs_diff(10_000) <= 1, "{shares:?}");
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<SmoothWeighted>("{}");
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<SmoothWeighted>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<SmoothWeighted>("{}");
    }
}
