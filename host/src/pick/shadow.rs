//! A candidate beside one of a pool's policies: it sees every update and a share of the picks, and
//! decides nothing.
//!
//! In: what the pool's table lets it hear ([`super::table::tap`]). Out: a [`Report`]. It runs on a thread
//! of its own with guests of its own; a candidate strategy is told the live loads, a candidate formula
//! computes loads of its own from the same reports and another guest of the pool's strategy chooses by
//! them. Invariants: no pick and no report waits for it; nothing of the live pool is changed, not its
//! guests, counts, faults or breaker; memory is bounded, and when it falls behind, what is lost is
//! counted and the candidate fed anew; a candidate that fails is built anew after a back-off and
//! stopped when it fails too often, and nobody else notices.

mod bounds;
mod figures;
mod mirror;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::make::Make;
use super::pool::Pool;
use super::score::beside::Beside;
use super::supply::Event;
use super::table::tap::Tap;
use crate::clock::Clock;
use crate::config::PromoteConfig;
use crate::fleet::Fleet;
use crate::policy::{Decider, Kind, Limits, PolicyEngine, StartError, Steps, StrategyGuest};
pub use figures::{Choice, Disagreement, Figures, LoadPair, Loads, Spread, Spreads};
use run::Run;

/// What is tried, and how.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) candidate: Make,
    /// The pool's strategy, if the candidate is a formula: it chooses by its loads.
    pub(super) partner: Option<Make>,
    /// What each of them may use.
    pub(super) limits: Vec<Limits>,
    /// What serves where the candidate would; `None`: native code.
    pub(super) beside: Option<Decider>,
    /// Share of the picks, above 0 to 1.
    pub(super) share: f64,
    /// When it is promoted by itself.
    pub(super) bounds: Option<PromoteConfig>,
}

impl Spec {
    pub(super) fn kind(&self) -> Kind {
        self.candidate.module.kind()
    }

    /// Whether a run of one says all about the other.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_partner = match (&self.partner, &other.partner) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            _ => false,
        };
        let shares = [self.share, other.share].map(f64::to_bits);
        same_partner
            && self.candidate.is_same(&other.candidate)
            && self.limits == other.limits
            && self.beside == other.beside
            && shares[0] == shares[1]
            && self.bounds == other.bounds
    }
}

/// How a shadow is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing runs, for this reason.
    Waiting(String),
    /// It is being told of the targets.
    Feeding,
    /// It is asked.
    Running,
    /// It failed and is built anew.
    Rebuilding,
    /// It has ended, for this reason.
    Stopped(String),
    /// Its bounds hold, and it is about to serve.
    Passed(String),
    /// It serves now.
    Promoted,
}

impl State {
    /// In a word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting(_) => "waiting",
            Self::Feeding => "feeding",
            Self::Running => "running",
            Self::Rebuilding => "rebuilding",
            Self::Stopped(_) => "stopped",
            Self::Passed(_) => "passed",
            Self::Promoted => "promoted",
        }
    }

    /// Whether it may still be asked something.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Feeding | Self::Running | Self::Rebuilding | Self::Passed(_))
    }
}

/// What a shadow run has shown so far.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it is doing.
    pub state: State,
    /// Everything counted.
    pub figures: Figures,
    /// How work would have been spread.
    pub spreads: Spreads,
    /// Targets with the most different counts: machine, live, and the candidate's.
    pub apart: Vec<(Arc<str>, [u64; 2])>,
    /// When it began, in milliseconds of the host's clock.
    pub since_ms: u64,
}

/// A shadow as others see it.
#[derive(Debug)]
pub struct Shown {
    serial: u64,
    /// The candidate's name.
    pub policy: Arc<str>,
    /// What it is; `None`: nothing of that name is known.
    pub candidate: Option<(Decider, Kind)>,
    /// What serves where it would; `None`: native code, or nothing runs.
    pub beside: Option<Decider>,
    /// Share of the picks about which it is asked.
    pub share: f64,
    /// When it is promoted by itself.
    pub bounds: Option<PromoteConfig>,
    report: Mutex<Arc<Report>>,
    /// How it is to end.
    end: Mutex<Option<State>>,
    is_ending: AtomicBool,
}

impl Shown {
    /// Of a candidate that does not run.
    pub(super) fn idle(policy: &Arc<str>, spec: Option<&Spec>, state: State, now_ms: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let decider = |make: &Make| Decider {
            policy: Arc::clone(&make.wanted.policy),
            generation: make.module.generation,
        };
        let report = Report {
            state,
            figures: Figures::default(),
            spreads: Spreads::default(),
            apart: Vec::new(),
            since_ms: now_ms,
        };
        Self {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            policy: Arc::clone(policy),
            candidate: spec.map(|spec| (decider(&spec.candidate), spec.kind())),
            beside: spec.and_then(|spec| spec.beside.clone()),
            share: spec.map_or(0.0, |spec| spec.share),
            bounds: spec.and_then(|spec| spec.bounds.clone()),
            report: Mutex::new(Arc::new(report)),
            end: Mutex::new(None),
            is_ending: AtomicBool::new(false),
        }
    }

    /// What it has shown so far.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        Arc::clone(&self.report.lock())
    }

    /// Tells it from every other of this process.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    fn note_state(&self, state: State) {
        let mut report = self.report.lock();
        *report = Arc::new(Report { state, ..Report::clone(&report) });
    }
}

/// A shadow that runs, or has ended by itself.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) shown: Arc<Shown>,
    thread: JoinHandle<()>,
}

/// The candidate's guests.
pub(super) struct Guests {
    strategy: StrategyGuest,
    formula: Option<Beside>,
}

/// What a run needs of its host.
pub(super) struct Surroundings {
    /// Within what the candidate may use.
    pub(super) engine: PolicyEngine,
    /// Within what the pool's strategy may use, where that chooses.
    pub(super) partner: PolicyEngine,
    pub(super) fleet: Arc<RwLock<Fleet>>,
    pub(super) events: Sender<Event>,
    pub(super) changes: Arc<watch::Sender<u64>>,
    pub(super) clock: Clock,
}

impl Guests {
    /// Starts and tries what a spec asks for.
    ///
    /// # Errors
    /// The candidate, or the pool's strategy beside it, does not start.
    pub(super) fn tried(spec: &Spec, pool: &Pool, of: &Surroundings) -> Result<Self, StartError> {
        let (candidate, steps) = (&spec.candidate, Steps::default());
        let Some(partner) = &spec.partner else {
            candidate.try_strategy(&of.engine, &steps)?;
            return Ok(Self { strategy: candidate.strategy(&of.engine)?, formula: None });
        };
        candidate.try_formula(&of.engine, &steps)?;
        let formula = candidate.formula(&of.engine)?;
        let formula = Beside::new(Arc::clone(&of.fleet), pool.service(), formula);
        Ok(Self { strategy: partner.strategy(&of.partner)?, formula: Some(formula) })
    }
}

impl Running {
    /// Starts a run.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn start(
        spec: &Spec,
        guests: Guests,
        pool: &Arc<Pool>,
        of: Surroundings,
    ) -> std::io::Result<Self> {
        let policy = &spec.candidate.wanted.policy;
        let shown = Shown::idle(policy, Some(spec), State::Feeding, of.clock.now_ms());
        let shown = Arc::new(shown);
        pool.attach(Tap::new(shown.serial, spec.share));
        let run = Run::new(spec, guests, pool, of, &shown);
        let thread = thread::Builder::new().name("loadline-shadow".to_owned());
        let thread = thread.spawn(move || run.run())?;
        Ok(Self { shown, thread })
    }

    /// Ends it soon, like this.
    pub(super) fn end(&self, state: State) {
        *self.shown.end.lock() = Some(state.clone());
        self.shown.is_ending.store(true, Ordering::Release);
        self.shown.note_state(state);
        self.thread.thread().unpark();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until it has ended: a guest's deadlines at most.
    pub(super) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!(policy = %self.shown.policy, "a shadow ended by a panic");
        }
    }
}
