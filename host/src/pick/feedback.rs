//! What comes back after a pick: outcomes and ends of leases in, facts about targets out.
//!
//! Nothing here asks a guest anything: facts go to the pools' tables, and the guests are told in
//! batches. Invariant: what cannot be placed is refused by name and keeps nothing else from being
//! counted.

use std::sync::Arc;

use super::Pools;
use super::health::Outcome;
use super::lease::{self, Lease};
use super::pool::Pool;
use super::table::PART_ROWS;

/// Outcomes of one call at most.
pub const OUTCOMES_MAX: usize = 1_000;

/// An outcome of one request, and whose it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feedback {
    /// Who served it.
    pub target: FeedbackTarget,
    /// How it went.
    pub outcome: Outcome,
}

/// Who served a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedbackTarget {
    /// A machine's target in a pool; the pool's empty name is `default`.
    Machine {
        /// The pool's name.
        pool: String,
        /// The machine's name.
        machine: String,
    },
    /// The one that this pick chose.
    Decision(String),
}

/// Outcomes that have no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{unknown} of {all} outcomes have no target; the first: {first}")]
pub struct FeedbackError {
    /// Outcomes without a target.
    pub unknown: usize,
    /// Outcomes of the call; the others are counted.
    pub all: usize,
    /// Why there is none for the first of them.
    pub first: Untraced,
}

/// Why an outcome has no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untraced {
    /// No such pool.
    #[error("there is no pool {0:?}")]
    Pool(String),
    /// The machine has no target there now.
    #[error("machine {machine:?} has no target in pool {pool:?}")]
    Machine {
        /// The pool.
        pool: String,
        /// As named, or as once decided.
        machine: String,
    },
    /// Not one of the last decisions of this host.
    #[error("decision {0:?} is not remembered")]
    Decision(String),
}

impl Pools {
    /// Takes outcomes.
    ///
    /// # Errors
    /// Some have no target; the others are counted.
    pub fn record(&self, feedback: &[Feedback]) -> Result<(), FeedbackError> {
        let now_ms = self.clock.now_ms();
        let pools = self.all();
        let mut by_pool: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
        let mut unknown: Vec<(usize, Untraced)> = Vec::new();
        for (place, one) in feedback.iter().enumerate() {
            match self.trace(&pools, &one.target) {
                Ok((pool, machine)) => by_pool[pool].push((place, machine, one.outcome)),
                Err(why) => unknown.push((place, why)),
            }
        }
        for (pool, outcomes) in pools.iter().zip(&by_pool) {
            let untraced = pool.record(outcomes, now_ms);
            let missing = |place: &usize| outcomes.iter().find(|outcome| outcome.0 == *place);
            unknown.extend(untraced.iter().filter_map(missing).map(|(place, machine, _)| {
                let (pool, machine) = (pool.name().to_owned(), machine.to_string());
                (*place, Untraced::Machine { pool, machine })
            }));
        }
        let (count, all) = (unknown.len(), feedback.len());
        match unknown.into_iter().min_by_key(|(place, _)| *place) {
            None => Ok(()),
            Some((_, first)) => Err(FeedbackError { unknown: count, all, first }),
        }
    }

    /// Ends a lease; false: it is not open (any more).
    pub fn close_lease(&self, id: &str) -> bool {
        let id = lease::id_of(id);
        let closed = id.and_then(|id| self.leases.close(id, self.clock.now_ms()));
        let was_open = closed.is_some();
        self.take_off(closed.as_slice());
        was_open
    }

    /// Leases open now.
    #[must_use]
    pub fn open_leases(&self) -> usize {
        self.leases.open()
    }

    /// Does what time brings: leases, ejections and slow starts end, guests hear of outcomes, large
    /// pools are ranked for decisions. Whether there was anything.
    pub(super) fn tend(&self, now_ms: u64) -> bool {
        loop {
            let ended = self.leases.expire(now_ms, PART_ROWS);
            if ended.is_empty() {
                break;
            }
            self.take_off(&ended);
        }
        let ranks = self.decisions_max() > 0;
        let tend = |pool: &&Arc<Pool>| pool.tend(now_ms) | (ranks && pool.rank(now_ms));
        self.all().iter().filter(tend).count() > 0
    }

    /// Takes ended leases off their targets' counts.
    fn take_off(&self, ended: &[Lease]) {
        for pool in &*self.all() {
            let of_pool = ended.iter().filter(|lease| lease.pool == pool.number);
            let leases: Vec<_> =
                of_pool.map(|lease| (Arc::clone(&lease.machine), lease.opened_ms)).collect();
            if !leases.is_empty() {
                pool.end_leases(&leases);
            }
        }
    }

    /// The place among these pools, and the machine.
    fn trace(
        &self,
        pools: &[Arc<Pool>],
        target: &FeedbackTarget,
    ) -> Result<(usize, Arc<str>), Untraced> {
        let (pool, machine) = match target {
            FeedbackTarget::Machine { pool: name, machine } => {
                let pool = self.get(name).map_err(|_| Untraced::Pool(name.clone()))?;
                (pool, machine.as_str().into())
            }
            FeedbackTarget::Decision(name) => {
                let target = self.decisions.target(name);
                target.ok_or_else(|| Untraced::Decision(name.clone()))?
            }
        };
        let place = pools.iter().position(|known| known.number == pool.number);
        // Decided by a pool that the configuration has given up since.
        Ok((place.ok_or_else(|| Untraced::Pool(pool.name().to_owned()))?, machine))
    }
}
