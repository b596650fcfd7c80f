//! One target's health, by what applications say of it: outcomes in, averages and verdicts out.
//!
//! Averages are means in which an outcome's weight falls to 1/e in [`DECAY_MS`], whatever the rate;
//! latency is that of successes only, or a target that fails fast would look good. They are forgotten
//! [`FORGET_MS`] after the last outcome, so that a target that is avoided for them gets another chance.
//! Pure: time comes in as milliseconds.

use crate::config::{EJECTION_MAX, HealthConfig};

/// Time in which an outcome's weight falls to 1/e, in milliseconds.
pub(super) const DECAY_MS: u64 = 10_000;
/// Time without outcomes after which nothing is known, in milliseconds.
const FORGET_MS: u64 = 60_000;
/// Time over which success is compared between targets, in milliseconds.
pub(super) const INTERVAL_MS: u64 = 10_000;
/// Outcomes of an interval without which a target is not judged by its share of failures.
pub(super) const OUTCOMES_MIN: u32 = 100;

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// How long it took, in microseconds.
    pub latency_us: u32,
    /// Whether it was served.
    pub ok: bool,
}

/// Why a target was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Failures in a row.
    ConsecutiveFailures,
    /// A share of successes far below the pool's mean.
    SuccessRate,
}

impl Why {
    /// In metrics and statuses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ConsecutiveFailures => "consecutive_failures",
            Self::SuccessRate => "success_rate",
        }
    }
}

/// A target's time out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    /// What for.
    pub why: Why,
    /// Its end, in milliseconds of the host's clock.
    pub until_ms: u64,
}

/// One target's outcomes and what follows from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// Decayed number of outcomes, of failures, of successes, and sum of the successes' latencies.
    sums: [f64; 4],
    last_ms: u64,
    /// Outcomes since the target came: successes and failures.
    pub(super) counts: [u64; 2],
    failures_in_a_row: u32,
    /// Of the running interval and of the last one: successes and failures.
    interval: [u32; 2],
    closed: [u32; 2],
    pub(super) ejection: Option<Ejection>,
    /// Ejections that are not made good yet, and when the last one ended.
    ejections: u32,
    returned_ms: u64,
    pub(super) warming: Option<Warming>,
}

/// A slow start: the share rises from its least to 1, by Envoy's curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Warming {
    from_ms: u64,
    pub(super) until_ms: u64,
    least: f64,
    exponent: f64,
}

impl Warming {
    /// One that starts now; without a window it is over.
    pub(super) fn start(config: &HealthConfig, now_ms: u64) -> Self {
        let window_ms = u64::try_from(config.slow_start.as_millis()).unwrap_or(u64::MAX / 2);
        Self {
            from_ms: now_ms,
            until_ms: now_ms.saturating_add(window_ms),
            least: config.slow_start_min,
            exponent: config.slow_start_aggression.recip(),
        }
    }

    /// The share, of the time that has passed: above 0 to 1.
    fn share(&self, now_ms: u64) -> f64 {
        let window_ms = self.until_ms.saturating_sub(self.from_ms).max(1);
        let passed = ms(now_ms.saturating_sub(self.from_ms)) / ms(window_ms);
        passed.powf(self.exponent).clamp(self.least, 1.0)
    }
}

impl Health {
    /// Takes an outcome; failures in a row up to now.
    pub(super) fn record(&mut self, outcome: Outcome, now_ms: u64) -> u32 {
        let rest_ms = now_ms.saturating_sub(self.last_ms);
        let kept = if rest_ms > FORGET_MS { 0.0 } else { (-ms(rest_ms) / ms(DECAY_MS)).exp() };
        let (good, latency_us) =
            if outcome.ok { (1.0, f64::from(outcome.latency_us)) } else { (0.0, 0.0) };
        for (sum, new) in self.sums.iter_mut().zip([1.0, 1.0 - good, good, latency_us]) {
            *sum = *sum * kept + new;
        }
        self.last_ms = self.last_ms.max(now_ms);
        let place = usize::from(!outcome.ok);
        self.counts[place] += 1;
        self.interval[place] = self.interval[place].saturating_add(1);
        self.failures_in_a_row =
            if outcome.ok { 0 } else { self.failures_in_a_row.saturating_add(1) };
        self.failures_in_a_row
    }

    /// Asks for the memory of what a view needs, and waits for none of it.
    pub(super) fn fetch(&self) {
        let is_special = self.ejection.is_some() | self.warming.is_some();
        std::hint::black_box((self.sums[0], self.last_ms, is_special));
    }

    /// Mean latency of successes in microseconds, 0: none known; and share of failures, 0 to 1.
    pub(super) fn averages(&self, now_ms: u64) -> (u32, f32) {
        let [all, failed, good, latency_us] = self.sums;
        if all <= 0.0 || now_ms.saturating_sub(self.last_ms) > FORGET_MS {
            return (0, 0.0);
        }
        let latency_us = if good > 0.0 { (latency_us / good).round().max(1.0) } else { 0.0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a mean of numbers of this type, and a share of 0 to 1"
        )]
        (latency_us as u32, (failed / all) as f32)
    }

    /// Ends the interval; its share of successes if there were enough outcomes.
    pub(super) fn close_interval(&mut self) -> Option<f64> {
        self.closed = std::mem::take(&mut self.interval);
        self.success_rate()
    }

    /// Share of successes in the last interval, if there were enough outcomes.
    pub(super) fn success_rate(&self) -> Option<f64> {
        let [good, failed] = self.closed;
        let all = good.saturating_add(failed);
        (all >= OUTCOMES_MIN).then(|| f64::from(good) / f64::from(all))
    }

    /// Starts an ejection, longer with every one that is not made good: each interval served in
    /// between takes one off.
    pub(super) fn eject(&mut self, why: Why, config: &HealthConfig, now_ms: u64) -> u64 {
        let good = now_ms.saturating_sub(self.returned_ms) / INTERVAL_MS;
        self.ejections = self.ejections.saturating_sub(u32::try_from(good).unwrap_or(u32::MAX));
        self.ejections = self.ejections.saturating_add(1);
        let length = config.ejection_time.saturating_mul(self.ejections).min(EJECTION_MAX);
        let until_ms = now_ms + u64::try_from(length.as_millis()).unwrap_or(u64::MAX / 2);
        self.ejection = Some(Ejection { why, until_ms });
        self.warming = None;
        until_ms
    }

    /// Ends the ejection: what was before it is forgotten.
    pub(super) fn come_back(&mut self, now_ms: u64) {
        let (counts, ejections) = (self.counts, self.ejections);
        *self = Self { counts, ejections, returned_ms: now_ms, ..Self::default() };
    }

    /// Slow-start share, above 0 to 1; 1: warm.
    pub(super) fn warm(&self, now_ms: u64) -> f32 {
        let warming = self.warming.filter(|warming| now_ms < warming.until_ms);
        #[expect(clippy::cast_possible_truncation, reason = "a share of 0 to 1")]
        warming.map_or(1.0, |warming| warming.share(now_ms) as f32)
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds below 2^53 are 285,000 years")]
fn ms(ms: u64) -> f64 {
    ms as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn outcome(latency_us: u32, ok: bool) -> Outcome {
        Outcome { latency_us, ok }
    }

    #[test]
    fn averages_are_of_the_last_seconds_whatever_the_rate() {
        let mut health = Health::default();
        (0..1_000).for_each(|_| _ = health.record(outcome(1_000, true), 5));
        assert_eq!(health.averages(5), (1_000, 0.0));
        // One peak among a thousand hardly shows.
        health.record(outcome(100_000, true), 5);
        assert_eq!(health.averages(5).0, 1_099);
        // After four times the decay the new ones are nearly all that counts.
        (0..100).for_each(|_| _ = health.record(outcome(3_000, true), 40_005));
        assert!((2_500..3_000).contains(&health.averages(40_005).0), "{health:?}");
        assert_eq!(health.averages(40_005 + FORGET_MS + 1), (0, 0.0), "forgotten");
    }

    #[test]
    fn failures_are_a_share_and_have_no_latency() {
        let mut health = Health::default();
        health.record(outcome(1, false), 0);
        assert_eq!(health.averages(0), (0, 1.0));
        (0..3).for_each(|_| _ = health.record(outcome(500, true), 0));
        assert_eq!(health.averages(0), (500, 0.25));
        assert_eq!(health.counts, [3, 1]);
    }

    #[test]
    fn ejections_grow_longer_up_to_a_limit_and_are_made_good() {
        let (mut health, config) = (Health::default(), HealthConfig::default());
        let mut now_ms = 0;
        let mut length = |health: &mut Health, rest_ms| {
            now_ms += rest_ms;
            let until_ms = health.eject(Why::SuccessRate, &config, now_ms);
            let length_ms = until_ms - now_ms;
            now_ms = until_ms;
            health.come_back(now_ms);
            length_ms
        };
        assert_eq!(length(&mut health, 0), 30_000);
        assert_eq!(length(&mut health, 9_999), 60_000);
        assert_eq!(length(&mut health, INTERVAL_MS), 60_000, "one was made good");
        (0..20).for_each(|_| _ = length(&mut health, 0));
        assert_eq!(length(&mut health, 0), 300_000);
    }

    #[track_caller]
    fn check_warm(config: &HealthConfig, expected: [(u64, f64); 5]) {
        let warming = Some(Warming::start(config, 1_000));
        let health = Health { warming, ..Health::default() };
        for (now_ms, expected) in expected {
            assert!((f64::from(health.warm(now_ms)) - expected).abs() < 1e-6, "{now_ms}");
        }
    }

    #[test]
    fn slow_start_rises_by_its_curve() {
        let config = HealthConfig::default();
        let window = |seconds| std::time::Duration::from_secs(seconds);
        let straight = HealthConfig { slow_start: window(10), ..config.clone() };
        check_warm(&straight, [(0, 0.1), (1_000, 0.1), (1_500, 0.1), (6_000, 0.5), (11_000, 1.0)]);
        let bold = HealthConfig { slow_start_aggression: 2.0, ..straight.clone() };
        check_warm(&bold, [(1_000, 0.1), (1_400, 0.2), (3_500, 0.5), (7_400, 0.8), (11_000, 1.0)]);
        let timid = HealthConfig { slow_start_aggression: 0.5, slow_start_min: 0.02, ..straight };
        check_warm(
            &timid,
            [(1_000, 0.02), (2_000, 0.02), (6_000, 0.25), (9_000, 0.64), (11_000, 1.0)],
        );
        let none = HealthConfig { slow_start: window(0), ..config };
        check_warm(&none, [1_000, 1_001, 1_002, 2_000, 9_000].map(|now_ms| (now_ms, 1.0)));
    }
}
