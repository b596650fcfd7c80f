//! When targets will be done with what they have: set by reports, moved on by picks.
//!
//! Invariant: what a pick by counts waits for are the sixteen bytes of a [`Backlog`]. Among a hundred
//! thousand targets it is memory that takes the time, so that what else is remembered stands elsewhere.

use loadline_sdk::Slot;

use super::counted::{Counted, Pace};

/// By slot.
#[derive(Debug, Default)]
pub(crate) struct Backlogs {
    all: Vec<Backlog>,
    /// When each was picked last, and its picks that are not taken over yet. Apart, because no pick waits
    /// for them.
    picked_ms: Vec<f64>,
    picks: Vec<u32>,
}

/// Of one target.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Backlog {
    /// When it will be done with all that it has.
    pub(crate) free_ms: f64,
    /// Requests a millisecond, as dear as they are there; 0: it may not be chosen.
    pub(crate) rate: f64,
}

/// Picks of a target since its report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picks {
    pub(crate) count: f64,
    /// The last of all.
    pub(crate) last_ms: f64,
}

impl Backlogs {
    pub(crate) fn get(&self, slot: Slot) -> Backlog {
        self.all.get(slot.index()).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, slot: Slot, backlog: Backlog) {
        if self.all.len() <= slot.index() {
            self.all.resize(slot.index() + 1, Backlog::default());
            self.picked_ms.resize(slot.index() + 1, 0.0);
            self.picks.resize(slot.index() + 1, 0);
        }
        self.all[slot.index()] = backlog;
    }

    /// The target is gone: the next one in its slot has none of it.
    pub(crate) fn forget(&mut self, slot: Slot) {
        if slot.index() < self.all.len() {
            self.all[slot.index()] = Backlog::default();
            self.picked_ms[slot.index()] = 0.0;
            self.picks[slot.index()] = 0;
        }
    }

    /// Of all slots so far.
    pub(crate) fn all(&self) -> &[Backlog] {
        &self.all
    }

    /// When a target was picked last.
    pub(crate) fn picked_ms(&self, slot: Slot) -> f64 {
        self.picked_ms.get(slot.index()).copied().unwrap_or_default()
    }

    /// Picks of a target that were not taken over yet.
    pub(crate) fn take_picks(&mut self, slot: Slot) -> u32 {
        self.picks.get_mut(slot.index()).map(std::mem::take).unwrap_or_default()
    }

    /// One request more; when the target is free then.
    pub(crate) fn pick(&mut self, slot: Slot, now_ms: f64, pace: &Pace) -> f64 {
        let Some(backlog) = self.all.get_mut(slot.index()) else { return now_ms };
        backlog.free_ms = later(backlog.free_ms, now_ms) + pace.all_over_known() / backlog.rate;
        self.picks[slot.index()] = self.picks[slot.index()].saturating_add(1);
        self.picked_ms[slot.index()] = now_ms;
        backlog.free_ms
    }
}

impl Backlog {
    /// The queue is what the report of that time says, with the picks since on top.
    pub(crate) fn report(
        &mut self,
        captured_ms: f64,
        Picks { count, last_ms }: Picks,
        counted: &Counted,
        pace: &Pace,
    ) {
        let request_ms = 1.0 / counted.rate(pace);
        let requests = counted.inside() + count * pace.all_over_known();
        // Who was free before stays free for as long, or all that report together would be alike.
        let is_idle = requests <= 0.0 && self.free_ms < captured_ms;
        if !is_idle {
            self.free_ms = captured_ms + requests * request_ms;
        }
        if count > 0.0 {
            self.free_ms = self.free_ms.max(last_ms + request_ms);
        }
    }

    /// So many picks more, or less, than was thought.
    pub(crate) fn add(&mut self, picks: f64, counted: &Counted, pace: &Pace) {
        self.free_ms += picks * pace.all_over_known() / counted.rate(pace);
    }

    /// It may be chosen, and a request costs so many times what it costs where all is well.
    pub(crate) fn offer(&mut self, price: f64, counted: &Counted, pace: &Pace) {
        self.rate = counted.rate(pace) / price;
    }

    /// It may not be chosen.
    pub(crate) fn withdraw(&mut self) {
        self.rate = 0.0;
    }

    /// When one more request would be done.
    pub(crate) fn finish_ms(&self, now_ms: f64) -> f64 {
        later(self.free_ms, now_ms) + 1.0 / self.rate
    }
}

/// The larger of two numbers that are numbers.
pub(crate) fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
