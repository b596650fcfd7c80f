//! The host's one clock: monotonic milliseconds since its start; and the wall clock.
//!
//! Everything in the fleet is dated by the monotonic one. Wall clocks of two machines are compared in
//! [`crate::report::gate`] only; a [`WallClock`] is asked for the time of day, and can be given.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by this machine's wall clock, which may jump; 0 before that.
#[must_use]
pub fn wall_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// The `boot` of an agent that starts now: by the wall clock, and above that of every agent that this
/// process started before, however the clock was set since.
#[must_use]
pub fn next_boot_ms() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    after_all(&LAST, wall_ms())
}

fn after_all(last: &AtomicU64, now: u64) -> u64 {
    let above = |last: u64| now.max(last.saturating_add(1));
    let before = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(above(last)));
    above(before.unwrap_or_else(|last| last))
}

/// Where the time of day comes from: milliseconds since 1970. It may jump either way.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl WallClock {
    /// A clock that says what this says.
    #[must_use]
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl Default for WallClock {
    /// The machine's own.
    fn default() -> Self {
        Self::new(wall_ms)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WallClock").field(&self.now_ms()).finish()
    }
}

/// Milliseconds since the host's start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds now.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// Milliseconds at an instant; 0 for what was before the start.
    #[must_use]
    pub fn ms_at(&self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.start);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_grow_when_the_wall_clock_goes_back() {
        let last = AtomicU64::new(0);
        assert_eq!(
            [1_000, 400, 1_000, 5_000].map(|now| after_all(&last, now)),
            [1_000, 1_001, 1_002, 5_000]
        );
    }
}
