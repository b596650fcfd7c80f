//! Differences of counters: a number and its time in, its growth a second out.

use tokio::time::Instant;

use super::Reading;

/// Samples closer than this say nothing of a rate.
const GAP_MIN_S: f64 = 0.001;

/// The last sample of a counter.
#[derive(Debug, Default)]
pub(super) struct Rate {
    last: Option<(f64, Instant)>,
    /// The sample before the counter fell, until the next one shows whether it fell for good.
    before_fall: Option<(f64, Instant)>,
}

impl Rate {
    /// Growth a second since the sample before. A counter that fell gives no value: if it stays low
    /// it began anew, and if it is back at once (some are 0 for a moment) it counts on as before.
    pub(super) fn of(&mut self, count: f64, now: Instant) -> Reading {
        if !count.is_finite() {
            return Reading::Useless(format!("{count} is not a number to count with"));
        }
        let Some(last) = self.last else {
            self.last = Some((count, now));
            return Reading::NotYet;
        };
        let is_back = |before: &(f64, Instant)| count >= before.0;
        let (base, then) = self.before_fall.take().filter(is_back).unwrap_or(last);
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        if seconds < GAP_MIN_S {
            return Reading::NotYet;
        }
        self.last = Some((count, now));
        if count < base {
            self.before_fall = Some((base, then));
            return Reading::Useless(format!("the counter fell from {base} to {count}"));
        }
        Reading::Value((count - base) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Readings of a counter at these seconds.
    fn rates(samples: &[(u64, f64)]) -> Vec<Option<f64>> {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let mut at = |(second, count)| match rate.of(count, start + Duration::from_secs(second)) {
            Reading::Value(rate) => Some(rate),
            _ => None,
        };
        samples.iter().map(|sample| at(*sample)).collect()
    }

    #[test]
    fn a_counter_that_begins_anew_gives_no_value_and_a_new_base() {
        let samples = [(0, 10e6), (1, 11e6), (2, 0.5e6), (3, 1.5e6), (3, 1.6e6), (5, 3.5e6)];
        assert_eq!(rates(&samples), [None, Some(1e6), None, Some(1e6), None, Some(1e6)]);
    }

    #[test]
    fn a_moment_of_zeros_is_no_burst() {
        let samples = [(0, 10e6), (1, 11e6), (2, 0.0), (3, 13e6), (4, 14e6)];
        assert_eq!(rates(&samples), [None, Some(1e6), None, Some(1e6), Some(1e6)]);
    }
}
