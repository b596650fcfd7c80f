//! Wasmtime's settings, the limits of a guest, and the one ticker that makes deadlines work.
//!
//! Invariants: the ticker is started with the engine and ticks as long as the engine lives, so that
//! a deadline is never inert; it alone moves the epoch; a deadline is at least two ticks away, so
//! that a call right before a tick keeps its budget. What a tick means to a call, its room decides.

use std::thread;
use std::time::Duration;

use wasmtime::{Config, Engine, EngineWeak, OptLevel, Strategy};

use super::module::ModuleError;

/// Time between two ticks of the epoch: the grain of every deadline.
const TICK: Duration = Duration::from_millis(5);

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
    /// What `save` may return.
    pub state_bytes: usize,
    /// Whether the compiler gives way to everything else: in a host that serves it must.
    pub compile_last: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pick: Duration::from_millis(10),
            batch: Duration::from_millis(50),
            configure: Duration::from_secs(1),
            memory_bytes: 128 << 20,
            file_bytes: 16 << 20,
            state_bytes: 1 << 20,
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
}

impl PolicyEngine {
    /// An engine with its ticker.
    ///
    /// # Errors
    /// This machine's settings do not allow one, or the ticker's thread cannot be started.
    pub fn new(limits: Limits) -> Result<Self, ModuleError> {
        let engine = Engine::new(&config()).map_err(ModuleError::engine)?;
        let weak = engine.weak();
        let ticker = thread::Builder::new().name("loadline-epoch".to_owned());
        ticker
            .spawn(move || tick(&weak))
            .map_err(|error| ModuleError::Engine { reason: error.to_string() })?;
        Ok(Self { engine, limits })
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

fn tick(engine: &EngineWeak) {
    while let Some(engine) = engine.upgrade() {
        engine.increment_epoch();
        drop(engine);
        #[expect(clippy::disallowed_methods, reason = "the ticker is the clock itself")]
        thread::sleep(TICK);
    }
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
