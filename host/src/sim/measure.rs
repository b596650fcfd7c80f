//! What a run showed: response times, queues, who got how much.

use crate::quantiles::Quantiles;

/// What one run showed, the warm-up left out; times in units.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Response times of all requests, in units of one mean service time.
    pub responses: Quantiles,
    /// Time mean of requests inside all servers and the central queue.
    pub inside: f64,
    /// Requests a unit.
    pub rate: f64,
    /// Time mean of the longest queue over that of all queues.
    pub imbalance: f64,
    /// Time mean of the longest queue.
    pub longest: f64,
    /// The largest share of one server in the picks of a report period, averaged.
    pub herd_share: f64,
    /// Of the server with the incident: its share of the picks over its fair share, by unit since
    /// the start of the incident.
    pub reaction: Vec<f64>,
    /// The longest queue that server had.
    pub reaction_queue: usize,
    /// Picks of a server that had crashed and was not heard of for the dead rule's time.
    pub picks_of_dead: u64,
    /// Requests for which nobody was chosen: they went to any server.
    pub unanswered: u64,
}

impl Outcome {
    /// How far Little's law is missed: the mean number inside against rate × mean response, as a
    /// ratio. 1 but for the ends of the run, or the bookkeeping is wrong.
    #[must_use]
    pub fn little(&self) -> f64 {
        self.inside / (self.rate * self.responses.mean())
    }
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
        let t = T.get(values.len() - 1).copied().unwrap_or(1.96);
        Self { mean, within: t * (squares / (n - 1.0) / n).sqrt() }
    }
}
