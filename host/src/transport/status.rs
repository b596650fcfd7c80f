//! What a host's operator can see of the transport: counters, and where the groups are heard. And
//! [`Troubles`], which says each change of state once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::interface::Place;
use crate::telemetry::Quiet;

/// Counters of everything received, and the memberships of now.
#[derive(Debug, Default)]
pub struct Status {
    /// Datagrams that the kernel dropped because a socket's buffer was full.
    pub kernel_drops: AtomicU64,
    /// Datagrams longer than any report, thrown away.
    pub truncated: AtomicU64,
    /// Errors of receiving sockets.
    pub receive_errors: AtomicU64,
    /// Datagrams that came by a group.
    pub multicast: AtomicU64,
    /// TCP connections that were taken.
    pub connections: AtomicU64,
    /// TCP connections open now.
    pub connections_open: AtomicU64,
    /// TCP connections closed by us, for a bad frame, silence or the limit.
    pub connections_closed: AtomicU64,
    /// Whether every socket of the report port is open.
    pub is_receiving: AtomicBool,
    joined: Mutex<Vec<Place>>,
}

impl Status {
    /// Where groups are heard now.
    #[must_use]
    pub fn joined(&self) -> Vec<Place> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_joined(&self, joined: &[Place]) {
        *self.joined.lock().unwrap_or_else(PoisonError::into_inner) = joined.to_vec();
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What does not work at the moment, by name; each change is said once, and a thing that comes and
/// goes at most once a minute.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    now: BTreeMap<String, bool>,
    quiet: Quiet<String>,
}

impl Troubles {
    /// Notes that something does not work; true when that is to be logged.
    pub(super) fn begin(&mut self, what: &str) -> bool {
        if self.now.contains_key(what) {
            return false;
        }
        let said = self.quiet.may(what.to_owned());
        self.now.insert(what.to_owned(), said);
        said
    }

    /// Notes that it works; true when that is to be logged: the trouble was.
    pub(super) fn end(&mut self, what: &str) -> bool {
        !self.now.is_empty() && self.now.remove(what) == Some(true)
    }

    /// Notes what befell one frame, and says nothing of the next; true when that is to be logged.
    pub(super) fn once(&mut self, what: &str) -> bool {
        self.quiet.may(what.to_owned())
    }

    /// Forgets troubles that cannot end any more.
    pub(super) fn keep(&mut self, is_current: impl Fn(&str) -> bool) {
        self.now.retain(|what, _| is_current(what));
    }
}
