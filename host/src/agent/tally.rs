//! One counter of a service: what its source says in, requests since the agent's start out.
//!
//! The source's counter may start again from 0 (its server restarted); the reported one only grows.
//! A count of what is open now (`in_flight`) is reported as it was last said, however long ago: a
//! server that hangs says nothing new, and 0 would look idle.

use super::source::Reading;

/// One counter.
#[derive(Debug)]
pub(super) struct Tally {
    /// It is a count of what is open now, which also falls.
    level: bool,
    /// The source's number at the last look.
    last: Option<f64>,
    total: f64,
    /// Nothing was said yet.
    is_fresh: bool,
    answers: bool,
}

impl Tally {
    /// `level`: a count of what is open now; `waited_for`: its source has to answer.
    pub(super) fn new(level: bool, waited_for: bool) -> Self {
        Self { level, last: None, total: 0.0, is_fresh: true, answers: !waited_for }
    }

    /// Takes what the source gave.
    pub(super) fn take(&mut self, reading: &Reading) {
        self.answers = !matches!(reading, Reading::Silent(_));
        let Reading::Value(value) = *reading else { return };
        if !(value.is_finite() && value >= 0.0) {
            return;
        }
        self.is_fresh = false;
        match self.last.replace(value) {
            _ if self.level => self.total = value,
            Some(last) if value >= last => self.total += value - last,
            // The first look, or the source began anew: what it says counts from here.
            _ => {}
        }
    }

    /// Counts so many more, or fewer of what is open.
    pub(super) fn add(&mut self, amount: f64) {
        let least = if self.level { -self.total } else { 0.0 };
        self.total += amount.max(least);
        self.is_fresh = false;
    }

    /// Goes on from the count of the agent before, unless its source has said something already.
    pub(super) fn inherit(&mut self, before: Self) {
        if self.is_fresh {
            *self = Self { answers: self.answers, ..before };
        }
    }

    /// Whether the source answered the last time it was asked.
    pub(super) fn answers(&self) -> bool {
        self.answers
    }

    /// The number for a report.
    pub(super) fn count(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, and a tally is never below 0"
        )]
        let count = self.total as u64;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_starts_again_does_not_fall() {
        let mut tally = Tally::new(false, true);
        let totals = [100.0, 130.0, 5.0, 8.0].map(|value| {
            tally.take(&Reading::Value(value));
            tally.count()
        });
        assert_eq!(totals, [0, 30, 30, 33]);
    }

    #[test]
    fn open_requests_follow_their_source_and_never_fall_below_none() {
        let mut tally = Tally::new(true, true);
        tally.take(&Reading::Value(4.0));
        assert_eq!(tally.count(), 4);
        tally.add(-1.0);
        assert_eq!(tally.count(), 3);
        tally.add(-9.0);
        assert_eq!(tally.count(), 0);
        tally.add(7.0);
        tally.take(&Reading::Silent("it hangs".to_owned()));
        assert_eq!(tally.count(), 7, "a server that hangs is not idle");
    }
}
