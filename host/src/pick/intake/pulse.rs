//! The pulse of the tasks that receive: how far this process has listened.
//!
//! A process that is stopped, or too busy to take what arrives, must not take its own silence for
//! that of machines. A task beside the receiving ones beats; time up to the last beat was listened,
//! a gap between two beats of more than [`GAP_MAX_MS`] was not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::clock::Clock;

const BEAT: Duration = Duration::from_millis(50);
/// A busy machine runs a task this late without harm, in milliseconds.
const GAP_MAX_MS: u64 = 250;

/// Beats while tasks run.
#[derive(Debug, Default)]
pub struct Pulse {
    beat_ms: AtomicU64,
    deaf_ms: AtomicU64,
}

impl Pulse {
    /// Beats until the task is dropped.
    pub async fn run(&self, clock: Clock) {
        self.beat_ms.store(clock.now_ms(), Ordering::Release); // before this nobody was to be heard
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            self.beat(clock.now_ms());
        }
    }

    fn beat(&self, now_ms: u64) {
        let gap_ms = now_ms.saturating_sub(self.beat_ms.load(Ordering::Relaxed));
        if gap_ms > GAP_MAX_MS {
            self.deaf_ms.fetch_add(gap_ms, Ordering::Relaxed);
        }
        // Who sees this beat sees the gap before it.
        self.beat_ms.store(now_ms, Ordering::Release);
    }

    /// The last beat on the host's clock, and all time before it that was not listened.
    pub(super) fn read(&self) -> (u64, u64) {
        let beat_ms = self.beat_ms.load(Ordering::Acquire);
        (beat_ms, self.deaf_ms())
    }

    /// All the time in which this process did not listen, in milliseconds.
    pub fn deaf_ms(&self) -> u64 {
        self.deaf_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_gaps_were_not_listened() {
        let pulse = Pulse::default();
        for (now_ms, deaf_ms) in [(50, 0), (100, 0), (350, 0), (2_400, 2_050), (2_450, 2_050)] {
            pulse.beat(now_ms);
            assert_eq!(pulse.read(), (now_ms, deaf_ms));
        }
    }
}
