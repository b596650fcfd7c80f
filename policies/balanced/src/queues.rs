//! Who would be done first with one more request: of the targets at work the one with the earliest
//! finish, of those that are free one of the fastest.
//!
//! Invariant: a target is in `working` or in `idle`. What stands in `working` is never later than the
//! finish that it stands for, and right for who is not free: so if the first there is not free, it is
//! the earliest. Time moves targets to `idle`, each at most once a pick or report, so that the earliest
//! costs O(log n).

use loadline_sdk::{Slot, index::Tournament};

use super::backlog::Backlog;
use super::counted::Pace;
use super::idle::{self, Idle};

/// Targets that a pick finds free at most: more than come free between two, but after a pause, and then
/// there are enough.
const FREED_MAX: usize = 64;

/// Eligible targets by when they are free.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// By when one more request would be done.
    working: Tournament,
    idle: Idle,
    speeds: Vec<Speed>,
}

/// How fast a target was at its last report.
#[derive(Debug, Clone, Copy, Default)]
struct Speed {
    /// What a request takes.
    request_ms: f64,
    class: u8,
}

impl Queues {
    /// A target has reported, and has this to do.
    pub(crate) fn set(&mut self, slot: Slot, backlog: &Backlog, pace: &Pace, now_ms: f64) {
        self.remember(slot, backlog, pace);
        if backlog.free_ms <= now_ms {
            self.rest(slot);
        } else {
            self.work(slot, backlog.free_ms);
        }
    }

    /// A target that has reported has more to do: until this time.
    pub(crate) fn work(&mut self, slot: Slot, free_ms: f64) {
        self.idle.remove(slot);
        self.working.refresh(slot, free_ms + self.speeds[slot.index()].request_ms);
    }

    /// All targets anew. Cost O(n).
    pub(crate) fn fill(
        &mut self,
        targets: impl Iterator<Item = (Slot, Backlog)>,
        pace: &Pace,
        now_ms: f64,
    ) {
        let targets: Vec<_> = targets.collect();
        targets.iter().for_each(|(slot, backlog)| self.remember(*slot, backlog, pace));
        let (idle, busy): (Vec<_>, Vec<_>) =
            targets.into_iter().partition(|(_, backlog)| backlog.free_ms <= now_ms);
        self.working.fill(busy.iter().map(|(slot, backlog)| {
            (*slot, backlog.free_ms + self.speeds[slot.index()].request_ms)
        }));
        self.idle = Idle::default();
        idle.iter().for_each(|(slot, _)| self.idle.join(*slot, self.speeds[slot.index()].class));
    }

    /// The target works no more.
    fn rest(&mut self, slot: Slot) {
        self.working.remove(slot);
        self.idle.join(slot, self.speeds[slot.index()].class);
    }

    fn remember(&mut self, slot: Slot, backlog: &Backlog, pace: &Pace) {
        if self.speeds.len() <= slot.index() {
            self.speeds.resize(slot.index() + 1, Speed::default());
        }
        let class = idle::class(backlog.rate / pace.rate_or_none());
        self.speeds[slot.index()] = Speed { request_ms: 1.0 / backlog.rate, class };
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        self.working.remove(slot);
        self.idle.remove(slot);
    }

    /// The one to choose now.
    pub(crate) fn first(&mut self, now_ms: f64) -> Option<Slot> {
        let mut working = self.working.min();
        for _ in 0..FREED_MAX {
            let Some((slot, finish_ms)) = working else { break };
            let free_ms = finish_ms - self.speeds[slot.index()].request_ms;
            if free_ms > now_ms {
                break;
            }
            self.rest(slot);
            working = self.working.min();
        }
        let idle = self.idle.first();
        match (idle, working) {
            (Some(idle), Some((working, finish_ms))) => {
                let is_sooner = now_ms + self.speeds[idle.index()].request_ms <= finish_ms;
                Some(if is_sooner { idle } else { working })
            }
            (idle, working) => idle.or(working.map(|(slot, _)| slot)),
        }
    }
}
