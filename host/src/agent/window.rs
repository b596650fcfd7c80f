//! The last samples of one metric: numbers in, their average out.
//!
//! A ring, and an average that is reckoned from it each time: it is asked for once a report, and no
//! rounding error outlives its sample. Invariant: an average is never outside the range of its
//! samples. With a decay above 1 a sample counts so many times less than the next one.

/// A ring of samples.
#[derive(Debug)]
pub(super) struct Window {
    samples: Vec<f64>,
    size: usize,
    next: usize,
    decay: f64,
}

impl Window {
    /// An empty window of `size` samples; 0 counts as 1. `decay` is at least 1.
    pub(super) fn new(size: usize, decay: f64) -> Self {
        let size = size.max(1);
        Self { samples: Vec::with_capacity(size), size, next: 0, decay }
    }

    /// Forgets every sample.
    pub(super) fn clear(&mut self) {
        self.samples.clear();
        self.next = 0;
    }

    /// Takes one more sample; the oldest falls out of a full window.
    pub(super) fn push(&mut self, sample: f64) {
        if self.samples.len() < self.size {
            self.samples.push(sample);
            return;
        }
        self.samples[self.next] = sample;
        self.next = (self.next + 1) % self.size;
    }

    pub(super) fn is_full(&self) -> bool {
        self.samples.len() == self.size
    }

    /// The average of what is there; NaN of nothing.
    pub(super) fn average(&self) -> f64 {
        if self.samples.is_empty() {
            return f64::NAN;
        }
        // The sum of sample / decay^age over the sum of 1 / decay^age, the newest of age 0.
        let (sum, weights) = self.oldest_first().fold((0.0, 0.0), |(sum, weights), sample| {
            (sum / self.decay + sample, weights / self.decay + 1.0)
        });
        let least = self.oldest_first().fold(f64::INFINITY, f64::min);
        let most = self.oldest_first().fold(f64::NEG_INFINITY, f64::max);
        // Rounding may leave the range by a hair.
        (sum / weights).clamp(least, most)
    }

    /// The samples in the order in which they came.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = f64> {
        let (newer, older) = self.samples.split_at(self.next);
        older.iter().chain(newer).copied()
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
                window.oldest_first().sum::<f64>()
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
    fn an_average_stays_within_its_samples() {
        let mut window = Window::new(3, 1.0);
        for sample in [0.1, 0.2, 0.3, 0.0, 0.0, 0.0] {
            window.push(sample);
            let least = window.oldest_first().fold(f64::INFINITY, f64::min);
            let most = window.oldest_first().fold(f64::NEG_INFINITY, f64::max);
            assert!((least..=most).contains(&window.average()), "{}", window.average());
        }
        let mut alike = Window::new(3, 1.5);
        (0..3).for_each(|_| alike.push(0.1));
        assert_eq!(alike.average().to_bits(), 0.1_f64.to_bits());
    }

    #[test]
    fn old_samples_count_less_with_a_decay() {
        let mut window = Window::new(3, 2.0);
        for sample in [100.0, 4.0, 2.0, 1.0] {
            window.push(sample);
        }
        // Newest first: 1, 2, 4 with the weights 1, 1/2, 1/4.
        assert!((window.average() - 3.0 / 1.75).abs() < 1e-12, "{}", window.average());
        assert_eq!(window.oldest_first().collect::<Vec<_>>(), [4.0, 2.0, 1.0]);
    }

    #[test]
    fn a_cleared_window_starts_anew() {
        let mut window = Window::new(2, 1.0);
        for sample in [1.0, 2.0, 3.0] {
            window.push(sample);
        }
        window.clear();
        assert!(!window.is_full() && window.average().is_nan());
        window.push(5.0);
        assert!((window.average() - 5.0).abs() < 1e-12);
    }
}
