//! The last samples of one metric: numbers in, their average out.
//!
//! A ring with a running sum, so that the average costs the same for any size. The sum is taken anew
//! each time the ring has gone round: rounding errors do not add up. With a decay above 1 a sample
//! counts so many times less than the next one, and the average is reckoned from the ring.

/// A ring of samples.
#[derive(Debug)]
pub(super) struct Window {
    samples: Vec<f64>,
    size: usize,
    next: usize,
    sum: f64,
    decay: f64,
}

impl Window {
    /// An empty window of `size` samples; 0 counts as 1. `decay` is at least 1.
    pub(super) fn new(size: usize, decay: f64) -> Self {
        let size = size.max(1);
        Self { samples: Vec::with_capacity(size), size, next: 0, sum: 0.0, decay }
    }

    /// Forgets every sample.
    pub(super) fn clear(&mut self) {
        self.samples.clear();
        (self.next, self.sum) = (0, 0.0);
    }

    /// Takes one more sample; the oldest falls out of a full window.
    pub(super) fn push(&mut self, sample: f64) {
        if self.samples.len() < self.size {
            self.samples.push(sample);
            self.sum += sample;
            return;
        }
        let oldest = std::mem::replace(&mut self.samples[self.next], sample);
        self.sum += sample - oldest;
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
            self.sum = self.samples.iter().sum();
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.samples.len() == self.size
    }

    /// The newest sample.
    pub(super) fn last(&self) -> Option<f64> {
        let newest = if self.next == 0 { self.samples.len() } else { self.next };
        newest.checked_sub(1).map(|newest| self.samples[newest])
    }

    /// The average of what is there; NaN of nothing.
    pub(super) fn average(&self) -> f64 {
        if self.decay > 1.0 {
            return self.decayed();
        }
        #[expect(clippy::cast_precision_loss, reason = "a window holds a few thousand samples")]
        let samples = self.samples.len() as f64;
        self.sum / samples
    }

    /// The sum of sample / decay^age over the sum of 1 / decay^age, the newest of age 0.
    fn decayed(&self) -> f64 {
        let (newer, older) = self.samples.split_at(self.next);
        let oldest_first = older.iter().chain(newer);
        let (sum, weights) = oldest_first.fold((0.0, 0.0), |(sum, weights), sample| {
            (sum / self.decay + sample, weights / self.decay + 1.0)
        });
        sum / weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_sum_of_the_first_load_balancer() {
        let mut window = Window::new(5, 1.0);
        let sums: Vec<_> = (1..=7)
            .map(|sample| {
                window.push(f64::from(sample));
                window.sum
            })
            .collect();
        assert_eq!(sums, [1.0, 3.0, 6.0, 10.0, 15.0, 20.0, 25.0]);
        assert!((window.average() - 5.0).abs() < 1e-12);
    }

    #[test]
    fn full_only_with_every_sample() {
        let mut window = Window::new(2, 1.0);
        window.push(1.0);
        assert!(!window.is_full());
        window.push(1.0);
        assert!(window.is_full());
    }

    #[test]
    fn a_huge_sample_leaves_no_trace_once_it_is_out() {
        let mut window = Window::new(3, 1.0);
        for sample in [1e300, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, 0.2] {
            window.push(sample);
        }
        assert!((window.average() - 0.2).abs() < 1e-12, "{}", window.average());
    }

    #[test]
    fn old_samples_count_less_with_a_decay() {
        let mut window = Window::new(3, 2.0);
        for sample in [100.0, 4.0, 2.0, 1.0] {
            window.push(sample);
        }
        // Newest first: 1, 2, 4 with the weights 1, 1/2, 1/4.
        assert!((window.average() - 3.0 / 1.75).abs() < 1e-12, "{}", window.average());
        assert_eq!(window.last(), Some(1.0));
    }

    #[test]
    fn a_cleared_window_starts_anew() {
        let mut window = Window::new(2, 1.0);
        for sample in [1.0, 2.0, 3.0] {
            window.push(sample);
        }
        window.clear();
        assert_eq!((window.last(), window.is_full()), (None, false));
        window.push(5.0);
        assert!((window.average() - 5.0).abs() < 1e-12);
    }
}
