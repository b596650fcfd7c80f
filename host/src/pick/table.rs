//! The targets of one pool by slot: what the strategy guest knows, for checking its answers and for
//! choosing without it.
//!
//! Invariants: a row is written before the guest hears of it and removed before the slot is given to
//! another target; `version` grows with every change, so that a guest fed from a snapshot can be
//! brought up to date. Pure: time comes in as milliseconds.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::policy::guest::TargetView;

/// Groups of one size that a target's picks are kept in.
const GROUPS_OF_SIZE_MAX: usize = 8;

/// Rows that are written or read under the lock at a stretch: a pick waits that long for it.
pub(super) const PART_ROWS: usize = 256;

/// What is written to a row.
#[derive(Debug, Clone)]
pub(super) struct Fresh {
    pub(super) machine: Arc<str>,
    pub(super) address: Arc<str>,
    /// NaN: not known.
    pub(super) load: f64,
    pub(super) weight: f64,
    pub(super) in_flight: u32,
    pub(super) accepted: u64,
    pub(super) completed: u64,
    pub(super) identity: u64,
    pub(super) eligible: bool,
    pub(super) captured_ms: u64,
    /// Metrics that the formula needs and the target does not report.
    pub(super) missing: Vec<Arc<str>>,
}

/// One target.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) fresh: Fresh,
    picks: Picks,
    /// The table's version when the target came to this slot.
    born: u64,
    /// The table's version at the last change.
    version: u64,
}

/// What a guest has been told.
#[derive(Debug, Default)]
pub(super) struct Fed {
    /// The table's version as of which everything is known.
    version: u64,
    slots: Vec<bool>,
    /// The version at the start of this pass, and its next slot.
    pass: u64,
    next: usize,
}

/// What a guest is to be told at a stretch.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) left: Vec<u32>,
    pub(super) views: Vec<TargetView>,
    /// Nothing more in this pass.
    pub(super) is_last: bool,
}

/// All targets of a pool.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Option<Row>>,
    by_machine: HashMap<Arc<str>, u32>,
    version: u64,
    len: usize,
    eligible: usize,
}

impl Table {
    /// Writes a row; picks made before the capture are in its load and no longer counted.
    pub(super) fn put(&mut self, slot: u32, fresh: Fresh) {
        self.version += 1;
        let index = slot as usize;
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, || None);
        }
        let (version, captured_ms) = (self.version, fresh.captured_ms);
        let was = self.rows[index].as_ref().is_some_and(|row| row.fresh.eligible);
        self.eligible = self.eligible + usize::from(fresh.eligible) - usize::from(was);
        match &mut self.rows[index] {
            Some(row) if row.fresh.machine == fresh.machine => {
                row.fresh = fresh;
                row.version = version;
                row.picks.forget_before(captured_ms);
            }
            row => {
                if let Some(old) = row {
                    self.by_machine.remove(&old.fresh.machine);
                }
                self.by_machine.insert(Arc::clone(&fresh.machine), slot);
                self.len += usize::from(row.is_none());
                *row = Some(Row { fresh, picks: Picks::default(), born: version, version });
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.version += 1;
        if let Some(row) = self.rows.get_mut(slot as usize).and_then(Option::take) {
            self.len -= 1;
            self.eligible -= usize::from(row.fresh.eligible);
            self.by_machine.remove(&row.fresh.machine);
        }
    }

    /// The slots of these machines, where they are in the pool.
    pub(super) fn slots_of(&self, machines: &[String]) -> HashSet<u32> {
        machines.iter().filter_map(|machine| self.by_machine.get(&**machine).copied()).collect()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Row> {
        self.rows.get(slot as usize)?.as_ref()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (u32, &Row)> {
        (0..).zip(&self.rows).filter_map(|(slot, row)| Some((slot, row.as_ref()?)))
    }

    /// Part of the rows, from this slot on; empty at the end.
    pub(super) fn part(&self, from: usize) -> &[Option<Row>] {
        let end = self.rows.len().min(from + PART_ROWS);
        self.rows.get(from..end).unwrap_or_default()
    }

    /// Targets, eligible or not.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn eligible(&self) -> usize {
        self.eligible
    }

    /// Counts a pick of the target.
    pub(super) fn count_pick(&mut self, slot: u32, now_ms: u64) {
        self.version += 1;
        if let Some(Some(row)) = self.rows.get_mut(slot as usize) {
            row.picks.count(now_ms);
            row.version = self.version;
        }
    }

    pub(super) fn view(&self, slot: u32, now_ms: u64) -> Option<TargetView> {
        Some(self.get(slot)?.view(slot, now_ms))
    }

    /// The next part of what a guest that was fed so far does not know: slots whose target is gone
    /// or another one, and targets that are new, changed or picked. The last part of a pass is marked;
    /// what changes behind a pass while it runs belongs to the next one.
    pub(super) fn feed(&self, fed: &mut Fed, now_ms: u64) -> Part {
        if fed.next == 0 {
            fed.pass = self.version;
        }
        let end = self.rows.len().max(fed.slots.len()).min(fed.next + PART_ROWS);
        fed.slots.resize(end.max(fed.slots.len()), false);
        let mut part = Part::default();
        for index in fed.next..end {
            let row = self.rows.get(index).and_then(Option::as_ref);
            let slot = u32::try_from(index).unwrap_or(u32::MAX);
            let is_known = fed.slots[index];
            if is_known && row.is_none_or(|row| row.born > fed.version) {
                part.left.push(slot);
            }
            if let Some(row) = row.filter(|row| !is_known || row.version > fed.version) {
                part.views.push(row.view(slot, now_ms));
            }
            fed.slots[index] = row.is_some();
        }
        fed.next = end;
        part.is_last = end == self.rows.len().max(fed.slots.len());
        if part.is_last {
            (fed.version, fed.next) = (fed.pass, 0);
        }
        part
    }
}

impl Row {
    /// Picks made since the capture of its report.
    pub(super) fn picks(&self) -> u32 {
        self.picks.total
    }

    fn view(&self, slot: u32, now_ms: u64) -> TargetView {
        let age_ms = now_ms.saturating_sub(self.fresh.captured_ms);
        TargetView {
            slot,
            load: self.fresh.load,
            weight: self.fresh.weight,
            in_flight: self.fresh.in_flight,
            picks: self.picks.total,
            age_ms: u32::try_from(age_ms).unwrap_or(u32::MAX),
            latency_us: 0,
            error_rate: 0.0,
            eligible: self.fresh.eligible,
            warm: 1.0,
            accepted: self.fresh.accepted,
            completed: self.fresh.completed,
            identity: self.fresh.identity,
        }
    }
}

/// When a target was picked: an exponential histogram (Datar, Gionis, Indyk and Motwani 2002).
///
/// Groups hold 1, 2, 4, … picks, oldest and largest first, at most [`GROUPS_OF_SIZE_MAX`] of a size;
/// so the number of picks after any time is known to within an eighth, in little memory.
#[derive(Debug, Clone, Default)]
struct Picks {
    /// Time of the group's last pick, and how many.
    groups: Vec<(u64, u32)>,
    total: u32,
}

impl Picks {
    fn count(&mut self, now_ms: u64) {
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

    fn forget_before(&mut self, captured_ms: u64) {
        self.groups.retain(|(ms, _)| *ms > captured_ms);
        self.total = self.groups.iter().fold(0, |sum, (_, picks)| sum.saturating_add(*picks));
    }
}

#[cfg(test)]
impl Fresh {
    /// An eligible target.
    pub(super) fn of(machine: String, load: f64) -> Self {
        Self {
            machine: machine.into(),
            address: "10.0.0.1".into(),
            load,
            weight: 1.0,
            in_flight: 0,
            accepted: 0,
            completed: 0,
            identity: 0,
            eligible: true,
            captured_ms: 0,
            missing: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(machine: &str, captured_ms: u64) -> Fresh {
        Fresh { captured_ms, ..Fresh::of(machine.to_owned(), 0.5) }
    }

    #[test]
    fn own_picks_are_replayed_from_the_capture_on() {
        let mut table = Table::default();
        table.put(0, fresh("a", 100));
        for now_ms in [110, 120, 120, 150] {
            table.count_pick(0, now_ms);
        }
        assert_eq!(table.get(0).map(Row::picks), Some(4));
        table.put(0, fresh("a", 120)); // a report captured at 120 that came late
        assert_eq!(table.get(0).map(Row::picks), Some(1));
        table.put(0, fresh("b", 120));
        assert_eq!(table.get(0).map(Row::picks), Some(0), "another target in this slot");
    }

    #[test]
    fn picks_are_never_lost_however_many() {
        let mut table = Table::default();
        table.put(0, fresh("a", 0));
        (1..=10_000).for_each(|now_ms| table.count_pick(0, now_ms));
        assert_eq!(table.get(0).map(Row::picks), Some(10_000));
        table.put(0, fresh("a", 9_000));
        let left = table.get(0).map_or(0, Row::picks);
        assert!((1_000..1_125).contains(&left), "{left}: a thousand, and at most an eighth more");
    }

    #[test]
    fn late_reports_under_steady_picks_do_not_add_up() {
        let mut table = Table::default();
        table.put(0, fresh("a", 0));
        for now_ms in 1..=20_000 {
            table.count_pick(0, now_ms);
            if now_ms % 1_000 == 0 {
                table.put(0, fresh("a", now_ms - 200));
                let left = table.get(0).map_or(0, Row::picks);
                assert!((200..225).contains(&left), "{left} at {now_ms}");
            }
        }
    }

    #[test]
    fn a_guest_that_was_fed_learns_only_what_changed_since() {
        let mut table = Table::default();
        (0..4).for_each(|slot| table.put(slot, fresh(&format!("m{slot}"), 0)));
        let mut fed = Fed::default();
        let pass = |table: &Table, fed: &mut Fed| {
            let part = table.feed(fed, 0);
            assert!(part.is_last, "four rows are one part");
            let slots: Vec<_> = part.views.iter().map(|view| view.slot).collect();
            (part.left, slots)
        };
        assert_eq!(pass(&table, &mut fed), (vec![], vec![0, 1, 2, 3]));
        table.remove(0);
        table.remove(1);
        table.put(1, fresh("other", 0));
        table.put(2, Fresh { eligible: false, ..fresh("m2", 0) });
        assert_eq!(pass(&table, &mut fed), (vec![0, 1], vec![1, 2]));
        table.count_pick(3, 9);
        assert_eq!(pass(&table, &mut fed), (vec![], vec![3]));
        assert_eq!(pass(&table, &mut fed), (vec![], vec![]));
        assert_eq!((table.len(), table.eligible()), (3, 2));
    }

    #[test]
    fn what_changes_behind_a_pass_is_told_by_the_next() {
        let (mut table, mut fed) = (Table::default(), Fed::default());
        let rows = u32::try_from(2 * PART_ROWS + 1).expect("few rows");
        (0..rows).for_each(|slot| table.put(slot, fresh(&format!("m{slot}"), 0)));
        let mut told = std::collections::BTreeMap::new();
        let mut tell = |part: Part| {
            part.left
                .iter()
                .for_each(|slot| assert!(told.remove(slot).is_some(), "{slot} unknown"));
            told.extend(part.views.iter().map(|view| (view.slot, view.picks)));
            (part.views.len(), part.is_last, told.len())
        };
        assert_eq!(tell(table.feed(&mut fed, 0)), (PART_ROWS, false, PART_ROWS));
        table.count_pick(0, 5); // told already
        table.remove(1);
        table.put(2, fresh("other", 0));
        table.count_pick(rows - 1, 5); // still to be told
        table.remove(rows - 2);
        assert_eq!(tell(table.feed(&mut fed, 0)), (PART_ROWS - 1, false, 2 * PART_ROWS - 1));
        assert_eq!(tell(table.feed(&mut fed, 0)), (1, true, 2 * PART_ROWS));
        // The next pass: 0 was picked, 1 is gone, 2 is another.
        assert_eq!(tell(table.feed(&mut fed, 0)), (2, false, 2 * PART_ROWS - 1));
        while !table.feed(&mut fed, 0).is_last {}
        assert_eq!(table.feed(&mut fed, 0).views.len(), 0);
    }

    #[test]
    fn counts_follow_the_rows() {
        let mut table = Table::default();
        (0..3).for_each(|slot| table.put(slot, fresh(&format!("m{slot}"), 0)));
        table.put(0, Fresh { eligible: false, ..fresh("m0", 0) });
        table.remove(1);
        assert_eq!((table.len(), table.eligible()), (2, 1));
    }
}
