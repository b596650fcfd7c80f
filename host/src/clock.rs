//! The host's one clock: monotonic milliseconds since its start.
//!
//! Wall clocks of two machines are never compared; everything in the fleet is dated by this.

use std::time::Instant;

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
