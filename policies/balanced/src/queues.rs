//! Who would be done first with one more request: of the targets at work the one with the earliest
//! finish, of those that are free one of the fastest.
//!
//! Invariant: a target is in `working` and `freed`, or in `idle`. Time moves targets from the first
//! two to the third, each at most once a pick or report, so that the earliest costs O(log n).

use loadline_sdk::{Slot, index::Tournament, math};

use super::counted::Pace;

/// Free targets whose rates are this close are equally fast, or noise would choose.
const ALIKE: f64 = 1.25;

/// Targets that a pick finds free at most: more than come free between two, but after a pause, and then
/// there are enough.
const FREED_MAX: usize = 64;

/// Eligible targets by when they are free.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// By when one more request would be done.
    working: Tournament,
    /// By when they are free.
    freed: Tournament,
    /// By class of speed, the fastest first, then who has been free for longest.
    idle: Tournament<(f64, f64)>,
    /// What a request takes, and the class of speed, by slot.
    request_ms: Vec<(f64, f64)>,
}

impl Queues {
    /// A target is free at this time and takes so many requests a millisecond.
    pub(crate) fn set(&mut self, slot: Slot, free_ms: f64, rate: f64, pace: &Pace, now_ms: f64) {
        self.remember(slot, rate, pace);
        if free_ms <= now_ms {
            self.rest(slot, free_ms);
        } else {
            self.idle.remove(slot);
            self.working.refresh(slot, free_ms + 1.0 / rate);
            self.freed.refresh(slot, free_ms);
        }
    }

    /// All targets anew: slot, when free, rate. Cost O(n).
    pub(crate) fn fill(
        &mut self,
        targets: impl Iterator<Item = (Slot, f64, f64)>,
        pace: &Pace,
        now_ms: f64,
    ) {
        let targets: Vec<_> = targets.collect();
        targets.iter().for_each(|(slot, _, rate)| self.remember(*slot, *rate, pace));
        let (idle, busy): (Vec<_>, Vec<_>) =
            targets.into_iter().partition(|(_, free_ms, _)| *free_ms <= now_ms);
        let class = |slot: Slot| self.request_ms[slot.index()].1;
        self.idle.fill(idle.iter().map(|(slot, free_ms, _)| (*slot, (class(*slot), *free_ms))));
        self.working.fill(busy.iter().map(|(slot, free_ms, rate)| (*slot, free_ms + 1.0 / rate)));
        self.freed.fill(busy.iter().map(|(slot, free_ms, _)| (*slot, *free_ms)));
    }

    /// The target works no more.
    fn rest(&mut self, slot: Slot, free_ms: f64) {
        self.working.remove(slot);
        self.freed.remove(slot);
        let (_, class) = self.request_ms[slot.index()];
        self.idle.refresh(slot, (class, free_ms));
    }

    fn remember(&mut self, slot: Slot, rate: f64, pace: &Pace) {
        if self.request_ms.len() <= slot.index() {
            self.request_ms.resize(slot.index() + 1, (0.0, 0.0));
        }
        let relative = rate / pace.rate_or_none();
        let class = -(math::ln(relative) / math::ln(ALIKE)).round();
        self.request_ms[slot.index()] = (1.0 / rate, class);
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        self.working.remove(slot);
        self.freed.remove(slot);
        self.idle.remove(slot);
    }

    /// The one to choose now.
    pub(crate) fn first(&mut self, now_ms: f64) -> Option<Slot> {
        for _ in 0..FREED_MAX {
            match self.freed.min() {
                Some((slot, free_ms)) if free_ms <= now_ms => self.rest(slot, free_ms),
                _ => break,
            }
        }
        let idle = self.idle.min().map(|(slot, _)| slot);
        let working = self.working.min();
        match (idle, working) {
            (Some(idle), Some((working, finish_ms))) => {
                let is_sooner = now_ms + self.request_ms[idle.index()].0 <= finish_ms;
                Some(if is_sooner { idle } else { working })
            }
            (idle, working) => idle.or(working.map(|(slot, _)| slot)),
        }
    }
}
