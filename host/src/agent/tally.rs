//! One counter of a service: what its source says in, requests since the agent's start out.
//!
//! The source's counter may start again from 0 (its server restarted); the reported one only grows.
//! A count of what is open now (`in_flight`) is reported as it is, and as 0 once it is too old.

use std::time::Duration;

use tokio::time::Instant;

use super::source::Reading;

/// A count of open requests that was not renewed for so long says nothing.
const IN_FLIGHT_EXPIRES: Duration = Duration::from_secs(30);

/// One counter.
#[derive(Debug)]
pub(super) struct Tally {
    /// It is a count of what is open now, which also falls.
    level: bool,
    /// The source's number at the last look.
    last: Option<f64>,
    total: f64,
    taken: Option<Instant>,
    answers: bool,
}

impl Tally {
    /// `level`: a count of what is open now; `waited_for`: its source has to answer.
    pub(super) fn new(level: bool, waited_for: bool) -> Self {
        Self { level, last: None, total: 0.0, taken: None, answers: !waited_for }
    }

    /// Takes what the source gave.
    pub(super) fn take(&mut self, reading: &Reading, now: Instant) {
        self.answers = !matches!(reading, Reading::Silent(_));
        let Reading::Value(value) = *reading else { return };
        if !(value.is_finite() && value >= 0.0) {
            return;
        }
        self.taken = Some(now);
        match self.last.replace(value) {
            _ if self.level => self.total = value,
            Some(last) if value >= last => self.total += value - last,
            // The first look, or the source began anew: what it says counts from here.
            _ => {}
        }
    }

    /// Counts so many more, or fewer of what is open.
    pub(super) fn add(&mut self, amount: f64, now: Instant) {
        let least = if self.level { -self.value(now) } else { 0.0 };
        self.total = self.value(now) + amount.max(least);
        self.taken = Some(now);
    }

    /// Whether the source answered the last time it was asked.
    pub(super) fn answers(&self) -> bool {
        self.answers
    }

    /// The number for a report.
    pub(super) fn count(&self, now: Instant) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, and a tally is never below 0"
        )]
        let count = self.value(now) as u64;
        count
    }

    fn value(&self, now: Instant) -> f64 {
        let old = |taken| now.saturating_duration_since(taken) > IN_FLIGHT_EXPIRES;
        if self.level && self.taken.is_none_or(old) { 0.0 } else { self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_starts_again_does_not_fall() {
        let now = Instant::now();
        let mut tally = Tally::new(false, true);
        let totals = [100.0, 130.0, 5.0, 8.0].map(|value| {
            tally.take(&Reading::Value(value), now);
            tally.count(now)
        });
        assert_eq!(totals, [0, 30, 30, 33]);
    }

    #[test]
    fn open_requests_follow_their_source_and_never_fall_below_none() {
        let now = Instant::now();
        let mut tally = Tally::new(true, true);
        tally.take(&Reading::Value(4.0), now);
        assert_eq!(tally.count(now), 4);
        tally.add(-1.0, now);
        assert_eq!(tally.count(now), 3);
        tally.add(-9.0, now);
        assert_eq!(tally.count(now), 0);
        tally.add(7.0, now);
        assert_eq!(tally.count(now + IN_FLIGHT_EXPIRES + Duration::from_secs(1)), 0);
    }
}
