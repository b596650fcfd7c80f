//! The targets of one pool by slot: what the strategy guest knows, for checking its answers and for
//! choosing without it.
//!
//! A row's numbers beside its report are [`Usage`] and [`Health`]; [`care`] ejects and takes back;
//! [`ranking`] orders a large pool by load, for decisions; a shadow hears by a [`tap`] what happens.
//! Invariants: a row is written before the guest hears of it and removed before the slot is given to
//! another target; `version` grows with every change, so that a guest fed from a snapshot can be
//! brought up to date. Pure: time comes in as milliseconds.

mod care;
mod ranking;
pub(super) mod tap;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use super::constraint::TargetLabels;
use super::health::Health;
use super::usage::Usage;
use crate::config::HealthConfig;
use crate::policy::guest::TargetView;
pub(super) use care::{News, Noted};

/// Rows that are written or read under the lock at a stretch: a pick waits that long for it.
pub(super) const PART_ROWS: usize = 256;
/// Targets of a pool up to which their names are kept together, for decisions.
pub(super) const ROSTER_MAX: usize = 50;

/// Slots and names of a whole small pool.
pub(super) type Roster = Arc<[(u32, Arc<str>)]>;

/// Who a target is, as picks say it.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) machine: Arc<str>,
    pub(super) address: Arc<str>,
}

/// Who a target is, and what it is called by its owner.
#[derive(Debug, Clone)]
pub(super) struct Card {
    pub(super) named: Named,
    pub(super) labels: TargetLabels,
}

/// What is written to a row.
#[derive(Debug, Clone)]
pub(super) struct Fresh {
    /// `None`: as the row has it.
    pub(super) card: Option<Box<Card>>,
    /// NaN: not known yet; infinite: a metric is missing.
    pub(super) load: f64,
    pub(super) weight: f64,
    pub(super) in_flight: u32,
    pub(super) accepted: u64,
    pub(super) completed: u64,
    pub(super) identity: u64,
    /// Ready for work by what it reports.
    pub(super) eligible: bool,
    pub(super) captured_ms: u64,
    /// Milliseconds between its machine's reports.
    pub(super) interval_ms: u32,
    /// Metrics that the formula needs and the target does not report.
    pub(super) missing: Vec<Arc<str>>,
}

/// One target.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) named: Named,
    /// Its own `card` is `None`.
    pub(super) fresh: Fresh,
    /// Whether it may be picked. What the guest believes: written only where the guest is told.
    pub(super) eligible: bool,
    pub(super) usage: Usage,
    pub(super) health: Health,
    /// Whether its slot is in the table's list of what the guest is to be told.
    noted: Noted,
    /// The table's version when the target came to this slot.
    pub(super) born: u64,
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

/// How many targets are what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// In the pool.
    pub targets: usize,
    /// Ready for work by what they report.
    pub live: usize,
    /// May be picked.
    pub eligible: usize,
    /// Live and ejected.
    pub ejected: usize,
    /// Without a known load.
    pub unknown: usize,
    /// Leases open on them.
    pub leases: usize,
}

/// All targets of a pool.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Option<Row>>,
    /// Of the rows, apart from them: few picks look at labels, and rows are to be small.
    labels: Vec<TargetLabels>,
    by_machine: HashMap<Arc<str>, u32>,
    version: u64,
    tally: Tally,
    /// Made when asked for, and again after somebody came or left.
    roster: Option<Roster>,
    /// Open leases of machines that are gone.
    parked: HashMap<Arc<str>, u32>,
    config: HealthConfig,
    care: care::Care,
    rankings: ranking::Rankings,
    /// Of a shadow; `None`: there is none.
    tap: Option<tap::Tap>,
}

impl Table {
    pub(super) fn new(config: HealthConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Judges targets by other limits from now on; those that are ejected stay so for their time.
    pub(super) fn configure(&mut self, config: HealthConfig) {
        self.config = config;
        self.weigh();
    }

    /// Writes a row; picks made before the capture are in its load and no longer counted. Only a row
    /// that is there can be written without a name.
    pub(super) fn put(&mut self, slot: u32, mut fresh: Fresh, now_ms: u64) {
        let index = slot as usize;
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, || None);
            self.labels.resize_with(index + 1, TargetLabels::default);
        }
        let (named, labels) = fresh.card.take().map(|card| (card.named, card.labels)).unzip();
        if let Some(labels) = labels {
            self.labels[index] = labels;
        }
        let is_same = |row: &Row| named.as_ref().is_none_or(|n| n.machine == row.named.machine);
        let known = self.get(slot).map(|row| (is_same(row), row.is_live()));
        let was_live = match (known, &named) {
            (Some((true, was_live)), _) => was_live,
            (_, Some(named)) => {
                self.remove(slot);
                self.insert(slot, named.clone(), fresh.clone())
            }
            (_, None) => return,
        };
        let is_panic = self.care.is_panic;
        self.alter(slot, |row| {
            row.usage.captured(fresh.captured_ms);
            row.fresh = fresh;
            row.eligible = row.may_serve(is_panic);
            if let Some(named) = named {
                row.named = named;
            }
        });
        self.greet(slot, was_live, now_ms);
    }

    /// A new row that may not serve yet; false: it was not live.
    fn insert(&mut self, slot: u32, named: Named, fresh: Fresh) -> bool {
        self.version += 1;
        self.by_machine.insert(Arc::clone(&named.machine), slot);
        self.roster = None;
        let leases = self.parked.remove(&named.machine).unwrap_or_default();
        let row = Row {
            named,
            fresh: Fresh { eligible: false, ..fresh },
            eligible: false,
            usage: Usage::with_leases(leases),
            health: Health::default(),
            noted: Noted::No,
            born: self.version,
            version: self.version,
        };
        self.tally.add(&row);
        self.rows[slot as usize] = Some(row);
        false
    }

    pub(super) fn remove(&mut self, slot: u32) {
        self.version += 1;
        let Some(row) = self.rows.get_mut(slot as usize).and_then(Option::take) else { return };
        self.tally.subtract(&row);
        self.by_machine.remove(&row.named.machine);
        self.roster = None;
        self.hear(tap::Heard::Left(slot));
        self.part_with(slot, &row.health);
        let leases = row.usage.leases();
        if leases > 0 {
            self.parked.insert(row.named.machine, leases);
        }
    }

    /// Changes a row, whatever that does to the counts.
    fn alter<T>(&mut self, slot: u32, change: impl FnOnce(&mut Row) -> T) -> Option<T> {
        let row = self.rows.get_mut(slot as usize)?.as_mut()?;
        self.tally.subtract(row);
        self.version += 1;
        row.version = self.version;
        let changed = change(row);
        self.tally.add(row);
        Some(changed)
    }

    pub(super) fn slot_of(&self, machine: &str) -> Option<u32> {
        self.by_machine.get(machine).copied()
    }

    /// The slots of these machines, where they are in the pool.
    pub(super) fn slots_of(&self, machines: &[String]) -> HashSet<u32> {
        machines.iter().filter_map(|machine| self.by_machine.get(&**machine).copied()).collect()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Row> {
        self.rows.get(slot as usize)?.as_ref()
    }

    /// Of the target in this slot.
    pub(super) fn labels(&self, slot: u32) -> &TargetLabels {
        static NONE: LazyLock<TargetLabels> = LazyLock::new(TargetLabels::default);
        self.labels.get(slot as usize).unwrap_or(&NONE)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (u32, &Row)> {
        (0..).zip(&self.rows).filter_map(|(slot, row)| Some((slot, row.as_ref()?)))
    }

    /// Part of the rows, from this slot on; empty at the end.
    pub(super) fn part(&self, from: usize) -> &[Option<Row>] {
        let end = self.rows.len().min(from + PART_ROWS);
        self.rows.get(from..end).unwrap_or_default()
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// Grows with every change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether ejections are ignored because too few targets would be left.
    pub(super) fn is_panic(&self) -> bool {
        self.care.is_panic
    }

    /// Slots and names, where there are few.
    pub(super) fn roster(&mut self) -> Option<Roster> {
        if self.tally.targets > ROSTER_MAX {
            return None;
        }
        if self.roster.is_none() {
            let name = |(slot, row): (u32, &Row)| (slot, Arc::clone(&row.named.machine));
            self.roster = Some(self.rows().map(name).collect());
        }
        self.roster.clone()
    }

    /// Counts a pick of the target, with a lease or without.
    pub(super) fn count_pick(&mut self, slot: u32, has_lease: bool, now_ms: u64) {
        self.alter(slot, |row| {
            if has_lease {
                row.usage.open_lease(now_ms);
            } else {
                row.usage.count_pick(now_ms);
            }
        });
    }

    /// The target as the guest is told now; a shadow hears it, too.
    pub(super) fn tell(&mut self, slot: u32, now_ms: u64) -> Option<TargetView> {
        let view = self.view(slot, now_ms)?;
        self.hear(tap::Heard::Told { view, now_ms });
        Some(view)
    }

    /// Ends a lease of this machine that was opened then; whether a guest is to hear of it.
    pub(super) fn end_lease(&mut self, machine: &str, opened_ms: u64) -> bool {
        if let Some(slot) = self.slot_of(machine) {
            self.alter(slot, |row| row.usage.end_lease(opened_ms));
            self.note(slot, Noted::Now);
            return true;
        }
        if let Some(leases) = self.parked.get_mut(machine) {
            *leases -= 1;
            if *leases == 0 {
                self.parked.remove(machine);
            }
        }
        false
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
    /// Picks made since the capture of its report, see [`Usage`].
    pub(super) fn picks(&self) -> u32 {
        self.usage.picks()
    }

    /// Ready for work by what it reports.
    pub(super) fn is_live(&self) -> bool {
        self.fresh.eligible
    }

    fn may_serve(&self, is_panic: bool) -> bool {
        self.fresh.eligible && (is_panic || self.health.ejection.is_none())
    }

    /// Asks for the memory of what a view needs, and waits for none of it.
    pub(super) fn fetch(&self) {
        let Fresh { load, captured_ms, identity, .. } = self.fresh;
        std::hint::black_box((load, captured_ms, identity, self.usage.picks(), self.eligible));
        self.health.fetch();
    }

    pub(super) fn view(&self, slot: u32, now_ms: u64) -> TargetView {
        let Fresh { load, weight, in_flight, accepted, completed, captured_ms, .. } = self.fresh;
        let age_ms = now_ms.saturating_sub(captured_ms);
        let (latency_us, error_rate) = self.health.averages(now_ms);
        let reports_counts = (accepted, completed, in_flight) != (0, 0, 0);
        TargetView {
            slot,
            load,
            weight,
            in_flight: if reports_counts { in_flight } else { self.usage.leases_before() },
            picks: self.usage.picks(),
            age_ms: u32::try_from(age_ms).unwrap_or(u32::MAX),
            latency_us,
            error_rate,
            eligible: self.eligible,
            warm: self.health.warm(now_ms),
            accepted,
            completed,
            identity: self.fresh.identity,
        }
    }
}

impl Tally {
    fn add(&mut self, row: &Row) {
        self.targets += 1;
        self.live += usize::from(row.is_live());
        self.eligible += usize::from(row.eligible);
        self.ejected += usize::from(row.is_live() && row.health.ejection.is_some());
        self.unknown += usize::from(!row.fresh.load.is_finite());
        self.leases += row.usage.leases() as usize;
    }

    fn subtract(&mut self, row: &Row) {
        self.targets -= 1;
        self.live -= usize::from(row.is_live());
        self.eligible -= usize::from(row.eligible);
        self.ejected -= usize::from(row.is_live() && row.health.ejection.is_some());
        self.unknown -= usize::from(!row.fresh.load.is_finite());
        self.leases -= row.usage.leases() as usize;
    }
}

#[cfg(test)]
impl Fresh {
    /// An eligible target.
    pub(super) fn of(machine: String, load: f64) -> Self {
        let named = Named { machine: machine.into(), address: "10.0.0.1".into() };
        Self {
            card: Some(Box::new(Card { named, labels: TargetLabels::default() })),
            load,
            weight: 1.0,
            in_flight: 0,
            accepted: 0,
            completed: 0,
            identity: 0,
            eligible: true,
            captured_ms: 0,
            interval_ms: 1_000,
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
        table.put(0, fresh("a", 100), 0);
        for now_ms in [110, 120, 120, 150] {
            table.count_pick(0, false, now_ms);
        }
        assert_eq!(table.get(0).map(Row::picks), Some(4));
        table.put(0, fresh("a", 120), 0); // a report captured at 120 that came late
        assert_eq!(table.get(0).map(Row::picks), Some(1));
        table.put(0, fresh("b", 120), 0);
        assert_eq!(table.get(0).map(Row::picks), Some(0), "another target in this slot");
    }

    #[test]
    fn a_guest_that_was_fed_learns_only_what_changed_since() {
        let mut table = Table::default();
        (0..4).for_each(|slot| table.put(slot, fresh(&format!("m{slot}"), 0), 0));
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
        table.put(1, fresh("other", 0), 0);
        table.put(2, Fresh { eligible: false, ..fresh("m2", 0) }, 0);
        assert_eq!(pass(&table, &mut fed), (vec![0, 1], vec![1, 2]));
        table.count_pick(3, false, 9);
        assert_eq!(pass(&table, &mut fed), (vec![], vec![3]));
        assert_eq!(pass(&table, &mut fed), (vec![], vec![]));
        assert_eq!((table.tally().targets, table.tally().eligible), (3, 2));
    }

    #[test]
    fn what_changes_behind_a_pass_is_told_by_the_next() {
        let (mut table, mut fed) = (Table::default(), Fed::default());
        let rows = u32::try_from(2 * PART_ROWS + 1).expect("few rows");
        (0..rows).for_each(|slot| table.put(slot, fresh(&format!("m{slot}"), 0), 0));
        let mut told = std::collections::BTreeMap::new();
        let mut tell = |part: Part| {
            part.left
                .iter()
                .for_each(|slot| assert!(told.remove(slot).is_some(), "{slot} unknown"));
            told.extend(part.views.iter().map(|view| (view.slot, view.picks)));
            (part.views.len(), part.is_last, told.len())
        };
        assert_eq!(tell(table.feed(&mut fed, 0)), (PART_ROWS, false, PART_ROWS));
        table.count_pick(0, false, 5); // told already
        table.remove(1);
        table.put(2, fresh("other", 0), 0);
        table.count_pick(rows - 1, false, 5); // still to be told
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
        (0..3).for_each(|slot| table.put(slot, fresh(&format!("m{slot}"), 0), 0));
        table.put(0, Fresh { eligible: false, ..fresh("m0", 0) }, 0);
        table.remove(1);
        assert_eq!((table.tally().targets, table.tally().eligible), (2, 1));
    }
}
