//! The room a guest runs in: its store with its limits, its deadline before every call, its log.
//!
//! Invariants: a memory limit holds from the constructor on, over all memories together; no call is
//! made but through [`Room::call`], which sets the deadline first; a deadline is CPU time, so that a
//! guest is not blamed for the machine's other work, and bounded in ticks too; after a fault no call
//! is made at all; a guest's words are cut, escaped and rationed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use wasmtime::{ResourceLimiter, Store, Trap, UpdateDeadline};

use super::engine::{Limits, PolicyEngine, ticks};
use crate::report::is_deceptive;

/// Names, reasons and other words of a guest at most, in bytes.
const WORDS_BYTES_MAX: usize = 1_024;
/// Log lines of a guest in one [`LOG_WINDOW`]; more are counted and dropped.
const LOG_LINES_MAX: u32 = 20;
const LOG_WINDOW: Duration = Duration::from_secs(10);
/// Instances of core modules in one guest: four for a policy of the SDK, which is joined to the host by three small
/// ones; one more for an initialiser, and for each version of WASI. Linkers of other languages add some.
const INSTANCES_MAX: usize = 9;
/// Tables of one guest: its own, and the one through which it calls the host.
const TABLES_MAX: usize = 4;
/// Memories of one guest: its own, and one of an adapter.
const MEMORIES_MAX: usize = 2;
/// Ticks that a call may take whose thread hardly runs, in those of its budget.
const STARVED_TICKS_MAX: u64 = 20;
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
    #[error("{call} took longer than {budget:?} (host.limits.{limit})")]
    Deadline {
        /// The contract's function.
        call: &'static str,
        /// What it had.
        budget: Duration,
        /// The key that says so.
        limit: &'static str,
    },
    /// The guest wanted more memory than it may have.
    #[error(
        "{call} needed more than the {max} bytes of memory a guest may have (host.limits.memory)"
    )]
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
    /// All that [`reason`](Self::reason) may say.
    pub const REASONS: [&str; 4] = ["trap", "deadline", "memory", "bad_answer"];

    /// The contract's function that was called.
    #[must_use]
    pub fn call(&self) -> &'static str {
        match self {
            Self::Trap { call, .. }
            | Self::Deadline { call, .. }
            | Self::Memory { call, .. }
            | Self::BadAnswer { call, .. } => call,
        }
    }

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

/// What a guest's store holds: its limits and its log.
pub(super) struct State {
    name: Arc<str>,
    budget: Budget,
    watch: Option<Watch>,
    memory_bytes_max: usize,
    /// Of all its memories together.
    memory_bytes: usize,
    /// What the last growth asked for; given back if it fails.
    memory_growth: usize,
    memory_denied: bool,
    /// Counts those of all guests of this policy.
    growths: Arc<AtomicU64>,
    log_line_bytes_max: usize,
    log_window: Instant,
    log_lines: u32,
    /// Counts those of all guests of this policy.
    log_lines_dropped: Arc<AtomicU64>,
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
            // What it starts with is no growth.
            self.growths.fetch_add(u64::from(current > 0), Ordering::Relaxed);
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
        INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }
}

/// A call that was running at a tick.
struct Watch {
    /// CPU time of its thread at the first tick.
    cpu: Duration,
    /// Ticks it has been given since.
    ticks: u64,
}

impl State {
    /// Called at the first tick of a call, and when the ticks that it was given then are over.
    fn at_deadline(&mut self) -> UpdateDeadline {
        // Without a clock every thread counts as running.
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
        let Budget { time, ticks, .. } = self.budget;
        let Some(watch) = &mut self.watch else {
            let rest = ticks - 1;
            self.watch = Some(Watch { cpu: cpu.unwrap_or_default(), ticks: rest });
            return UpdateDeadline::Continue(rest);
        };
        let used = cpu.map_or(Duration::MAX, |cpu| cpu.saturating_sub(watch.cpu));
        // Ticks are a little uneven: most of the time is all of it.
        if used >= time.mul_f64(0.75) || watch.ticks >= ticks * STARVED_TICKS_MAX {
            return UpdateDeadline::Interrupt;
        }
        watch.ticks += 1;
        UpdateDeadline::Continue(1)
    }

    pub(super) fn log(&mut self, level: tracing::Level, message: &str) {
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
            self.log_lines_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (policy, message) = (&self.name, cut(message, self.log_line_bytes_max));
        match level {
            tracing::Level::ERROR => tracing::error!(target: "policy", %policy, "{message}"),
            tracing::Level::WARN => tracing::warn!(target: "policy", %policy, "{message}"),
            tracing::Level::INFO => tracing::info!(target: "policy", %policy, "{message}"),
            _ => tracing::debug!(target: "policy", %policy, "{message}"),
        }
    }
}

/// The store of one guest and what every call needs around it.
pub(super) struct Room {
    store: Store<State>,
    engine: PolicyEngine,
    pub(super) pick: Budget,
    pub(super) batch: Budget,
    failed: bool,
}

/// What a call may take of a CPU; in ticks too, because a pick has no time for the division.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    time: Duration,
    ticks: u64,
    /// The key of `host.limits` that says so.
    limit: &'static str,
}

impl Budget {
    fn new(time: Duration, limit: &'static str) -> Self {
        Self { time, ticks: ticks(time), limit }
    }

    /// For what a guest does once, at its start.
    pub(super) fn configure(limits: &Limits) -> Self {
        Self::new(limits.configure, "configure")
    }
}

impl Room {
    pub(super) fn new(engine: &PolicyEngine, name: &Arc<str>) -> Self {
        let state = State {
            name: Arc::clone(name),
            budget: Budget::configure(&engine.limits),
            watch: None,
            memory_bytes_max: engine.limits.memory_bytes,
            memory_bytes: 0,
            memory_growth: 0,
            memory_denied: false,
            growths: engine.tolls().growths.of(name),
            log_line_bytes_max: engine.limits.log_line_bytes,
            log_window: Instant::now(),
            log_lines: 0,
            log_lines_dropped: engine.tolls().log_lines_dropped.of(name),
        };
        let mut store = Store::new(&engine.engine, state);
        store.limiter(|state| state);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().at_deadline()));
        let Limits { pick, batch, .. } = engine.limits;
        let (pick, batch) = (Budget::new(pick, "pick"), Budget::new(batch, "batch"));
        Self { store, engine: engine.clone(), pick, batch, failed: false }
    }

    /// One call under its deadline.
    pub(super) fn call<T>(
        &mut self,
        call: &'static str,
        budget: Budget,
        run: impl FnOnce(&mut Store<State>) -> wasmtime::Result<T>,
    ) -> Result<T, CallError> {
        if self.failed {
            let reason = "an earlier call failed".to_owned();
            return Err(CallError::Trap { call, reason });
        }
        let state = self.store.data_mut();
        (state.budget, state.watch, state.memory_denied) = (budget, None, false);
        self.store.set_epoch_deadline(1);
        let result = run(&mut self.store);
        result.map_err(|error| {
            self.failed = true;
            if self.store.data().memory_denied {
                let max = self.engine.limits.memory_bytes;
                return CallError::Memory { call, max };
            }
            match error.downcast_ref::<Trap>() {
                Some(Trap::Interrupt) => {
                    let Budget { time, limit, .. } = budget;
                    CallError::Deadline { call, budget: time, limit }
                }
                Some(trap) => CallError::Trap { call, reason: trap.to_string() },
                None => CallError::Trap { call, reason: printable(&format!("{error:#}")) },
            }
        })
    }

    pub(super) fn nonsense(&mut self, call: &'static str, what: impl Into<String>) -> CallError {
        self.failed = true;
        CallError::BadAnswer { call, what: what.into() }
    }

    pub(super) fn check_state(&mut self, state: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let max = self.engine.limits.state_bytes;
        if state.len() <= max {
            return Ok(state);
        }
        Err(self.nonsense("save", format!("{} bytes of state, {max} are allowed", state.len())))
    }
}

/// A guest's words, cut and with control characters escaped: they cannot forge a log line.
pub(super) fn printable(message: &str) -> String {
    cut(message, WORDS_BYTES_MAX)
}

fn cut(message: &str, bytes_max: usize) -> String {
    let mut line = String::new();
    for character in message.chars() {
        if line.len() >= bytes_max {
            line.push('…');
            break;
        }
        if is_deceptive(character) {
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
        assert!(line.len() < WORDS_BYTES_MAX + 8, "{}", line.len());
    }
}
