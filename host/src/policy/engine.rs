//! Wasmtime's settings and the limits of a guest.
//!
//! Invariants: the [`Ticker`] is started with the engine, so that a deadline is never inert; a deadline is at
//! least two ticks away, so that a call right before a tick keeps its budget. What a tick means to a call, its
//! room decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use wasmtime::{Config, Engine, OptLevel, Strategy};

use super::module::ModuleError;
use super::ticker::{TICK, Ticker, wait_for_tick};
use crate::config::{LimitsConfig, Wasi};

/// State that a guest may hand over to the next generation.
const STATE_BYTES_MAX: usize = 1 << 20;

/// What one guest may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// One pick, and any other call on the way of a request.
    pub pick: Duration,
    /// One batch: evaluate, update, leave, save, restore.
    pub batch: Duration,
    /// Instantiate, describe and configure, each.
    pub configure: Duration,
    /// Linear memory of one guest.
    pub memory_bytes: usize,
    /// A policy file.
    pub file_bytes: usize,
    /// Checking and compiling a file.
    pub load: Duration,
    /// A line that a guest logs.
    pub log_line_bytes: usize,
    /// What `save` may return.
    pub state_bytes: usize,
    /// What becomes of imports of WASI.
    pub wasi: Wasi,
    /// Whether the compiler gives way to everything else: in a host that serves it must.
    pub compile_last: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self::from(&LimitsConfig::default())
    }
}

impl From<&LimitsConfig> for Limits {
    fn from(config: &LimitsConfig) -> Self {
        let LimitsConfig { pick, batch, configure, load, memory, file, log_line } = *config;
        Self {
            pick,
            batch,
            configure,
            load,
            memory_bytes: memory,
            file_bytes: file,
            log_line_bytes: log_line,
            state_bytes: STATE_BYTES_MAX,
            wasi: Wasi::Refuse,
            compile_last: true,
        }
    }
}

impl Limits {
    /// For guests that nobody waits for, in virtual time: a busy machine does not change what they
    /// answer. Endless loops still end.
    #[must_use]
    pub fn patient() -> Self {
        let patience = Duration::from_secs(60);
        Self {
            pick: patience,
            batch: patience,
            configure: patience,
            compile_last: false,
            ..Self::default()
        }
    }
}

/// Compiles modules and runs guests.
#[derive(Clone)]
pub struct PolicyEngine {
    pub(super) engine: Engine,
    /// What every guest may use.
    pub limits: Limits,
    ticker: Ticker,
    tolls: Tolls,
}

/// What is counted of all guests of a policy; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Tolls {
    /// How often they got more memory.
    pub growths: ByPolicy,
    /// Lines of theirs that were not logged: they log too much.
    pub log_lines_dropped: ByPolicy,
}

/// Counts by policy.
#[derive(Debug, Clone, Default)]
pub struct ByPolicy(Arc<Mutex<BTreeMap<Arc<str>, Arc<AtomicU64>>>>);

impl ByPolicy {
    /// The count of one policy's guests, all of them together.
    pub(super) fn of(&self, policy: &Arc<str>) -> Arc<AtomicU64> {
        Arc::clone(self.0.lock().entry(Arc::clone(policy)).or_default())
    }

    /// All counts.
    #[must_use]
    pub fn all(&self) -> Vec<(Arc<str>, u64)> {
        let counts = self.0.lock();
        let count = |(policy, count): (&Arc<str>, &Arc<AtomicU64>)| {
            (Arc::clone(policy), count.load(Ordering::Relaxed))
        };
        counts.iter().map(count).collect()
    }
}

impl PolicyEngine {
    /// An engine with its ticker.
    ///
    /// # Errors
    /// This machine's settings do not allow one, or the ticker's thread cannot be started.
    pub fn new(limits: Limits) -> Result<Self, ModuleError> {
        Self::with_beat(limits, wait_for_tick)
    }

    /// The same with a ticker that waits for each tick by `beat`, to see what becomes of deadlines when it
    /// waits too long.
    ///
    /// # Errors
    /// Likewise.
    pub fn with_beat(
        limits: Limits,
        beat: impl FnMut() + Send + 'static,
    ) -> Result<Self, ModuleError> {
        let engine = Engine::new(&config()).map_err(ModuleError::engine)?;
        let ticker = Ticker::start(&engine, beat);
        let ticker = ticker.map_err(|error| ModuleError::Engine { reason: error.to_string() })?;
        Ok(Self { engine, limits, ticker, tolls: Tolls::default() })
    }

    /// What is counted of guests.
    #[must_use]
    pub fn tolls(&self) -> &Tolls {
        &self.tolls
    }

    /// How the ticker is doing.
    #[must_use]
    pub fn ticker(&self) -> &Ticker {
        &self.ticker
    }

    /// The same engine for a policy that may use this much.
    #[must_use]
    pub fn within(&self, limits: Limits) -> Self {
        Self { limits, ..self.clone() }
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.strategy(Strategy::Cranelift);
    config.cranelift_opt_level(OptLevel::Speed);
    config.epoch_interruption(true);
    // Makes a component call three to four times cheaper; guests have no concurrency to support.
    config.concurrency_support(false);
    // What a policy has no use for is refused by name.
    config.wasm_memory64(false);
    config.wasm_multi_memory(false);
    config.wasm_relaxed_simd(false);
    config.wasm_tail_call(false);
    config.wasm_custom_page_sizes(false);
    config.wasm_wide_arithmetic(false);
    config
}

/// Whole ticks that a budget needs, and one more for the one that is under way.
pub(super) fn ticks(budget: Duration) -> u64 {
    let ticks = budget.as_micros().div_ceil(TICK.as_micros());
    u64::try_from(ticks).unwrap_or(u64::MAX / 2).max(1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_shorter_than_its_budget() {
        for (millis, expected) in [(0, 2), (1, 2), (5, 2), (6, 3), (10, 3), (1_000, 201)] {
            assert_eq!(ticks(Duration::from_millis(millis)), expected, "{millis} ms");
        }
    }
}
