//! The connections that are open, and which one makes room for another: the one that has been silent for
//! longest, first those that have not sent a frame yet. Of one address, once it has its share, so that
//! no peer can take all places; else of all.

use std::collections::HashMap;
use std::net::IpAddr;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Connections of one address at most: so many, or one place in so many where that is more. Agents behind
/// one translated address, and a relay's, are far fewer than those of a peer that fills a host.
const OF_ONE_ADDRESS: (usize, usize) = (256, 8);

/// The connections that are open.
#[derive(Debug)]
pub(super) struct Connected {
    open: HashMap<u64, Connection>,
    /// How many are of each address.
    of: HashMap<IpAddr, usize>,
    limit: usize,
}

#[derive(Debug)]
struct Connection {
    from: IpAddr,
    /// The last frame; `None`: none yet.
    heard: Option<Instant>,
    since: Instant,
    task: AbortHandle,
}

/// What there was no room in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The share of the address.
    Address,
    /// The whole.
    All,
}

impl Connected {
    /// So many at most.
    pub(super) fn new(limit: usize) -> Self {
        Self { open: HashMap::new(), of: HashMap::new(), limit }
    }

    /// How many there may be.
    pub(super) fn limit(&self, full: Full) -> usize {
        let (few, one_in) = OF_ONE_ADDRESS;
        match full {
            Full::Address => few.max(self.limit / one_in),
            Full::All => self.limit,
        }
    }

    /// Ends a connection where there is no room for one more from there; why it had to.
    pub(super) fn make_room(&mut self, from: IpAddr) -> Option<Full> {
        let of_address = self.of.get(&from).copied().unwrap_or(0);
        let full = if of_address >= self.limit(Full::Address) {
            Full::Address
        } else if self.open.len() >= self.limit {
            Full::All
        } else {
            return None;
        };
        let competes = |one: &Connection| full == Full::All || one.from == from;
        let all = self.open.iter().filter(|(_, one)| competes(one));
        let silent = all.min_by_key(|(_, one)| (one.heard, one.since)).map(|(id, _)| *id);
        if let Some(one) = silent.and_then(|id| self.remove(id)) {
            one.abort();
        }
        Some(full)
    }

    pub(super) fn insert(&mut self, id: u64, from: IpAddr, task: AbortHandle) {
        *self.of.entry(from).or_default() += 1;
        let connection = Connection { from, heard: None, since: Instant::now(), task };
        self.open.insert(id, connection);
    }

    /// A frame came.
    pub(super) fn heard(&mut self, id: u64, at: Instant) {
        if let Some(connection) = self.open.get_mut(&id) {
            connection.heard = Some(at);
        }
    }

    /// Forgets one, if it is still there; its task.
    pub(super) fn remove(&mut self, id: u64) -> Option<AbortHandle> {
        let Connection { from, task, .. } = self.open.remove(&id)?;
        if let Some(count) = self.of.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&from);
            }
        }
        Some(task)
    }

    /// Ends all.
    pub(super) fn close(&mut self) {
        self.of.clear();
        for (_, connection) in self.open.drain() {
            connection.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMIT: usize = 1_000;

    /// One peer connects and reports without end, others a little: who has more than its share makes
    /// room for itself.
    #[tokio::test]
    async fn one_address_takes_no_more_than_its_share() {
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        let [greedy, quiet] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut all = Connected::new(LIMIT);
        all.insert(0, quiet, task.clone());
        let start = Instant::now();
        let mut made = 0;
        for id in 1..10_000 {
            made += usize::from(all.make_room(greedy) == Some(Full::Address));
            all.insert(id, greedy, task.clone());
            all.heard(id, start + Duration::from_millis(id));
        }
        let share = all.limit(Full::Address);
        assert_eq!((share, all.of[&greedy], made), (256, 256, 9_999 - 256));
        assert!(all.open.contains_key(&0), "the other one keeps its place");
        assert!(all.open.contains_key(&9_999) && !all.open.contains_key(&9_743), "the oldest go");
        // All places: the most silent of all makes room.
        for (number, id) in (0_u16..).zip(20_000..20_744) {
            let [high, low] = number.to_be_bytes();
            all.insert(id, IpAddr::from([10, 1, high, low]), task.clone());
        }
        assert_eq!(all.open.len(), LIMIT + 1);
        assert_eq!(all.make_room(quiet), Some(Full::All));
        assert!(!all.open.contains_key(&0), "it sent nothing and came first");
        let ids: Vec<_> = all.open.keys().copied().collect();
        for id in ids {
            assert!(all.remove(id).is_some() && all.remove(id).is_none());
        }
        assert!(all.of.is_empty() && all.make_room(greedy).is_none());
    }

    #[test]
    fn share_grows_with_the_whole() {
        assert_eq!(Connected::new(8_192).limit(Full::Address), 1_024);
        assert_eq!(Connected::new(64).limit(Full::Address), 256);
    }
}
