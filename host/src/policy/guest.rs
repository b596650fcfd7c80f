//! One running instance of a policy: typed calls in, checked answers or a fault out.
//!
//! Invariants: every call is preceded by its deadline, set here and nowhere else; every store has
//! its memory limit from the constructor; after any fault the guest must be dropped (the callers do,
//! and `failed` makes sure of it). The host trusts nothing that comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{ResourceLimiter, Store, Trap};

use super::engine::{Limits, PolicyEngine, ticks};
use super::module::{Generation, Kind, Module, Pre};
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

pub use formula_world::loadline::policy::types::MetricUse;
pub use strategy_world::loadline::policy::types::{Request, TargetView};

/// A log line of a guest at most, in bytes.
const LOG_LINE_BYTES_MAX: usize = 1_024;
/// Log lines of a guest in one [`LOG_WINDOW`]; more are counted and dropped.
const LOG_LINES_MAX: u32 = 20;
const LOG_WINDOW: Duration = Duration::from_secs(10);
/// A settings schema at most, in bytes; what is longer is shown cut.
const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// Metrics that a formula may want: bounds what a batch can cost.
const METRICS_MAX: usize = 256;
/// Tables, memories and instances of one guest: a policy needs a handful.
const ITEMS_MAX: usize = 16;
/// Elements of a guest's tables.
const TABLE_ELEMENTS_MAX: usize = 100_000;

/// What went wrong in a guest call. The guest is not entered again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The guest trapped.
    #[error("{call} trapped: {reason}")]
    Trap {
        /// The contract's function.
        call: &'static str,
        /// Wasmtime's words.
        reason: String,
    },
    /// The guest was still running at its deadline.
    #[error("{call} took longer than {budget:?}")]
    Deadline {
        /// The contract's function.
        call: &'static str,
        /// What it had.
        budget: Duration,
    },
    /// The guest wanted more memory than it may have.
    #[error("{call} needed more than the {max} bytes of memory a guest may have")]
    Memory {
        /// The contract's function.
        call: &'static str,
        /// The limit.
        max: usize,
    },
    /// The guest's answer makes no sense.
    #[error("{call} answered nonsense: {what}")]
    BadAnswer {
        /// The contract's function.
        call: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

impl CallError {
    /// A word for counters and answers.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Trap { .. } => "trap",
            Self::Deadline { .. } => "deadline",
            Self::Memory { .. } => "memory",
            Self::BadAnswer { .. } => "bad_answer",
        }
    }
}

/// Why a guest could not be started.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The module is of the other kind.
    #[error("{name} is a {found}, and the pool wants a {wanted} here")]
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
    /// The thread that scores has ended.
    #[error("nothing scores any more: the thread for reports has ended")]
    NoIntake,
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

/// What a policy says of itself.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Description {
    /// By its own name.
    pub name: String,
    /// By its own count.
    pub version: String,
    /// JSON Schema.
    pub settings_schema: String,
}

/// What a guest's store holds: its limits and its log.
struct State {
    name: Arc<str>,
    memory_bytes_max: usize,
    /// Of all its memories together.
    memory_bytes: usize,
    /// What the last growth asked for; given back if it fails.
    memory_growth: usize,
    memory_denied: bool,
    log_window: Instant,
    log_lines: u32,
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.memory_growth = desired.saturating_sub(current);
        let total = self.memory_bytes.saturating_add(self.memory_growth);
        let fits = total <= self.memory_bytes_max;
        if fits {
            self.memory_bytes = total;
        }
        self.memory_denied |= !fits;
        Ok(fits)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        if !self.memory_denied {
            self.memory_bytes = self.memory_bytes.saturating_sub(self.memory_growth);
        }
        Ok(())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS_MAX)
    }

    fn instances(&self) -> usize {
        ITEMS_MAX
    }

    fn tables(&self) -> usize {
        ITEMS_MAX
    }

    fn memories(&self) -> usize {
        ITEMS_MAX
    }
}

impl State {
    fn log(&mut self, level: tracing::Level, message: &str) {
        if self.log_window.elapsed() >= LOG_WINDOW {
            if self.log_lines > LOG_LINES_MAX {
                let dropped = self.log_lines - LOG_LINES_MAX;
                tracing::warn!(target: "policy", policy = %self.name, dropped, "policy logs too much");
            }
            self.log_window = Instant::now();
            self.log_lines = 0;
        }
        self.log_lines = self.log_lines.saturating_add(1);
        if self.log_lines > LOG_LINES_MAX {
            return;
        }
        let (policy, message) = (&self.name, printable(message));
        match level {
            tracing::Level::ERROR => tracing::error!(target: "policy", %policy, "{message}"),
            tracing::Level::WARN => tracing::warn!(target: "policy", %policy, "{message}"),
            tracing::Level::INFO => tracing::info!(target: "policy", %policy, "{message}"),
            _ => tracing::debug!(target: "policy", %policy, "{message}"),
        }
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
        Ok(Self(FormulaPolicyPre::new(linker.instantiate_pre(component)?)?))
    }
}

pub(super) struct StrategyPre(StrategyPolicyPre<State>);

impl StrategyPre {
    pub(super) fn new(engine: &PolicyEngine, component: &Component) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(&engine.engine);
        StrategyPolicy::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
        Ok(Self(StrategyPolicyPre::new(linker.instantiate_pre(component)?)?))
    }
}

/// The store of one guest and what every call needs around it.
struct Room {
    store: Store<State>,
    engine: PolicyEngine,
    pick: Budget,
    batch: Budget,
    failed: bool,
}

/// What a call may take; in ticks too, because a pick has no time for the division.
#[derive(Clone, Copy)]
struct Budget {
    time: Duration,
    ticks: u64,
}

impl Budget {
    fn new(time: Duration) -> Self {
        Self { time, ticks: ticks(time) }
    }
}

impl Room {
    fn new(engine: &PolicyEngine, name: &Arc<str>) -> Self {
        let state = State {
            name: Arc::clone(name),
            memory_bytes_max: engine.limits.memory_bytes,
            memory_bytes: 0,
            memory_growth: 0,
            memory_denied: false,
            log_window: Instant::now(),
            log_lines: 0,
        };
        let mut store = Store::new(&engine.engine, state);
        store.limiter(|state| state);
        let Limits { pick, batch, .. } = engine.limits;
        let (pick, batch) = (Budget::new(pick), Budget::new(batch));
        Self { store, engine: engine.clone(), pick, batch, failed: false }
    }

    /// One call under its deadline.
    fn call<T>(
        &mut self,
        call: &'static str,
        budget: Budget,
        run: impl FnOnce(&mut Store<State>) -> wasmtime::Result<T>,
    ) -> Result<T, CallError> {
        if self.failed {
            let reason = "an earlier call failed".to_owned();
            return Err(CallError::Trap { call, reason });
        }
        self.store.data_mut().memory_denied = false;
        self.store.set_epoch_deadline(budget.ticks);
        let result = run(&mut self.store);
        result.map_err(|error| {
            self.failed = true;
            if self.store.data().memory_denied {
                let max = self.engine.limits.memory_bytes;
                return CallError::Memory { call, max };
            }
            match error.downcast_ref::<Trap>() {
                Some(Trap::Interrupt) => CallError::Deadline { call, budget: budget.time },
                Some(trap) => CallError::Trap { call, reason: trap.to_string() },
                None => CallError::Trap { call, reason: printable(&format!("{error:#}")) },
            }
        })
    }

    fn nonsense(&mut self, call: &'static str, what: impl Into<String>) -> CallError {
        self.failed = true;
        CallError::BadAnswer { call, what: what.into() }
    }

    fn check_state(&mut self, state: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let max = self.engine.limits.state_bytes;
        if state.len() <= max {
            return Ok(state);
        }
        Err(self.nonsense("save", format!("{} bytes of state, {max} are allowed", state.len())))
    }
}

/// A running formula.
pub struct FormulaGuest {
    /// Which version runs.
    pub generation: Generation,
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
        let Pre::Formula(pre) = &module.pre else {
            return Err(wrong_kind(name, module, Kind::Formula));
        };
        let mut room = Room::new(engine, name);
        let budget = Budget::new(engine.limits.configure);
        let world = room.call("instantiate", budget, |store| pre.0.instantiate(store))?;
        let guest = world.loadline_policy_formula();
        let info = room.call("describe", budget, |store| guest.call_describe(store))?;
        let description = Description {
            name: printable(&info.name),
            version: printable(&info.version),
            settings_schema: cut(info.settings_schema, SCHEMA_BYTES_MAX),
        };
        room.call("configure", budget, |store| guest.call_configure(store, settings))?.map_err(
            |reason| StartError::Settings { name: Arc::clone(name), reason: printable(&reason) },
        )?;
        let metrics = room.call("metrics", budget, |store| guest.call_metrics(store))?;
        if metrics.len() > METRICS_MAX {
            let what = format!("{} metrics, {METRICS_MAX} are allowed", metrics.len());
            return Err(room.nonsense("metrics", what).into());
        }
        if let Some(bad) = metrics.iter().find(|metric| !is_name(&metric.name)) {
            let what = format!("{:?} is no metric's name", printable(&bad.name));
            return Err(room.nonsense("metrics", what).into());
        }
        let (generation, serial) = (module.generation, next_serial());
        Ok(Self { generation, serial, description, metrics, world, room })
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
    /// Which version runs.
    pub generation: Generation,
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
        let Pre::Strategy(pre) = &module.pre else {
            return Err(wrong_kind(name, module, Kind::Strategy));
        };
        let mut room = Room::new(engine, name);
        let budget = Budget::new(engine.limits.configure);
        let world = room.call("instantiate", budget, |store| pre.0.instantiate(store))?;
        let guest = world.loadline_policy_strategy();
        let info = room.call("describe", budget, |store| guest.call_describe(store))?;
        let description = Description {
            name: printable(&info.name),
            version: printable(&info.version),
            settings_schema: cut(info.settings_schema, SCHEMA_BYTES_MAX),
        };
        room.call("configure", budget, |store| guest.call_configure(store, settings, seed))?
            .map_err(|reason| StartError::Settings {
                name: Arc::clone(name),
                reason: printable(&reason),
            })?;
        let (generation, serial) = (module.generation, next_serial());
        Ok(Self { generation, serial, description, world, room })
    }

    /// New or changed targets.
    ///
    /// # Errors
    /// The guest failed.
    pub fn update(&mut self, now_ms: u64, targets: &[TargetView]) -> Result<(), CallError> {
        let (guest, budget) = (self.world.loadline_policy_strategy(), self.room.batch);
        // How many hosts choose is learned from their claims; alone until then.
        self.room.call("update", budget, |store| guest.call_update(store, now_ms, 1, targets))
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

/// The beginning of a text that may be too long.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
    }
    text
}

/// A guest's words, cut and with control characters escaped: they cannot forge a log line.
fn printable(message: &str) -> String {
    let mut line = String::new();
    for character in message.chars() {
        if line.len() >= LOG_LINE_BYTES_MAX {
            line.push('…');
            break;
        }
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_words_cannot_forge_a_line_or_flood() {
        assert_eq!(printable("a\n\u{1b}[31mERROR"), "a\\n\\u{1b}[31mERROR");
        let line = printable(&"x".repeat(1 << 20));
        assert!(line.len() < LOG_LINE_BYTES_MAX + 8, "{}", line.len());
    }
}
