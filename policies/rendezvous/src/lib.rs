//! `rendezvous`: requests with one key go to one target, and as few keys as possible ever move.
//!
//! *Use it* for caches and sessions. Each target has a distance to the key, drawn by hashing both, and
//! the nearest is picked; the distance is -ln(hash) / capacity. A target is the nearest of keys in
//! proportion to its weight * slow-start share; when one comes, goes or changes weight, only keys to
//! or from it move, and those of one that is not eligible spread over all others and come back with
//! it. Loads and failures do not count: see `bounded-hash` for hot keys. A request without a key is
//! drawn in the same proportion.
//!
//! A target is known by the hash of its machine's and service's names: all hosts agree, after
//! restarts and for targets that left and come back too.
//!
//! *Source*: highest random weight, Thaler and Ravishankar (1998); the logarithmic method of weights,
//! Schindelhauer and Schomaker (2005).
//!
//! *Settings*: none. No state.
//!
//! *Cost* of a pick: O(n), about 5 ns a target.

use loadline_sdk::{math, prelude::*};

/// The strategy.
#[derive(Debug, Default)]
pub struct Rendezvous;

impl Strategy for Rendezvous {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        math::nearest(request.key_or_random(), fleet.all_offered())
    }
}

export_strategy!(Rendezvous);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

    use super::*;

    const KEYS: u64 = 10_000;

    fn farm(targets: usize) -> StrategyHost<Rendezvous> {
        StrategyHost::with_loads(&vec![0.5; targets])
    }

    fn pick_for(host: &mut StrategyHost<Rendezvous>, key: u64) -> u32 {
        let request = Request { key, ..host.request() };
        host.runner().pick(&request).expect("there are targets").0
    }

    /// The target of each key.
    fn map(host: &mut StrategyHost<Rendezvous>) -> Vec<u32> {
        (1..=KEYS).map(|key| pick_for(host, key)).collect()
    }

    fn count(map: &[u32], slot: u32) -> usize {
        map.iter().filter(|of| **of == slot).count()
    }

    #[test]
    fn one_key_has_one_target_whatever_the_loads() {
        let mut host = farm(10);
        let before = map(&mut host);
        host.change(3, |target| target.load = 99.0);
        assert_eq!(map(&mut host), before);
        assert_eq!(host.reload("{}"), Ok(true));
        assert_eq!(map(&mut host), before);
    }

    #[test]
    fn keys_of_a_lost_target_spread_over_all_and_come_back() {
        let mut host = farm(5);
        let before = map(&mut host);
        host.change(2, |target| target.eligible = false);
        let without = map(&mut host);
        let moved: Vec<_> =
            before.iter().zip(&without).filter(|(a, b)| a != b).map(|(a, b)| (*a, *b)).collect();
        assert!(moved.iter().all(|(from, _)| *from == 2));
        assert_eq!(moved.len(), count(&before, 2));
        for slot in [0, 1, 3, 4] {
            let taken = moved.iter().filter(|(_, to)| *to == slot).count();
            // Five standard deviations of a binomial(2 000, 1/4).
            assert!(taken.abs_diff(moved.len() / 4) < 97, "{taken}");
        }
        host.change(2, |target| target.eligible = true);
        assert_eq!(map(&mut host), before);
    }

    #[test]
    fn newcomer_takes_its_share_and_nothing_else_moves() {
        let mut host = farm(4);
        let before = map(&mut host);
        host.add(0.5);
        let after = map(&mut host);
        assert!(before.iter().zip(&after).all(|(a, b)| a == b || *b == 4));
        assert!(count(&after, 4).abs_diff(2_000) < 200);
    }

    #[test]
    fn weight_and_warmth_give_the_share_and_growing_only_takes() {
        let mut host = farm(3);
        host.change(1, |target| target.warm = 0.5);
        let before = map(&mut host);
        assert!(count(&before, 1).abs_diff(2_000) < 200, "{}", count(&before, 1));
        host.change(1, |target| (target.weight, target.warm) = (2.0, 1.0));
        let after = map(&mut host);
        assert!(count(&after, 1).abs_diff(5_000) < 250, "{}", count(&after, 1));
        assert!(before.iter().zip(&after).all(|(a, b)| a == b || *b == 1));
    }

    #[test]
    fn requests_without_a_key_are_drawn_by_weight() {
        let mut host = farm(3);
        host.change(1, |target| target.weight = 2.0);
        let shares = host.shares(40_000);
        assert!(shares[1].abs_diff(20_000) < 500, "{shares:?}");
        assert!(shares[0].abs_diff(10_000) < 433, "{shares:?}");
    }

    #[test]
    fn candidates_are_ranked_as_all_are() {
        let mut host = farm(3);
        let first = pick_for(&mut host, 7);
        let request = Request { key: 7, ..host.request() };
        let all = [0, 1, 2].map(Slot).to_vec();
        assert_eq!(host.runner().pick_among(&request, all), Some(Slot(first)));
        let others: Vec<_> = (0..3).map(Slot).filter(|slot| slot.0 != first).collect();
        let second = host.runner().pick_among(&request, others);
        host.leave(first);
        assert_eq!(Some(Slot(pick_for(&mut host, 7))), second);
        (0..3).for_each(|slot| host.leave(slot));
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<Rendezvous>("{}");
    }

    #[test]
    fn all_hosts_agree_whatever_their_slots() {
        let map = |order: [u64; 3]| {
            let mut host = farm(3);
            for (slot, identity) in (0..).zip(order) {
                host.change(slot, |target| target.identity = identity);
            }
            let pick = |key| order[pick_for(&mut host, key) as usize];
            (1..=1_000).map(pick).collect::<Vec<_>>()
        };
        assert_eq!(map([7, 8, 9]), map([9, 7, 8]));
    }

    #[test]
    fn failures_neither_attract_nor_repel() {
        let share = share_of_failing::<Rendezvous>("{}");
        assert!((share - 1.0).abs() < 0.25, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<Rendezvous>("{}");
    }
}
