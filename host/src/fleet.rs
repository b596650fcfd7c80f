//! The fleet: the last report of every machine of this farm, and who is alive.
//!
//! In: decoded reports with the time they were received. Out: machines. Invariants: at most one
//! machine a name; `seq` of one boot never goes back while it lives, and who reports under a name changes only by
//! the rules of [`namesake`]; a machine is gone by the [`dead rule`](patience), and at once when it
//! says that it leaves; time in which this host did not listen counts as nobody's silence. No clock,
//! no socket and no lock in here: time comes in as milliseconds of the host's monotonic clock.

mod index;
mod loss;
mod machine;
mod namesake;
mod patience;

use std::net::IpAddr;

use crate::report::gate::SKEW_MAX;
use crate::report::{Report, State};
pub use loss::Loss;
pub use machine::{Labels, Machine, Measured, Offered};
pub use namesake::Namesake;
pub(crate) use patience::DeadRule;
pub use patience::MISSES_FACTOR_MAX;

use index::Index;
use machine::{Heard, Names};
use namesake::Verdict;

/// Machines known at most: bounds what forged names can cost.
pub const MACHINES_MAX: usize = 200_000;
/// How long a machine that is gone is still known, in milliseconds: as long as what it sent last may
/// be played back, by a machine whose clock is ahead as far as is allowed to a host that is behind.
const FORGET_AFTER_MS: u64 = 2 * SKEW_MAX.as_secs() * 1_000 + 60_000;

/// Dense number of a machine; given to another one only after it was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(u32);

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The machine is new, or back after it was gone.
    Joined(MachineId),
    /// The machine's row changed.
    Changed(MachineId),
    /// The machine was there and says that it leaves.
    Left(MachineId),
    /// The same report again, as on a second interface.
    Duplicate,
    /// A report older than the one known.
    Older,
    /// Of an agent that ran before the one known.
    OldBoot,
    /// Of another agent, while the one of that name lives.
    Namesake {
        /// Whose name it is.
        id: MachineId,
        /// It is certain since this report that both live.
        is_new: bool,
    },
    /// Another farm's.
    ForeignFarm,
    /// No room for one more machine.
    Full,
}

/// How often machines were called gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deaths {
    /// By their silence.
    pub gone: u64,
    /// Of these, those that had reported all the while: their reports were lost.
    pub flaps: u64,
}

/// All machines of one farm.
#[derive(Debug)]
pub struct Fleet {
    farm: String,
    rule: DeadRule,
    machines: Vec<Option<Machine>>,
    /// By machine: the time listened after which something of it ends, so that those of whom nothing
    /// ends need not be looked at.
    due_ms: Vec<u64>,
    free: Vec<MachineId>,
    by_name: Index,
    names: Names,
    listening: Listening,
    deaths: Deaths,
}

/// The time in which this host listened; silence is counted in it.
#[derive(Debug, Default)]
struct Listening {
    /// All the time in which it did not, so far.
    deaf_ms: u64,
    /// When it last listened again, on the host's clock.
    since_ms: u64,
}

impl Listening {
    /// A time of the host's clock as time listened. What arrived while it was deaf arrived when it
    /// listened again: what came after that may have been lost.
    fn at(&self, ms: u64) -> u64 {
        ms.max(self.since_ms).saturating_sub(self.deaf_ms)
    }
}

impl Fleet {
    /// An empty fleet.
    #[must_use]
    pub fn new(farm: String, miss_limit: u32) -> Self {
        Self {
            farm,
            rule: DeadRule { miss_limit },
            machines: Vec::new(),
            due_ms: Vec::new(),
            free: Vec::new(),
            by_name: Index::default(),
            names: Names::default(),
            listening: Listening::default(),
            deaths: Deaths::default(),
        }
    }

    /// Whether a report is for this farm.
    #[must_use]
    pub fn is_of_farm(&self, report: &Report<'_>) -> bool {
        report.farm == self.farm
    }

    /// Takes another farm's reports from now on, or has another patience. Machines of the old farm
    /// are gone when their reports count no more.
    pub fn configure(&mut self, farm: String, miss_limit: u32) {
        self.farm = farm;
        self.rule.miss_limit = miss_limit;
    }

    /// The machine of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<MachineId> {
        self.confirm(self.by_name.guess(name), name)
    }

    /// [`find`](Self::find) for each of these reports: by hash first, so that the memory of all rows is
    /// waited for once, not of each.
    #[must_use]
    pub fn find_all(&self, reports: &[Report<'_>]) -> Vec<Option<MachineId>> {
        let guesses: Vec<_> = reports.iter().map(|r| self.by_name.guess(r.machine)).collect();
        let guessed = reports.iter().zip(guesses);
        guessed.map(|(report, guess)| self.confirm(guess, report.machine)).collect()
    }

    fn confirm(&self, guess: Option<MachineId>, name: &str) -> Option<MachineId> {
        self.by_name.confirm(guess, name, |id| Some(&*self.get(id)?.name))
    }

    /// Takes a report, if it is newer than what is known.
    pub fn apply(&mut self, report: &Report<'_>, from: IpAddr, received_ms: u64) -> Applied {
        self.apply_to(self.find(report.machine), report, from, received_ms)
    }

    /// [`apply`](Self::apply) to the machine that [`find_all`](Self::find_all) gave for the report; in
    /// between, others may have been applied, and nobody expired.
    pub fn apply_to(
        &mut self,
        found: Option<MachineId>,
        report: &Report<'_>,
        from: IpAddr,
        received_ms: u64,
    ) -> Applied {
        if !self.is_of_farm(report) {
            return Applied::ForeignFarm;
        }
        let heard = Heard { from, received_ms, heard_ms: self.listening.at(received_ms) };
        // It may have come in between.
        let Some(id) = found.or_else(|| self.find(report.machine)) else {
            return self.insert(report, heard);
        };
        let applied = self.change(id, report, heard);
        self.set_due(id);
        applied
    }

    fn change(&mut self, id: MachineId, report: &Report<'_>, heard: Heard) -> Applied {
        let Some(machine) = &mut self.machines[id.index()] else {
            return Applied::Full; // by_name only holds machines that exist
        };
        if report.boot != machine.boot {
            match machine.hear_other_boot(report, heard) {
                Verdict::Takes => {}
                Verdict::Old => return Applied::OldBoot,
                Verdict::Namesake { is_new } => return Applied::Namesake { id, is_new },
            }
        } else if report.seq == machine.seq {
            let is_better = machine.hear_again(heard.from);
            return if is_better { Applied::Changed(id) } else { Applied::Duplicate };
        } else if machine.has_gone_back(report) {
            // It goes on from a snapshot of itself.
        } else if report.seq < machine.seq {
            machine.loss.late(machine.seq - report.seq);
            return Applied::Older;
        } else if !machine.alive && machine.state != State::Leaving && report.seq > machine.seq + 1
        {
            self.deaths.flaps += 1;
        }
        let was_alive = machine.alive;
        machine.replace(report, heard, self.rule, &mut self.names);
        match (was_alive, machine.alive) {
            (false, true) => Applied::Joined(id),
            (true, false) => Applied::Left(id),
            _ => Applied::Changed(id),
        }
    }

    /// Takes note that for so long, until then, this host did not listen.
    pub fn was_deaf(&mut self, length_ms: u64, until_ms: u64) {
        self.listening.deaf_ms = self.listening.deaf_ms.saturating_add(length_ms);
        self.listening.since_ms = self.listening.since_ms.max(until_ms);
        // What was applied before this was known was heard when this host listened again.
        let listened_ms = self.listening.at(until_ms);
        for (machine, due_ms) in self.machines.iter_mut().zip(&mut self.due_ms) {
            if let Some(machine) = machine {
                machine.heard_ms = machine.heard_ms.min(listened_ms);
                *due_ms = machine.due_ms();
            }
        }
    }

    /// Takes out the machines whose reports have stopped; those that are gone now. Everything that
    /// was received up to `now_ms` must have been applied.
    pub fn expire(&mut self, now_ms: u64) -> Vec<MachineId> {
        let listened_ms = self.listening.at(now_ms);
        let mut gone = Vec::new();
        for id in (0..).map(MachineId).take(self.due_ms.len()) {
            if self.due_ms[id.index()] < listened_ms {
                gone.extend(self.expire_one(id, listened_ms).then_some(id));
                self.set_due(id);
            }
        }
        self.deaths.gone += gone.len() as u64;
        gone
    }

    /// Ends what is over of a machine; whether it is gone now.
    fn expire_one(&mut self, id: MachineId, listened_ms: u64) -> bool {
        let Some(machine) = &mut self.machines[id.index()] else { return false };
        machine.forget_namesake(listened_ms);
        if machine.ends_ms() >= listened_ms {
            return false;
        }
        if machine.alive {
            machine.alive = false;
            return true;
        }
        self.by_name.remove(&machine.name, id);
        self.machines[id.index()] = None;
        self.free.push(id);
        false
    }

    fn set_due(&mut self, id: MachineId) {
        self.due_ms[id.index()] = self.get(id).map_or(u64::MAX, Machine::due_ms);
    }

    /// How often machines were called gone.
    #[must_use]
    pub fn deaths(&self) -> Deaths {
        self.deaths
    }

    /// A machine, alive or gone.
    #[must_use]
    pub fn get(&self, id: MachineId) -> Option<&Machine> {
        self.machines.get(id.index())?.as_ref()
    }

    /// A machine by its name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<(MachineId, &Machine)> {
        let id = self.find(name)?;
        Some((id, self.get(id)?))
    }

    /// All machines, those that are gone included until they are forgotten.
    pub fn machines(&self) -> impl Iterator<Item = (MachineId, &Machine)> {
        let numbered = (0..).map(MachineId).zip(&self.machines);
        numbered.filter_map(|(id, machine)| Some((id, machine.as_ref()?)))
    }

    fn insert(&mut self, report: &Report<'_>, heard: Heard) -> Applied {
        if self.by_name.len() >= MACHINES_MAX {
            return Applied::Full;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.machines.push(None);
            self.due_ms.push(u64::MAX);
            MachineId(u32::try_from(self.machines.len() - 1).unwrap_or(u32::MAX))
        });
        let machine = Machine::new(report, heard, self.rule, &mut self.names);
        let is_alive = machine.alive;
        self.by_name.insert(&machine.name, id);
        self.machines[id.index()] = Some(machine);
        self.set_due(id);
        if is_alive { Applied::Joined(id) } else { Applied::Changed(id) }
    }
}

impl MachineId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_index(index: u32) -> Self {
        Self(index)
    }
}

#[cfg(test)]
mod tests;
