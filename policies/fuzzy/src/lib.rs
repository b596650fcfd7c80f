//! `fuzzy`: the targets that are not clearly above the average take turns.
//!
//! *Use it* where loads are noisy or coarse. The rule is made of the average load, the difference to it
//! and a threshold / N: a target is *light* if its load is at most average + `threshold` / n, over the
//! n eligible targets; light targets are picked round robin in slot order, the others get nothing
//! until the next reports bring them down. So whoever is below the average takes the turns of whoever
//! is above it, and no difference within the threshold has any effect: it does not herd as
//! `least-loaded` does, and does not thrash. In a small farm a bigger difference is tolerated than in
//! a large one.
//!
//! The average is that of the known loads. One that is not known yet counts as their median, an old
//! one is drawn to it, failures make a load count as more, and a target whose report lacks a metric
//! of the formula is never light: it is the last choice. A target in its slow start takes so much of
//! its turns. Weights do not count. Only the first choice for a request takes a turn: a request that
//! excludes the target whose turn it is uses that turn up, and whoever answers it keeps its own.
//!
//! *Source*: the fuzzy adaptive strategy of an application server's load balancing service, of which
//! only those three terms are handed down; how they make a choice is defined here.
//!
//! *Settings*: `threshold` (in units of load, 0 to 1e9, default 1: with a load of 0 to 1, two targets
//! tolerate a difference to the average of 0.5, ten of 0.1). The place in the round is carried over
//! a reload.
//!
//! *Cost* of a pick: O(1), at worst O(n), where few targets are light, eligible and warm.

use loadline_sdk::index::WeightedDraw;
use loadline_sdk::turns::Round;
use loadline_sdk::{prelude::*, settings};
use serde::Deserialize;

/// The strategy.
#[derive(Debug, Default)]
pub struct Fuzzy {
    threshold: f64,
    /// The known loads of the eligible targets.
    known: Known,
    round: Round,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    threshold: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { threshold: 1.0 }
    }
}

impl Strategy for Fuzzy {
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "threshold": {"type": "number", "minimum": 0, "maximum": 1000000000, "default": 1,
                "description": "in units of load: a target is light up to the average plus this, divided by the number of targets"}
        }
    }"#;

    fn configure(&mut self, settings: &str, _seed: u64) -> Result<(), String> {
        let Settings { threshold } = settings::parse(settings)?;
        self.threshold = settings::in_range("threshold", threshold, 0.0..=1e9)?;
        Ok(())
    }

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            self.known.set(*slot, fleet.offered(*slot).map(|target| target.load));
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        slots.iter().for_each(|slot| self.known.set(*slot, None));
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let eligible = fleet.eligible();
        let limit = self.average(fleet) + self.threshold / eligible.len() as f64;
        let light = self.round.next(fleet, request, |candidate| candidate.load <= limit);
        // Nobody is light where no load is known, nor where rounding puts the average of equal loads just
        // below them.
        light.or_else(|| {
            let lightest = eligible.min_by_load()?;
            self.round.take(fleet, lightest);
            Some(lightest)
        })
    }

    fn save(&self) -> Vec<u8> {
        self.round.save()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        self.round.restore(state)
    }
}

impl Fuzzy {
    /// The average of the known loads that this request can choose from.
    fn average(&self, fleet: &Fleet) -> f64 {
        if !fleet.is_limited() {
            return self.known.average();
        }
        let loads = fleet.all_offered().map(|target| target.load);
        let (mut sum, mut count) = (0.0, 0.0);
        for load in loads.filter(|load| load.is_finite()) {
            sum += load;
            count += 1.0;
        }
        mean(sum, count)
    }
}

/// The average of known loads, kept as sums that do not drift.
#[derive(Debug, Default)]
struct Known {
    loads: WeightedDraw,
    count: WeightedDraw,
}

impl Known {
    /// `None`: not eligible; what is not finite is not known.
    fn set(&mut self, slot: Slot, load: Option<f64>) {
        let known = load.filter(|load| load.is_finite());
        self.loads.set(slot, known.unwrap_or(0.0));
        self.count.set(slot, if known.is_some() { 1.0 } else { 0.0 });
    }

    fn average(&self) -> f64 {
        mean(self.loads.total(), self.count.total())
    }
}

/// 0 of none.
fn mean(sum: f64, count: f64) -> f64 {
    if count > 0.0 { sum / count } else { 0.0 }
}

export_strategy!(Fuzzy);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{
        StrategyHost, check_answers, check_ties, share_of_failing, shares_of_silent,
    };

    use super::*;

    #[track_caller]
    fn check(threshold: f64, loads: &[f64], expected: &[usize]) {
        let mut host = StrategyHost::<Fuzzy>::new(&format!(r#"{{"threshold":{threshold}}}"#), 1)
            .expect("good settings");
        for load in loads {
            host.add(*load);
        }
        assert_eq!(host.shares(expected.iter().sum()), expected);
    }

    #[test]
    fn only_targets_clearly_above_the_average_are_left_out() {
        // The average is 0.5; with four targets the limit is 0.5 + threshold / 4.
        let loads = [0.1, 0.4, 0.6, 0.9];
        check(0.0, &loads, &[50, 50, 0, 0]);
        check(0.39, &loads, &[50, 50, 0, 0]);
        check(0.41, &loads, &[50, 50, 50, 0]);
        check(2.0, &loads, &[50; 4]);
    }

    #[test]
    fn equal_and_unknown_loads_take_turns() {
        check(0.0, &[0.1; 3], &[10; 3]);
        check(0.0, &[f64::NAN; 3], &[10; 3]);
        check(0.0, &[f64::NAN, 0.2, 0.4], &[10, 10, 0]);
        check(0.0, &[f64::NAN, 0.2, 0.4, 0.9], &[10, 10, 10, 0]);
        check(9.0, &[f64::INFINITY, 0.2, f64::NAN], &[0, 10, 10]);
        check(9.0, &[f64::INFINITY; 3], &[10; 3]);
        check(0.0, &[f64::MAX; 3], &[10; 3]);
    }

    #[test]
    fn reports_change_who_is_light() {
        let mut host = StrategyHost::<Fuzzy>::new(r#"{"threshold":0}"#, 1).expect("good settings");
        for load in [0.1, 0.9, 0.2] {
            host.add(load);
        }
        assert_eq!(host.shares(20), [10, 0, 10]);
        host.change(1, |target| target.load = 0.0);
        assert_eq!(host.shares(20), [10, 10, 0]);
        host.leave(1);
        assert_eq!(host.shares(20), [20, 0, 0]);
        host.change(0, |target| target.eligible = false);
        assert_eq!(host.shares(20), [0, 0, 20]);
        host.leave(2);
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn load_of_one_that_left_does_not_count() {
        let mut host = StrategyHost::<Fuzzy>::new(r#"{"threshold":0}"#, 1).expect("good settings");
        for load in [0.1, 0.4, 3.1] {
            host.add(load);
        }
        assert_eq!(host.shares(20), [10, 10, 0]);
        host.leave(2);
        assert_eq!(host.shares(20), [20, 0, 0]);
    }

    #[test]
    fn candidates_are_compared_with_each_other() {
        let mut host = StrategyHost::<Fuzzy>::new(r#"{"threshold":0}"#, 1).expect("good settings");
        for load in [0.1, 0.8, 0.9, 0.7] {
            host.add(load);
        }
        assert_eq!(host.pick_among(&[2, 3]), Some(Slot(3)));
        assert_eq!(host.pick_among(&[1, 2]), Some(Slot(1)));
        assert_eq!(host.pick_among(&[2]), Some(Slot(2)));
        assert_eq!(host.pick_among(&[8]), None);
    }

    #[test]
    fn second_choice_takes_no_turn() {
        let mut host = StrategyHost::<Fuzzy>::with_loads(&[0.0; 2]);
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
        let mut host = StrategyHost::<Fuzzy>::with_loads(&[0.5; 4]);
        host.change(1, |target| target.warm = 0.25);
        host.change(3, |target| target.load = 9.0);
        assert_eq!(host.shares(900), [400, 100, 400, 0]);
    }

    #[test]
    fn the_round_goes_on_over_a_reload() {
        let mut host = StrategyHost::<Fuzzy>::with_loads(&[0.0; 3]);
        assert_eq!(host.pick(), Some(Slot(0)));
        assert_eq!(host.reload("{}"), Ok(true));
        assert_eq!(host.pick(), Some(Slot(1)));
        assert!(!Fuzzy::default().restore(b"not a slot"));
    }

    #[test]
    fn bad_settings_are_named() {
        let error =
            StrategyHost::<Fuzzy>::new(r#"{"threshold":-1}"#, 1).map(drop).expect_err("bad");
        assert!(error.contains("threshold"), "{error}");
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<Fuzzy>("{}");
        check_answers::<Fuzzy>(r#"{"threshold":0}"#);
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<Fuzzy>("{}");
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn old_loads_neither_attract_nor_starve() {
        let [light, heavy] = shares_of_silent::<Fuzzy>("{}");
        // Their picks since the last report count against them where loads are equal: half a share at least.
        let is_fair = |share: f64| (0.45..1.4).contains(&share);
        assert!(is_fair(light) && is_fair(heavy), "{light} {heavy}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<Fuzzy>("{}");
    }
}
