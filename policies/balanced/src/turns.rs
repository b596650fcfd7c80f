//! Targets that report only a load: turns in proportion to weights, moved by loads.
//!
//! Invariant: a turn is finite but for the last choice's, and no report moves it by more than a pick.

use loadline_sdk::belief;

use super::Heard;

/// Reports of every target that the pool's averages remember.
const MEMORY_REPORTS: f64 = 20.0;
/// Most picks that one report moves a turn by.
const MOVE_MAX: f64 = 1.0;
/// How much of a load's distance from the mean is made good at once: all of it and more where a report
/// covers few picks and so tells the state of now, less where it covers many.
const GAIN: (f64, f64) = (0.5, 5.0);
/// How fast weights follow: of a load's distance from the mean, a report.
const WEIGHT_GAIN: f64 = 0.05;
/// Weights are kept within this and its reciprocal.
const WEIGHT_MIN: f64 = 1e-100;
const WEIGHT_RANGE: (f64, f64) = (0.02, 50.0);

/// What the pool has learned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turns {
    /// The turn that was picked last.
    now: f64,
    /// Means over all targets: the load, and own picks in a report period.
    load: f64,
    picks: f64,
    heard: f64,
}

/// A target's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    next: f64,
    weight: f64,
    /// What its weight is multiplied by until its load is the mean.
    corrected: f64,
    /// The turn that was picked last when it reported last.
    seen: f64,
    /// Its report lacks a metric: it is the last choice.
    is_last: bool,
}

impl Default for Turn {
    fn default() -> Self {
        Self { next: 0.0, weight: 1.0, corrected: 1.0, seen: -1.0, is_last: false }
    }
}

impl Turn {
    /// A target joins or returns: its turn comes now, and what it missed is not made good.
    pub(crate) fn join(&mut self, turns: &Turns) {
        self.next = turns.now + 1.0 / self.share();
    }

    /// A pick costs so many times what it did: so does what is still to wait.
    pub(crate) fn cost(&mut self, times: f64, turns: &Turns) {
        if self.next > turns.now {
            self.next = turns.now + (self.next - turns.now) * times;
        }
    }

    /// Infinite for who is the last choice: among each other these take turns as they come.
    pub(crate) fn next(&self) -> f64 {
        if self.is_last { f64::INFINITY } else { self.next }
    }

    pub(crate) fn pick(&mut self, price: f64, turns: &mut Turns) {
        turns.now = turns.now.max(self.next);
        self.next += price / self.share();
    }

    pub(crate) fn hear(&mut self, heard: &Heard, turns: &mut Turns, targets: usize) {
        let weight = heard.target.weight.clamp(WEIGHT_MIN, 1.0 / WEIGHT_MIN);
        self.cost(self.weight / weight, turns);
        self.weight = weight;
        let load = heard.target.load;
        let was_last = std::mem::replace(&mut self.is_last, load.is_infinite());
        if was_last && !self.is_last {
            self.join(turns);
        }
        if !load.is_finite() || heard.elapsed_ms <= 0.0 {
            return;
        }
        // Nobody was picked since: no load is the doing of a pick, and none can make it good.
        let was_seen = std::mem::replace(&mut self.seen, turns.now);
        if was_seen.total_cmp(&turns.now).is_eq() {
            return;
        }
        // Who fails looks idle: its price is for that, and its weight must not grow for it.
        let load = belief::unmasked(load, turns.load, heard.target.error_rate);
        turns.heard += 1.0;
        let memory = (MEMORY_REPORTS * targets as f64).min(turns.heard);
        turns.load += (load - turns.load) / memory;
        turns.picks += (heard.picks - turns.picks) / memory;
        if turns.load <= 0.0 || turns.picks <= 0.0 {
            return;
        }
        let above = (load - turns.load) / turns.load;
        let gain = (1.0 / turns.picks).clamp(GAIN.0, GAIN.1);
        // A pick costs the mean load over the picks of a report.
        let picks = (gain * above * turns.picks).clamp(-MOVE_MAX, MOVE_MAX);
        self.next += picks / self.share();
        let slower = WEIGHT_GAIN * turns.picks.min(1.0) * above.clamp(-1.0, 1.0);
        self.corrected = (self.corrected * (1.0 - slower)).clamp(WEIGHT_RANGE.0, WEIGHT_RANGE.1);
    }

    /// Of all picks, relative to the others' shares.
    pub(crate) fn share(&self) -> f64 {
        self.weight * self.corrected
    }
}
