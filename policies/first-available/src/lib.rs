//! `first-available`: the eligible target with the lowest slot, whatever its load.
//!
//! *Use it* to keep the work on few targets and the rest free to be switched off or drained. Slots are
//! given in the order in which targets join, so whoever joined first is served first; a newcomer
//! takes the slot of one that has left, if there is any. There are no ties. Slow start and failures
//! count only in how full a target is: without `spill` the first one gets everything.
//!
//! *Source*: `first` of HAProxy.
//!
//! *Settings*: `spill` (requests in a target and picks since its report, per weight * slow-start
//! share, 0 to 1e9, default 0): a target that holds as many is passed over for the next one, and
//! where all do the least full one is taken; who fails counts as fuller, and never as emptier than is
//! usual; 0: never passed over. No state.
//!
//! *Cost* of a pick: O(1), at worst O(n), where the lowest slots are full or not eligible.

use std::iter;

use loadline_sdk::{prelude::*, settings};
use serde::Deserialize;

/// The strategy.
#[derive(Debug, Default)]
pub struct FirstAvailable {
    spill: f64,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    spill: f64,
}

impl Strategy for FirstAvailable {
    const GOES_BY: GoesBy = GoesBy::Requests;
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "spill": {"type": "number", "minimum": 0, "maximum": 1000000000, "default": 0,
                "description": "requests per weight at which a target is passed over; 0: never"}
        }
    }"#;

    fn configure(&mut self, settings: &str, _seed: u64) -> Result<(), String> {
        let Settings { spill } = settings::parse(settings)?;
        self.spill = settings::in_range("spill", spill, 0.0..=1e9)?;
        Ok(())
    }

    fn pick(&mut self, fleet: &Fleet, _request: &Request) -> Option<Slot> {
        let eligible = fleet.eligible();
        let first = eligible.after(None)?.slot;
        let room = |slot: &Slot| self.spill <= 0.0 || fullness(fleet, *slot) < self.spill;
        let with_room = in_slot_order(eligible, first).find(room);
        let emptier = |a: &Slot, b: &Slot| fullness(fleet, *a).total_cmp(&fullness(fleet, *b));
        with_room.or_else(|| in_slot_order(eligible, first).min_by(emptier))
    }
}

fn in_slot_order(eligible: Eligible<'_>, first: Slot) -> impl Iterator<Item = Slot> {
    let next = move |slot: &Slot| eligible.after(Some(*slot)).map(|candidate| candidate.slot);
    iter::successors(Some(first), next).take(eligible.len())
}

fn fullness(fleet: &Fleet, slot: Slot) -> f64 {
    fleet.get(slot).map_or(f64::INFINITY, |target| fleet.fullness(&target))
}

export_strategy!(FirstAvailable);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{StrategyHost, check_answers, share_of_failing};

    use super::*;

    fn farm(settings: &str, targets: usize) -> StrategyHost<FirstAvailable> {
        let mut host = StrategyHost::new(settings, 1).expect("good settings");
        for _ in 0..targets {
            host.add(0.5);
        }
        host
    }

    #[test]
    fn lowest_eligible_slot_takes_everything() {
        let mut host = farm("{}", 3);
        host.change(0, |target| target.load = 9.0);
        assert_eq!(host.shares(100), [100, 0, 0]);
        host.change(0, |target| target.eligible = false);
        assert_eq!(host.shares(100), [0, 100, 0]);
        host.change(0, |target| target.eligible = true);
        assert_eq!(host.shares(100), [100, 0, 0], "it fails back");
        assert_eq!(host.pick_among(&[2, 1]), Some(Slot(1)));
        (0..3).for_each(|slot| host.leave(slot));
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn full_targets_spill_to_the_next_and_the_last_to_the_least_full() {
        let mut host = farm(r#"{"spill":2}"#, 3);
        host.change(1, |target| target.weight = 2.0);
        host.change(2, |target| target.in_flight = 1);
        let picks: Vec<_> = (0..7).filter_map(|_| host.pick()).map(|slot| slot.0).collect();
        assert_eq!(picks, [0, 0, 1, 1, 1, 1, 2]);
        assert_eq!(host.shares(4), [1, 2, 1], "all are full: by weight");
        host.change(0, |target| target.picks = 0);
        assert_eq!(host.pick(), Some(Slot(0)), "the report says that it has room again");
    }

    #[test]
    fn bad_settings_are_named() {
        for bad in [r#"{"spill":-1}"#, r#"{"spil":1}"#] {
            let error = StrategyHost::<FirstAvailable>::new(bad, 1).map(drop).expect_err(bad);
            assert!(error.contains("spil"), "{error}");
        }
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<FirstAvailable>("{}");
        check_answers::<FirstAvailable>(r#"{"spill":3}"#);
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<FirstAvailable>(r#"{"spill":3}"#);
        assert!(share < 0.5, "{share}");
    }
}
