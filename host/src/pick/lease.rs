//! Open leases of all pools: counted uses of targets that end by a call or by their time.
//!
//! Invariant: a lease is ended by exactly one caller, who then takes it off the target's count; so a
//! second release finds nothing, and counts are exact whoever races. Pure but for the random ids: time
//! comes in as milliseconds.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Leases open at once, of all pools: bounds what forgotten ones cost.
pub const LEASES_MAX: usize = 1_000_000;
/// A lease at least: its end is seen up to 50 ms late.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// A lease at most.
pub const LEASE_MAX: Duration = Duration::from_hours(1);

/// One open use of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    /// Its number.
    pub(super) pool: u64,
    pub(super) machine: Arc<str>,
    pub(super) opened_ms: u64,
    pub(super) ends_ms: u64,
}

impl Lease {
    pub(super) fn new(pool: u64, machine: &Arc<str>, now_ms: u64, length: Duration) -> Self {
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX / 2);
        let (machine, ends_ms) = (Arc::clone(machine), now_ms + length_ms);
        Self { pool, machine, opened_ms: now_ms, ends_ms }
    }
}

/// All open leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Open ones, and those that a pick has room for.
    taken: AtomicUsize,
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct Store {
    open: HashMap<u64, Lease>,
    ends: BTreeSet<(u64, u64)>,
}

/// Room for one lease; given back when it is dropped unused.
#[derive(Debug)]
pub(super) struct Room<'l>(&'l Leases);

impl Leases {
    /// Room for one more, if there is.
    pub(super) fn room(&self) -> Option<Room<'_>> {
        let more = |taken| (taken < LEASES_MAX).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Room(self))
    }

    /// Ends a lease; `None`: it is not open, or its time was over.
    /// A lease whose time is over is left to [`Leases::expire`].
    pub(super) fn close(&self, id: u64, now_ms: u64) -> Option<Lease> {
        let mut store = self.store.lock();
        if store.open.get(&id)?.ends_ms <= now_ms {
            return None;
        }
        let lease = store.open.remove(&id)?;
        store.ends.remove(&(lease.ends_ms, id));
        self.taken.fetch_sub(1, Ordering::Relaxed);
        Some(lease)
    }

    /// Ends leases whose time is over, so many at most.
    pub(super) fn expire(&self, now_ms: u64, most: usize) -> Vec<Lease> {
        let mut store = self.store.lock();
        let mut ended = Vec::new();
        while ended.len() < most
            && let Some((_, id)) = store.ends.first().copied().filter(|(ends, _)| *ends <= now_ms)
        {
            store.ends.pop_first();
            ended.extend(store.open.remove(&id));
        }
        self.taken.fetch_sub(ended.len(), Ordering::Relaxed);
        ended
    }

    /// Open now.
    pub(super) fn open(&self) -> usize {
        self.store.lock().open.len()
    }
}

impl Room<'_> {
    /// Opens the lease; its id.
    pub(super) fn open(self, lease: &Lease) -> u64 {
        let mut store = self.0.store.lock();
        let mut id = fastrand::u64(..);
        while store.open.contains_key(&id) {
            id = fastrand::u64(..);
        }
        store.ends.insert((lease.ends_ms, id));
        store.open.insert(id, lease.clone());
        std::mem::forget(self); // the room is taken
        id
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A lease's id as clients see it.
pub(super) fn id_text(id: u64) -> String {
    format!("{id:016x}")
}

/// And back.
pub(super) fn id_of(text: &str) -> Option<u64> {
    let is_ours = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_ours.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ends_ms: u64) -> Lease {
        Lease { pool: 0, machine: "a".into(), opened_ms: 0, ends_ms }
    }

    #[test]
    fn a_lease_ends_once() {
        let leases = Leases::default();
        let [first, second] =
            [10, 20].map(|ends_ms| leases.room().map(|r| r.open(&lease(ends_ms))));
        let (first, second) = (first.expect("room"), second.expect("room"));
        assert_eq!(leases.close(first, 9), Some(lease(10)));
        assert_eq!(leases.close(first, 9), None);
        assert_eq!(leases.close(second, 20), None, "its time is over");
        assert_eq!(leases.expire(19, 9), []);
        assert_eq!(leases.expire(20, 9), [lease(20)]);
        assert_eq!((leases.close(second, 0), leases.expire(99, 9).len()), (None, 0));
        assert_eq!((leases.open(), leases.taken.into_inner()), (0, 0));
    }

    #[test]
    fn there_is_room_for_so_many_and_unused_room_is_given_back() {
        let leases = Leases { taken: AtomicUsize::new(LEASES_MAX - 1), ..Leases::default() };
        let room = leases.room();
        assert!(room.is_some() && leases.room().is_none());
        drop(room);
        assert!(leases.room().is_some());
    }

    #[test]
    fn ids_read_back() {
        assert_eq!(id_of(&id_text(0xab)), Some(0xab));
        assert_eq!(["", "+1", "xyz", "+00000000000000a"].map(id_of), [None; 4]);
    }
}
