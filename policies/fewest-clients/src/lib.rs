//! `fewest-clients`: the target with the fewest requests for what it can take.
//!
//! *Use it* for long or very unequal requests where targets report what they hold or clients take
//! leases. Counted are the requests in the target as reported and the picks since, per weight *
//! slow-start share; the least is taken, and equals take turns. It is exact: n picks over m equal
//! targets differ by at most one. With several hosts and reports older than a request takes, all of
//! them fill the same target; then take `p2c`. A target that fails counts as fuller, and never as
//! emptier than is usual. Loads do not count.
//!
//! *Source*: "least connections" of IPVS, HAProxy and nginx.
//!
//! *Settings*: none. No state.
//!
//! *Cost* of a pick: O(log n), O(n) among candidates.

use loadline_sdk::index::Tournament;
use loadline_sdk::prelude::*;

/// The strategy.
#[derive(Debug, Default)]
pub struct FewestClients {
    fullness: Tournament,
}

impl Strategy for FewestClients {
    const GOES_BY: GoesBy = GoesBy::Requests;

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            match fleet.offered(*slot) {
                Some(target) => self.fullness.refresh(*slot, fleet.fullness(&target)),
                None => self.fullness.remove(*slot),
            }
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.fullness.remove(*slot));
    }

    fn pick(&mut self, fleet: &Fleet, _request: &Request) -> Option<Slot> {
        let slot =
            if fleet.is_limited() { self.emptiest_offered(fleet)? } else { self.fullness.min()?.0 };
        let target = fleet.get(slot)?;
        let picked = Target { picks: target.picks.saturating_add(1), ..target };
        self.fullness.set(slot, fleet.fullness(&picked));
        Some(slot)
    }
}

impl FewestClients {
    fn emptiest_offered(&self, fleet: &Fleet) -> Option<Slot> {
        let fullness = |slot: &Slot| self.fullness.get(*slot).unwrap_or(f64::INFINITY);
        let order = |a: &Slot, b: &Slot| {
            fullness(a).total_cmp(&fullness(b)).then_with(|| fleet.toss(*a).cmp(&fleet.toss(*b)))
        };
        fleet.eligible().iter().map(|known| known.slot).min_by(order)
    }
}

export_strategy!(FewestClients);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{
        StrategyHost, check_answers, check_best_ties, check_ties, share_of_failing,
    };

    use super::*;

    #[test]
    fn picks_over_equal_targets_differ_by_at_most_one() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[9.0, 0.0, f64::NAN, 1.0, 2.0]);
        let mut sums = vec![0; 5];
        for _ in 0..5_003 {
            host.shares(1).iter().zip(&mut sums).for_each(|(share, sum)| *sum += share);
            assert!(sums.iter().max() <= sums.iter().min().map(|least| least + 1).as_ref());
        }
    }

    #[test]
    fn targets_are_filled_by_weight_and_warmth() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[0.5; 3]);
        host.change(1, |target| target.weight = 3.0);
        host.change(2, |target| target.warm = 0.5);
        assert_eq!(host.shares(900), [200, 600, 100]);
    }

    #[test]
    fn what_a_target_holds_already_counts() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[0.5; 3]);
        host.change(0, |target| target.in_flight = 30);
        assert_eq!(host.shares(60), [0, 30, 30]);
        assert_eq!(host.shares(30), [10, 10, 10]);
        host.change(2, |target| target.in_flight = 0);
        assert_eq!(host.pick(), Some(Slot(2)), "its report says that they are done");
    }

    #[test]
    fn equals_take_turns_even_when_every_report_says_idle() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[0.5; 3]);
        let mut shares = [0; 3];
        for _ in 0..30 {
            shares[host.pick().expect("three are eligible").index()] += 1;
            (0..3).for_each(|slot| host.change(slot, |target| target.picks = 0));
        }
        assert_eq!(shares, [10, 10, 10]);
    }

    #[test]
    fn candidates_are_compared_and_counted_likewise() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[0.5; 3]);
        host.change(1, |target| target.in_flight = 10);
        for _ in 0..10 {
            assert_eq!(host.pick_among(&[2, 1]), Some(Slot(2)));
        }
        assert_eq!(host.shares(10), [10, 0, 0]);
        assert_eq!(host.pick_among(&[7]), None);
    }

    #[test]
    fn candidates_that_are_equal_have_equal_chances() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[0.5; 3]);
        let mut shares = [0_usize; 3];
        for _ in 0..2_000 {
            let slot = host.pick_only(&[0, 2]).expect("two candidates");
            shares[slot.index()] += 1;
            host.change(slot.0, |target| target.picks = 0);
        }
        assert!(shares[0].abs_diff(1_000) < 112, "{shares:?}");
    }

    #[test]
    fn only_eligible_targets_are_picked() {
        let mut host = StrategyHost::<FewestClients>::with_loads(&[0.5; 2]);
        host.change(0, |target| target.eligible = false);
        assert_eq!(host.shares(10), [0, 10]);
        host.leave(1);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<FewestClients>("{}");
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<FewestClients>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<FewestClients>("{}");
        check_best_ties::<FewestClients>("{}");
    }
}
