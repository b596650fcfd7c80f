//! `failover`: the first in priority work, the others are hot standby.
//!
//! *Use it* for services with a primary and backups, or to keep reserves idle. A target's priority is
//! its weight, the heaviest first; equals rank by identity, which is arbitrary but the same on every
//! host and after every restart. The first `active` eligible ones share the work: the one with the
//! fewest requests in it and picks since its report per weight * slow-start share, of equals anyone;
//! who fails counts as fuller, and never as emptier than is usual. When one is not eligible, the next
//! in priority steps in at once and takes the whole of its part, also in its slow start. Loads do not
//! count.
//!
//! *Source*: priorities and preemption of routers, VRRP (RFC 5798).
//!
//! *Settings*: `active` (targets that work, 1 to 1,000, default 1). `max_in_flight` (requests per
//! weight * slow-start share, 0 to 1e9, default 0): when every active target holds as many, the
//! first in priority that does not helps out, and if there is none all share; 0: standbys never help.
//! `stay` (default false): who has stepped in stays until it is not eligible itself, so that a
//! primary that comes and goes moves nothing (who leaves the pool is forgotten, and so is its place);
//! false: who ranks first works. Who is active is carried over a reload.
//!
//! *Cost* of a pick: O(1), at worst O(n): O(active), and O(n) where standbys help out or among
//! candidates; O(active log n) once after an update.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use loadline_sdk::index::PerSlot;
use loadline_sdk::{prelude::*, settings};
use serde::Deserialize;

/// The strategy.
#[derive(Debug, Default)]
pub struct Failover {
    settings: Settings,
    /// The eligible targets, the first in rank first.
    ranking: BTreeSet<Rank>,
    ranks: PerSlot<Rank>,
    active: Vec<Slot>,
    /// The fleet has changed since `active` was made.
    is_stale: bool,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    active: usize,
    max_in_flight: f64,
    stay: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { active: 1, max_in_flight: 0.0, stay: false }
    }
}

/// Weight, as bits that order like it, identity, and slot.
type Rank = (Reverse<u64>, u64, Slot);

impl Strategy for Failover {
    const GOES_BY: GoesBy = GoesBy::Requests;
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "active": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1,
                "description": "targets that work"},
            "max_in_flight": {"type": "number", "minimum": 0, "maximum": 1000000000, "default": 0,
                "description": "requests per weight at which a standby helps out; 0: never"},
            "stay": {"type": "boolean", "default": false,
                "description": "who has stepped in stays until it is not eligible itself"}
        }
    }"#;

    fn configure(&mut self, settings: &str, _seed: u64) -> Result<(), String> {
        self.settings = settings::parse(settings)?;
        settings::in_range("active", self.settings.active as f64, 1.0..=1e3)?;
        settings::in_range("max_in_flight", self.settings.max_in_flight, 0.0..=1e9)?;
        Ok(())
    }

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for slot in changed {
            let rank = |target: Target| (Reverse(target.weight.to_bits()), target.identity, *slot);
            self.rank(*slot, fleet.offered(*slot).map(rank));
        }
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        for slot in slots {
            self.rank(*slot, None);
        }
        self.active.retain(|slot| !slots.contains(slot));
    }

    fn pick(&mut self, fleet: &Fleet, _request: &Request) -> Option<Slot> {
        if self.is_stale {
            self.appoint();
        }
        let has_room = |target: &Target| self.has_room(fleet, target);
        let offered = |slot: &Slot| fleet.offered(*slot);
        let active = emptiest(fleet, self.active.iter().filter_map(offered));
        let in_rank = || self.ranking.iter().filter_map(|rank| offered(&rank.2)).find(has_room);
        let chosen = active
            .filter(has_room)
            .or_else(in_rank)
            .or_else(|| emptiest(fleet, fleet.all_offered()))?;
        Some(chosen.slot)
    }

    fn save(&self) -> Vec<u8> {
        self.active.iter().flat_map(|slot| slot.0.to_le_bytes()).collect()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let (slots, rest) = state.as_chunks();
        if !rest.is_empty() {
            return false;
        }
        self.active = slots.iter().map(|bytes| Slot(u32::from_le_bytes(*bytes))).collect();
        self.is_stale = true;
        true
    }
}

impl Failover {
    /// Gives a slot its rank; `None`: it is not eligible.
    fn rank(&mut self, slot: Slot, rank: Option<Rank>) {
        if self.ranks.get(slot) == rank.as_ref() {
            return;
        }
        if let Some(old) = self.ranks.remove(slot) {
            self.ranking.remove(&old);
        }
        if let Some(rank) = rank {
            self.ranks.set(slot, rank);
            self.ranking.insert(rank);
        }
        self.is_stale = true;
    }

    /// Says who is active.
    fn appoint(&mut self) {
        let Self { settings, ranking, ranks, active, .. } = self;
        active.retain(|slot| settings.stay && ranks.get(*slot).is_some());
        active.truncate(settings.active);
        let missing = settings.active - active.len();
        let next = ranking.iter().map(|rank| rank.2).filter(|slot| !active.contains(slot));
        let next: Vec<_> = next.take(missing).collect();
        active.extend(next);
        self.is_stale = false;
    }

    fn has_room(&self, fleet: &Fleet, target: &Target) -> bool {
        self.settings.max_in_flight <= 0.0 || fleet.fullness(target) < self.settings.max_in_flight
    }
}

/// Any one of those that hold the least for what they can take.
fn emptiest(fleet: &Fleet, targets: impl Iterator<Item = Target>) -> Option<Target> {
    targets.min_by(|a, b| {
        let toss = || fleet.toss(a.slot).cmp(&fleet.toss(b.slot));
        fleet.fullness(a).total_cmp(&fleet.fullness(b)).then_with(toss)
    })
}

export_strategy!(Failover);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::{
        StrategyHost, check_answers, check_best_ties, check_ties, share_of_failing,
    };

    use super::*;

    fn farm(settings: &str, weights: &[f64]) -> StrategyHost<Failover> {
        let mut host = StrategyHost::new(settings, 1).expect("good settings");
        for weight in weights {
            let slot = host.add(0.5);
            host.change(slot.0, |target| target.weight = *weight);
        }
        host
    }

    fn fail(host: &mut StrategyHost<Failover>, slot: u32) {
        host.change(slot, |target| target.eligible = false);
    }

    fn recover(host: &mut StrategyHost<Failover>, slot: u32) {
        host.change(slot, |target| target.eligible = true);
    }

    #[test]
    fn primary_works_alone_and_the_next_in_rank_steps_in() {
        let mut host = farm("{}", &[1.0, 3.0, 2.0, 2.0]);
        assert_eq!(host.shares(10), [0, 10, 0, 0]);
        fail(&mut host, 1);
        assert_eq!(host.shares(10), [0, 0, 10, 0], "of equal weights the lower identity");
        host.leave(2);
        assert_eq!(host.shares(10), [0, 0, 0, 10]);
        recover(&mut host, 1);
        assert_eq!(host.shares(10), [0, 10, 0, 0], "the primary fails back");
        [0, 1, 3].into_iter().for_each(|slot| fail(&mut host, slot));
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn every_host_ranks_equals_alike() {
        for identities in [[7, 3, 5], [5, 7, 3], [3, 5, 7]] {
            let mut host = farm("{}", &[1.0; 3]);
            for (slot, identity) in (0..).zip(identities) {
                host.change(slot, |target| target.identity = identity);
            }
            let slot = host.pick().expect("three are eligible");
            assert_eq!(identities[slot.index()], 3);
        }
    }

    #[test]
    fn newcomer_in_the_slot_of_an_active_one_does_not_take_over() {
        let mut host = farm(r#"{"stay":true}"#, &[3.0, 2.0, 1.0]);
        assert_eq!(host.pick(), Some(Slot(0)));
        host.leave(0);
        host.change(0, |target| target.weight = 0.5);
        assert_eq!(host.pick(), Some(Slot(1)));
    }

    #[test]
    fn active_targets_share_by_what_they_hold_and_can_take() {
        let mut host = farm(r#"{"active":3}"#, &[1.0, 4.0, 2.0, 2.0]);
        assert_eq!(host.shares(400), [0, 200, 100, 100]);
        host.change(2, |target| target.in_flight = 100);
        host.change(1, |target| target.picks = 200);
        host.change(3, |target| target.picks = 0);
        assert_eq!(host.shares(100), [0, 0, 0, 100]);
    }

    #[test]
    fn place_of_one_that_left_is_filled() {
        let mut host = farm(r#"{"active":2}"#, &[1.0; 4]);
        assert_eq!(host.shares(100), [50, 50, 0, 0]);
        host.leave(0);
        (1..4).for_each(|slot| host.change(slot, |target| target.picks = 0));
        assert_eq!(host.shares(100), [0, 50, 50, 0]);
    }

    #[test]
    fn active_equals_have_equal_chances_when_every_report_says_idle() {
        let mut host = farm(r#"{"active":2}"#, &[1.0; 3]);
        let mut shares = [0_usize; 3];
        for _ in 0..2_000 {
            shares[host.pick().expect("three are eligible").index()] += 1;
            (0..3).for_each(|slot| host.change(slot, |target| target.picks = 0));
        }
        assert!(shares[0].abs_diff(1_000) < 112 && shares[2] == 0, "{shares:?}");
    }

    #[test]
    fn who_stepped_in_stays_until_it_fails_itself() {
        let mut host = farm(r#"{"stay":true}"#, &[3.0, 2.0, 1.0]);
        assert_eq!(host.shares(10), [10, 0, 0]);
        fail(&mut host, 0);
        assert_eq!(host.shares(10), [0, 10, 0]);
        recover(&mut host, 0);
        assert_eq!(host.shares(10), [0, 10, 0], "no failing back");
        assert_eq!(host.reload(r#"{"stay":true}"#), Ok(true));
        assert_eq!(host.shares(10), [0, 10, 0], "nor by a reload");
        fail(&mut host, 1);
        assert_eq!(host.shares(10), [10, 0, 0]);
    }

    #[test]
    fn full_active_targets_get_help_in_rank_and_then_all_share() {
        let mut host = farm(r#"{"max_in_flight":2}"#, &[2.0, 1.0, 1.0]);
        let picks: Vec<_> = (0..8).filter_map(|_| host.pick()).map(|slot| slot.0).collect();
        assert_eq!(picks, [0, 0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(host.shares(40), [20, 10, 10]);
        host.change(0, |target| target.picks = 0);
        assert_eq!(host.shares(4), [4, 0, 0]);
        let mut alone = farm("{}", &[2.0, 1.0]);
        assert_eq!(alone.shares(100), [100, 0], "without the setting nobody helps");
    }

    #[test]
    fn among_candidates_the_active_ones_come_first() {
        let mut host = farm(r#"{"stay":true}"#, &[3.0, 2.0, 1.0]);
        fail(&mut host, 0);
        assert_eq!(host.pick(), Some(Slot(1)));
        recover(&mut host, 0);
        assert_eq!(host.pick_among(&[0, 1, 2]), Some(Slot(1)));
        assert_eq!(host.pick_among(&[0, 2]), Some(Slot(0)));
        assert_eq!(host.pick_among(&[2]), Some(Slot(2)));
        assert_eq!(host.pick_among(&[9]), None);
    }

    #[test]
    fn bad_settings_and_foreign_state_are_refused() {
        for bad in [r#"{"active":0}"#, r#"{"active":-1}"#, r#"{"max_in_flight":-1}"#] {
            assert!(StrategyHost::<Failover>::new(bad, 1).is_err(), "{bad}");
        }
        assert!(!Failover::default().restore(b"not slots"));
    }

    #[test]
    fn every_answer_is_a_target_that_may_be_picked() {
        check_answers::<Failover>("{}");
        check_answers::<Failover>(r#"{"active":3,"max_in_flight":4,"stay":true}"#);
    }

    #[test]
    fn fast_failures_attract_nothing() {
        let share = share_of_failing::<Failover>(r#"{"active":4}"#);
        assert!(share < 0.5, "{share}");
    }

    #[test]
    fn equals_have_equal_shares() {
        check_ties::<Failover>(r#"{"active":8}"#);
        check_best_ties::<Failover>(r#"{"active":5}"#);
    }
}
