//! Numbers in, quantiles out: response times of a simulation, times and differences of a shadow.
//!
//! A histogram whose buckets are 1 % wide: any number of values takes little memory, and a quantile is
//! exact to 1 %. The unit is the caller's.

/// Ratio of two neighbouring buckets.
const WIDTH: f64 = 1.01;
/// The lowest value that is told from others.
const LOWEST: f64 = 1e-4;
/// The highest one.
const HIGHEST: f64 = 1e12;

/// How many values were how large.
#[derive(Debug, Clone, Default)]
pub struct Quantiles {
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
    max: f64,
}

impl Quantiles {
    /// Takes a value >= 0.
    pub fn add(&mut self, value: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and some thousands"
        )]
        let bucket = ((value.clamp(LOWEST, HIGHEST) / LOWEST).ln() / WIDTH.ln()) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += value;
        self.max = self.max.max(value);
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; NaN for none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The largest; 0 for none.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.max
    }

    /// The value that this share of them does not exceed; NaN for none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.count as f64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen as f64 >= wanted && seen > 0 {
                return LOWEST * WIDTH.powf(bucket as f64 + 0.5);
            }
        }
        f64::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_hundredth_and_the_largest_is_exact() {
        let mut quantiles = Quantiles::default();
        (1..=1_000).for_each(|value| quantiles.add(f64::from(value)));
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = quantiles.quantile(share);
            assert!((found / expected - 1.0).abs() < 0.01, "{share}: {found}");
        }
        assert_eq!((quantiles.count(), quantiles.max()), (1_000, 1_000.0));
        quantiles.add(f64::INFINITY);
        quantiles.add(0.0);
        assert!(quantiles.quantile(1.0) > 1e11);
        assert!(Quantiles::default().quantile(0.5).is_nan());
    }
}
