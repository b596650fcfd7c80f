//! One running instance of a policy: typed calls in, checked answers or a fault out.
//!
//! Every call goes through the guest's [`Room`](super::room), which bounds it. The host trusts nothing
//! that comes back: numbers of answers, names and texts are checked here, what they mean by the callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::component::{Component, HasSelf, Linker};

use super::engine::PolicyEngine;
use super::module::{Decider, Kind, Module, Pre};
use super::room::{Budget, Room, State, printable};
use super::steps::Steps;
use crate::config::Wasi;
use crate::report::is_name;

#[allow(missing_docs, reason = "generated from the contract, which is documented there")]
mod formula_world {
    wasmtime::component::bindgen!({ path: "../sdk/policy/wit", world: "formula-policy" });
}
#[allow(missing_docs, reason = "generated from the contract, which is documented there")]
mod strategy_world {
    wasmtime::component::bindgen!({ path: "../sdk/policy/wit", world: "strategy-policy" });
}

use formula_world::{FormulaPolicy, FormulaPolicyPre};
use strategy_world::{StrategyPolicy, StrategyPolicyPre};

pub use super::description::Description;
pub use super::room::CallError;
pub use formula_world::loadline::policy::types::MetricUse;
pub use strategy_world::loadline::policy::types::{Request, TargetView};

/// Metrics that a formula may want: bounds what a batch can cost.
const METRICS_MAX: usize = 256;

/// Why a guest could not be started.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The module is of the other kind.
    #[error(
        "{name} is a {found}, and the pool wants a {wanted} here: name it as the pool's {found} instead, or \
         put a {wanted} into its file"
    )]
    Kind {
        /// The policy.
        name: Arc<str>,
        /// What it is.
        found: Kind,
        /// What it should be.
        wanted: Kind,
    },
    /// The policy does not take its settings.
    #[error("{name} refuses its settings: {reason}")]
    Settings {
        /// The policy.
        name: Arc<str>,
        /// The policy's words, cut and escaped.
        reason: String,
    },
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl StartError {
    /// Whether the same module may start another time: the machine was short of something.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Call(CallError::Deadline { .. }) => true,
            Self::Call(CallError::Trap { call, .. }) => *call == "instantiate",
            _ => false,
        }
    }
}

/// What a guest is started from.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// Runs it, within its limits.
    pub engine: &'a PolicyEngine,
    /// The policy's name.
    pub name: &'a Arc<str>,
    /// What runs.
    pub module: &'a Module,
    /// A JSON object.
    pub settings: &'a str,
    /// Where its steps are noted.
    pub steps: &'a Steps,
}

impl Start<'_> {
    /// Checks the settings by what the policy says of them, then lets it take them.
    fn configure(
        self,
        description: &Description,
        configure: impl FnOnce() -> Result<Result<(), String>, CallError>,
    ) -> Result<(), StartError> {
        let Self { name, settings, steps, .. } = self;
        steps.run("settings", || description.check(name, settings))?;
        steps.run("configure", || {
            let refused = |reason: String| StartError::Settings {
                name: Arc::clone(name),
                reason: printable(&reason),
            };
            configure()?.map_err(refused)
        })
    }
}

macro_rules! log_import {
    ($world:ident) => {
        impl $world::loadline::policy::types::Host for State {}
        impl $world::loadline::policy::log::Host for State {
            fn write(&mut self, level: $world::loadline::policy::log::Level, message: String) {
                use $world::loadline::policy::log::Level;
                let level = match level {
                    Level::Debug => tracing::Level::DEBUG,
                    Level::Info => tracing::Level::INFO,
                    Level::Warn => tracing::Level::WARN,
                    Level::Error => tracing::Level::ERROR,
                };
                self.log(level, &message);
            }
        }
    };
}
log_import!(formula_world);
log_import!(strategy_world);

pub(super) struct FormulaPre(FormulaPolicyPre<State>);

impl FormulaPre {
    pub(super) fn new(engine: &PolicyEngine, component: &Component) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(&engine.engine);
        FormulaPolicy::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        if engine.limits.wasi == Wasi::Trap {
            linker.define_unknown_imports_as_traps(component)?;
        }
        Ok(Self(FormulaPolicyPre::new(linker.instantiate_pre(component)?)?))
    }
}

pub(super) struct StrategyPre(StrategyPolicyPre<State>);

impl StrategyPre {
    pub(super) fn new(engine: &PolicyEngine, component: &Component) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(&engine.engine);
        StrategyPolicy::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        if engine.limits.wasi == Wasi::Trap {
            linker.define_unknown_imports_as_traps(component)?;
        }
        Ok(Self(StrategyPolicyPre::new(linker.instantiate_pre(component)?)?))
    }
}

impl TargetView {
    /// A fresh, warm, eligible target of weight 1 that reports no counts.
    #[must_use]
    pub fn new(slot: u32, load: f64) -> Self {
        Self {
            slot,
            load,
            weight: 1.0,
            in_flight: 0,
            picks: 0,
            age_ms: 0,
            latency_us: 0,
            error_rate: 0.0,
            eligible: true,
            warm: 1.0,
            accepted: 0,
            completed: 0,
            identity: u64::from(slot),
        }
    }
}

/// A running formula.
pub struct FormulaGuest {
    /// What runs.
    pub decider: Decider,
    /// What it was configured with.
    pub settings: Arc<str>,
    /// Tells this guest from every other of this process.
    pub serial: u64,
    /// What it says of itself.
    pub description: Description,
    metrics: Vec<MetricUse>,
    world: FormulaPolicy,
    room: Room,
}

impl FormulaGuest {
    /// Instantiates and configures a formula; `settings` is a JSON object.
    ///
    /// # Errors
    /// The module is a strategy, refuses the settings, or fails.
    pub fn start(
        engine: &PolicyEngine,
        name: &Arc<str>,
        module: &Module,
        settings: &str,
    ) -> Result<Self, StartError> {
        Self::start_in_steps(Start { engine, name, module, settings, steps: &Steps::default() })
    }

    /// The same, each step noted.
    ///
    /// # Errors
    /// Likewise.
    pub fn start_in_steps(start: Start<'_>) -> Result<Self, StartError> {
        let Start { engine, name, module, settings, steps } = start;
        let mut room = Room::new(engine, name);
        let budget = Budget::configure(&engine.limits);
        let (world, description) = steps.run("start", || {
            let Pre::Formula(pre) = &module.pre else {
                return Err(wrong_kind(name, module, Kind::Formula));
            };
            let world = room.call("instantiate", budget, |store| pre.0.instantiate(store))?;
            let guest = world.loadline_policy_formula();
            let info = room.call("describe", budget, |store| guest.call_describe(store))?;
            let about = Description::new(&info.name, &info.version, info.settings_schema)?;
            Ok((world, about))
        })?;
        let guest = world.loadline_policy_formula();
        start.configure(&description, || {
            room.call("configure", budget, |store| guest.call_configure(store, settings))
        })?;
        let metrics = room.call("metrics", budget, |store| guest.call_metrics(store))?;
        if metrics.len() > METRICS_MAX {
            let what = format!("{} metrics, {METRICS_MAX} are allowed", metrics.len());
            return Err(room.nonsense("metrics", what).into());
        }
        if let Some(bad) = metrics.iter().find(|metric| !is_name(&metric.name)) {
            let what = format!("{:?} is no metric's name", printable(&bad.name));
            return Err(room.nonsense("metrics", what).into());
        }
        let decider = Decider { policy: Arc::clone(name), generation: module.generation };
        let settings = Arc::from(settings);
        let serial = next_serial();
        Ok(Self { decider, settings, serial, description, metrics, world, room })
    }

    /// The columns of [`evaluate`](Self::evaluate).
    #[must_use]
    pub fn metrics(&self) -> &[MetricUse] {
        &self.metrics
    }

    /// One load a slot, unchecked but for their number; `values` is row-major.
    ///
    /// # Errors
    /// The guest failed.
    pub fn evaluate(
        &mut self,
        now_ms: u64,
        slots: &[u32],
        values: &[f64],
    ) -> Result<Vec<f64>, CallError> {
        let (guest, budget) = (self.world.loadline_policy_formula(), self.room.batch);
        let loads = self
            .room
            .call("evaluate", budget, |store| guest.call_evaluate(store, now_ms, slots, values))?;
        if loads.len() == slots.len() {
            return Ok(loads);
        }
        let what = format!("{} loads for {} targets", loads.len(), slots.len());
        Err(self.room.nonsense("evaluate", what))
    }

    /// These slots may be given to other targets.
    ///
    /// # Errors
    /// The guest failed.
    pub fn leave(&mut self, slots: &[u32]) -> Result<(), CallError> {
        let (guest, budget) = (self.world.loadline_policy_formula(), self.room.batch);
        self.room.call("leave", budget, |store| guest.call_leave(store, slots))
    }

    /// State for the next generation.
    ///
    /// # Errors
    /// The guest failed or its state is too long.
    pub fn save(&mut self) -> Result<Vec<u8>, CallError> {
        let (guest, budget) = (self.world.loadline_policy_formula(), self.room.batch);
        let state = self.room.call("save", budget, |store| guest.call_save(store))?;
        self.room.check_state(state)
    }

    /// Takes over the last generation's state; false: it was not understood.
    ///
    /// # Errors
    /// The guest failed.
    pub fn restore(&mut self, state: &[u8]) -> Result<bool, CallError> {
        let (guest, budget) = (self.world.loadline_policy_formula(), self.room.batch);
        self.room.call("restore", budget, |store| guest.call_restore(store, state))
    }
}

/// A running strategy.
pub struct StrategyGuest {
    /// What runs.
    pub decider: Decider,
    /// What it was configured with.
    pub settings: Arc<str>,
    /// Tells this guest from every other of this process.
    pub serial: u64,
    /// What it says of itself.
    pub description: Description,
    world: StrategyPolicy,
    room: Room,
}

impl StrategyGuest {
    /// Instantiates and configures a strategy; `settings` is a JSON object.
    ///
    /// # Errors
    /// The module is a formula, refuses the settings, or fails.
    pub fn start(
        engine: &PolicyEngine,
        name: &Arc<str>,
        module: &Module,
        settings: &str,
        seed: u64,
    ) -> Result<Self, StartError> {
        let steps = &Steps::default();
        Self::start_in_steps(Start { engine, name, module, settings, steps }, seed)
    }

    /// The same, each step noted.
    ///
    /// # Errors
    /// Likewise.
    pub fn start_in_steps(start: Start<'_>, seed: u64) -> Result<Self, StartError> {
        let Start { engine, name, module, settings, steps } = start;
        let mut room = Room::new(engine, name);
        let budget = Budget::configure(&engine.limits);
        let (world, description) = steps.run("start", || {
            let Pre::Strategy(pre) = &module.pre else {
                return Err(wrong_kind(name, module, Kind::Strategy));
            };
            let world = room.call("instantiate", budget, |store| pre.0.instantiate(store))?;
            let guest = world.loadline_policy_strategy();
            let info = room.call("describe", budget, |store| guest.call_describe(store))?;
            let about = Description::new(&info.name, &info.version, info.settings_schema)?;
            Ok((world, about))
        })?;
        let guest = world.loadline_policy_strategy();
        start.configure(&description, || {
            room.call("configure", budget, |store| guest.call_configure(store, settings, seed))
        })?;
        let decider = Decider { policy: Arc::clone(name), generation: module.generation };
        let settings = Arc::from(settings);
        let serial = next_serial();
        Ok(Self { decider, settings, serial, description, world, room })
    }

    /// New or changed targets; `hosts` choose for them, at least 1.
    ///
    /// # Errors
    /// The guest failed.
    pub fn update(
        &mut self,
        now_ms: u64,
        hosts: u32,
        targets: &[TargetView],
    ) -> Result<(), CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.batch);
        self.room.call("update", budget, |store| guest.call_update(store, now_ms, hosts, targets))
    }

    /// These slots may be given to other targets.
    ///
    /// # Errors
    /// The guest failed.
    pub fn leave(&mut self, slots: &[u32]) -> Result<(), CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.batch);
        self.room.call("leave", budget, |store| guest.call_leave(store, slots))
    }

    /// The slot for one request, unchecked.
    ///
    /// # Errors
    /// The guest failed.
    pub fn pick(&mut self, request: Request) -> Result<Option<u32>, CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.pick);
        self.room.call("pick", budget, |store| guest.call_pick(store, request))
    }

    /// The slot for one request out of these, unchecked.
    ///
    /// # Errors
    /// The guest failed.
    pub fn pick_among(
        &mut self,
        request: Request,
        candidates: &[u32],
    ) -> Result<Option<u32>, CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.pick);
        self.room
            .call("pick-among", budget, |store| guest.call_pick_among(store, request, candidates))
    }

    /// State for the next generation.
    ///
    /// # Errors
    /// The guest failed or its state is too long.
    pub fn save(&mut self) -> Result<Vec<u8>, CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.batch);
        let state = self.room.call("save", budget, |store| guest.call_save(store))?;
        self.room.check_state(state)
    }

    /// Takes over the last generation's state; false: it was not understood.
    ///
    /// # Errors
    /// The guest failed.
    pub fn restore(&mut self, state: &[u8]) -> Result<bool, CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.batch);
        self.room.call("restore", budget, |store| guest.call_restore(store, state))
    }

    /// The answer of a call was nonsense: the guest is not entered again.
    pub(crate) fn nonsense(&mut self, call: &'static str, what: String) -> CallError {
        self.room.nonsense(call, what)
    }
}

fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn wrong_kind(name: &Arc<str>, module: &Module, wanted: Kind) -> StartError {
    StartError::Kind { name: Arc::clone(name), found: module.kind(), wanted }
}
