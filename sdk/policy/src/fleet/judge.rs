//! Judging what targets report, by [`belief`]: each eligible target's
//! [`Candidate`](crate::Candidate) holds what its load counts as, and [`Fleet::fullness`] says how full a
//! target is.
//!
//! What a load counts as also changes without a report of its target, as others report. So every update
//! looks at as many others as have reported, in turn, and at 16 at least: by the time all have
//! reported once, all have been looked at. An update so costs O(1) a target, and no pick anything.

use super::Fleet;
use crate::belief::{self, Said, Usual};
use crate::target::{Slot, Target};

/// Targets that an update looks at, beside those that have reported, at least: all of a small fleet, so
/// that it is always judged by what is known now.
const LOOKS_MIN: usize = 16;

/// What a strategy goes by, for which the SDK judges what targets report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoesBy {
    /// Loads.
    Loads,
    /// Requests in a target, [`Fleet::fullness`].
    Requests,
    /// Nothing that is judged here.
    Neither,
}

/// What judging remembers.
#[derive(Debug, Default)]
pub(super) struct Judging {
    usual_load: Usual,
    usual_fullness: Usual,
    fullness: f64,
    /// The next slot to be looked at in turn.
    turn: usize,
    /// By slot.
    reports: Vec<Reports>,
    /// How many are old.
    old: u32,
}

/// When a target's last report was captured, on the host's clock, and how old its reports usually get;
/// 0: not known.
#[derive(Debug, Clone, Copy, Default)]
struct Reports {
    captured_ms: f64,
    usual_age_ms: f64,
    /// Too old to be trusted in full, when it was looked at last.
    is_old: bool,
}

impl Reports {
    fn hear(&mut self, captured_ms: f64, now_ms: f64) {
        if captured_ms <= self.captured_ms {
            return; // the same one
        }
        if self.captured_ms > 0.0 {
            self.usual_age_ms = belief::usual_age_ms(self.usual_age_ms, now_ms - self.captured_ms);
        }
        self.captured_ms = captured_ms;
    }
}

impl Judging {
    /// So many targets have changed.
    pub(super) fn note(&mut self, changes: usize) {
        self.usual_load.note(changes);
        self.usual_fullness.note(changes);
    }

    /// A target is gone.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.note(1);
        if let Some(reports) = self.reports.get_mut(slot.index()) {
            self.old -= u32::from(reports.is_old);
            *reports = Reports::default();
        }
    }

    /// How far a target's load is trusted.
    fn trust(&mut self, slot: Slot, now_ms: f64) -> f64 {
        let reports = &mut self.reports[slot.index()];
        let trust = belief::trust(now_ms - reports.captured_ms, reports.usual_age_ms);
        let was_old = std::mem::replace(&mut reports.is_old, trust < 1.0);
        self.old = self.old + u32::from(reports.is_old) - u32::from(was_old);
        trust
    }

    /// A target was picked.
    pub(super) fn note_pick(&mut self) {
        self.usual_fullness.note(1);
    }
}

impl Fleet {
    /// Judges the loads of those that have `changed`, and looks at others; those of which the load counts
    /// otherwise now have changed, too.
    pub(crate) fn judge(&mut self, goes_by: GoesBy, changed: &mut Vec<Slot>) {
        self.judging.note(changed.len());
        match goes_by {
            GoesBy::Loads => self.judge_loads(changed),
            GoesBy::Requests => self.judge_fullness(),
            GoesBy::Neither => {}
        }
    }

    /// Requests that a target works on per capacity, dearer where it fails, and then not believed to be
    /// below the usual number, nor below one. For strategies that go by [`GoesBy::Requests`].
    #[must_use]
    pub fn fullness(&self, target: &Target) -> f64 {
        let usual = self.judging.fullness.max(1.0 / target.capacity());
        belief::priced(target.fullness(), usual, target.error_rate)
    }

    /// Picks of a target per share, by which equal loads are told apart. Of an old report's picks those
    /// of so many usual ages count that it is trusted for: others' begin anew with each report.
    #[must_use]
    pub fn picks_per_share(&self, target: &Target) -> f64 {
        let picks = target.picks_per_share();
        if self.judging.old == 0 {
            return picks;
        }
        let reports = self.judging.reports.get(target.slot.index()).copied().unwrap_or_default();
        let age_ms = self.now_ms as f64 - reports.captured_ms;
        picks * belief::recent(age_ms, reports.usual_age_ms)
    }

    /// Finds the usual fullness, if anybody asks for it.
    fn judge_fullness(&mut self) {
        if self.failing == 0 {
            return;
        }
        let Self { targets, eligible, judging, .. } = self;
        judging.fullness = judging.usual_fullness.get(eligible.len(), |place| {
            let candidate = eligible[place];
            let target = targets[candidate.slot.index()].as_ref();
            target.map(|target| Target { picks: candidate.picks, ..*target }.fullness())
        });
    }

    fn judge_loads(&mut self, changed: &mut Vec<Slot>) {
        let reported = changed.len();
        self.judging.reports.resize(self.targets.len(), Reports::default());
        for slot in &*changed {
            self.hear(*slot);
            self.judge_load(*slot);
        }
        for _ in 0..reported.max(LOOKS_MIN).min(self.targets.len()) {
            let slot = self.next_in_turn();
            if self.judge_load(slot) {
                changed.push(slot);
            }
        }
    }

    /// Takes in how old the last report of a target is.
    fn hear(&mut self, slot: Slot) {
        if let Some(target) = &self.targets[slot.index()] {
            let now_ms = self.now_ms as f64;
            let captured_ms = now_ms - f64::from(target.age_ms);
            self.judging.reports[slot.index()].hear(captured_ms, now_ms);
        }
    }

    /// Judges the load of a target, if it is eligible; whether it counts otherwise now, or its picks do.
    fn judge_load(&mut self, slot: Slot) -> bool {
        let Some(target) = self.targets.get(slot.index()).copied().flatten() else { return false };
        let place = self.position[slot.index()] as usize;
        if place >= self.eligible.len() {
            return false;
        }
        let trust = self.judging.trust(slot, self.now_ms as f64);
        let said = Said { load: target.load, error_rate: target.error_rate, trust };
        let load = if said.is_plain() { said.load } else { said.counts_as(self.usual_load()) };
        let before = std::mem::replace(&mut self.eligible[place].load, load);
        trust < 1.0 || before.to_bits() != load.to_bits()
    }

    /// The median of the known loads of eligible targets.
    fn usual_load(&mut self) -> f64 {
        let Self { targets, eligible, judging, .. } = self;
        judging.usual_load.get(eligible.len(), |place| {
            let target = targets[eligible[place].slot.index()].as_ref();
            target.map(|target| target.load).filter(|load| load.is_finite())
        })
    }

    fn next_in_turn(&mut self) -> Slot {
        let turn = if self.judging.turn < self.targets.len() { self.judging.turn } else { 0 };
        self.judging.turn = turn + 1;
        Slot(u32::try_from(turn).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    /// Reports these loads; the slots that have changed then.
    fn report(fleet: &mut Fleet, loads: &[(u32, f64)]) -> Vec<u32> {
        let mut changed = Vec::new();
        for (slot, load) in loads {
            fleet.update(0, 1, Target::new(Slot(*slot), *load));
            changed.push(Slot(*slot));
        }
        fleet.judge(GoesBy::Loads, &mut changed);
        changed.into_iter().map(|slot| slot.0).collect()
    }

    #[track_caller]
    fn check(fleet: &Fleet, expected: &[f64]) {
        let load = |slot: u32| fleet.load(Slot(slot)).expect("eligible").to_bits();
        let loads: Vec<_> = (0..).zip(expected).map(|(slot, _)| load(slot)).collect();
        assert_eq!(loads, expected.iter().map(|load| load.to_bits()).collect::<Vec<_>>());
    }

    #[test]
    fn unknown_load_follows_the_median_of_the_known_ones() {
        let mut fleet = Fleet::default();
        report(&mut fleet, &[(0, f64::NAN)]);
        check(&fleet, &[0.0]);
        let changed = report(&mut fleet, &[(1, 0.9), (2, 0.2), (3, f64::INFINITY), (4, 0.3)]);
        assert_eq!(changed, [1, 2, 3, 4, 0], "it counts otherwise, too");
        check(&fleet, &[0.3, 0.9, 0.2, f64::INFINITY, 0.3]);
        assert_eq!(report(&mut fleet, &[(4, 0.3)]), [4]);
        assert_eq!(report(&mut fleet, &[(4, 0.9)]), [4, 0]);
        check(&fleet, &[0.9, 0.9, 0.2, f64::INFINITY, 0.9]);
        assert!(fleet.get(Slot(0)).is_some_and(|target| target.load.is_nan()), "as reported");
    }

    #[test]
    fn load_that_gets_old_is_drawn_to_the_median_and_back_by_a_report() {
        let mut fleet = Fleet::default();
        let mut at = |second: u64, slots: std::ops::Range<u32>| {
            let mut changed = Vec::new();
            for slot in slots {
                let load = if slot == 0 { 0.25 } else { 0.75 };
                fleet.update(second * 1_000, 1, Target::new(Slot(slot), load));
                changed.push(Slot(slot));
            }
            fleet.judge(GoesBy::Loads, &mut changed);
            fleet.load(Slot(0)).map(f64::to_bits)
        };
        let mut check = |second, slots, expected: f64| {
            assert_eq!(at(second, slots), Some(expected.to_bits()), "{second}");
        };
        (1..10).for_each(|second| check(second, 0..4, 0.25));
        // Now it is silent: its usual age is a second.
        for (second, expected) in [(10, 0.25), (11, 0.25), (12, 0.5), (13, 0.75), (99, 0.75)] {
            check(second, 1..4, expected);
        }
        check(100, 0..4, 0.25);
    }

    #[test]
    fn who_fails_is_not_believed_to_be_empty() {
        let mut fleet = Fleet::default();
        let holds = |slot, in_flight, error_rate| Target {
            in_flight,
            error_rate,
            ..Target::new(Slot(slot), 0.0)
        };
        let failing = holds(0, 0, 0.5);
        for target in [failing, holds(1, 3, 0.0), holds(2, 5, 0.0), holds(3, 7, 0.0)] {
            fleet.update(0, 1, target);
        }
        fleet.judge(GoesBy::Requests, &mut vec![Slot(0)]);
        assert_eq!(fleet.fullness(&failing).to_bits(), 8.0_f64.to_bits(), "4 is the median");
        assert_eq!(fleet.fullness(&holds(3, 7, 0.0)).to_bits(), 7.0_f64.to_bits());
        let mut idle = Fleet::default();
        idle.update(0, 1, failing);
        idle.judge(GoesBy::Requests, &mut vec![Slot(0)]);
        assert_eq!(idle.fullness(&failing).to_bits(), 2.0_f64.to_bits(), "one at least");
    }

    #[test]
    fn those_that_are_not_eligible_do_not_count() {
        let mut fleet = Fleet::default();
        report(&mut fleet, &[(0, f64::NAN), (1, 0.1), (2, 0.1), (3, 0.5)]);
        let out = |slot| Target { eligible: false, ..Target::new(Slot(slot), 0.1) };
        fleet.update(0, 1, out(1));
        fleet.update(0, 1, out(2));
        fleet.judge(GoesBy::Loads, &mut vec![Slot(1), Slot(2)]);
        assert_eq!(fleet.load(Slot(0)), Some(0.5));
        assert_eq!(fleet.load(Slot(1)), None);
    }

    #[test]
    fn in_a_large_fleet_everybody_has_been_looked_at_when_all_have_reported() {
        let mut fleet = Fleet::default();
        report(&mut fleet, &[(0, f64::NAN), (500, f64::NAN)]);
        for slot in 1..500 {
            report(&mut fleet, &[(slot, 4.0)]);
        }
        check(&fleet, &[4.0]);
        assert_eq!(fleet.load(Slot(500)), Some(4.0));
    }

    #[test]
    fn strategies_that_do_not_go_by_loads_have_them_as_reported() {
        let mut fleet = Fleet::default();
        fleet.update(0, 1, Target::new(Slot(0), f64::NAN));
        fleet.judge(GoesBy::Neither, &mut vec![Slot(0)]);
        assert!(fleet.load(Slot(0)).is_some_and(f64::is_nan));
    }
}
