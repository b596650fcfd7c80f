//! A pool from its shadow's side: what happens is heard, targets are read in parts and named.
//!
//! Every call holds the table for a moment; none touches the strategy's seat.

use std::sync::Arc;

use super::Pool;
use crate::pick::shadow::Shown;
use crate::pick::table::tap::{Dropped, Heard, Tap};
use crate::pick::table::{Fed, Part};

impl Pool {
    /// Lets a shadow hear from now on, instead of any other.
    pub(in crate::pick) fn attach(&self, tap: Tap) {
        self.table.lock().attach(tap);
    }

    /// Lets this shadow hear no more.
    pub(in crate::pick) fn detach(&self, serial: u64) {
        self.table.lock().detach(serial);
    }

    /// What this shadow has heard, and after it, of the same moment, the next part of the targets that
    /// are still to be read; `None`: it does not hear any more.
    pub(in crate::pick) fn listen(
        &self,
        serial: u64,
        buffer: &mut Vec<Heard>,
        reading: Option<&mut Fed>,
        now_ms: u64,
    ) -> Option<(Dropped, Option<Part>)> {
        let mut table = self.table.lock();
        let dropped = table.take_heard(serial, buffer)?;
        Some((dropped, reading.map(|fed| table.feed(fed, now_ms))))
    }

    /// The machine of a slot, if it is still this target's.
    pub(in crate::pick) fn machine_at(&self, slot: u32, identity: u64) -> Option<Arc<str>> {
        let table = self.table.lock();
        let row = table.get(slot).filter(|row| row.fresh.identity == identity)?;
        Some(Arc::clone(&row.named.machine))
    }

    /// What is shown of its shadow; `None`: none was wanted.
    #[must_use]
    pub fn shadow(&self) -> Option<Arc<Shown>> {
        self.shadow.lock().clone()
    }

    /// Shows this shadow from now on.
    pub(in crate::pick) fn show_shadow(&self, shown: Option<Arc<Shown>>) {
        *self.shadow.lock() = shown;
    }
}
