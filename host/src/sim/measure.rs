//! What a run showed: response times, queues, who got how much.

use crate::quantiles::Quantiles;

/// Units over which a server's share is averaged before it is judged: in one unit it gets few picks.
const WINDOW: usize = 5;
/// Share of the fair one below which a slowed server's must fall, and to which it must return.
const REACTED: f64 = 0.4;
const RECOVERED: f64 = 0.8;

/// What one run showed, the warm-up left out; times in units.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Response times of requests that were served, in units of one mean service time.
    pub responses: Quantiles,
    /// Mean time in the system of all requests, those that failed too.
    pub stay: f64,
    /// Requests that failed.
    pub failed: u64,
    /// Time mean of requests inside all servers and the central queue.
    pub inside: f64,
    /// Requests a unit.
    pub rate: f64,
    /// Time mean of the longest queue over that of all queues.
    pub imbalance: f64,
    /// Time mean of the longest queue.
    pub longest: f64,
    /// Time mean of the standard deviation of the queues' lengths.
    pub deviation: f64,
    /// The longest queue of all.
    pub peak: usize,
    /// Jain's index of what the servers were given, by speed: 1 even, 1/n all to one.
    pub evenness: f64,
    /// Share of the requests with a key that went elsewhere than that key's last one; NaN without keys.
    pub moved: f64,
    /// The largest share of one server in the picks of a report period, averaged.
    pub herd_share: f64,
    /// Of the server with the incident: its share of the picks over its fair share, by unit since
    /// the start of the incident.
    pub reaction: Vec<f64>,
    /// The same since its end.
    pub recovery: Vec<f64>,
    /// The longest queue that server had.
    pub reaction_queue: usize,
    /// Picks of it during the incident beyond what its speed then is worth.
    pub excess: f64,
    /// Picks of a server that had crashed and was not heard of for the dead rule's time.
    pub picks_of_dead: u64,
    /// Requests for which nobody was chosen: they went to any server.
    pub unanswered: u64,
}

impl Outcome {
    /// How far Little's law is missed: the mean number inside against rate × mean time inside, as a
    /// ratio. 1 but for the ends of the run, or the bookkeeping is wrong.
    #[must_use]
    pub fn little(&self) -> f64 {
        self.inside / (self.rate * self.stay)
    }
}

/// Units from the start of an incident until five of them together give the server less than 0.4 of
/// its fair share, of `shares` by unit, best the mean of many runs; `None`: never, or too few units.
#[must_use]
pub fn reacted_after(shares: &[f64]) -> Option<usize> {
    shares.windows(WINDOW).position(|units| average(units) < REACTED)
}

/// Units from its end until five of them together give it 0.8 of its fair share.
#[must_use]
pub fn recovered_after(shares: &[f64]) -> Option<usize> {
    shares.windows(WINDOW).position(|units| average(units) >= RECOVERED)
}

fn average(units: &[f64]) -> f64 {
    units.iter().sum::<f64>() / units.len() as f64
}

/// A mean with its 95 % interval over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval; NaN for a single seed.
    pub within: f64,
}

impl Estimate {
    /// Of independent values (Student's t).
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        const T: [f64; 10] =
            [f64::NAN, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let t = T.get(values.len() - 1).copied().unwrap_or_else(|| quantile_of_t(n - 1.0));
        Self { mean, within: t * (squares / (n - 1.0) / n).sqrt() }
    }
}

/// 97.5 % quantile of Student's t with so many degrees of freedom, exact to 0.2 % from ten on: Cornish and
/// Fisher's expansion (Abramowitz and Stegun, 26.7.5).
fn quantile_of_t(freedom: f64) -> f64 {
    1.95996 + 2.37227 / freedom + 2.82250 / (freedom * freedom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_many_seeds_is_student_s() {
        for (freedom, t) in [(10.0, 2.2281), (20.0, 2.0860), (60.0, 2.0003), (1e6, 1.9600)] {
            assert!((quantile_of_t(freedom) / t - 1.0).abs() < 0.002, "{freedom}");
        }
        // Seven each of -1, 0 and 1: the squares sum up to 14.
        let values: Vec<_> = (0..21).map(|value| f64::from(value % 3) - 1.0).collect();
        let Estimate { mean, within } = Estimate::of(&values);
        assert!(mean.abs() < 1e-12);
        assert!((within - 2.086 * (14.0_f64 / 20.0 / 21.0).sqrt()).abs() < 1e-3, "{within}");
    }

    #[test]
    fn one_unit_without_picks_is_no_reaction() {
        let mut shares = vec![1.0; 20];
        shares[3] = 0.0;
        assert_eq!(reacted_after(&shares), None);
        shares[10..].fill(0.3);
        assert_eq!(reacted_after(&shares), Some(10));
        assert_eq!(recovered_after(&[0.2, 0.9, 0.1, 0.7, 0.8, 0.8, 0.9, 0.8]), Some(3));
        assert_eq!(reacted_after(&[0.0; 4]), None, "too few to judge");
    }
}
