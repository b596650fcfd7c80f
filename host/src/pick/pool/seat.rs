//! Where a strategy's guest sits, and how one comes to it: one at a time, requests first.
//!
//! Invariant: the seat is held for one guest call or a few, never for a wait; who only writes to the
//! guest lets those go first who wait to pick.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::policy::StrategyGuest;

/// Time of trying before other threads of this core are given way: longer than an update takes.
const SPIN: Duration = Duration::from_micros(200);
/// What anybody tries for before it sleeps for the seat.
const SEAT_PATIENCE: Duration = Duration::from_millis(2);

/// Where a guest sits, or why nobody does.
pub(super) enum Seat {
    Guest(Box<StrategyGuest>),
    Native(Arc<str>),
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Guest(guest) => write!(f, "guest {}", guest.decider),
            Self::Native(why) => write!(f, "native: {why}"),
        }
    }
}

/// The lock around a seat.
#[derive(Debug)]
pub(super) struct Chair {
    seat: Mutex<Seat>,
    /// Threads that try for it.
    waiting: AtomicU32,
}

impl Chair {
    /// Nobody sits here, for this reason.
    pub(super) fn empty(why: &str) -> Self {
        Self { seat: Mutex::new(Seat::Native(why.into())), waiting: AtomicU32::new(0) }
    }

    /// The guest's seat within `wait`. Tried again and again rather than slept for: a thread that is
    /// woken comes milliseconds late on a busy machine, and a lock that was handed to it is held by
    /// a sleeper meanwhile.
    pub(super) fn within(&self, wait: Duration) -> Option<MutexGuard<'_, Seat>> {
        if let Some(seat) = self.seat.try_lock() {
            return Some(seat);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let seat = self.keep_trying(wait);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        seat
    }

    fn keep_trying(&self, wait: Duration) -> Option<MutexGuard<'_, Seat>> {
        let start = Instant::now();
        while start.elapsed() < wait.min(SEAT_PATIENCE) {
            if let Some(seat) = self.seat.try_lock() {
                return Some(seat);
            }
            // Giving way at once would let a thread of low priority have its whole turn first; not
            // giving way at all would keep a holder on the same core from ending, and so would many
            // that do not.
            if start.elapsed() < SPIN && self.waiting.load(Ordering::Relaxed) == 1 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // So many want it that only a queue is fair.
        self.seat.try_lock_for(wait.saturating_sub(start.elapsed()))
    }

    /// The guest's seat, however long its guest takes: its deadlines bound that.
    pub(super) fn take(&self) -> MutexGuard<'_, Seat> {
        self.within(SEAT_PATIENCE).unwrap_or_else(|| self.seat.lock())
    }

    /// Lets those go first who try for the seat: who takes it again at once would always win.
    pub(super) fn give_way(&self) {
        let start = Instant::now();
        while self.waiting.load(Ordering::Relaxed) > 0 && start.elapsed() < SPIN {
            std::thread::yield_now();
        }
    }
}
