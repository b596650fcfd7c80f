//! A formula beside a pool's own: the same reports in, its loads out, and nobody's business but its shadow's.
//!
//! It reads the fleet for moments and keeps its own columns; the pool's scorer and its locks are not
//! touched. A report that a newer one has overtaken is left out: the newer one is heard of soon.

use std::sync::Arc;

use parking_lot::RwLock;

use super::columns::{Columns, Inputs};
use super::{Batch, ROWS_MAX, offered};
use crate::fleet::Fleet;
use crate::policy::{CallError, FormulaGuest};

/// A report to be evaluated.
#[derive(Debug, Clone)]
pub(in crate::pick) struct Due {
    pub(in crate::pick) slot: u32,
    pub(in crate::pick) machine: Arc<str>,
    pub(in crate::pick) captured_ms: u64,
}

/// What the formula says of a target.
#[derive(Debug, Clone)]
pub(in crate::pick) struct Loaded {
    pub(in crate::pick) slot: u32,
    /// As answered, good or bad; `None`: a metric is missing.
    pub(in crate::pick) load: Option<f64>,
    pub(in crate::pick) missing: Vec<Arc<str>>,
}

/// A formula that nobody waits for.
pub(in crate::pick) struct Beside {
    fleet: Arc<RwLock<Fleet>>,
    service: Arc<str>,
    guest: FormulaGuest,
    inputs: Inputs,
    /// By slot.
    columns: Vec<Option<Arc<Columns>>>,
}

impl Beside {
    /// A configured formula for the targets of this service.
    pub(in crate::pick) fn new(
        fleet: Arc<RwLock<Fleet>>,
        service: &str,
        guest: FormulaGuest,
    ) -> Self {
        let inputs = Inputs::of(&guest);
        Self { fleet, service: service.into(), guest, inputs, columns: Vec::new() }
    }

    /// Loads of these reports.
    ///
    /// # Errors
    /// The guest failed.
    pub(in crate::pick) fn evaluate(
        &mut self,
        due: &[Due],
        now_ms: u64,
    ) -> Result<Vec<Loaded>, CallError> {
        let mut all = Vec::with_capacity(due.len());
        for due in due.chunks(ROWS_MAX) {
            let batch = self.gather(due);
            let loads = batch.evaluate(&mut self.guest, self.inputs.len(), now_ms)?;
            let mut known = vec![None; batch.rows.len()];
            for (index, load) in batch.whole.iter().zip(loads) {
                known[*index] = Some(load);
            }
            let loaded = |((slot, fresh), load): ((u32, super::Fresh), Option<f64>)| Loaded {
                slot,
                load,
                missing: fresh.missing,
            };
            all.extend(batch.rows.into_iter().zip(known).map(loaded));
        }
        Ok(all)
    }

    /// These slots may be given to other targets.
    ///
    /// # Errors
    /// The guest failed.
    pub(in crate::pick) fn leave(&mut self, slots: &[u32]) -> Result<(), CallError> {
        slots.chunks(ROWS_MAX).try_for_each(|slots| self.guest.leave(slots))
    }

    fn gather(&mut self, due: &[Due]) -> Batch {
        let mut batch = Batch::default();
        let fleet = self.fleet.read();
        for Due { slot, machine, captured_ms } in due {
            let id = fleet.by_name(machine).map(|(id, _)| id);
            let Some((machine, service)) = id.and_then(|id| offered(&fleet, id, &self.service))
            else {
                continue;
            };
            if machine.captured_ms > *captured_ms {
                continue;
            }
            let place = *slot as usize;
            if self.columns.len() <= place {
                self.columns.resize_with(place + 1, || None);
            }
            batch.add(*slot, machine, service, &mut self.columns[place], &mut self.inputs);
        }
        batch
    }
}
