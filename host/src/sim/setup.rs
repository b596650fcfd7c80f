//! What one run is about: the farm, its work, its reports.
//!
//! Every time is in units of one mean service time at speed 1.

mod read;

use serde::{Deserialize, Serialize};

use super::world::UNIT;

/// One simulated farm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// Servers.
    pub servers: usize,
    /// How fast they are.
    pub speeds: Speeds,
    /// Whether strategies are told the speeds, as weights.
    pub speeds_known: bool,
    /// How a server works on what it has.
    pub discipline: Discipline,
    /// How long requests take.
    pub service: Service,
    /// How requests come.
    pub arrivals: Arrivals,
    /// Arriving work over what all servers can do, 0 to 1.
    pub utilisation: f64,
    /// Hosts that choose, each for an equal share of the requests.
    pub hosts: usize,
    /// Whether each is told how many there are.
    pub hosts_known: bool,
    /// Time between two messages of a host that tell the others what it handed out; 0: none.
    pub claims: f64,
    /// Time between two reports of a server.
    pub every: f64,
    /// When servers report.
    pub timing: Timing,
    /// From a report's capture to its arrival.
    pub delay: f64,
    /// Share of reports that a host misses.
    pub loss: f64,
    /// What reports tell.
    pub content: Content,
    /// A unit in milliseconds: what a strategy's and a host's own times are held against, as the ten
    /// seconds of an average.
    pub service_ms: f64,
    /// Whether clients tell how their requests went, and hosts their averages of that.
    pub outcomes: bool,
    /// The first server works at this share of its speed during `incident`.
    pub slowed_to: f64,
    /// Start and end of that; a share of 0 is a crash, which also ends its reports.
    pub incident: Option<(f64, f64)>,
    /// Share of its requests that the first server fails, during `incident` or, without one, always.
    pub failures: f64,
    /// What a request that fails takes of its work: failing is often fast.
    pub failure_work: f64,
    /// Whether other work comes and goes on every server: 10 units in 100, which leave it 0.3.
    pub antagonist: bool,
    /// Keys of clients, each with its share of the requests; 0: requests carry none.
    pub keys: u64,
    /// How unequal the shares are: that of the n-th key is 1 / n to this power. 0: equal, 1: Zipf's law.
    pub key_skew: f64,
    /// Whether strategies are told each request's work, as its cost.
    pub costs_known: bool,
    /// Requests, the first tenth of them to warm up.
    pub requests: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            servers: 100,
            speeds: Speeds::Equal,
            speeds_known: false,
            discipline: Discipline::Fifo,
            service: Service::Exponential,
            arrivals: Arrivals::Poisson,
            utilisation: 0.9,
            hosts: 1,
            hosts_known: false,
            claims: 0.0,
            every: 1.0,
            timing: Timing::Spread,
            delay: 0.0,
            loss: 0.0,
            content: Content::Counts,
            service_ms: 1_000.0,
            outcomes: true,
            slowed_to: 0.2,
            incident: None,
            failures: 0.0,
            failure_work: 0.05,
            antagonist: false,
            keys: 0,
            key_skew: 1.0,
            costs_known: false,
            requests: 200_000,
        }
    }
}

/// How fast the servers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speeds {
    /// All 1.
    Equal,
    /// Half of them 0.5, half 1.5.
    Halves,
    /// A tenth of them 0.2, the others 1.
    SlowTenth,
    /// Log-normal with mean 1 and standard deviation 0.5, at least 0.1.
    LogNormal,
}

/// How a server works on what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// One request after the other.
    Fifo,
    /// All at once, in equal shares.
    Shared,
}

/// How long requests take: the law of their work, mean 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Exponential.
    Exponential,
    /// Always 1.
    Fixed,
    /// Log-normal with standard deviation 1.
    LogNormal,
    /// 0.5 for 99 in 100, 50 for the others, scaled to mean 1.
    Bimodal,
}

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At one rate.
    Poisson,
    /// In bursts: twice the rate for 10 units, 0.75 of it for 40, on average.
    Bursts,
    /// At one rate, but for the fifth in the middle: 11/6 of it, so that 0.6 becomes 1.1.
    Step,
}

/// When servers report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// All at the same moment.
    Together,
    /// Each at its own phase.
    Spread,
    /// Each at its own phase, and a fifth earlier or later each time.
    Jittered,
}

/// What reports tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Requests inside (also as the load), accepted and completed.
    Counts,
    /// Only a load: the share of the last period that the server was busy, with 5 % of noise.
    Utilisation,
}

impl Setup {
    /// Whether all servers are alike.
    #[must_use]
    pub fn equal_speeds(&self) -> bool {
        self.speeds == Speeds::Equal
    }

    /// The servers' speeds.
    #[must_use]
    pub fn speeds(&self, random: &mut fastrand::Rng) -> Vec<f64> {
        let speed = |server: usize| match self.speeds {
            Speeds::Equal => 1.0,
            Speeds::Halves if server.is_multiple_of(2) => 0.5,
            Speeds::Halves => 1.5,
            Speeds::SlowTenth if server.is_multiple_of(10) => 0.2,
            Speeds::SlowTenth => 1.0,
            Speeds::LogNormal => log_normal(random, 0.5).max(0.1),
        };
        (0..self.servers).map(speed).collect()
    }

    /// Nanoseconds of virtual time in a strategy's millisecond.
    pub(super) fn millisecond(&self) -> u64 {
        ((UNIT / self.service_ms) as u64).max(1)
    }

    /// The work of one request.
    pub(super) fn work(&self, random: &mut fastrand::Rng) -> f64 {
        match self.service {
            Service::Exponential => exponential(random),
            Service::Fixed => 1.0,
            Service::LogNormal => log_normal(random, 1.0),
            Service::Bimodal if random.f64() < 0.01 => 50.0 / 0.995,
            Service::Bimodal => 0.5 / 0.995,
        }
    }
}

/// Exponential with mean 1.
pub(super) fn exponential(random: &mut fastrand::Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}

/// Normal with mean 0 and deviation 1 (Box and Muller 1958).
pub(super) fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// Log-normal with mean 1 and this standard deviation.
fn log_normal(random: &mut fastrand::Rng, deviation: f64) -> f64 {
    let variance = (1.0 + deviation * deviation).ln();
    (normal(random) * variance.sqrt() - variance / 2.0).exp()
}
