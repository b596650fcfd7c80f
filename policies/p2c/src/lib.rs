//! `p2c`: the better of two targets drawn at random (power of two choices).
//!
//! *Use it* where loads are all that is known and reports are several service times old, or where many
//! hosts choose: it needs no tuning and cannot send everything to one target. Of the two the lower
//! load wins; equal loads go to the one with fewer picks per weight * slow-start share, complete
//! equals to the one drawn first. A target in its slow start gives way to the other one with
//! probability 1 - its share.
//!
//! A load that is not known yet counts as the median of the known ones, an old one is drawn to it,
//! failures make a load count as more, and a target whose report lacks a metric of the formula loses.
//!
//! *Source*: Mitzenmacher, "The power of two choices in randomized load balancing" (2001) and "How
//! useful is old information" (2000).
//!
//! *Settings*: none. No state.
//!
//! *Cost* of a pick: O(1) at any fleet size.

use loadline_sdk::{math, prelude::*};

/// The strategy.
#[derive(Debug, Default)]
pub struct P2c;

impl Strategy for P2c {
    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let eligible = fleet.eligible();
        let (first, second) = eligible.random_pair(request.draws())?;
        let is_second = eligible.by_load(second, first).is_lt();
        let (lighter, other) = if is_second { (second, first) } else { (first, second) };
        let chosen =
            if fleet.is_warm() { lighter } else { spare_cold(fleet, request, lighter, other) };
        Some(chosen.slot)
    }
}

/// The first, unless it gives way for not being warm, and the other does not.
#[cold]
fn spare_cold<'a>(
    fleet: &Fleet,
    request: &Request,
    first: &'a Candidate,
    other: &'a Candidate,
) -> &'a Candidate {
    // The draws for the pair are used up.
    let draws = math::halves(math::mix(request.random));
    let is_spared = fleet.gives_way(first.slot, draws.0) && !fleet.gives_way(other.slot, draws.1);
    if is_spared { other } else { first }
}

export_strategy!(P2c);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{
        StrategyHost, check_answers, check_ties, share_of_failing, shares_of_silent,
    };

    use super::*;

    #[test]
    fn worst_of_all_is_never_picked_and_the_best_most() {
        let mut host = StrategyHost::<P2c>::with_loads(&[0.9, 0.1, 0.5]);
        // Of the three pairs the lightest is in two, the middle one wins one, the heaviest none.
        let shares = host.shares(30_000);
        assert_eq!(shares[0], 0);
        assert!(shares[1].abs_diff(20_000) < 410, "{shares:?}");
    }

    #[test]
    fn incomplete_loses_but_serves_when_alone() {
        let mut host = StrategyHost::<P2c>::with_loads(&[f64::INFINITY, 1e9]);
        assert_eq!(host.shares(100), [0, 100]);
        host.leave(1);
        assert_eq!(host.pick(), Some(Slot(0)));
        host.leave(0);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn unknown_load_counts_as_the_median() {
        let mut host = StrategyHost::<P2c>::with_loads(&[0.9, f64::NAN, 0.1]);
        // Between the two: it wins one pair of three.
        let shares = host.shares(30_000);
        assert!(shares[0] == 0 && shares[1].abs_diff(10_000) < 410, "{shares:?}");
    }

    #[test]
    fn own_picks_break_ties() {
        let mut host = StrategyHost::<P2c>::with_loads(&[0.5, 0.5]);
        assert_eq!(host.shares(1_000), [500, 500]);
    }

    #[test]
    fn slow_start_takes_its_share_of_what_it_would_win() {
        let mut host = StrategyHost::<P2c>::with_loads(&[0.1, 0.5, 0.9]);
        host.change(0, |target| target.warm = 0.25);
        // The lightest is in two pairs of three, and wins a quarter of them.
        let shares = host.shares(30_000);
        assert!(shares[0].abs_diff(5_000) < 330, "{shares:?}");
        host.change(0, |target| target.warm = 1.0);
        assert!(host.shares(30_000)[0].abs_diff(20_000) < 410);
    }

    #[test]
    fn farm_that_has_just_started_is_served_by_load() {
        let mut host = StrategyHost::<P2c>::with_loads(&[0.1, 0.5]);
        (0..2).for_each(|slot| host.change(slot, |target| target.warm = 0.0));
        // The least share is a hundredth: of a hundred one gives way to the other.
        assert!(host.shares(1_000)[0] > 970);
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<P2c>("{}");
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<P2c>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn old_loads_neither_attract_nor_starve() {
        let [light, heavy] = shares_of_silent::<P2c>("{}");
        // Their picks since the last report count against them where loads are equal: half a share at least.
        let is_fair = |share: f64| (0.45..1.4).contains(&share);
        assert!(is_fair(light) && is_fair(heavy), "{light} {heavy}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<P2c>("{}");
    }
}
