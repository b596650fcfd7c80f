//! `random`: every eligible target is equally likely.
//!
//! Use it as the baseline to beat, or when loads say nothing about the work. At utilisation rho a
//! request takes 1/(1 - rho) service times on average (M/M/1; Kleinrock 1975): ten at 0.9, where `p2c` takes less
//! than three. No settings. Cost O(1) a pick.

use loadline_sdk::prelude::*;

/// The strategy.
#[derive(Debug, Default)]
pub struct Random;

impl Strategy for Random {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        fleet.eligible().random(request.draws().0).map(|target| target.slot)
    }
}

export_strategy!(Random);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, share_of_failing};

    use super::*;

    #[test]
    fn shares_are_even_whatever_the_loads() {
        let mut host = StrategyHost::<Random>::with_loads(&[0.0, 9.0, f64::NAN, 1.0]);
        for share in host.shares(40_000) {
            // Five standard deviations of a binomial(40 000, 1/4).
            assert!(share.abs_diff(10_000) < 433, "{share}");
        }
    }

    #[test]
    fn only_eligible_targets_are_drawn() {
        let mut host = StrategyHost::<Random>::with_loads(&[0.0; 3]);
        host.change(1, |target| target.eligible = false);
        assert_eq!(host.shares(1_000)[1], 0);
        host.leave(0);
        assert_eq!(host.shares(100), [0, 0, 100]);
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<Random>("{}");
    }

    #[test]
    fn failures_neither_attract_nor_repel() {
        let share = share_of_failing::<Random>("{}");
        assert!((share - 1.0).abs() < 0.25, "{share}");
    }
}
