//! `round-robin`: each eligible target in turn, whatever its load.
//!
//! *Use it* when targets and requests are alike: it needs no loads at all and spreads more evenly than
//! `random`. A target in its slow start takes so much of its turns, with a share of 0.25 each fourth
//! one. Failures do not count: nothing that a target does attracts requests. Only the first choice for
//! a request takes a turn: the second best of one is the best of the next. So a request that excludes
//! the target whose turn it is uses that turn up, and whoever answers it keeps its own. One that only
//! targets of some labels may answer gets a random one of them.
//!
//! *Source*: the classical rule; of requests that come at random each of n targets sees every n-th,
//! E_n/M/1 (Kleinrock, "Queueing systems", 1975).
//!
//! *Settings*: none. The place in the round is carried over a reload.
//!
//! *Cost* of a pick: O(1), at worst O(n), where few targets are eligible and warm.

use loadline_sdk::prelude::*;
use loadline_sdk::turns::Round;

/// The strategy.
#[derive(Debug, Default)]
pub struct RoundRobin {
    round: Round,
}

impl Strategy for RoundRobin {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        self.round.next(fleet, request, |_| true)
    }

    fn save(&self) -> Vec<u8> {
        self.round.save()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.round.restore(state)
    }
}

export_strategy!(RoundRobin);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, check_ties, share_of_failing};

    use super::*;

    fn picks(host: &mut StrategyHost<RoundRobin>, count: usize) -> Vec<u32> {
        (0..count).filter_map(|_| host.pick()).map(|slot| slot.0).collect()
    }

    #[test]
    fn everybody_in_turn() {
        let mut host = StrategyHost::<RoundRobin>::with_loads(&[5.0, 0.0, f64::NAN]);
        assert_eq!(picks(&mut host, 7), [0, 1, 2, 0, 1, 2, 0]);
        host.change(1, |target| target.eligible = false);
        assert_eq!(picks(&mut host, 3), [2, 0, 2]);
    }

    #[test]
    fn the_round_goes_on_over_a_reload() {
        let mut host = StrategyHost::<RoundRobin>::with_loads(&[0.0; 3]);
        assert_eq!(picks(&mut host, 2), [0, 1]);
        assert_eq!(host.reload("{}"), Ok(true));
        assert_eq!(picks(&mut host, 2), [2, 0]);
    }

    #[test]
    fn second_choice_takes_no_turn() {
        let mut host = StrategyHost::<RoundRobin>::with_loads(&[0.0; 2]);
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
    fn slow_start_takes_its_share_of_its_turns() {
        let mut host = StrategyHost::<RoundRobin>::with_loads(&[0.5; 3]);
        host.change(1, |target| target.warm = 0.25);
        assert_eq!(host.shares(900), [400, 100, 400]);
    }

    #[test]
    fn foreign_state_is_refused() {
        assert!(!RoundRobin::default().restore(b"not a slot"));
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<RoundRobin>("{}");
    }

    #[test]
    fn failures_neither_attract_nor_repel() {
        let share = share_of_failing::<RoundRobin>("{}");
        assert!((share - 1.0).abs() < 0.25, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<RoundRobin>("{}");
    }
}
