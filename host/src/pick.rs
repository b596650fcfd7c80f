//! The walk of one request: pool → strategy → checked answer.
//!
//! [`pick`] is that walk in one screenful; read it first. [`pool`] holds what it needs, [`table`] the
//! targets, [`native`] the choice without a guest. The other side of a pool is [`intake`]: datagram →
//! fleet → formula ([`score`]) → the strategy's update. [`supply`] gives both sides new guests, by the
//! time of day where there is a [`schedule`]; a [`shadow`] is one that is only tried.
//! After a pick, [`decision`] remembers why, a [`lease`] counts it while it lasts, and [`feedback`] says
//! how it went, which makes a target's [`health`].
//!
//! Invariant: with an eligible target in the pool a pick is answered, whatever the policies do.

pub mod constraint;
pub mod decision;
pub mod feedback;
pub mod health;
pub mod intake;
pub mod lease;
mod make;
mod native;
pub mod pool;
pub mod schedule;
pub mod score;
pub mod shadow;
pub mod supply;
mod table;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::policy::{Decider, Kind};
use constraint::Constraint;
use decision::{Decision, Decisions};
use lease::{LEASES_MAX, Lease, Leases};
use parking_lot::RwLock;
use pool::{Ask, Pool};

/// Targets of one answer at most.
pub const TARGETS_MAX: usize = 16;

/// Everything a request needs, shared by all of them.
#[derive(Debug)]
pub struct Pools {
    /// Replaced as a whole: who reads it has one configuration's pools.
    set: RwLock<Arc<[Arc<Pool>]>>,
    clock: Clock,
    decisions: Decisions,
    leases: Leases,
}

/// One request for a target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PickRequest {
    /// The pool's name; empty: `default`.
    pub pool: String,
    /// What the client is known by; empty: nothing.
    pub key: String,
    /// How many ranked targets; 0 counts as 1, and more than [`TARGETS_MAX`] as that.
    pub n: usize,
    /// Machines that are not wanted.
    pub exclude: Vec<String>,
    /// What is wanted of a target's labels.
    pub constraint: Constraint,
    /// Opens a lease of this length on the picked target; `None`: none.
    pub lease: Option<Duration>,
    /// Remember the targets nearest by load, however large the pool: costs O(n).
    pub explain: bool,
}

/// One picked target.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked {
    /// The machine's name.
    pub machine: Arc<str>,
    /// Where to send the work.
    pub address: Arc<str>,
    /// The formula's answer; NaN: not known yet; infinite: a metric is missing.
    pub load: f64,
}

/// The answer to a request, and how it came about.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The one to use.
    pub target: Picked,
    /// The next best ones, best first.
    pub others: Vec<Picked>,
    /// The pool that was asked.
    pub pool: Arc<Pool>,
    /// Names this pick.
    pub decision: String,
    /// Names the lease, if one was wanted.
    pub lease: Option<String>,
    /// Who chose: the strategy, or why it was not asked.
    pub strategy: Result<Decider, Arc<str>>,
}

/// Why there is no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No such pool.
    #[error("there is no pool {name:?}")]
    UnknownPool {
        /// As asked.
        name: String,
        /// The pool with the most similar name.
        nearest: Option<String>,
    },
    /// The pool has no eligible target, or none that is not excluded.
    #[error(
        "no target of pool {pool:?} is eligible: {known} known, {excluded} excluded by the request{}",
        .unfit.as_ref().map_or_else(String::new, |unfit| format!(", {unfit}"))
    )]
    NobodyEligible {
        /// The pool.
        pool: String,
        /// Targets in it, alive or not.
        known: usize,
        /// Machines that the request does not want.
        excluded: usize,
        /// What else it does not want; `None`: it says nothing of labels.
        unfit: Option<Unfit>,
    },
    /// The strategy cannot be asked, and the pool wants no other answer.
    #[error("the strategy of pool {pool:?} does not serve ({why}), and its on_fault is \"refuse\"")]
    PolicyFailed {
        /// The pool.
        pool: String,
        /// In a word.
        why: Arc<str>,
    },
    /// A lease was wanted, and too many are open.
    #[error("no lease can be opened: {LEASES_MAX} are open")]
    LeasesFull,
}

/// What a request wants of labels, and who has them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fit} fit where={constraint}")]
pub struct Unfit {
    /// As asked.
    pub constraint: Constraint,
    /// Targets that fit, eligible or not.
    pub fit: usize,
    /// A label that no target of the pool has, and the most similar one that some have.
    pub unknown: Option<(String, Option<String>)>,
}

/// Picks a target for one request.
///
/// # Errors
/// The pool does not exist or has no eligible target, or a wanted lease has no room; because of a
/// policy only where the configuration says so.
pub fn pick(pools: &Pools, request: &PickRequest) -> Result<Answer, PickError> {
    let pool = pools.get(&request.pool)?;
    let room = match request.lease {
        Some(length) => Some((pools.leases.room().ok_or(PickError::LeasesFull)?, length)),
        None => None,
    };
    let now_ms = pools.clock.now_ms();
    let ask = Ask::new(request, now_ms);
    let (number, mut scene) = pools.decisions.begin();
    let (mut targets, strategy) = match pool.ask_guest(&ask, &mut scene) {
        Ok((targets, decider)) => (targets, Ok(decider)),
        Err(why) if pool.refuses(&why) => {
            pool.count_refused();
            return Err(PickError::PolicyFailed { pool: pool.name().to_owned(), why });
        }
        Err(why) => (pool.ask_native(&ask, &mut scene), Err(why)),
    };
    pool.count(strategy.is_ok(), targets.is_empty());
    if targets.is_empty() {
        let (known, excluded) = (pool.targets(), request.exclude.len());
        let unfit = pool.unfit(&request.constraint);
        let pool = pool.name().to_owned();
        return Err(PickError::NobodyEligible { pool, known, excluded, unfit });
    }
    let target = targets.remove(0);
    let lease = room.map(|(room, length)| {
        let lease = Lease::new(pool.number, &target.machine, now_ms, length);
        lease::id_text(room.open(&lease))
    });
    if let Some(scene) = scene {
        let (pool, request, strategy) = (Arc::clone(&pool), ask.asked(), strategy.clone());
        let formula = pool.serving(Kind::Formula);
        let at_ms = now_ms;
        let decision = Decision { number, at_ms, pool, request, strategy, formula, scene };
        pools.decisions.keep(decision);
    }
    let decision = pools.decisions.name(number);
    Ok(Answer { target, others: targets, pool, decision, lease, strategy })
}

impl Pools {
    /// No pools yet, picked from by this clock; so many decisions are remembered.
    #[must_use]
    pub fn new(clock: Clock, decisions: usize) -> Self {
        let set = RwLock::new(Arc::default());
        Self { set, clock, decisions: Decisions::new(decisions), leases: Leases::default() }
    }

    /// These pools instead of those that were; requests that have theirs already finish with it.
    pub(crate) fn replace(&self, pools: Vec<Arc<Pool>>) {
        *self.set.write() = pools.into();
    }

    /// Remembers so many decisions from now on.
    pub fn remember(&self, decisions: usize) {
        self.decisions.resize(decisions);
    }

    /// A pool by its name; the empty name is `default`.
    ///
    /// # Errors
    /// There is none, with the nearest name.
    pub fn get(&self, name: &str) -> Result<Arc<Pool>, PickError> {
        let wanted = if name.is_empty() { "default" } else { name };
        let set = self.set.read();
        set.iter().find(|pool| pool.name() == wanted).cloned().ok_or_else(|| {
            let names = set.iter().map(|pool| pool.name());
            let nearest = crate::config::nearest(wanted, names).map(str::to_owned);
            PickError::UnknownPool { name: wanted.to_owned(), nearest }
        })
    }

    /// All pools, in the configuration's order.
    #[must_use]
    pub fn all(&self) -> Arc<[Arc<Pool>]> {
        Arc::clone(&self.set.read())
    }

    /// The clock that dates everything.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Decisions remembered at most.
    #[must_use]
    pub fn decisions_max(&self) -> usize {
        self.decisions.len()
    }

    /// A decision by its name, if it is one of the last ones.
    #[must_use]
    pub fn decision(&self, name: &str) -> Option<Decision> {
        let mut decision = self.decisions.get(name)?;
        decision.pool.resolve(&mut decision.scene);
        Some(decision)
    }

    /// The newest decisions first, so many at most, of this pool where one is named.
    #[must_use]
    pub fn newest_decisions(&self, pool: Option<&str>, limit: usize) -> Vec<Decision> {
        self.decisions.newest(pool, limit)
    }

    /// What clients call a decision.
    #[must_use]
    pub fn name_of(&self, decision: &Decision) -> String {
        self.decisions.name(decision.number)
    }
}

/// The number of a client's key for strategies; 0 for no key.
///
/// FNV-1a with the finalizer of `SplitMix64`, the same on every host and in every version, so that
/// all hosts hash a client to the same target.
#[must_use]
pub fn key_hash(key: &str) -> u64 {
    if key.is_empty() {
        return 0;
    }
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_hash_is_the_same_for_ever() {
        assert_eq!(key_hash(""), 0);
        assert_eq!(key_hash("client-1"), key_hash("client-1"));
        assert_ne!(key_hash("client-1"), key_hash("client-2"));
        assert_eq!(key_hash("a"), 0x02c0_bdbf_4814_20f8);
    }
}
