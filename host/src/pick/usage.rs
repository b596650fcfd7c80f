//! What is going on in one target by this host's account: picks since its last report, and leases.
//!
//! Definition, on which fewest-in-flight strategies rely: a lease is in `in_flight` if it was open when
//! the report was captured, else in `picks`, and in neither once it has ended; a pick without a lease is
//! in `picks` until a report is captured after it. So `in_flight + picks` counts nothing twice, and a
//! strategy by load sees every pick that the load cannot show yet. Invariant: the number of open
//! leases is exact. Pure: time comes in as milliseconds.

use std::collections::BTreeMap;

/// Groups of one size that a target's picks are kept in.
const GROUPS_OF_SIZE_MAX: usize = 8;

/// One target's picks and leases.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    /// Picks without a lease.
    picks: Picks,
    /// Open leases, by when they were opened, of which the last report knows nothing.
    since: BTreeMap<u64, u32>,
    /// Their number.
    leases_since: u32,
    /// Open leases that were there when the report was captured.
    leases_before: u32,
}

impl Usage {
    /// Of a target that is back, with leases still open.
    pub(super) fn with_leases(leases: u32) -> Self {
        Self { leases_before: leases, ..Self::default() }
    }

    pub(super) fn count_pick(&mut self, now_ms: u64) {
        self.picks.count(now_ms);
    }

    pub(super) fn open_lease(&mut self, now_ms: u64) {
        *self.since.entry(now_ms).or_default() += 1;
        self.leases_since = self.leases_since.saturating_add(1);
    }

    /// Ends a lease that was opened then and has not ended yet.
    pub(super) fn end_lease(&mut self, opened_ms: u64) {
        match self.since.get_mut(&opened_ms) {
            Some(leases) => {
                *leases -= 1;
                if *leases == 0 {
                    self.since.remove(&opened_ms);
                }
                self.leases_since -= 1;
            }
            None => self.leases_before = self.leases_before.saturating_sub(1),
        }
    }

    /// A report has come that was captured then: what was before is in it.
    pub(super) fn captured(&mut self, captured_ms: u64) {
        self.picks.forget_before(captured_ms);
        while let Some(first) = self.since.first_entry().filter(|e| *e.key() <= captured_ms) {
            let leases = first.remove();
            self.leases_since -= leases;
            self.leases_before += leases;
        }
    }

    /// Picks since the capture, without those whose lease has ended.
    pub(super) fn picks(&self) -> u32 {
        self.picks.total.saturating_add(self.leases_since)
    }

    /// Open leases that were open at the capture.
    pub(super) fn leases_before(&self) -> u32 {
        self.leases_before
    }

    /// Open leases.
    pub(super) fn leases(&self) -> u32 {
        self.leases_before.saturating_add(self.leases_since)
    }
}

/// When a target was picked: an exponential histogram (Datar, Gionis, Indyk and Motwani 2002).
///
/// Groups hold 1, 2, 4, … picks, oldest and largest first, at most [`GROUPS_OF_SIZE_MAX`] of a size;
/// so the number of picks after any time is known to within an eighth, in little memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Picks {
    /// Time of the group's last pick, and how many.
    groups: Vec<(u64, u32)>,
    total: u32,
}

impl Picks {
    pub(super) fn count(&mut self, now_ms: u64) {
        self.total = self.total.saturating_add(1);
        self.groups.push((now_ms, 1));
        let (mut size, mut end) = (1_u32, self.groups.len());
        loop {
            let other = self.groups[..end].iter().rposition(|(_, picks)| *picks != size);
            let start = other.map_or(0, |other| other + 1);
            if end - start <= GROUPS_OF_SIZE_MAX {
                return;
            }
            // The two oldest of this size become one of the next.
            size = size.saturating_mul(2);
            self.groups.remove(start);
            self.groups[start].1 = size;
            end = start + 1;
        }
    }

    pub(super) fn forget_before(&mut self, captured_ms: u64) {
        self.groups.retain(|(ms, _)| *ms > captured_ms);
        self.total = self.groups.iter().fold(0, |sum, (_, picks)| sum.saturating_add(*picks));
    }

    /// Those that are not forgotten.
    pub(super) fn total(&self) -> u32 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_is_counted_once() {
        let mut usage = Usage::default();
        let counts = |usage: &Usage| (usage.leases_before(), usage.picks(), usage.leases());
        usage.open_lease(10);
        usage.open_lease(10);
        usage.open_lease(20);
        usage.count_pick(20);
        assert_eq!(counts(&usage), (0, 4, 3));
        usage.captured(15);
        assert_eq!(counts(&usage), (2, 2, 3), "two are in the report");
        usage.end_lease(10);
        usage.end_lease(20);
        assert_eq!(counts(&usage), (1, 1, 1));
        usage.captured(30);
        assert_eq!(counts(&usage), (1, 0, 1));
        usage.end_lease(10);
        assert_eq!(counts(&usage), (0, 0, 0));
    }

    #[test]
    fn picks_are_never_lost_however_many() {
        let mut usage = Usage::default();
        (1..=10_000).for_each(|now_ms| usage.count_pick(now_ms));
        assert_eq!(usage.picks(), 10_000);
        usage.captured(9_000);
        let left = usage.picks();
        assert!((1_000..1_125).contains(&left), "{left}: a thousand, and at most an eighth more");
    }

    #[test]
    fn late_reports_under_steady_picks_do_not_add_up() {
        let mut usage = Usage::default();
        for now_ms in 1..=20_000 {
            usage.count_pick(now_ms);
            if now_ms % 1_000 == 0 {
                usage.captured(now_ms - 200);
                let left = usage.picks();
                assert!((200..225).contains(&left), "{left} at {now_ms}");
            }
        }
    }
}
