//! A pool's schedule as it is shown: which entry is in force, since when, and what comes next.
//!
//! Times are those that the schedule's zone shows, in RFC 3339.

use serde::Serialize;

use crate::calendar::Zone;
use crate::pick::schedule::{Beginning, Standing};

/// In `GET /v1/pools`
#[derive(Serialize)]
pub(super) struct Schedule {
    time_zone: String,
    /// `null`: the pool's own policies are.
    in_force: Option<Entry>,
    /// `null`: none that changes anything.
    next: Option<Entry>,
}

#[derive(Serialize)]
struct Entry {
    /// As configured.
    at: String,
    /// When it began, or begins.
    time: String,
}

impl Schedule {
    pub(super) fn of(standing: &Standing) -> Self {
        let Standing { zone, entry, next } = standing;
        let time_zone = zone.name().to_owned();
        let of = |beginning: &Beginning| Entry::of(beginning, zone);
        Self { time_zone, in_force: entry.as_ref().map(of), next: next.as_ref().map(of) }
    }
}

impl Entry {
    fn of(beginning: &Beginning, zone: &Zone) -> Self {
        Self { at: beginning.at.to_string(), time: zone.show(beginning.ms) }
    }
}
