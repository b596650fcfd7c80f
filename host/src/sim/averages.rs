//! What a host tells of outcomes: the moving averages of `pick/health.rs`.
//!
//! That stands behind this module and cannot be used here, so its rule stands here once more: weights
//! fall to 1/e in ten seconds, latency is that of successes, and all is forgotten a minute after the
//! last outcome. A test feeds both the same outcomes and compares, so that they stay alike.

/// Time in which an outcome's weight falls to 1/e, in milliseconds.
const DECAY_MS: f64 = 10_000.0;
/// Time without outcomes after which nothing is known, in milliseconds.
const FORGET_MS: u64 = 60_000;

/// One server's outcomes, as one host knows them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Averages {
    outcomes: f64,
    failures: f64,
    latency_us: f64,
    last_ms: u64,
}

impl Averages {
    /// Takes an outcome; `latency_us` in microseconds.
    pub(super) fn record(&mut self, latency_us: u32, ok: bool, now_ms: u64) {
        let rest_ms = now_ms.saturating_sub(self.last_ms);
        let kept = if rest_ms > FORGET_MS { 0.0 } else { (-(rest_ms as f64) / DECAY_MS).exp() };
        let (failure, latency_us) = if ok { (0.0, f64::from(latency_us)) } else { (1.0, 0.0) };
        self.outcomes = self.outcomes * kept + 1.0;
        self.failures = self.failures * kept + failure;
        self.latency_us = self.latency_us * kept + latency_us;
        self.last_ms = self.last_ms.max(now_ms);
    }

    /// Mean latency of successes in microseconds, 0: none known; and share of failures, 0 to 1.
    pub(super) fn read(&self, now_ms: u64) -> (u32, f32) {
        let Self { outcomes, failures, latency_us, last_ms } = *self;
        if outcomes <= 0.0 || now_ms.saturating_sub(last_ms) > FORGET_MS {
            return (0, 0.0);
        }
        let good = outcomes - failures;
        let mean_us = if latency_us > 0.0 { (latency_us / good).round().max(1.0) } else { 0.0 };
        (mean_us as u32, (failures / outcomes) as f32)
    }
}

#[cfg(test)]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::duplicate_mod,
    reason = "only its averages are compared, and nothing else shows them from here"
)]
#[path = "../pick/health.rs"]
mod health;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_a_host() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut here, mut there) = (Averages::default(), health::Health::default());
        let (mut now_ms, mut forgotten) = (0, 0);
        for _ in 0..5_000 {
            now_ms += if random.u8(..) == 0 { random.u64(..90_000) } else { random.u64(..200) };
            let told = there.averages(now_ms);
            let (latency_us, share) = here.read(now_ms);
            // What is summed in another order differs in the last digits.
            assert!(latency_us.abs_diff(told.0) <= 1, "{now_ms}: {latency_us}, {told:?}");
            assert!((share - told.1).abs() < 1e-5, "{now_ms}: {share}, {told:?}");
            forgotten += u32::from(told == (0, 0.0));
            let (latency_us, ok) = (random.u32(1..5_000_000), random.u8(..) > 80);
            here.record(latency_us, ok, now_ms);
            there.record(health::Outcome { latency_us, ok }, now_ms);
        }
        assert!(forgotten > 3, "long rests are among them");
    }
}
