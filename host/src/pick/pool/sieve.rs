//! Which targets a request leaves out, and which failure domains it keeps away from.
//!
//! What a request does not want it never gets. Failure domains (a label of the pool's choice: a zone, a
//! rack) are a preference: the next ranks, and the targets instead of an excluded one, come from domains
//! that are not touched yet as long as there are any. A target without the label is a domain of its own.

use std::collections::HashSet;
use std::sync::Arc;

use super::Ask;
use crate::pick::constraint::{Constraint, TargetLabels};
use crate::pick::decision::Unwanted;
use crate::pick::table::{Row, Table};

/// What a request leaves out.
pub(in crate::pick) struct Sieve<'r> {
    excluded: HashSet<u32>,
    constraint: &'r Constraint,
}

/// The failure domains from which no further target is wanted.
pub(super) struct Domains {
    label: Arc<str>,
    touched: HashSet<Box<str>>,
}

impl<'r> Sieve<'r> {
    pub(super) fn of(table: &Table, ask: &Ask<'r>) -> Self {
        let excluded = match ask.exclude {
            [] => HashSet::new(), // the usual case costs nothing
            machines => table.slots_of(machines),
        };
        Self { excluded, constraint: ask.constraint }
    }

    /// Why the request does not want the target; `None`: it does.
    pub(in crate::pick) fn drops(&self, slot: u32, labels: &TargetLabels) -> Option<Unwanted> {
        if !self.excluded.is_empty() && self.excluded.contains(&slot) {
            return Some(Unwanted::Excluded);
        }
        let fits = self.constraint.is_empty() || self.constraint.fits(labels);
        (!fits).then_some(Unwanted::Labels)
    }

    /// Whether it wants every target.
    pub(super) fn is_open(&self) -> bool {
        self.excluded.is_empty() && self.constraint.is_empty()
    }
}

impl Domains {
    /// Away from those of the excluded machines; `None`: the pool has no failure domains.
    pub(super) fn of(label: Option<Arc<str>>, table: &Table, sieve: &Sieve<'_>) -> Option<Self> {
        let mut domains = Self { label: label?, touched: HashSet::new() };
        sieve.excluded.iter().for_each(|slot| domains.touch(table, *slot));
        Some(domains)
    }

    pub(super) fn touch(&mut self, table: &Table, slot: u32) {
        self.touched.extend(table.labels(slot).get(&self.label).map(Into::into));
    }

    pub(super) fn is_elsewhere(&self, table: &Table, slot: u32) -> bool {
        table.labels(slot).get(&self.label).is_none_or(|domain| !self.touched.contains(domain))
    }

    /// Whether some domain is to be kept away from.
    pub(super) fn is_any(&self) -> bool {
        !self.touched.is_empty()
    }
}

/// Slots of the eligible targets that the request wants, in untouched domains if there are any.
pub(super) fn candidates(
    table: &Table,
    domains: Option<&Domains>,
    is_wanted: impl Fn(u32, &Row) -> bool,
) -> Vec<u32> {
    let may = |(slot, row): &(u32, &Row)| row.eligible && is_wanted(*slot, row);
    let all = || table.rows().filter(may).map(|(slot, _)| slot);
    match domains.filter(|domains| domains.is_any()) {
        None => all().collect(),
        Some(domains) => {
            let elsewhere: Vec<_> =
                all().filter(|slot| domains.is_elsewhere(table, *slot)).collect();
            if elsewhere.is_empty() { all().collect() } else { elsewhere }
        }
    }
}
