//! Who chooses in a run: a policy behind the contract, or a baseline that no host could be.
//!
//! Baselines see the servers as they are ("now") or only their reports; both bound and explain what
//! policies can reach. Ties are broken at random unless said otherwise.

use std::sync::Arc;

use super::rules::Rule;
use super::server::Server;
use crate::policy::guest::{Request, TargetView};
use crate::policy::{Module, PolicyEngine, StrategyGuest};

/// A host's choice.
pub trait Chooser {
    /// New or changed targets, as a strategy is told.
    ///
    /// # Errors
    /// The policy failed, in words.
    fn update(&mut self, now_ms: u64, hosts: u32, targets: &[TargetView]) -> Result<(), String>;

    /// A target is gone.
    ///
    /// # Errors
    /// The policy failed, in words.
    fn leave(&mut self, slot: u32) -> Result<(), String>;

    /// The slot for one request.
    ///
    /// # Errors
    /// The policy failed, in words.
    fn pick(&mut self, request: &Request, servers: &Servers<'_>) -> Result<Option<u32>, String>;
}

/// The servers as they are at the moment of a pick.
#[derive(Debug, Clone, Copy)]
pub struct Servers<'w>(pub(super) &'w [Server]);

impl Servers<'_> {
    /// Requests inside a server.
    fn queue(&self, server: usize) -> f64 {
        self.0[server].len() as f64
    }

    fn random(&self, random: &mut fastrand::Rng) -> usize {
        random.usize(..self.0.len())
    }

    /// The server with the lowest cost.
    fn lowest(&self, random: &mut fastrand::Rng, cost: impl Fn(usize) -> f64) -> usize {
        lowest(random, self.0.len(), cost)
    }
}

/// The place with the lowest cost.
pub(super) fn lowest(random: &mut fastrand::Rng, len: usize, cost: impl Fn(usize) -> f64) -> usize {
    let (mut best, mut best_cost, mut ties) = (0, f64::INFINITY, 0);
    for server in 0..len {
        let this = cost(server);
        if this < best_cost {
            (best, best_cost, ties) = (server, this, 1);
        } else if this <= best_cost {
            ties += 1;
            if random.usize(..ties) == 0 {
                best = server;
            }
        }
    }
    best
}

/// Different servers of so many, as far as there are.
pub(super) fn drawn<const N: usize>(random: &mut fastrand::Rng, servers: usize) -> [usize; N] {
    let mut drawn = [0; N];
    for place in 0..N {
        let mut next = random.usize(..servers);
        while place < servers && drawn[..place].contains(&next) {
            next = random.usize(..servers);
        }
        drawn[place] = next;
    }
    drawn
}

/// What to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Any server.
    Random,
    /// Any server, in proportion to its speed.
    SpeedRandom,
    /// Each in turn.
    RoundRobin,
    /// The shorter queue of two drawn, as they are now.
    P2cNow,
    /// The shortest of three.
    P3cNow,
    /// The shortest queue now.
    JsqNow,
    /// The shortest expected delay now: (queue + 1) / speed.
    SedNow,
    /// The fastest idle server, else the shortest expected delay.
    NeverQueueNow,
    /// One queue for all, served by whoever is idle: no dispatcher can do better without sizes.
    Central,
    /// The lowest report.
    LowestReport,
    /// The lower report of two drawn.
    P2cReport,
    /// By a rule of the literature.
    Rule(Rule),
}

impl Baseline {
    /// Those that scenarios may name.
    pub const NAMES: [(&'static str, Self); 17] = [
        ("random", Self::Random),
        ("speed-random", Self::SpeedRandom),
        ("round-robin", Self::RoundRobin),
        ("p2c-now", Self::P2cNow),
        ("p3c-now", Self::P3cNow),
        ("jsq-now", Self::JsqNow),
        ("sed-now", Self::SedNow),
        ("never-queue-now", Self::NeverQueueNow),
        ("central", Self::Central),
        ("lowest-report", Self::LowestReport),
        ("p2c-report", Self::P2cReport),
        ("p3c-report", Self::Rule(Rule::LowestOfThree)),
        ("own-report", Self::Rule(Rule::Own)),
        ("drained-report", Self::Rule(Rule::Drained)),
        ("p2c-drained-report", Self::Rule(Rule::DrainedOfTwo)),
        ("basic-interpretation", Self::Rule(Rule::BasicInterpretation)),
        ("aggressive-interpretation", Self::Rule(Rule::AggressiveInterpretation)),
    ];
}

/// A baseline's choice.
#[derive(Debug)]
pub struct BaselineChooser {
    baseline: Baseline,
    random: fastrand::Rng,
    reports: Vec<f64>,
    turn: usize,
}

impl BaselineChooser {
    /// A baseline with random numbers of its own.
    #[must_use]
    pub fn new(baseline: Baseline, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let turn = random.usize(..1_000_000);
        Self { baseline, random, reports: Vec::new(), turn }
    }
}

impl Chooser for BaselineChooser {
    fn update(&mut self, _now_ms: u64, _hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        for target in targets {
            let slot = target.slot as usize;
            if self.reports.len() <= slot {
                self.reports.resize(slot + 1, 0.0);
            }
            self.reports[slot] = target.load;
        }
        Ok(())
    }

    fn leave(&mut self, slot: u32) -> Result<(), String> {
        self.reports[slot as usize] = f64::INFINITY;
        Ok(())
    }

    fn pick(&mut self, _request: &Request, servers: &Servers<'_>) -> Result<Option<u32>, String> {
        let Self { baseline, random, reports, turn } = self;
        let delay = |server: usize| (servers.queue(server) + 1.0) / servers.0[server].speed;
        let pair = |random: &mut fastrand::Rng| drawn(random, servers.0.len());
        let server = match baseline {
            // The others have choosers of their own, or none.
            Baseline::Random | Baseline::Central | Baseline::Rule(_) => servers.random(random),
            Baseline::SpeedRandom => {
                let total: f64 = servers.0.iter().map(|server| server.speed).sum();
                let mut draw = random.f64() * total;
                let at = servers.0.iter().position(|server| {
                    draw -= server.speed;
                    draw < 0.0
                });
                at.unwrap_or(servers.0.len() - 1)
            }
            Baseline::RoundRobin => {
                *turn += 1;
                *turn % servers.0.len()
            }
            Baseline::P2cNow => {
                let [first, second] = pair(random);
                if servers.queue(second) < servers.queue(first) { second } else { first }
            }
            Baseline::P3cNow => {
                let three: [usize; 3] = drawn(random, servers.0.len());
                three[lowest(random, three.len(), |place| servers.queue(three[place]))]
            }
            Baseline::JsqNow => servers.lowest(random, |server| servers.queue(server)),
            Baseline::SedNow => servers.lowest(random, delay),
            Baseline::NeverQueueNow => servers.lowest(random, |server| {
                if servers.queue(server) > 0.0 { 1e9 + delay(server) } else { delay(server) }
            }),
            Baseline::LowestReport => lowest(random, reports.len(), |server| reports[server]),
            Baseline::P2cReport => {
                let [first, second] = pair(random);
                if reports[second] < reports[first] { second } else { first }
            }
        };
        Ok(u32::try_from(server).ok())
    }
}

/// A strategy's guest, through the contract.
pub struct GuestChooser(StrategyGuest);

impl GuestChooser {
    /// Starts a guest of this module; `settings` is a JSON object.
    ///
    /// # Errors
    /// The module does not start, in words.
    pub fn start(
        engine: &PolicyEngine,
        name: &str,
        module: &Module,
        settings: &str,
        seed: u64,
    ) -> Result<Self, String> {
        let guest = StrategyGuest::start(engine, &Arc::from(name), module, settings, seed);
        guest.map(Self).map_err(|error| error.to_string())
    }
}

impl Chooser for GuestChooser {
    fn update(&mut self, now_ms: u64, hosts: u32, targets: &[TargetView]) -> Result<(), String> {
        self.0.update(now_ms, hosts, targets).map_err(|fault| fault.to_string())
    }

    fn leave(&mut self, slot: u32) -> Result<(), String> {
        self.0.leave(&[slot]).map_err(|fault| fault.to_string())
    }

    fn pick(&mut self, request: &Request, _servers: &Servers<'_>) -> Result<Option<u32>, String> {
        self.0.pick(*request).map_err(|fault| fault.to_string())
    }
}
