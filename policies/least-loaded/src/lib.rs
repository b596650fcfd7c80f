//! `least-loaded`: the lowest load wins.
//!
//! Use it when reports are fresh compared with the time a request takes, or when picks are rare:
//! with old reports everything that arrives between two reports goes to the same target (Mitzenmacher
//! 2000), and `p2c` does better. Equal loads go to the target with the fewest picks per weight;
//! unknown loads come last. No settings. Cost O(n) a pick.

use loadline_sdk::prelude::*;

/// The strategy.
#[derive(Debug, Default)]
pub struct LeastLoaded;

impl Strategy for LeastLoaded {
    fn pick(&mut self, fleet: &Fleet, _request: &Request) -> Option<Slot> {
        fleet.eligible().min_by_load()
    }
}

export_strategy!(LeastLoaded);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::StrategyHost;

    use super::*;

    #[test]
    fn lowest_load_wins_and_unknown_is_last() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[f64::NAN, 0.9, 0.2]);
        assert_eq!(host.pick(), Some(Slot(2)));
        assert_eq!(host.pick_among(&[0, 1]), Some(Slot(1)));
        assert_eq!(host.pick_among(&[0]), Some(Slot(0)));
    }

    #[test]
    fn equal_loads_share_by_weight() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.5, 0.5]);
        host.change(1, |target| target.weight = 3.0);
        assert_eq!(host.shares(400), [100, 300]);
    }

    #[test]
    fn nothing_eligible_is_no_pick() {
        let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.5]);
        host.change(0, |target| target.eligible = false);
        assert_eq!(host.pick(), None);
    }
}
