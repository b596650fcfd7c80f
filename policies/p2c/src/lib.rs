//! `p2c`: the better of two targets drawn at random (power of two choices).
//!
//! The safe default: it needs no tuning, stays good with reports that are several service times old
//! and cannot send everything to one target (Mitzenmacher, "How useful is old information", 2000).
//! Of the two the lower load wins; equal loads go to the one with fewer picks per weight; an unknown
//! load loses. No settings. Cost O(1) a pick at any fleet size.

use loadline_sdk::prelude::*;

/// The strategy.
#[derive(Debug, Default)]
pub struct P2c;

impl Strategy for P2c {
    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let eligible = fleet.eligible();
        let (first, second) = eligible.random_pair(request.draws())?;
        let lighter = if eligible.by_load(second, first).is_lt() { second } else { first };
        Some(lighter.slot)
    }
}

export_strategy!(P2c);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::StrategyHost;

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
    fn unknown_load_loses_but_serves_when_alone() {
        let mut host = StrategyHost::<P2c>::with_loads(&[f64::NAN, 1e9]);
        assert_eq!(host.shares(100), [0, 100]);
        host.leave(1);
        assert_eq!(host.pick(), Some(Slot(0)));
        host.leave(0);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn own_picks_break_ties() {
        let mut host = StrategyHost::<P2c>::with_loads(&[0.5, 0.5]);
        assert_eq!(host.shares(1_000), [500, 500]);
    }
}
