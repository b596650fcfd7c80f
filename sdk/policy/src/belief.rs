//! What a target's load counts as where it cannot be taken as it is: pure rules, the same in every
//! strategy by load and in the host's native choice.
//!
//! The measure of doubt is what is usual in the fleet, the median of the known loads: it has the
//! loads' own unit, which only the formula's author knows, and a few wild loads do not move it.

/// Numbers that a median is made of at most.
const SAMPLE_MAX: usize = 1_024;
/// A median serves until this part of its numbers may have changed: of up to so many it is always exact.
const CHANGED_PART: usize = 16;

/// What a load counts as next to the `usual` one. NaN, not known yet: as the usual one, so that a newcomer
/// joins fairly. Infinity, a metric is missing that the formula needs: as it is, the last choice.
#[must_use]
pub fn believed_load(load: f64, usual: f64) -> f64 {
    if load.is_nan() { usual } else { load }
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
    fn unknown_is_usual_and_incomplete_is_last() {
        assert_eq!(believed_load(0.7, 0.2).to_bits(), 0.7_f64.to_bits());
        assert_eq!(believed_load(f64::NAN, 0.2).to_bits(), 0.2_f64.to_bits());
        assert!(believed_load(f64::INFINITY, 0.2).is_infinite());
    }
}
