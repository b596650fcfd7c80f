//! A farm in virtual time, to compare strategies before they are used: setup and strategy in, response
//! times and spread out.
//!
//! Invariants: equal setup, strategy and seed give equal figures; every strategy meets the same
//! requests. Model, measures and baselines follow the literature named in `config/scenarios`.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "virtual time and counts of a simulation are far below the limits of their types"
)]

mod averages;
pub mod chooser;
mod clients;
pub mod compare;
pub mod figures;
mod host;
pub mod measure;
pub mod rules;
pub mod scenario;
mod server;
pub mod setup;
mod tally;
mod world;

use chooser::{Baseline, BaselineChooser, Chooser};
use measure::Outcome;
use rules::RuleChooser;
use setup::Setup;

/// Runs one setup; `chooser` makes one chooser a host, from its number.
///
/// # Errors
/// A policy failed, in words.
pub fn run(
    setup: &Setup,
    seed: u64,
    mut chooser: impl FnMut(u64) -> Result<Box<dyn Chooser>, String>,
) -> Result<Outcome, String> {
    let mut choosers =
        (0..setup.hosts as u64).map(&mut chooser).collect::<Result<Vec<_>, String>>()?;
    world::World::new(setup, &mut choosers, false, seed).run()
}

/// Runs one setup under a baseline.
///
/// # Errors
/// None is expected: baselines do not fail.
pub fn run_baseline(setup: &Setup, seed: u64, baseline: Baseline) -> Result<Outcome, String> {
    let speeds = world::nominal(setup, seed).iter().sum();
    let chooser = |host| -> Box<dyn Chooser> {
        let seed = seed.wrapping_mul(977).wrapping_add(host);
        match baseline {
            Baseline::Rule(rule) => Box::new(RuleChooser::new(rule, setup, speeds, seed)),
            _ => Box::new(BaselineChooser::new(baseline, seed)),
        }
    };
    let mut choosers: Vec<_> = (0..setup.hosts as u64).map(chooser).collect();
    world::World::new(setup, &mut choosers, baseline == Baseline::Central, seed).run()
}

#[cfg(test)]
mod tests;
