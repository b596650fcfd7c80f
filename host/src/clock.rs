//! The host's one clock: monotonic milliseconds since its start; and the wall clock.
//!
//! Everything in the fleet is dated by the monotonic one. Wall clocks of two machines are compared in
//! [`crate::report::gate`] only.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by this machine's wall clock, which may jump; 0 before that.
#[must_use]
pub fn wall_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
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
