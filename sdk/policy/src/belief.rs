//! What a target's load counts as where it cannot be taken as it is: pure rules, the same in every
//! strategy by load and in the host's native choice.
//!
//! The measure of doubt is what is usual in the fleet, the median of the known loads: it has the
//! loads' own unit, which only the formula's author knows, and a few wild loads do not move it.
//!
//! # Age
//!
//! A load counts as reported until it is twice as old as usual, from four times on as the usual one, and in
//! between in proportion. So a target whose reports get lost is neither flooded for having been light
//! nor starved for having been heavy, and loads that are all old keep their order as long as they are trusted at all. What age is usual
//! is learned from each target's own reports: with long delays or intervals older loads are. Requests
//! in a target and latencies need no such rule: own picks and outcomes keep them up to date.
//!
//! # Failures
//!
//! Failing is often fast: a broken target looks idle, and whoever chooses by load sends it everything.
//! So a share e of failed outcomes makes a load count as
//!
//! (load * (1 - e) + max(load, usual) * e) / (1 - e)²
//!
//! As far as a target fails, its load is not believed to be below the usual one; one division takes the
//! illusion away that comes of failures that take no time, the other counts the attempts until one
//! succeeds. (gRPC's weighted round robin adds e * penalty to a utilisation for the same reason: gRFC
//! A58. That needs a load of which 1 is full.) Without failures every number is as reported.
//!
//! | strategy | what failures change |
//! |---|---|
//! | `least-loaded`, `p2c`, `fuzzy`, native choice, [`min_by_load`](crate::Eligible::min_by_load) | the load |
//! | `fewest-clients`, `peak-ewma`, `failover`, `first-available`, `bounded-hash` | the requests in it ([`Fleet::fullness`](crate::Fleet::fullness)) |
//! | `prequal` | the requests in it and the latency |
//! | `balanced`, `smooth-weighted`, `weighted-random` | the share: divided by [`failure_price`](crate::Target::failure_price) |
//! | `round-robin`, `random`, `rendezvous` | nothing: nothing that a target does attracts requests; ejection keeps the worst out |

/// Numbers that a median is made of at most.
const SAMPLE_MAX: usize = 1_024;
/// A median serves until this part of its numbers may have changed: of up to so many it is always exact.
const CHANGED_PART: usize = 16;

/// In usual ages: up to this a load is trusted in full, and from that on not at all.
const FRESH: f64 = 2.0;
const OLD: f64 = 4.0;
/// Reports over which the usual age is averaged.
const AGES_REMEMBERED: f64 = 8.0;

/// Keeps the price of a target that only fails finite.
const SUCCESS_MIN: f64 = 0.01;

/// What a target says of its load, and how it can be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Said {
    /// The formula's answer; NaN: not known yet; infinity: a metric is missing that the formula needs.
    pub load: f64,
    /// Share of failed outcomes, 0 to 1.
    pub error_rate: f32,
    /// How far it is trusted at its age, 0 to 1, see [`trust`].
    pub trust: f64,
}

impl Said {
    /// The load counts as it is: nobody needs to know the usual one.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.load.is_nan() && self.error_rate <= 0.0 && self.trust >= 1.0
    }

    /// What the load counts as next to the `usual` one. One that is not known yet is as the usual one, so
    /// that a newcomer joins fairly; an infinite one stays so, the last choice.
    #[must_use]
    pub fn counts_as(&self, usual: f64) -> f64 {
        let load = if self.load.is_nan() {
            usual
        } else if self.load.is_infinite() || self.trust >= 1.0 {
            self.load
        } else {
            usual + (self.load - usual) * self.trust
        };
        priced(load, usual, self.error_rate)
    }
}

/// How far a load is trusted at this age, 0 to 1; in full where no age is usual (0) yet.
#[must_use]
pub fn trust(age_ms: f64, usual_age_ms: f64) -> f64 {
    if usual_age_ms <= 0.0 {
        return 1.0;
    }
    ((OLD - age_ms / usual_age_ms) / (OLD - FRESH)).clamp(0.0, 1.0)
}

/// The part of the picks since a report of this age that were made in the time for which it is trusted.
pub(crate) fn recent(age_ms: f64, usual_age_ms: f64) -> f64 {
    let trusted_ms = FRESH * usual_age_ms;
    if trusted_ms <= 0.0 || age_ms <= trusted_ms { 1.0 } else { trusted_ms / age_ms }
}

/// The age that a target's loads usually reach, after one more of its reports ended the load before it
/// at the age `reached_ms`: a moving average in which no report counts for more than twice what is usual.
pub(crate) fn usual_age_ms(before_ms: f64, reached_ms: f64) -> f64 {
    if before_ms <= 0.0 {
        return reached_ms;
    }
    before_ms + (reached_ms.min(2.0 * before_ms) - before_ms) / AGES_REMEMBERED
}

/// The share of outcomes that were good, 0.01 at least.
pub(crate) fn success(error_rate: f32) -> f64 {
    (1.0 - f64::from(error_rate)).clamp(SUCCESS_MIN, 1.0)
}

/// A load, or a number of requests, without the illusion that failures are: what it would be if every
/// request took its time.
#[must_use]
pub fn unmasked(value: f64, usual: f64, error_rate: f32) -> f64 {
    if error_rate <= 0.0 || value.is_infinite() {
        return value;
    }
    let success = success(error_rate);
    (value * success + value.max(usual) * (1.0 - success)) / success
}

/// The same, and dearer by the attempts until one succeeds.
pub(crate) fn priced(value: f64, usual: f64, error_rate: f32) -> f64 {
    unmasked(value, usual, error_rate) / success(error_rate)
}

/// The median, the mean of the middle two of an even number; 0 of none. The order is lost. Cost O(n).
///
/// ```
/// assert_eq!(loadline_sdk::belief::median(&mut [9.0, 0.1, 0.3]), 0.3);
/// assert_eq!(loadline_sdk::belief::median(&mut [1.0, 3.0]), 2.0);
/// ```
#[must_use]
pub fn median(numbers: &mut [f64]) -> f64 {
    let len = numbers.len();
    if len == 0 {
        return 0.0;
    }
    let (below, upper, _) = numbers.select_nth_unstable_by(len / 2, f64::total_cmp);
    let upper = *upper;
    if len % 2 == 1 {
        return upper;
    }
    let lower = below.iter().copied().fold(0.0, f64::max);
    lower + (upper - lower) / 2.0
}

/// What is usual in a fleet: a median that is made when it is needed and then serves for a while, because
/// in most fleets nothing is in doubt and nobody asks.
///
/// Of more than 1,024 targets it is that of as many, spread evenly. Made anew when a sixteenth of them may
/// have changed, it costs O(1) a change, and some microseconds at a stretch.
#[derive(Debug, Default)]
pub struct Usual {
    value: f64,
    numbers: Vec<f64>,
    /// Since it was made.
    changes: usize,
}

impl Usual {
    /// So many numbers may have changed.
    pub fn note(&mut self, changes: usize) {
        self.changes = self.changes.saturating_add(changes);
    }

    /// The median of those of `len` numbers that are known; 0 where none is.
    pub fn get(&mut self, len: usize, known: impl FnMut(usize) -> Option<f64>) -> f64 {
        if self.changes > 0 && self.changes >= self.numbers.len() / CHANGED_PART {
            self.numbers.clear();
            self.numbers.extend((0..len).step_by(stride(len)).filter_map(known));
            self.value = median(&mut self.numbers);
            self.changes = 0;
        }
        self.value
    }

    /// The same of `len` numbers, once.
    #[must_use]
    pub fn of(len: usize, known: impl Iterator<Item = Option<f64>>) -> f64 {
        median(&mut known.step_by(stride(len)).flatten().collect::<Vec<_>>())
    }
}

/// Every how-manieth of so many numbers is looked at.
fn stride(len: usize) -> usize {
    len.div_ceil(SAMPLE_MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(numbers: &[f64], expected: f64) {
        assert_eq!(median(&mut numbers.to_vec()).to_bits(), expected.to_bits(), "{numbers:?}");
    }

    #[test]
    fn median_is_the_middle_of_the_sorted_numbers() {
        check(&[], 0.0);
        check(&[3.0], 3.0);
        check(&[5.0, 1.0, 2.0], 2.0);
        check(&[5.0, 1.0, 2.0, 4.0], 3.0);
        check(&[0.3; 8], 0.3);
        check(&[f64::MAX; 2], f64::MAX);
        check(&[0.0, 0.0, 1.0, 1e300], 0.5);
    }

    #[test]
    fn small_fleets_are_exact_and_large_ones_nearly() {
        let mut usual = Usual::default();
        let mut numbers = [1.0; 5];
        for changed in [0, 1, 2] {
            numbers[changed] = 9.0;
            usual.note(1);
            let value = usual.get(5, |place| Some(numbers[place]));
            assert_eq!(value.to_bits(), if changed < 2 { 1.0_f64 } else { 9.0 }.to_bits());
        }
        let mut usual = Usual::default();
        usual.note(1);
        let mut looks = 0;
        let value = usual.get(100_000, |place| {
            looks += 1;
            (place % 2 == 0).then_some(place as f64)
        });
        assert!(looks <= SAMPLE_MAX && (value - 50_000.0).abs() < 500.0, "{looks} {value}");
        usual.note(1);
        assert_eq!(usual.get(100_000, |_| None).to_bits(), value.to_bits(), "serves for a while");
    }

    #[test]
    fn old_loads_count_as_the_usual_one_and_none_before_its_time() {
        for (age_ms, expected) in [(0.0, 1.0), (200.0, 1.0), (300.0, 0.5), (400.0, 0.0), (9e9, 0.0)]
        {
            assert_eq!(trust(age_ms, 100.0).to_bits(), f64::to_bits(expected), "{age_ms}");
        }
        assert_eq!(trust(9e9, 0.0).to_bits(), 1.0_f64.to_bits(), "nothing is usual yet");
        let counts_as =
            |load, trust| Said { load, error_rate: 0.0, trust }.counts_as(0.5).to_bits();
        assert_eq!(counts_as(0.25, 0.5), 0.375_f64.to_bits());
        assert_eq!(counts_as(1.0, 0.5), 0.75_f64.to_bits());
        assert_eq!(counts_as(1.0, 0.0), 0.5_f64.to_bits());
        assert_eq!(counts_as(f64::INFINITY, 0.0), f64::INFINITY.to_bits());
    }

    #[test]
    fn usual_age_follows_the_reports_and_not_an_outage() {
        let after = |ages: &[f64]| ages.iter().fold(0.0, |before, age| usual_age_ms(before, *age));
        assert!((after(&[1_000.0; 5]) - 1_000.0).abs() < 1e-9);
        assert!((after(&[1_000.0, 60_000.0]) - 1_125.0).abs() < 1e-9);
        let slower = [&[1_000.0][..], &[3_000.0; 50]].concat();
        assert!((after(&slower) - 3_000.0).abs() < 30.0);
    }

    #[track_caller]
    fn check_load(load: f64, error_rate: f32, expected: f64) {
        let counts_as = Said { load, error_rate, trust: 1.0 }.counts_as(0.2);
        assert_eq!(counts_as.to_bits(), expected.to_bits(), "{load} {error_rate}: {counts_as}");
    }

    #[test]
    fn unknown_is_usual_and_incomplete_is_last() {
        check_load(0.7, 0.0, 0.7);
        check_load(f64::NAN, 0.0, 0.2);
        check_load(f64::INFINITY, 0.0, f64::INFINITY);
    }

    #[test]
    fn failures_make_a_load_dearer_and_one_below_the_usual_is_not_believed() {
        check_load(0.8, 0.5, 3.2);
        check_load(0.0, 0.5, 0.4);
        check_load(f64::NAN, 0.5, 0.8);
        check_load(f64::INFINITY, 0.5, f64::INFINITY);
        let counts_as = |error_rate| Said { load: 0.1, error_rate, trust: 1.0 }.counts_as(0.2);
        let rates = [0.0, 1e-6, 0.01, 0.1, 0.3, 0.6, 0.9];
        assert!(rates.map(counts_as).is_sorted_by(|a, b| a < b), "dearer with each failure");
        assert!(counts_as(1.0) > 1_000.0 && counts_as(1.0).is_finite());
        assert!((unmasked(0.1, 0.2, 0.5) - 0.3).abs() < 1e-12, "nothing for the attempts");
    }
}
