//! What a guest is started from: a module with the settings of the pool that wants it.

use std::sync::Arc;

use super::pool::Wanted;
use crate::policy::trial::{try_formula, try_strategy};
use crate::policy::{
    FormulaGuest, Kind, Module, PolicyEngine, Start, StartError, Steps, StrategyGuest,
};

/// A policy, its settings and its module.
#[derive(Debug, Clone)]
pub(super) struct Make {
    pub(super) wanted: Wanted,
    pub(super) module: Arc<Module>,
}

impl Make {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.wanted == other.wanted && self.module.generation == other.module.generation
    }

    /// A configured formula.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn formula(&self, engine: &PolicyEngine) -> Result<FormulaGuest, StartError> {
        FormulaGuest::start_in_steps(self.start(engine, &Steps::default()))
    }

    /// Starts and tries a formula, and throws it away.
    ///
    /// # Errors
    /// It does not start, or the trial failed.
    pub(super) fn try_formula(
        &self,
        engine: &PolicyEngine,
        steps: &Steps,
    ) -> Result<(), StartError> {
        let mut trial = FormulaGuest::start_in_steps(self.start(engine, steps))?;
        Ok(steps.run("trial", || try_formula(&mut trial))?)
    }

    /// Starts and tries it as what it is wanted for, and throws it away.
    ///
    /// # Errors
    /// It does not start, or the trial failed.
    pub(super) fn tried(
        &self,
        kind: Kind,
        engine: &PolicyEngine,
        steps: &Steps,
    ) -> Result<(), StartError> {
        match kind {
            Kind::Formula => self.try_formula(engine, steps),
            Kind::Strategy => self.try_strategy(engine, steps),
        }
    }

    /// A configured strategy.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn strategy(&self, engine: &PolicyEngine) -> Result<StrategyGuest, StartError> {
        let steps = Steps::default();
        StrategyGuest::start_in_steps(self.start(engine, &steps), fastrand::u64(..))
    }

    /// Starts and tries a strategy, and throws it away.
    ///
    /// # Errors
    /// It does not start, or the trial failed.
    pub(super) fn try_strategy(
        &self,
        engine: &PolicyEngine,
        steps: &Steps,
    ) -> Result<(), StartError> {
        let start = self.start(engine, steps);
        let mut trial = StrategyGuest::start_in_steps(start, fastrand::u64(..))?;
        Ok(steps.run("trial", || try_strategy(&mut trial))?)
    }

    fn start<'a>(&'a self, engine: &'a PolicyEngine, steps: &'a Steps) -> Start<'a> {
        let Wanted { policy: name, settings } = &self.wanted;
        Start { engine, name, module: &self.module, settings, steps }
    }
}
