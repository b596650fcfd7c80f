//! What is known of one pool's formula or strategy: who serves, who served, who failed, and when it is
//! tried again.
//!
//! Invariants: a quarantined generation does not serve this seat until an operator asks for it or the
//! file changes; waits double from one failure to the next and start anew after a calm minute.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::make::Make;
use super::super::pool::Wanted;
use crate::policy::{Generation, Limits};

/// First and longest wait before a failed guest is rebuilt, each a quarter more or less: pools that failed
/// together do not come back together, and none waits for more than a minute.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(48));
/// Times that a generation which never served is started again, when the machine was at fault.
const RETRIES_MAX: u32 = 5;
/// A guest that served this long starts again with the first wait.
const CALM: Duration = Duration::from_secs(60);
/// So many faults of one generation within this time are too many.
const FAULTS_MAX: usize = 3;
const FAULTS_WINDOW: Duration = Duration::from_secs(60);
/// Generations that served before and are kept to go back to.
const BEFORE_MAX: usize = 4;

/// One pool's formula or strategy.
#[derive(Default)]
pub(super) struct Seat {
    /// What was wanted and the newest generation of it that was tried, good or bad, within what.
    tried: Option<(Wanted, Generation, Limits)>,
    /// The last good one, to rebuild from.
    good: Option<Make>,
    /// Those that served before it, newest first.
    before: Vec<Make>,
    /// The guest that was seated last.
    serial: u64,
    /// What is started again, and when.
    again: Option<(Instant, Make)>,
    failures: u32,
    since: Option<Instant>,
    /// Of what serves.
    faults: VecDeque<Instant>,
    quarantined: Vec<Generation>,
}

impl Seat {
    /// What its guests are made from, if this guest is the last one.
    pub(super) fn made_from(&self, serial: u64) -> Option<Make> {
        self.good.clone().filter(|_| self.serial == serial)
    }

    /// What the guest that was seated last is made from.
    pub(super) fn good(&self) -> Option<&Make> {
        self.good.as_ref()
    }

    /// Whether a guest of this policy was seated last.
    pub(super) fn has(&self, policy: &str) -> bool {
        self.good.as_ref().is_some_and(|good| *good.wanted.policy == *policy)
    }

    /// Whether this was not tried yet, good or quarantined; from now on it was.
    pub(super) fn is_news(
        &mut self,
        wanted: &Wanted,
        generation: Generation,
        limits: Limits,
    ) -> bool {
        let trial = Some((wanted.clone(), generation, limits));
        if self.tried == trial {
            return false;
        }
        self.tried = trial;
        self.failures = 0;
        true
    }

    /// Whether this generation failed too often here.
    pub(super) fn is_quarantined(&self, generation: Generation) -> bool {
        self.quarantined.contains(&generation)
    }

    /// Everything may be tried again.
    pub(super) fn forget(&mut self) {
        (self.tried, self.again) = (None, None);
        self.quarantined.clear();
        self.faults.clear();
    }

    /// A guest was started and serves.
    pub(super) fn seated(&mut self, make: Make, serial: u64, now: Instant) {
        if let Some(old) = self.good.take().filter(|old| !old.is_same(&make)) {
            self.before.retain(|other| !other.is_same(&old) && !other.is_same(&make));
            self.before.insert(0, old);
            self.before.truncate(BEFORE_MAX);
            self.faults.clear();
        }
        self.good = Some(make);
        self.serial = serial;
        self.again = None;
        self.since = Some(now);
    }

    /// Its guest failed; true: that was once too often.
    pub(super) fn note_fault(&mut self, now: Instant) -> bool {
        self.faults.push_back(now);
        while self.faults.front().is_some_and(|at| now.duration_since(*at) > FAULTS_WINDOW) {
            self.faults.pop_front();
        }
        self.faults.len() >= FAULTS_MAX
    }

    /// A generation serves no more.
    pub(super) fn quarantine(&mut self, generation: Generation) {
        self.quarantined.push(generation);
    }

    /// The newest of those that served this policy before and may serve again.
    pub(super) fn before(&self, policy: &str) -> Option<&Make> {
        let is_other = |make: &&Make| self.is_other(make.module.generation);
        self.before.iter().filter(|make| *make.wanted.policy == *policy).find(is_other)
    }

    /// Whether this generation is neither quarantined nor the one that serves now.
    pub(super) fn is_other(&self, generation: Generation) -> bool {
        let serves = |good: &Make| good.module.generation == generation;
        !self.is_quarantined(generation) && !self.good.as_ref().is_some_and(serves)
    }

    /// What could not be started is started again later, if it was good before, or if it was the
    /// machine's fault, and not for ever.
    pub(super) fn could_not_start(&mut self, make: Make, may_pass: bool, now: Instant) {
        let was_good = self.good.as_ref().is_some_and(|good| good.is_same(&make));
        if was_good || (may_pass && self.failures < RETRIES_MAX) {
            self.start_again(make, now);
        }
    }

    /// Sets the time at which this is started again.
    pub(super) fn start_again(&mut self, make: Make, now: Instant) {
        if self.since.take().is_some_and(|at| now.duration_since(at) > CALM) {
            self.failures = 0;
        }
        let (first, longest) = BACK_OFF;
        let wait = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        self.again = Some((now + wait.mul_f64(0.75 + fastrand::f64() / 2.0), make));
    }

    /// When something is to be started again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.again.as_ref().map(|(at, _)| *at)
    }

    /// What is to be started again by now.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Make> {
        self.again.take_if(|(at, _)| *at <= now).map(|(_, make)| make)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::{Module, PolicyEngine};

    /// A seat whose guest was seated at `start`, and what it is made from.
    fn seated(start: Instant) -> (Seat, Make) {
        let engine = PolicyEngine::new(Limits::default()).expect("an engine");
        let module = Arc::new(Module::from_text(&engine, "cpu").expect("a formula"));
        let make = Make { wanted: Wanted::new("mine", &serde_json::json!({})), module };
        let mut seat = Seat::default();
        seat.seated(make.clone(), 1, start);
        (seat, make)
    }

    /// Fails at this time; the wait until it is started again.
    fn fail(seat: &mut Seat, make: &Make, now: Instant) -> Duration {
        seat.start_again(make.clone(), now);
        let due = seat.due().expect("it is started again");
        assert!(seat.take_due(due - Duration::from_millis(1)).is_none(), "not sooner");
        assert!(seat.take_due(due).is_some() && seat.due().is_none(), "once");
        due - now
    }

    #[track_caller]
    fn check_wait(wait: Duration, usual_s: f64) {
        let share = wait.as_secs_f64() / usual_s;
        assert!((0.75..=1.25).contains(&share), "{wait:?} is not about {usual_s} s");
    }

    #[test]
    fn waits_double_from_a_second_to_a_minute_at_most() {
        let mut now = Instant::now();
        let (mut seat, make) = seated(now);
        for usual_s in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 48.0, 48.0, 48.0] {
            let wait = fail(&mut seat, &make, now);
            check_wait(wait, usual_s);
            assert!(wait <= Duration::from_secs(60), "{wait:?}");
            now += wait;
            seat.seated(make.clone(), 1, now);
            now += Duration::from_secs(1); // and fails soon
        }
        for _ in 0..1_000 {
            let wait = fail(&mut seat, &make, now);
            assert!(wait <= Duration::from_secs(60), "{wait:?}, however often it failed");
        }
    }

    #[test]
    fn a_calm_minute_or_something_new_begins_with_the_first_wait() {
        let start = Instant::now();
        let (mut seat, make) = seated(start);
        for failures in 0..4 {
            check_wait(fail(&mut seat, &make, start), f64::from(1 << failures));
        }
        seat.seated(make.clone(), 2, start);
        check_wait(fail(&mut seat, &make, start + CALM), 16.0);
        seat.seated(make.clone(), 3, start);
        let later = start + CALM + Duration::from_millis(1);
        check_wait(fail(&mut seat, &make, later), 1.0);
        check_wait(fail(&mut seat, &make, later), 2.0);
        let other = Wanted::new("other", &serde_json::json!({}));
        assert!(seat.is_news(&other, make.module.generation, Limits::default()));
        check_wait(fail(&mut seat, &make, later), 1.0);
    }

    #[test]
    fn seats_that_failed_together_do_not_come_back_together() {
        let now = Instant::now();
        let (_, make) = seated(now);
        let mut waits: Vec<_> = (0..50).map(|_| fail(&mut Seat::default(), &make, now)).collect();
        waits.sort();
        waits.dedup();
        assert!(waits.len() > 40, "{} of 50 differ", waits.len());
        assert!(waits[waits.len() - 1] - waits[0] > Duration::from_millis(250), "{waits:?}");
    }

    #[test]
    fn what_never_served_is_started_again_five_times_and_only_for_the_machines_sake() {
        let now = Instant::now();
        let (_, make) = seated(now);
        let mut seat = Seat::default();
        seat.could_not_start(make.clone(), false, now);
        assert_eq!(seat.due(), None, "its own fault");
        for failures in 0..RETRIES_MAX {
            seat.could_not_start(make.clone(), true, now);
            let due = seat.due().expect("it is started again");
            check_wait(due - now, f64::from(1 << failures));
            seat.take_due(due);
        }
        seat.could_not_start(make, true, now);
        assert_eq!(seat.due(), None, "not for ever");
    }
}
