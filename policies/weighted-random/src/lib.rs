//! `weighted-random`: drawn in proportion to what a target can take.
//!
//! *Use it* where targets differ and many hosts choose for one pool without knowing of each other:
//! what is drawn independently never herds. `smooth-weighted` spreads more evenly on one host, `p2c`
//! uses the loads. A target's chance is its weight * slow-start share * (1 - error rate)²; loads do
//! not count.
//!
//! *Source*: the classical rule: what comes at random stays so for each target, M/M/1 (Kleinrock,
//! "Queueing systems", 1975).
//!
//! *Settings*: none. No state.
//!
//! *Cost* of a pick: O(log n), O(n) among candidates.

use loadline_sdk::index::WeightedDraw;
use loadline_sdk::prelude::*;

/// The strategy.
#[derive(Debug, Default)]
pub struct WeightedRandom {
    weights: WeightedDraw,
}

impl Strategy for WeightedRandom {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            match fleet.offered(*slot) {
                Some(target) => self.weights.set(*slot, target.share()),
                None => self.weights.remove(*slot),
            }
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.weights.remove(*slot));
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        if fleet.is_limited() {
            return fleet
                .eligible()
                .random_by(request.random, |known| self.weights.get(known.slot));
        }
        self.weights.draw(request.random)
    }
}

export_strategy!(WeightedRandom);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

    use super::*;

    #[track_caller]
    fn check(shares: &[usize], expected: &[usize]) {
        for (share, expected) in shares.iter().zip(expected) {
            // Above five standard deviations of any binomial of 60 000.
            assert!(share.abs_diff(*expected) < 620, "{shares:?}");
        }
    }

    #[test]
    fn shares_follow_weight_and_warmth_whatever_the_loads() {
        let mut host = StrategyHost::<WeightedRandom>::with_loads(&[9.0, f64::NAN, 0.0]);
        host.change(0, |target| target.weight = 3.0);
        host.change(2, |target| target.weight = 2.0);
        check(&host.shares(60_000), &[30_000, 10_000, 20_000]);
        host.change(2, |target| target.warm = 0.25);
        check(&host.shares(60_000), &[40_000, 13_333, 6_667]);
    }

    #[test]
    fn candidates_share_by_weight_too() {
        let mut host = StrategyHost::<WeightedRandom>::with_loads(&[0.0; 4]);
        host.change(1, |target| target.weight = 2.0);
        let mut shares = [0; 4];
        for _ in 0..60_000 {
            shares[host.pick_only(&[1, 3, 9]).expect("two candidates").index()] += 1;
        }
        check(&shares, &[0, 40_000, 0, 20_000]);
        assert_eq!(host.pick_among(&[9]), None);
    }

    #[test]
    fn only_eligible_targets_are_drawn() {
        let mut host = StrategyHost::<WeightedRandom>::with_loads(&[0.0; 3]);
        host.change(1, |target| target.eligible = false);
        host.leave(0);
        assert_eq!(host.shares(100), [0, 0, 100]);
        host.leave(2);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<WeightedRandom>("{}");
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<WeightedRandom>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<WeightedRandom>("{}");
    }
}
