//! One pool's loads: machines that changed in, targets with loads out, by the pool's formula.
//!
//! Each batch is one guest call; [`columns`] finds the formula's metrics in a report. Invariants: a
//! target that lacks a required metric is not asked about, and its load is infinite, the last choice; a
//! load that is NaN, infinite or negative is answered with the target's last good one, NaN before there is one; slots are given out again only after
//! formula and strategy heard `leave`.
//! [`beside`] is a formula in shadow.

pub(super) mod beside;
mod columns;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::constraint::TargetLabels;
use super::key_hash;
use super::pool::{Heir, Pool, log_restored};
use super::table::{Card, Fresh, Named, PART_ROWS};
use crate::fleet::{Fleet, Machine, MachineId, Offered};
use crate::policy::{CallError, FormulaGuest, Kind};
use crate::telemetry::Quiet;
use columns::{Columns, Inputs};

/// Rows of one `evaluate`: keeps a batch far below its deadline.
const ROWS_MAX: usize = 1_024;

/// The formula's side of every pool: the intake brings reports, the supply new formulas.
///
/// Two locks, always taken in this order: the fleet, then a pool's scorer.
pub struct Scorers {
    fleet: Arc<RwLock<Fleet>>,
    /// Of each pool, by its number. Replaced as a whole.
    pools: RwLock<Arc<[OfPool]>>,
}

/// A pool's number and its scorer.
type OfPool = (u64, Arc<Mutex<Scorer>>);

/// The formula's side of one pool.
struct Scorer {
    pool: Arc<Pool>,
    formula: Option<FormulaGuest>,
    inputs: Inputs,
    slots: Slots,
    targets: Vec<Option<Scored>>,
    free: Vec<u32>,
    /// Empty between two batches: its memory is used again.
    batch: Batch,
    quiet: Quiet<Arc<str>>,
}

/// What is kept of a target between two reports.
struct Scored {
    columns: Option<Arc<Columns>>,
    last_good: f64,
    identity: u64,
    /// As its row has it; `None`: there is none yet.
    card: Option<Card>,
}

/// Targets on their way to a load.
#[derive(Default)]
struct Batch {
    rows: Vec<(u32, Fresh)>,
    /// The rows that have every metric, by index.
    whole: Vec<usize>,
    /// Theirs, row-major.
    values: Vec<f64>,
}

impl Scorers {
    /// Scorers of this fleet, for no pool yet.
    #[must_use]
    pub fn new(fleet: Arc<RwLock<Fleet>>) -> Self {
        Self { fleet, pools: RwLock::new(Arc::default()) }
    }

    /// Scores for one more pool, still without a formula; it has the whole fleet's targets then.
    pub(super) fn add(&self, pool: &Arc<Pool>, now_ms: u64) {
        let scorer = Arc::new(Mutex::new(Scorer::new(Arc::clone(pool))));
        let of_pool = (pool.number, Arc::clone(&scorer));
        // First into the set: what changes in the fleet from now on comes by `refresh`.
        let mut set = self.pools.write();
        *set = set.iter().cloned().chain([of_pool]).collect();
        drop(set);
        let fleet = self.fleet.read();
        let all: Vec<_> = fleet.machines().map(|(id, _)| id).collect();
        scorer.lock().refresh(&fleet, &all, now_ms);
    }

    /// Whose machines are scored.
    pub(super) fn fleet(&self) -> Arc<RwLock<Fleet>> {
        Arc::clone(&self.fleet)
    }

    /// Scores no more for a pool.
    pub(super) fn remove(&self, pool: &Pool) {
        let mut set = self.pools.write();
        *set = set.iter().filter(|(number, _)| *number != pool.number).cloned().collect();
    }

    /// Takes over what changed in the fleet.
    pub(super) fn refresh(&self, changed: &[MachineId], now_ms: u64) {
        let pools = Arc::clone(&self.pools.read());
        let fleet = self.fleet.read();
        for (_, scorer) in &*pools {
            scorer.lock().refresh(&fleet, changed, now_ms);
        }
    }

    /// Puts a configured formula in place, with the old one's state, if it is to have that, and every
    /// load anew.
    ///
    /// # Errors
    /// The new formula failed; the old one and its loads stay.
    pub(super) fn replace(
        &self,
        pool: &Pool,
        guest: FormulaGuest,
        heir: Heir,
        now_ms: u64,
    ) -> Result<(), CallError> {
        let pools = Arc::clone(&self.pools.read());
        let of_pool = pools.iter().find(|(number, _)| *number == pool.number);
        let Some((_, scorer)) = of_pool else { return Ok(()) }; // it was taken out meanwhile
        let fleet = self.fleet.read();
        scorer.lock().replace(guest, heir, fleet, now_ms)
    }
}

/// The slot of each machine that is in the pool. Machines have dense numbers: no need to look one up.
#[derive(Default)]
struct Slots {
    by_machine: Vec<Option<u32>>,
}

impl Slots {
    fn entry(&mut self, id: MachineId) -> &mut Option<u32> {
        if self.by_machine.len() <= id.index() {
            self.by_machine.resize(id.index() + 1, None);
        }
        &mut self.by_machine[id.index()]
    }

    fn take(&mut self, id: MachineId) -> Option<u32> {
        self.by_machine.get_mut(id.index())?.take()
    }

    fn iter(&self) -> impl Iterator<Item = (MachineId, u32)> {
        let numbered = (0..).map(MachineId::from_index).zip(&self.by_machine);
        numbered.filter_map(|(id, slot)| Some((id, (*slot)?)))
    }
}

impl Scorer {
    fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            formula: None,
            inputs: Inputs::default(),
            slots: Slots::default(),
            targets: Vec::new(),
            free: Vec::new(),
            batch: Batch::default(),
            quiet: Quiet::default(),
        }
    }

    /// Takes what changed, a part at a time, so that each stays near until it is told.
    fn refresh(&mut self, fleet: &Fleet, changed: &[MachineId], now_ms: u64) {
        changed.chunks(PART_ROWS).for_each(|part| self.refresh_part(fleet, part, now_ms));
    }

    fn refresh_part(&mut self, fleet: &Fleet, changed: &[MachineId], now_ms: u64) {
        let mut left = Vec::new();
        let mut batch = std::mem::take(&mut self.batch);
        for id in changed {
            match offered(fleet, *id, self.pool.service()) {
                Some((machine, service)) => {
                    let slot = self.slot(*id);
                    let new = || Scored {
                        columns: None,
                        last_good: f64::NAN,
                        identity: identity(&machine.name, &service.name),
                        card: None,
                    };
                    let scored = self.targets[slot as usize].get_or_insert_with(new);
                    let (columns, inputs) = (&mut scored.columns, &mut self.inputs);
                    let fresh = batch.add(slot, machine, service, columns, inputs);
                    fresh.identity = scored.identity;
                    fresh.card = scored.renamed(machine, service);
                }
                None => left.extend(self.slots.take(*id)),
            }
        }
        if batch.rows.is_empty() && left.is_empty() {
            self.batch = batch;
            return;
        }
        let columns = self.inputs.len();
        let loads = self.formula.as_mut().map(|guest| batch.evaluate(guest, columns, now_ms));
        let loads = loads.and_then(|loads| self.keep_or_drop(loads));
        self.settle(&mut batch, loads.as_deref());
        self.forget(&left);
        self.pool.publish(&left, &mut batch.rows, now_ms);
        self.free.extend(left);
        batch.clear();
        self.batch = batch;
    }

    fn replace(
        &mut self,
        mut guest: FormulaGuest,
        heir: Heir,
        fleet: RwLockReadGuard<'_, Fleet>,
        now_ms: u64,
    ) -> Result<(), CallError> {
        let policy = Arc::clone(&guest.decider.policy);
        // Another policy would not understand its state.
        let is_heir =
            |old: &&mut FormulaGuest| heir == Heir::OfState && old.decider.policy == policy;
        let old = self.formula.as_mut().filter(is_heir);
        match old.map(|old| (old.serial, old.save())) {
            Some((_, Ok(state))) => log_restored(&policy, guest.restore(&state)?),
            // The old one's state is lost with it; its loads serve until the new ones are there, and if
            // the new one fails, too, one of both is started again.
            Some((serial, Err(fault))) => {
                self.formula = None;
                self.pool.note_fault(Kind::Formula, &fault, Some(serial));
            }
            None => {}
        }
        let mut inputs = Inputs::of(&guest);
        let mut batch = Batch::default();
        let mut columns = Vec::new();
        for (id, slot) in self.slots.iter() {
            if let Some((machine, service)) = offered(&fleet, id, self.pool.service()) {
                let mut places = None;
                let fresh = batch.add(slot, machine, service, &mut places, &mut inputs);
                let known = self.targets[slot as usize].as_ref();
                fresh.identity = known.map_or(0, |scored| scored.identity);
                columns.push(places);
            }
        }
        drop(fleet); // reports are taken in meanwhile
        let loads = batch.evaluate(&mut guest, inputs.len(), now_ms)?;
        // Those of another formula mean nothing to this one.
        self.targets.iter_mut().flatten().for_each(|scored| scored.columns = None);
        for ((slot, _), columns) in batch.rows.iter().zip(columns) {
            if let Some(scored) = &mut self.targets[*slot as usize] {
                (scored.columns, scored.last_good) = (columns, f64::NAN);
            }
        }
        let (decider, settings) = (guest.decider.clone(), Arc::clone(&guest.settings));
        self.inputs = inputs;
        self.formula = Some(guest);
        self.settle(&mut batch, Some(&loads));
        self.pool.publish(&[], &mut batch.rows, now_ms);
        self.pool.note_serving(Kind::Formula, decider, settings);
        Ok(())
    }

    /// The target's slot; a free one if it is new.
    fn slot(&mut self, id: MachineId) -> u32 {
        *self.slots.entry(id).get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.targets.push(None);
                u32::try_from(self.targets.len() - 1).unwrap_or(u32::MAX)
            })
        })
    }

    /// Writes the loads into the rows that have all metrics: the given one if it is good, else the
    /// target's last good one.
    fn settle(&mut self, batch: &mut Batch, loads: Option<&[f64]>) {
        let (mut last_good, mut bad) = (0, 0);
        for (place, index) in batch.whole.iter().enumerate() {
            let (slot, fresh) = &mut batch.rows[*index];
            let Some(Some(scored)) = self.targets.get_mut(*slot as usize) else { continue };
            match loads.map(|loads| loads[place]) {
                // Minus zero becomes zero.
                Some(load) if load.is_finite() && load >= 0.0 => scored.last_good = load + 0.0,
                Some(_) => (last_good, bad) = (last_good + 1, bad + 1),
                None => last_good += 1, // no formula now
            }
            fresh.load = scored.last_good;
        }
        self.pool.count_loads(batch.whole.len() as u64, last_good, bad);
        self.complain(batch);
    }

    /// Says which metrics targets lack: a misspelled formula would else go unnoticed.
    fn complain(&mut self, batch: &Batch) {
        for (slot, fresh) in &batch.rows {
            for metric in &fresh.missing {
                if self.quiet.may(Arc::clone(metric)) {
                    let scored = self.targets[*slot as usize].as_ref();
                    let card = scored.and_then(|scored| scored.card.as_ref());
                    let machine = card.map_or("", |card| &card.named.machine);
                    let (pool, formula) = (self.pool.name(), self.pool.policy_name(Kind::Formula));
                    tracing::warn!(
                        pool, %formula, %metric, %machine,
                        "a metric that the formula needs is not reported: the target has no load and is the last choice"
                    );
                }
            }
        }
    }

    fn forget(&mut self, left: &[u32]) {
        for slot in left {
            self.targets[*slot as usize] = None;
        }
        if let Some(guest) = self.formula.as_mut() {
            let heard = left.chunks(ROWS_MAX).try_for_each(|left| guest.leave(left));
            self.keep_or_drop(heard);
        }
    }

    fn keep_or_drop<T>(&mut self, answer: Result<T, CallError>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(fault) => {
                let failed = self.formula.take().map(|guest| guest.serial);
                self.pool.note_fault(Kind::Formula, &fault, failed);
                None
            }
        }
    }
}

impl Scored {
    /// Who it is, if its row does not know that yet. Asked for with every report: where nothing is new
    /// no count of an [`Arc`] is touched.
    fn renamed(&mut self, machine: &Machine, service: &Offered) -> Option<Box<Card>> {
        let is_known = |Card { named, labels }: &Card| {
            Arc::ptr_eq(&named.machine, &machine.name)
                && Arc::ptr_eq(&named.address, &service.address)
                && Arc::ptr_eq(&labels.machine, &machine.labels)
                && Arc::ptr_eq(&labels.service, &service.labels)
        };
        if self.card.as_ref().is_some_and(is_known) {
            return None;
        }
        let named =
            Named { machine: Arc::clone(&machine.name), address: Arc::clone(&service.address) };
        let labels = TargetLabels {
            service: Arc::clone(&service.labels),
            machine: Arc::clone(&machine.labels),
        };
        Some(Box::new(self.card.insert(Card { named, labels }).clone()))
    }
}

impl Batch {
    /// Gathers a target's metrics; its row, for what the caller knows.
    fn add(
        &mut self,
        slot: u32,
        machine: &Machine,
        service: &Offered,
        columns: &mut Option<Arc<Columns>>,
        inputs: &mut Inputs,
    ) -> &mut Fresh {
        let start = self.values.len();
        let missing = inputs.read(columns, machine, service, &mut self.values);
        if missing.is_empty() {
            self.whole.push(self.rows.len());
        } else {
            self.values.truncate(start);
        }
        let fresh = Fresh {
            card: None,
            load: if missing.is_empty() { f64::NAN } else { f64::INFINITY },
            // Two good weights can make none.
            weight: (machine.weight * service.weight).clamp(f64::MIN_POSITIVE, f64::MAX),
            in_flight: service.in_flight,
            accepted: service.accepted,
            completed: service.completed,
            identity: 0,
            eligible: machine.takes_work(),
            captured_ms: machine.captured_ms,
            interval_ms: machine.interval_ms,
            missing,
        };
        let index = self.rows.len();
        self.rows.push((slot, fresh));
        &mut self.rows[index].1
    }

    /// Forgets the rows, and of the memory what a usual batch does not need.
    fn clear(&mut self) {
        self.rows.clear();
        self.rows.shrink_to(ROWS_MAX);
        self.whole.clear();
        self.values.clear();
    }

    /// A load, good or bad, for each row that has every metric.
    fn evaluate(
        &self,
        guest: &mut FormulaGuest,
        columns: usize,
        now_ms: u64,
    ) -> Result<Vec<f64>, CallError> {
        let mut loads = Vec::with_capacity(self.whole.len());
        let mut values = &*self.values;
        for whole in self.whole.chunks(ROWS_MAX) {
            let slots: Vec<_> = whole.iter().map(|index| self.rows[*index].0).collect();
            let (now, later) = values.split_at(whole.len() * columns);
            loads.extend(guest.evaluate(now_ms, &slots, now)?);
            values = later;
        }
        Ok(loads)
    }
}

/// The machine and its service of this name, if it is alive and offers that.
fn offered<'f>(
    fleet: &'f Fleet,
    id: MachineId,
    service: &str,
) -> Option<(&'f Machine, &'f Offered)> {
    let machine = fleet.get(id).filter(|machine| machine.alive)?;
    let service = machine.services.iter().find(|offered| *offered.name == *service)?;
    Some((machine, service))
}

/// The same number for a target on every host, now and later.
fn identity(machine: &str, service: &str) -> u64 {
    key_hash(&format!("{service}\n{machine}"))
}
