//! One pool's loads: machines that changed in, targets with loads out, by the pool's formula.
//!
//! Each batch is one guest call. Which column of a report feeds which metric of the formula is looked
//! up once for each set of metric names and kept. Invariants: a target that lacks a required metric
//! has no load and is not asked about; a load that is NaN, infinite or negative is answered with the
//! target's last good one; slots are given out again only after formula and strategy heard `leave`.

use std::collections::HashMap;
use std::sync::Arc;

use super::pool::{Pool, log_restored};
use super::table::Fresh;
use crate::fleet::{Fleet, Machine, MachineId, MetricNames, Offered};
use crate::policy::guest::MetricUse;
use crate::policy::{CallError, FormulaGuest, Kind};

/// Rows of one `evaluate`: keeps a batch far below its deadline.
const ROWS_MAX: usize = 1_024;

/// Targets scored anew at a stretch after a swap: picks wait for the strategy's guest that long.
const ANEW_ROWS: usize = 256;

/// The formula's side of a pool; owned by the intake.
pub(super) struct Scorer {
    pool: Arc<Pool>,
    formula: Option<FormulaGuest>,
    slots: HashMap<MachineId, u32>,
    targets: Vec<Option<Scored>>,
    free: Vec<u32>,
    wanted: Vec<Wanted>,
}

/// A metric the formula wants.
struct Wanted {
    name: Arc<str>,
    fallback: Option<f64>,
}

/// What is kept of a target between two reports.
struct Scored {
    columns: Columns,
    last_good: f64,
}

/// Where a target's report holds the formula's metrics.
#[derive(Default)]
struct Columns {
    machine_names: Option<MetricNames>,
    service_names: Option<MetricNames>,
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
enum Place {
    Machine(usize),
    Service(usize),
    Nowhere,
}

/// One target on its way through a batch.
struct Row {
    slot: u32,
    fresh: Fresh,
}

impl Scorer {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            formula: None,
            slots: HashMap::new(),
            targets: Vec::new(),
            free: Vec::new(),
            wanted: Vec::new(),
        }
    }

    /// Takes over what changed in the fleet.
    pub(super) fn refresh(&mut self, fleet: &Fleet, changed: &[MachineId], now_ms: u64) {
        let mut left = Vec::new();
        let mut rows = Vec::new();
        let mut known = Vec::new();
        let mut values = Vec::new();
        for id in changed {
            match self.offered(fleet, *id) {
                Some((machine, service)) => {
                    let row = self.row(*id, machine, service, &mut values);
                    if row.fresh.missing.is_empty() {
                        known.push(rows.len());
                    }
                    rows.push(row);
                }
                None => left.extend(self.slots.remove(id)),
            }
        }
        if rows.is_empty() && left.is_empty() {
            return;
        }
        self.score(&mut rows, &known, &values, now_ms);
        self.forget(&left);
        let fresh = rows.into_iter().map(|row| (row.slot, row.fresh)).collect();
        self.pool.publish(&left, fresh, now_ms);
        self.free.extend(left);
    }

    /// Puts a configured formula in place, with the old one's state, and scores everything anew.
    pub(super) fn replace(&mut self, mut formula: FormulaGuest, fleet: &Fleet, now_ms: u64) {
        if let Some(old) = &mut self.formula {
            let restored = old.save().and_then(|state| formula.restore(&state));
            match restored {
                Ok(restored) => log_restored(self.pool.policy_name(Kind::Formula), restored),
                Err(fault) => self.pool.note_fault(Kind::Formula, &fault),
            }
        }
        let wanted = |metric: &MetricUse| Wanted {
            name: metric.name.as_str().into(),
            fallback: metric.fallback,
        };
        self.wanted = formula.metrics().iter().map(wanted).collect();
        self.formula = Some(formula);
        for target in self.targets.iter_mut().flatten() {
            *target = Scored { columns: Columns::default(), last_good: f64::NAN };
        }
        let all: Vec<_> = self.slots.keys().copied().collect();
        for some in all.chunks(ANEW_ROWS) {
            self.refresh(fleet, some, now_ms);
        }
        // Said when it holds: every load is the new formula's now, unless it failed on the way.
        if let Some(formula) = &self.formula {
            self.pool.note_serving(Kind::Formula, formula.generation);
        }
    }

    /// The machine and its service of this pool, if it is in the pool now.
    fn offered<'f>(&self, fleet: &'f Fleet, id: MachineId) -> Option<(&'f Machine, &'f Offered)> {
        let machine = fleet.get(id).filter(|machine| machine.alive)?;
        let wanted = &*self.pool.config.service;
        let service = machine.services.iter().find(|service| *service.name == *wanted)?;
        Some((machine, service))
    }

    /// Gives the target a slot and gathers its metrics; `values` grows only if none is missing.
    fn row(
        &mut self,
        id: MachineId,
        machine: &Machine,
        service: &Offered,
        values: &mut Vec<f64>,
    ) -> Row {
        let slot = *self.slots.entry(id).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.targets.push(None);
                u32::try_from(self.targets.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let scored = self.targets[slot as usize]
            .get_or_insert_with(|| Scored { columns: Columns::default(), last_good: f64::NAN });
        scored.columns.find(machine, service, &self.wanted);
        let start = values.len();
        let mut missing = Vec::new();
        for (place, wanted) in scored.columns.places.iter().zip(&self.wanted) {
            let reported = match *place {
                Place::Machine(column) => machine.metrics.values.get(column),
                Place::Service(column) => service.metrics.values.get(column),
                Place::Nowhere => None,
            };
            let reported = reported.copied().filter(|value| value.is_finite());
            match reported.or(wanted.fallback) {
                Some(value) => values.push(value),
                None => missing.push(Arc::clone(&wanted.name)),
            }
        }
        if !missing.is_empty() {
            values.truncate(start);
        }
        let fresh = Fresh {
            machine: Arc::clone(&machine.name),
            address: machine.address_of(service),
            load: f64::NAN,
            weight: machine.weight * service.weight,
            in_flight: service.in_flight,
            eligible: machine.takes_work(),
            captured_ms: machine.captured_ms,
            missing,
        };
        Row { slot, fresh }
    }

    /// Writes the loads of the rows that have all metrics.
    fn score(&mut self, rows: &mut [Row], known: &[usize], values: &[f64], now_ms: u64) {
        let columns = self.wanted.len();
        for (batch, known) in known.chunks(ROWS_MAX).enumerate() {
            let slots: Vec<_> = known.iter().map(|index| rows[*index].slot).collect();
            let start = batch * ROWS_MAX * columns;
            let values = &values[start..start + known.len() * columns];
            let loads = self.evaluate(now_ms, &slots, values);
            let mut bad = 0;
            for (place, index) in known.iter().enumerate() {
                let Some(Some(scored)) = self.targets.get_mut(rows[*index].slot as usize) else {
                    continue;
                };
                match loads.as_ref().map(|loads| loads[place]) {
                    Some(load) if load.is_finite() && load >= 0.0 => scored.last_good = load + 0.0,
                    Some(_) => bad += 1,
                    None => {} // no formula now
                }
                rows[*index].fresh.load = scored.last_good;
            }
            self.pool.count_bad_loads(bad);
        }
    }

    /// One guest call; `None`: no formula runs, or it failed just now.
    fn evaluate(&mut self, now_ms: u64, slots: &[u32], values: &[f64]) -> Option<Vec<f64>> {
        let loads = self.formula.as_mut()?.evaluate(now_ms, slots, values);
        self.keep_or_drop(loads)
    }

    fn forget(&mut self, left: &[u32]) {
        for slot in left {
            self.targets[*slot as usize] = None;
        }
        if let Some(formula) = self.formula.as_mut()
            && !left.is_empty()
        {
            let heard = formula.leave(left);
            self.keep_or_drop(heard);
        }
    }

    fn keep_or_drop<T>(&mut self, answer: Result<T, CallError>) -> Option<T> {
        answer
            .map_err(|fault| {
                self.formula = None;
                self.pool.note_fault(Kind::Formula, &fault);
            })
            .ok()
    }
}

impl Columns {
    /// Looks the places up again, if the report's names are not those of the last time.
    fn find(&mut self, machine: &Machine, service: &Offered, wanted: &[Wanted]) {
        let (of_machine, of_service) = (&machine.metrics.names, &service.metrics.names);
        let is_same = |known: &Option<MetricNames>, names| {
            known.as_ref().is_some_and(|known| Arc::ptr_eq(known, names))
        };
        if is_same(&self.machine_names, of_machine) && is_same(&self.service_names, of_service) {
            return;
        }
        let column = |names: &MetricNames, name: &str| names.iter().position(|n| **n == *name);
        let place = |wanted: &Wanted| {
            let in_service = column(of_service, &wanted.name).map(Place::Service);
            let in_machine = || column(of_machine, &wanted.name).map(Place::Machine);
            in_service.or_else(in_machine).unwrap_or(Place::Nowhere)
        };
        self.places = wanted.iter().map(place).collect();
        self.machine_names = Some(Arc::clone(of_machine));
        self.service_names = Some(Arc::clone(of_service));
    }
}
