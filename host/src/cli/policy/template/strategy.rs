//! NAME: a strategy for Loadline. It picks the target with the lowest load.
//!
//! When to use it: say here for which farms it is good, and what a pick costs.

use loadline_sdk::prelude::*;

/// The strategy. What it remembers between two calls are its fields.
#[derive(Debug, Default)]
pub struct TYPE;

impl Strategy for TYPE {
    fn pick(&mut self, fleet: &Fleet, _request: &Request) -> Option<Slot> {
        fleet.eligible().min_by_load()
    }
}

export_strategy!(TYPE);

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_sdk::testing::{StrategyHost, check_answers};

    #[test]
    fn the_lowest_load_is_picked() {
        let mut host = StrategyHost::<TYPE>::with_loads(&[0.7, 0.2, 0.9]);
        assert_eq!(host.pick(), Some(Slot(1)));
    }

    #[test]
    fn any_calls_are_answered_well() {
        check_answers::<TYPE>("{}");
    }
}
