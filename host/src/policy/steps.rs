//! What a policy goes through before it serves: each step with its time and how it ended.
//!
//! Steps are noted as they end, in order; the first that fails is the last one. A host shows them in
//! `/v1/policies/NAME`, `loadline policy check` prints them.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// What went wrong; `None`: it went well.
    pub failed: Option<String>,
}

/// The steps so far; clones note into the same list.
#[derive(Debug, Clone, Default)]
pub struct Steps(Arc<Mutex<Vec<Step>>>);

impl Steps {
    /// Does one step and notes it.
    ///
    /// # Errors
    /// Those of the step.
    pub fn run<T, E: Display>(
        &self,
        name: &'static str,
        step: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let begin = Instant::now();
        let done = step();
        let failed = done.as_ref().err().map(ToString::to_string);
        self.0.lock().push(Step { name, took: begin.elapsed(), failed });
        done
    }

    /// Those that have ended.
    #[must_use]
    pub fn taken(&self) -> Vec<Step> {
        self.0.lock().clone()
    }
}
