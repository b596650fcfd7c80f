//! The fleet: the last report of every machine of this farm, and who is alive.
//!
//! In: decoded reports with the time they were received. Out: machines. Invariants: at most one
//! machine a name; `(boot, seq)` of a machine never goes back; a machine is gone `miss_limit` report
//! intervals and a half after its last report, and at once when it says that it leaves. No clock, no
//! socket and no lock in here: time comes in as milliseconds of the host's monotonic clock.

mod loss;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::report::{Metrics, Report, Service, State};
pub use loss::Loss;

/// Machines known at most: bounds what forged names can cost.
pub const MACHINES_MAX: usize = 200_000;
/// Sets of metric names remembered for sharing: farms have a few makes of machines.
const NAME_SETS_MAX: usize = 64;
/// How long a machine that is gone is still shown, in milliseconds.
const FORGET_AFTER_MS: u64 = 600_000;
/// The service of a machine that names none.
pub const DEFAULT_SERVICE: &str = "default";

/// Dense number of a machine; given to another one only after it was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(u32);

/// The names of a report's metrics, shared by all reports that have the same ones, so that a lookup
/// table made for them stays good.
pub type MetricNames = Arc<[Box<str>]>;

/// Values with their names.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Same order and length as `values`.
    pub names: MetricNames,
    /// What was reported; not finite: not reported.
    pub values: Vec<f64>,
}

/// One service of a machine.
#[derive(Debug, Clone)]
pub struct Offered {
    /// Names the pool's service.
    pub name: Box<str>,
    /// As reported; empty: the machine's source address.
    pub address: Arc<str>,
    /// Capacity, > 0.
    pub weight: f64,
    /// The service's own metrics.
    pub metrics: Measured,
    /// Requests taken since the agent started.
    pub accepted: u64,
    /// Requests finished since the agent started.
    pub completed: u64,
    /// Requests open.
    pub in_flight: u32,
}

/// One machine as of its last report.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name.
    pub name: Arc<str>,
    /// When its agent started, milliseconds since 1970 by its own clock.
    pub boot: u64,
    /// The last report's number.
    pub seq: u64,
    /// Milliseconds between its reports.
    pub interval_ms: u32,
    /// What it says of itself.
    pub state: State,
    /// Whether reports still come.
    pub alive: bool,
    /// Capacity, > 0.
    pub weight: f64,
    /// Where its last report came from.
    pub source: IpAddr,
    /// When the last report was received, milliseconds of the host's clock.
    pub received_ms: u64,
    /// When it was captured, on the same clock.
    pub captured_ms: u64,
    /// The machine's metrics.
    pub metrics: Measured,
    /// What it offers; never empty.
    pub services: Vec<Offered>,
    /// Free words.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// Which reports were lost.
    pub loss: Loss,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The machine is new, or back after it was gone.
    Joined(MachineId),
    /// The machine's row changed.
    Changed(MachineId),
    /// The same report again, as on a second interface.
    Duplicate,
    /// A report older than the one known.
    Older,
    /// Of an agent that ran before the one known.
    OldBoot,
    /// Another farm's.
    ForeignFarm,
    /// No room for one more machine.
    Full,
}

/// All machines of one farm.
#[derive(Debug)]
pub struct Fleet {
    farm: String,
    miss_limit: u32,
    machines: Vec<Option<Machine>>,
    free: Vec<MachineId>,
    by_name: HashMap<Arc<str>, MachineId>,
    names: NameSets,
}

/// The metric names of recent reports, newest first: machines of one make share them.
#[derive(Debug, Default)]
struct NameSets {
    recent: VecDeque<MetricNames>,
}

impl Fleet {
    /// An empty fleet.
    #[must_use]
    pub fn new(farm: String, miss_limit: u32) -> Self {
        Self {
            farm,
            miss_limit,
            machines: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            names: NameSets::default(),
        }
    }

    /// Takes a report, if it is newer than what is known.
    pub fn apply(&mut self, report: &Report<'_>, from: IpAddr, received_ms: u64) -> Applied {
        if report.farm != self.farm {
            return Applied::ForeignFarm;
        }
        let Some(&id) = self.by_name.get(report.machine) else {
            return self.insert(report, from, received_ms);
        };
        let Some(machine) = &mut self.machines[id.index()] else {
            return Applied::Full; // by_name only holds machines that exist
        };
        let newer = (report.boot, report.seq).cmp(&(machine.boot, machine.seq));
        match newer {
            std::cmp::Ordering::Greater => {
                let was_alive = machine.alive;
                machine.replace(report, from, received_ms, &mut self.names);
                if machine.alive && !was_alive { Applied::Joined(id) } else { Applied::Changed(id) }
            }
            std::cmp::Ordering::Equal => Applied::Duplicate,
            std::cmp::Ordering::Less if report.boot < machine.boot => Applied::OldBoot,
            std::cmp::Ordering::Less => {
                machine.loss.late(machine.seq - report.seq);
                Applied::Older
            }
        }
    }

    /// Takes out the machines whose reports have stopped; those that are gone now.
    pub fn expire(&mut self, now_ms: u64) -> Vec<MachineId> {
        let mut gone = Vec::new();
        let mut forgotten = Vec::new();
        for (id, machine) in (0..).map(MachineId).zip(&mut self.machines) {
            let Some(machine) = machine else { continue };
            let silent_ms = now_ms.saturating_sub(machine.received_ms);
            if machine.alive && silent_ms > machine.patience_ms(self.miss_limit) {
                machine.alive = false;
                gone.push(id);
            } else if !machine.alive && silent_ms > FORGET_AFTER_MS {
                forgotten.push(id);
            }
        }
        for id in forgotten {
            if let Some(machine) = self.machines[id.index()].take() {
                self.by_name.remove(&machine.name);
                self.free.push(id);
            }
        }
        gone
    }

    /// A machine, alive or gone.
    #[must_use]
    pub fn get(&self, id: MachineId) -> Option<&Machine> {
        self.machines.get(id.index())?.as_ref()
    }

    /// A machine by its name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<(MachineId, &Machine)> {
        let id = *self.by_name.get(name)?;
        Some((id, self.get(id)?))
    }

    /// All machines, those that are gone included until they are forgotten.
    pub fn machines(&self) -> impl Iterator<Item = (MachineId, &Machine)> {
        let numbered = (0..).map(MachineId).zip(&self.machines);
        numbered.filter_map(|(id, machine)| Some((id, machine.as_ref()?)))
    }

    fn insert(&mut self, report: &Report<'_>, from: IpAddr, received_ms: u64) -> Applied {
        if self.by_name.len() >= MACHINES_MAX {
            return Applied::Full;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.machines.push(None);
            MachineId(u32::try_from(self.machines.len() - 1).unwrap_or(u32::MAX))
        });
        let machine = Machine::new(report, from, received_ms, &mut self.names);
        self.by_name.insert(Arc::clone(&machine.name), id);
        self.machines[id.index()] = Some(machine);
        Applied::Joined(id)
    }
}

impl MachineId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl Machine {
    fn new(report: &Report<'_>, from: IpAddr, received_ms: u64, names: &mut NameSets) -> Self {
        let mut machine = Self {
            name: report.machine.into(),
            boot: report.boot,
            seq: report.seq,
            interval_ms: report.interval_ms,
            state: report.state,
            alive: false,
            weight: report.weight,
            source: from,
            received_ms,
            captured_ms: received_ms,
            metrics: Measured { names: names.get(&[]), values: Vec::new() },
            services: Vec::new(),
            labels: Vec::new(),
            loss: Loss::default(),
        };
        machine.take(report, from, received_ms, names);
        machine
    }

    fn replace(
        &mut self,
        report: &Report<'_>,
        from: IpAddr,
        received_ms: u64,
        names: &mut NameSets,
    ) {
        // A restarted agent counts from 1 again: the gap between two boots says nothing.
        let gap = if report.boot == self.boot { report.seq - self.seq } else { 1 };
        self.loss.received(gap);
        self.take(report, from, received_ms, names);
    }

    fn take(&mut self, report: &Report<'_>, from: IpAddr, received_ms: u64, names: &mut NameSets) {
        self.boot = report.boot;
        self.seq = report.seq;
        self.interval_ms = report.interval_ms;
        self.state = report.state;
        self.alive = report.state != State::Leaving;
        self.weight = report.weight;
        self.source = from;
        self.received_ms = received_ms;
        self.captured_ms = received_ms.saturating_sub(report.delay_ms.into());
        self.metrics.take(&report.metrics, names);
        self.take_services(&report.services, names);
        let same = self.labels.len() == report.labels.len()
            && self.labels.iter().zip(&report.labels).all(|(a, b)| *a.0 == *b.0 && *a.1 == *b.1);
        if !same {
            self.labels = report.labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        }
    }

    fn take_services(&mut self, services: &[Service<'_>], names: &mut NameSets) {
        let implied = [Service {
            name: DEFAULT_SERVICE,
            address: "",
            weight: 1.0,
            metrics: Metrics::default(),
            accepted: 0,
            completed: 0,
            in_flight: 0,
        }];
        let services = if services.is_empty() { &implied } else { services };
        let same = self.services.len() == services.len()
            && self.services.iter().zip(services).all(|(a, b)| *a.name == *b.name);
        if !same {
            let offered = |service: &Service<'_>| Offered {
                name: service.name.into(),
                address: service.address.into(),
                weight: service.weight,
                metrics: Measured { names: names.get(&[]), values: Vec::new() },
                accepted: 0,
                completed: 0,
                in_flight: 0,
            };
            self.services = services.iter().map(offered).collect();
        }
        for (offered, service) in self.services.iter_mut().zip(services) {
            if *offered.address != *service.address {
                offered.address = service.address.into();
            }
            offered.weight = service.weight;
            offered.metrics.take(&service.metrics, names);
            offered.accepted = service.accepted;
            offered.completed = service.completed;
            offered.in_flight = service.in_flight;
        }
    }

    /// Whether the machine's targets may be picked.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        self.alive && self.state == State::Ready
    }

    /// The address to offer for a service: the reported one, else where the reports come from.
    #[must_use]
    pub fn address_of(&self, service: &Offered) -> Arc<str> {
        if service.address.is_empty() {
            self.source.to_string().into()
        } else {
            Arc::clone(&service.address)
        }
    }

    /// Silence after which the machine is gone.
    fn patience_ms(&self, miss_limit: u32) -> u64 {
        let interval = u64::from(self.interval_ms);
        interval * u64::from(miss_limit) + interval / 2
    }
}

impl Measured {
    /// The value of a metric, if it was reported as a finite number.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        let index = self.names.iter().position(|known| **known == *name)?;
        self.values.get(index).copied().filter(|value| value.is_finite())
    }

    /// Replaces the values; the names are kept where they are the same.
    fn take(&mut self, metrics: &Metrics<'_>, names: &mut NameSets) {
        if !is_same(&self.names, &metrics.names) {
            self.names = names.get(&metrics.names);
        }
        self.values.clear();
        self.values.extend_from_slice(&metrics.values);
    }
}

impl NameSets {
    /// These names, shared with other reports that have the same ones.
    fn get(&mut self, names: &[&str]) -> MetricNames {
        if let Some(known) = self.recent.iter().find(|known| is_same(known, names)) {
            return Arc::clone(known);
        }
        let new: MetricNames = names.iter().map(|name| (*name).into()).collect();
        self.recent.truncate(NAME_SETS_MAX - 1);
        self.recent.push_front(Arc::clone(&new));
        new
    }
}

fn is_same(known: &MetricNames, names: &[&str]) -> bool {
    known.len() == names.len() && known.iter().zip(names).all(|(a, b)| **a == **b)
}

#[cfg(test)]
mod tests;
