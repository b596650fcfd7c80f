//! `bounded-hash`: requests with one key go to one target, unless it is too full.
//!
//! *Use it* where keys are unequal, so that a hot one would overload its target under `rendezvous`.
//! A target is full when the requests in it and the picks since its report reach
//! ceil((1 + `epsilon`) * (all of those + 1) * its share of the capacity): then the key goes on to
//! its next target. Capacity is weight * slow-start share. Keys follow the targets as in
//! `rendezvous`: instead of a walk round a ring each key has an order of all targets. So what one
//! target cannot take spreads over all others and does not fall on one neighbour, shares are exact
//! without virtual nodes, and there is no ring to build anew. A request without a key goes to a random
//! target that is not full. A target that fails counts as fuller, and never as emptier than is usual:
//! its keys go on. Loads do not count.
//!
//! *Source*: consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam (2018).
//!
//! *Settings*: `epsilon` (a share, 0.01 to 100, default 0.25: no target above 1.25 times its part; a
//! smaller one moves more keys, as 1 / epsilon²). No state.
//!
//! *Cost* of a pick: O(n), about 10 ns a target.

use loadline_sdk::{math, prelude::*, settings};
use serde::Deserialize;

/// The strategy.
#[derive(Debug, Default)]
pub struct BoundedHash {
    settings: Settings,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    epsilon: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epsilon: 0.25 }
    }
}

impl Strategy for BoundedHash {
    const GOES_BY: GoesBy = GoesBy::Requests;
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "epsilon": {"type": "number", "minimum": 0.01, "maximum": 100, "default": 0.25,
                "description": "how far above its share a target may be: 0.25 is a quarter; a smaller one moves more keys"}
        }
    }"#;

    fn configure(&mut self, settings: &str, _seed: u64) -> Result<(), String> {
        self.settings = settings::parse(settings)?;
        settings::in_range("epsilon", self.settings.epsilon, 0.01..=100.0)?;
        Ok(())
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let key = request.key_or_random();
        let per_capacity = self.bound_per_capacity(fleet.all_offered());
        let in_use = |target: &Target| fleet.fullness(target) * target.capacity();
        let has_room = |target: &Target| in_use(target) < (per_capacity * target.capacity()).ceil();
        let nearest = math::nearest(key, fleet.all_offered().filter(has_room));
        // Rounding may leave nobody room when capacities are of very different size.
        nearest.or_else(|| math::nearest(key, fleet.all_offered()))
    }
}

impl BoundedHash {
    /// What a target may hold per capacity, this request included in the sum.
    fn bound_per_capacity(&self, targets: impl Iterator<Item = Target>) -> f64 {
        let sum = |(in_use, capacity): (f64, f64), target: Target| {
            (in_use + target.in_use(), capacity + target.capacity())
        };
        let (in_use, capacity) = targets.fold((1.0, 0.0), sum);
        (1.0 + self.settings.epsilon) * in_use / capacity
    }
}

export_strategy!(BoundedHash);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

    use super::*;

    fn farm(epsilon: f64, targets: usize) -> StrategyHost<BoundedHash> {
        let settings = format!(r#"{{"epsilon":{epsilon}}}"#);
        let mut host = StrategyHost::new(&settings, 1).expect("good settings");
        for _ in 0..targets {
            host.add(0.5);
        }
        host
    }

    fn pick_for(host: &mut StrategyHost<BoundedHash>, key: u64) -> u32 {
        let request = Request { key, ..host.request() };
        host.runner().pick(&request).expect("there are targets").0
    }

    /// How often each target is picked for these keys.
    fn shares(host: &mut StrategyHost<BoundedHash>, keys: impl Iterator<Item = u64>) -> Vec<usize> {
        let mut shares = vec![0; 8];
        keys.for_each(|key| shares[pick_for(host, key) as usize] += 1);
        shares
    }

    #[test]
    fn idle_farm_keeps_keys_where_they_belong() {
        let mut host = farm(0.25, 8);
        for key in 1..500 {
            let first = pick_for(&mut host, key);
            host.change(first, |target| target.picks = 0);
            assert_eq!(pick_for(&mut host, key), first);
            host.change(first, |target| target.picks = 0);
        }
    }

    #[test]
    fn hot_key_fills_no_target_above_the_bound_at_any_time() {
        let mut host = farm(0.25, 8);
        let mut sums = [0_usize; 8];
        for picks in 1..=4_000_usize {
            sums[pick_for(&mut host, 7) as usize] += 1;
            let bound = (1.25 * picks as f64 / 8.0).ceil();
            assert!(sums.iter().all(|sum| *sum as f64 <= bound), "{sums:?}");
        }
        assert_eq!(sums.iter().filter(|sum| **sum == 625).count(), 6, "the nearest are full");
    }

    #[test]
    fn bound_follows_weight_warmth_and_what_a_target_holds() {
        let mut host = farm(0.1, 3);
        host.change(1, |target| target.weight = 2.0);
        let hot = shares(&mut host, std::iter::repeat_n(7, 4_000));
        for (share, fair) in hot.iter().zip([1_000, 2_000, 1_000]) {
            assert!(*share <= fair * 11 / 10 + 1, "{hot:?}");
        }
        let mut host = farm(0.25, 2);
        let first = pick_for(&mut host, 7);
        host.change(first, |target| target.in_flight = 100);
        assert_ne!(pick_for(&mut host, 7), first);
    }

    #[test]
    fn more_slack_moves_fewer_keys() {
        let moved = |epsilon: f64| {
            let (mut loose, mut host) = (farm(100.0, 8), farm(epsilon, 8));
            (1..4_000).filter(|key| pick_for(&mut loose, *key) != pick_for(&mut host, *key)).count()
        };
        let (tight, usual, wide) = (moved(0.01), moved(0.25), moved(1.0));
        assert!(tight > 2 * usual && usual >= wide, "{tight} {usual} {wide}");
    }

    #[test]
    fn requests_without_a_key_spread_within_the_bound() {
        let mut host = farm(0.25, 8);
        assert!(host.shares(8_000).iter().all(|share| share.abs_diff(1_000) < 251));
    }

    #[test]
    fn candidates_share_what_they_hold() {
        let mut host = farm(0.25, 3);
        let mut shares = [0_usize; 3];
        for _ in 0..1_000 {
            let request = Request { key: 7, ..host.request() };
            let slot = host.runner().pick_among(&request, vec![Slot(0), Slot(2)]);
            shares[slot.expect("two candidates").index()] += 1;
        }
        assert_eq!((shares[1], shares[0].max(shares[2])), (0, 625));
        (0..3).for_each(|slot| host.leave(slot));
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn bad_settings_are_named() {
        let error =
            StrategyHost::<BoundedHash>::new(r#"{"epsilon":0}"#, 1).map(drop).expect_err("bad");
        assert!(error.contains("epsilon"), "{error}");
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<BoundedHash>("{}");
        check_answers::<BoundedHash>(r#"{"epsilon":0.01}"#);
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<BoundedHash>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<BoundedHash>("{}");
    }
}
