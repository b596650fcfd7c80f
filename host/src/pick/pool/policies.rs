//! A pool's two policies: which are wanted, which serve, and what became of those that failed.
//!
//! Invariant: a status is locked last and for moments; a fault is counted once, however many see it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::Pool;
use super::seat::Seat;
use crate::config::OnFault;
use crate::pick::schedule::Standing;
use crate::pick::supply::Event;
use crate::policy::{CallError, Decider, Generation, Kind, Step};

/// Why the strategy did not choose although nothing is wrong with it.
pub(super) const BUSY: &str = "busy";
pub(super) const NO_ANSWER: &str = "no answer";
/// A policy as the configuration wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pick) struct Wanted {
    pub(in crate::pick) policy: Arc<str>,
    /// A JSON object.
    pub(in crate::pick) settings: Arc<str>,
}

/// How one of a pool's policies is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// What decides; `None`: native answers.
    pub serving: Option<Decider>,
    /// What the guest that was seated last was configured with.
    pub settings: Arc<str>,
    /// Why native answers are given, or why the newest generation is not used.
    pub trouble: Option<Arc<str>>,
    /// Faults of its guests, by reason.
    pub faults: BTreeMap<&'static str, u64>,
    /// Swaps to another generation, or to other settings.
    pub swaps: u64,
    /// Generations that failed too often, and do not serve here any more.
    pub quarantined: Vec<Generation>,
    /// What the last start of a guest went through, from its settings to the swap.
    pub steps: Vec<Step>,
    /// When a guest that failed, or could not be started, is started again.
    pub again: Option<Instant>,
}

/// What is shown of a pool's schedule.
#[derive(Debug, Default)]
pub(super) struct Scheduled {
    /// Which entry is in force; `None`: there is no schedule.
    standing: Mutex<Option<Arc<Standing>>>,
    /// How often another one came into force.
    switches: AtomicU64,
}

impl Pool {
    /// Wants these, formula and strategy, from now on. Whoever is seated serves until the supply has
    /// seated them.
    pub(in crate::pick) fn want(&self, wanted: [Wanted; 2]) {
        *self.wanted.lock() = wanted;
    }

    /// What the configuration wants, at this time of the day.
    pub(in crate::pick) fn wanted(&self, kind: Kind) -> Wanted {
        self.wanted.lock()[index(kind)].clone()
    }

    /// How one of its policies is doing.
    #[must_use]
    pub fn status(&self, kind: Kind) -> PolicyStatus {
        self.status_of(kind).lock().clone()
    }

    /// What decides; `None`: native answers.
    #[must_use]
    pub fn serving(&self, kind: Kind) -> Option<Decider> {
        self.status_of(kind).lock().serving.clone()
    }

    /// The policy's configured name.
    #[must_use]
    pub fn policy_name(&self, kind: Kind) -> Arc<str> {
        Arc::clone(&self.wanted.lock()[index(kind)].policy)
    }

    /// Which entry of its schedule is in force; `None`: it has none.
    #[must_use]
    pub fn schedule(&self) -> Option<Arc<Standing>> {
        self.schedule.standing.lock().clone()
    }

    pub(in crate::pick) fn show_schedule(&self, standing: Option<Arc<Standing>>) {
        *self.schedule.standing.lock() = standing;
    }

    /// How often another entry of its schedule came into force.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.schedule.switches.load(Ordering::Relaxed)
    }

    pub(in crate::pick) fn note_switch(&self) {
        self.schedule.switches.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::pick) fn note_serving(&self, kind: Kind, decider: Decider, settings: Arc<str>) {
        let mut status = self.status_of(kind).lock();
        if status.serving.as_ref() != Some(&decider) || status.settings != settings {
            status.swaps += 1;
        }
        status.settings = settings;
        status.quarantined.retain(|generation| *generation != decider.generation);
        status.serving = Some(decider);
        status.trouble = None;
    }

    /// A generation failed too often.
    pub(in crate::pick) fn note_quarantine(&self, kind: Kind, generation: Generation) {
        self.status_of(kind).lock().quarantined.push(generation);
    }

    /// A guest was started, or could not be.
    pub(in crate::pick) fn note_steps(&self, kind: Kind, steps: Vec<Step>) {
        self.status_of(kind).lock().steps = steps;
    }

    /// When something is started again.
    pub(in crate::pick) fn note_again(&self, kind: Kind, again: Option<Instant>) {
        self.status_of(kind).lock().again = again;
    }

    /// Every generation may serve again.
    pub(in crate::pick) fn lift_quarantine(&self, kind: Kind) {
        self.status_of(kind).lock().quarantined.clear();
    }

    /// Whether a policy that fails too often makes way for the last good one.
    pub(in crate::pick) fn rolls_back(&self) -> bool {
        *self.on_fault.lock() != OnFault::Native
    }

    /// Whether a request is refused for which the strategy could not be asked for this reason: not
    /// for a moment's haste, and not where the strategy has no answer.
    pub(in crate::pick) fn refuses(&self, why: &str) -> bool {
        why != BUSY && why != NO_ANSWER && *self.on_fault.lock() == OnFault::Refuse
    }

    /// There is no policy of the wanted name any more. A strategy is stood in for natively; a formula
    /// serves on, because there are no loads without one.
    pub(in crate::pick) fn withdraw(&self, kind: Kind, why: &str) {
        if kind == Kind::Formula {
            return;
        }
        let old = std::mem::replace(&mut *self.strategy.take(), Seat::Native("no policy".into()));
        drop(old); // outside the lock
        let mut status = self.status_of(kind).lock();
        status.serving = None;
        status.trouble = Some(why.into());
    }

    /// The newest generation cannot be used; whatever serves goes on.
    pub(in crate::pick) fn note_trouble(&self, kind: Kind, trouble: &str) {
        self.status_of(kind).lock().trouble = Some(trouble.into());
    }

    /// A guest failed and is dropped: counts it and, if it was serving, asks for another one.
    pub(in crate::pick) fn note_fault(&self, kind: Kind, fault: &CallError, serving: Option<u64>) {
        let mut status = self.status_of(kind).lock();
        let policy = match &status.serving {
            Some(decider) => Arc::clone(&decider.policy),
            None => self.policy_name(kind),
        };
        tracing::warn!(pool = self.name(), %policy, %kind, %fault, "policy failed");
        *status.faults.entry(fault.reason()).or_default() += 1;
        status.serving = None;
        status.trouble = Some(fault.to_string().into());
        drop(status);
        // The supply ends after the pools' users: a closed channel means that we are stopping.
        if let Some(serial) = serving {
            self.supply.send(Event::Failed { pool: self.number, kind, serial }).ok();
        }
    }

    pub(super) fn vacate(&self, seat: &mut Seat, kind: Kind, fault: &CallError) -> Arc<str> {
        let why: Arc<str> = fault.reason().into();
        let failed = std::mem::replace(seat, Seat::Native(Arc::clone(&why)));
        let serial = match &failed {
            Seat::Guest(guest) => Some(guest.serial),
            Seat::Native(_) => None,
        };
        self.note_fault(kind, fault, serial);
        why
    }

    pub(super) fn status_of(&self, kind: Kind) -> &Mutex<PolicyStatus> {
        &self.statuses[index(kind)]
    }
}

impl Wanted {
    pub(in crate::pick) fn new(policy: &str, settings: &serde_json::Value) -> Self {
        Self { policy: policy.into(), settings: settings.to_string().into() }
    }
}

/// The place of a kind in a pool's pairs.
pub(in crate::pick) fn index(kind: Kind) -> usize {
    match kind {
        Kind::Formula => 0,
        Kind::Strategy => 1,
    }
}
