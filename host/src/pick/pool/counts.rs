//! What a pool answered how often, and of its two policies, how much of what was asked of them in the
//! last minute was answered natively.
//!
//! The last minute is what was counted since the oldest look within it; the intake looks at the counters
//! once a second, so that a pick pays nothing for it. Invariant: counts only grow, looks are in order of
//! time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Pool;
use super::policies::index;
use crate::policy::Kind;

/// Time from one look to the next, at least.
const LOOK_MS: u64 = 1_000;
/// How far back is looked.
const WINDOW_MS: u64 = 60_000;

/// What was answered how often.
#[derive(Debug, Default)]
pub struct Counts {
    /// Picks that the strategy's guest chose.
    pub by_guest: AtomicU64,
    /// Picks that were chosen natively.
    pub by_native: AtomicU64,
    /// Requests without an eligible target.
    pub nobody: AtomicU64,
    /// Requests that were refused because the strategy did not serve.
    pub refused: AtomicU64,
    /// Loads that the formula gave.
    pub by_formula: AtomicU64,
    /// Loads that it did not: the target's last good one stands for them.
    pub last_good: AtomicU64,
    /// Of those, the ones that it gave as NaN, infinite or negative.
    pub bad_loads: AtomicU64,
    /// Outcomes of its targets: successes.
    pub served: AtomicU64,
    /// And failures.
    pub failed: AtomicU64,
}

/// What was asked of a policy: picks of a strategy, loads of targets of a formula.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answers {
    /// That the policy answered.
    pub own: u64,
    /// That were chosen natively; loads that were a target's last good one.
    pub native: u64,
}

impl Answers {
    /// All that was asked.
    #[must_use]
    pub fn all(self) -> u64 {
        self.own + self.native
    }

    /// The share of native answers, 0 to 1; `None`: nothing was asked.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a share needs no 53 bits")]
    pub fn native_share(self) -> Option<f64> {
        (self.all() > 0).then(|| self.native as f64 / self.all() as f64)
    }

    fn since(self, before: Self) -> Self {
        Self { own: self.own - before.own, native: self.native - before.native }
    }
}

/// What both policies had answered at some times of the last minute.
#[derive(Debug, Default)]
pub(super) struct Looks(VecDeque<(u64, [Answers; 2])>);

impl Looks {
    /// Remembers this if the last look is long enough ago.
    fn add(&mut self, now_ms: u64, answers: [Answers; 2]) {
        if self.0.back().is_some_and(|(at_ms, _)| now_ms < at_ms + LOOK_MS) {
            return;
        }
        while self.0.len() > 1 && now_ms > self.0[0].0 + WINDOW_MS {
            self.0.pop_front();
        }
        // What a new pool answered before the first look is of the last minute, too.
        let answers = if self.0.is_empty() { <[Answers; 2]>::default() } else { answers };
        self.0.push_back((now_ms, answers));
    }

    /// The oldest look within the minute; after a time without any the last one before it.
    fn oldest(&self, now_ms: u64) -> [Answers; 2] {
        let within = self.0.iter().find(|(at_ms, _)| now_ms <= at_ms + WINDOW_MS);
        within.or(self.0.back()).map(|(_, answers)| *answers).unwrap_or_default()
    }
}

impl Pool {
    /// What was answered how often.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(in crate::pick) fn count(&self, by_guest: bool, nobody: bool) {
        let counter = match (nobody, by_guest) {
            (true, _) => &self.counts.nobody,
            (false, true) => &self.counts.by_guest,
            (false, false) => &self.counts.by_native,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::pick) fn count_refused(&self) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Of so many loads, these were not the formula's, and these were its bad ones.
    pub(in crate::pick) fn count_loads(&self, all: u64, last_good: u64, bad: u64) {
        self.counts.by_formula.fetch_add(all - last_good, Ordering::Relaxed);
        self.counts.last_good.fetch_add(last_good, Ordering::Relaxed);
        self.counts.bad_loads.fetch_add(bad, Ordering::Relaxed);
    }

    /// What was asked of both policies so far.
    fn answers(&self) -> [Answers; 2] {
        let counts = &self.counts;
        let [by_formula, last_good, by_guest, by_native] =
            [&counts.by_formula, &counts.last_good, &counts.by_guest, &counts.by_native]
                .map(|count| count.load(Ordering::Relaxed));
        [
            Answers { own: by_formula, native: last_good },
            Answers { own: by_guest, native: by_native },
        ]
    }

    /// Remembers how much was answered by now.
    pub(super) fn look(&self, now_ms: u64) {
        self.looks.lock().add(now_ms, self.answers());
    }

    /// What was asked of this policy in the last minute.
    #[must_use]
    pub fn lately(&self, kind: Kind, now_ms: u64) -> Answers {
        let before = self.looks.lock().oldest(now_ms);
        self.answers()[index(kind)].since(before[index(kind)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(own: u64, native: u64) -> [Answers; 2] {
        [Answers { own, native }; 2]
    }

    #[track_caller]
    fn check(looks: &Looks, now_ms: u64, expected: [u64; 2]) {
        let since = both(1_000, 100)[1].since(looks.oldest(now_ms)[1]);
        assert_eq!([since.own, since.native], expected, "at {now_ms}");
    }

    #[test]
    fn only_the_last_minute_counts() {
        let mut looks = Looks::default();
        check(&looks, 0, [1_000, 100]);
        looks.add(0, both(7, 7));
        check(&looks, 50, [1_000, 100]);
        for second in 1..100 {
            looks.add(second * 1_000, both(second * 10, second));
            looks.add(second * 1_000 + 999, both(999, 99)); // too soon
        }
        assert!(looks.0.len() <= 61, "{}", looks.0.len());
        check(&looks, 99_000, [610, 61]); // since second 39
        check(&looks, 99_001, [600, 60]);
        check(&looks, 1_000_000, [10, 1]); // nobody looked: since the last look
    }

    #[test]
    fn shares_are_of_what_was_asked() {
        assert_eq!(Answers::default().native_share(), None);
        assert_eq!(Answers { own: 3, native: 1 }.native_share(), Some(0.25));
    }
}
