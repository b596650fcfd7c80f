//! `least-loaded`: the lowest load wins.
//!
//! *Use it* when reports are fresh compared with the time a request takes, or when picks are rare:
//! with old reports everything that arrives between two reports goes to the same target, and `p2c`
//! does better. Equal loads go to the target with the fewest picks per weight * slow-start share, and
//! complete equals take turns. A target in its slow start takes so much of what it would win and
//! leaves the rest to the next one.
//!
//! A load that is not known yet counts as the median of the known ones, an old one is drawn to it,
//! failures make a load count as more, and a target whose report lacks a metric of the formula comes
//! last.
//!
//! *Source*: the plain rule; Mitzenmacher, "How useful is old information" (2000), for its limits.
//!
//! *Settings*: none. No state.
//!
//! *Cost* of a pick: O(log n), O(n) among candidates.

use loadline_sdk::index::Tournament;
use loadline_sdk::prelude::*;

/// The strategy.
#[derive(Debug, Default)]
pub struct LeastLoaded {
    /// Load, then picks per capacity.
    ranking: Tournament<(f64, f64)>,
}

impl Strategy for LeastLoaded {
    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            match fleet.offered(*slot) {
                Some(target) => self.ranking.refresh(*slot, rank(fleet, &target)),
                None => self.ranking.remove(*slot),
            }
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.ranking.remove(*slot));
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let slot = if fleet.is_limited() {
            fleet.eligible().min_by_load()?
        } else {
            self.best(fleet, request)?
        };
        let target = fleet.get(slot)?;
        let picked = Target { picks: target.picks.saturating_add(1), ..target };
        self.ranking.set(slot, rank(fleet, &picked));
        Some(slot)
    }
}

impl LeastLoaded {
    /// The lowest, or the next one if it gives way for not being warm.
    fn best(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let (lowest, key) = self.ranking.min()?;
        if !fleet.gives_way(lowest, request.draws().0) {
            return Some(lowest);
        }
        self.ranking.remove(lowest);
        let next = self.ranking.min().map(|(next, _)| next);
        self.ranking.set(lowest, key);
        Some(next.unwrap_or(lowest))
    }
}

fn rank(fleet: &Fleet, target: &Target) -> (f64, f64) {
    let load = fleet.load(target.slot).unwrap_or(target.load);
    (load, fleet.picks_per_share(target))
}

export_strategy!(LeastLoaded);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{
        StrategyHost, check_answers, check_best_ties, check_ties, share_of_failing,
        shares_of_silent,
    };

    use super::*;

    #[test]
    fn lowest_load_wins_and_incomplete_is_last() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[f64::INFINITY, 0.9, 0.2]);
        assert_eq!(host.pick(), Some(Slot(2)));
        assert_eq!(host.pick_among(&[0, 1]), Some(Slot(1)));
        assert_eq!(host.pick_among(&[0]), Some(Slot(0)));
        host.leave(2);
        assert_eq!(host.pick(), Some(Slot(1)));
        host.leave(1);
        assert_eq!(host.pick(), Some(Slot(0)));
    }

    #[test]
    fn reports_move_the_work() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.3, 0.2, 0.9]);
        assert_eq!(host.shares(10), [0, 10, 0]);
        host.change(1, |target| target.load = 0.4);
        assert_eq!(host.shares(10), [10, 0, 0]);
        host.change(0, |target| target.load = f64::INFINITY);
        assert_eq!(host.shares(10), [0, 10, 0]);
    }

    #[test]
    fn unknown_load_counts_as_the_median() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.6, f64::NAN, 0.5]);
        assert_eq!(host.shares(10), [0, 0, 10]);
        host.change(2, |target| target.load = 0.8);
        assert_eq!(host.shares(10), [10, 0, 0], "0.7 is the median");
        host.change(0, |target| target.load = 0.9);
        assert_eq!(host.shares(10), [0, 0, 10]);
        host.change(2, |target| target.load = 0.9);
        (0..3).for_each(|slot| host.change(slot, |target| target.picks = 0));
        assert_eq!(host.shares(30), [10; 3], "as all others");
    }

    #[test]
    fn equal_loads_share_by_weight_and_warmth() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.5; 3]);
        host.change(1, |target| target.weight = 3.0);
        host.change(2, |target| target.warm = 0.5);
        assert_eq!(host.shares(450), [100, 300, 50]);
    }

    #[test]
    fn slow_start_takes_its_share_of_what_it_would_win() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.9, 0.1, 0.5]);
        host.change(1, |target| target.warm = 0.25);
        let shares = host.shares(10_000);
        // Five standard deviations of a binomial(10 000, 1/4).
        assert!(shares[1].abs_diff(2_500) < 217 && shares[0] == 0, "{shares:?}");
        host.change(2, |target| target.eligible = false);
        host.change(0, |target| target.eligible = false);
        assert_eq!(host.shares(10), [0, 10, 0], "where there is no other");
    }

    #[test]
    fn full_equals_take_turns_when_each_pick_is_reported_at_once() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[f64::NAN; 3]);
        let mut shares = [0; 3];
        for _ in 0..30 {
            shares[host.pick().expect("three are eligible").index()] += 1;
            (0..3).for_each(|slot| host.change(slot, |target| target.picks = 0));
        }
        assert_eq!(shares, [10; 3]);
    }

    #[test]
    fn index_agrees_with_a_scan() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.0; 20]);
        for round in 0_u32..2_000 {
            host.change(round * 7 % 20, |target| {
                target.load = f64::from(round * 13 % 5);
                target.eligible = round % 3 > 0;
            });
            let scanned = host.pick_among(&(0..20).collect::<Vec<_>>());
            let load = |slot: Option<Slot>, host: &mut StrategyHost<LeastLoaded>| {
                let mut load = f64::NAN;
                host.change(slot.map_or(99, |slot| slot.0), |target| load = target.load);
                load.to_bits()
            };
            let indexed = host.pick();
            assert_eq!(load(scanned, &mut host), load(indexed, &mut host));
        }
    }

    #[test]
    fn nothing_eligible_is_no_pick() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.5]);
        host.change(0, |target| target.eligible = false);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<LeastLoaded>("{}");
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<LeastLoaded>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn old_loads_neither_attract_nor_starve() {
        let [light, heavy] = shares_of_silent::<LeastLoaded>("{}");
        // Their picks since the last report count against them where loads are equal: half a share at least.
        let is_fair = |share: f64| (0.45..1.4).contains(&share);
        assert!(is_fair(light) && is_fair(heavy), "{light} {heavy}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<LeastLoaded>("{}");
        check_best_ties::<LeastLoaded>("{}");
    }
}
