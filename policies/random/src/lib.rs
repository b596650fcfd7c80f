//! `random`: every eligible target is equally likely.
//!
//! *Use it* as the baseline to beat, or when loads say nothing about the work. At utilisation rho a
//! request takes 1/(1 - rho) service times on average (M/M/1): ten at 0.9, where `p2c` takes less than
//! three. A target in its slow start gets so much of its share: else another one is drawn. Loads and
//! failures do not count: nothing that a target does attracts requests.
//!
//! *Source*: Kleinrock, "Queueing systems" (1975).
//!
//! *Settings*: none. No state.
//!
//! *Cost* of a pick: O(1).

use loadline_sdk::{math, prelude::*};

/// The strategy.
#[derive(Debug, Default)]
pub struct Random;

impl Strategy for Random {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let drawn = fleet.eligible().random(request.draws().0)?.slot;
        Some(if fleet.is_warm() { drawn } else { draw_again(fleet, request, drawn) })
    }
}

/// Another one as long as the drawn one gives way for not being warm.
#[cold]
fn draw_again(fleet: &Fleet, request: &Request, drawn: Slot) -> Slot {
    let mut drawn = drawn;
    // The first draw is used up.
    let draws = math::draws(request.random).take(DRAWS_MAX).map(math::halves);
    for (place, spare) in draws {
        if !fleet.gives_way(drawn, spare) {
            break;
        }
        drawn = fleet.eligible().random(place).map_or(drawn, |target| target.slot);
    }
    drawn
}

/// Draws of one pick: enough for all but a pool of which nearly nobody is warm, whose shares differ less.
const DRAWS_MAX: usize = 64;

export_strategy!(Random);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

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
    fn slow_start_gets_its_share() {
        let mut host = StrategyHost::<Random>::with_loads(&[0.5; 3]);
        host.change(1, |target| target.warm = 0.25);
        let shares = host.shares(45_000);
        // Five standard deviations of a binomial(45 000, 1/9).
        assert!(shares[1].abs_diff(5_000) < 334, "{shares:?}");
        assert!(shares[0].abs_diff(20_000) < 528, "{shares:?}");
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

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<Random>("{}");
    }
}
