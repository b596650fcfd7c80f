//! Who would be done first with one more request: of the targets at work the one with the earliest
//! finish, of those that are free one of the fastest.
//!
//! Invariant: a target is in `working` and `freed`, or in `idle`. Time moves targets from the first
//! two to the third, each at most once a pick or report, so that the earliest costs O(log n).

use loadline_sdk::{Slot, index::Tournament, math};

use super::counted::{Counted, Pace};

/// Free targets whose rates are this close are equally fast, or noise would choose.
const ALIKE: f64 = 1.25;

#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// By when one more request would be done.
    working: Tournament,
    /// By when they are free.
    freed: Tournament,
    /// By class of speed, then who has been free for longest. The second number of each is when one
    /// more request would be done, from now.
    idle: Tournament<(f64, f64)>,
    /// What a request takes, by slot.
    request_ms: Vec<(f64, f64)>,
}

impl Queues {
    pub(crate) fn set(&mut self, slot: Slot, counted: &Counted, price: f64, pace: &Pace) {
        let (free_ms, rate) = counted.backlog(price, pace);
        if self.request_ms.len() <= slot.index() {
            self.request_ms.resize(slot.index() + 1, (0.0, 0.0));
        }
        let relative = rate / pace.rate_or_none();
        let class = -(math::ln(relative) / math::ln(ALIKE)).round();
        self.request_ms[slot.index()] = (1.0 / rate, class);
        self.idle.remove(slot);
        self.working.refresh(slot, free_ms + 1.0 / rate);
        self.freed.refresh(slot, free_ms);
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        self.working.remove(slot);
        self.freed.remove(slot);
        self.idle.remove(slot);
    }

    /// The one to choose now.
    pub(crate) fn first(&mut self, now_ms: f64) -> Option<Slot> {
        while let Some((slot, free_ms)) = self.freed.min().filter(|(_, free_ms)| *free_ms <= now_ms)
        {
            self.freed.remove(slot);
            self.working.remove(slot);
            let (_, class) = self.request_ms[slot.index()];
            self.idle.set(slot, (class, free_ms));
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
