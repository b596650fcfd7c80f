//! The walk of one report: datagram → authentic → decoded → fleet → every pool's formula and strategy.
//!
//! One thread owns this walk; reports come to it over a bounded channel. Bad
//! datagrams are counted by reason, logged at most once a minute a source and reason, and never stop
//! the loop. The fleet is written only while a batch is applied; guests run beside its readers. Who
//! is gone is judged by the time that this process listened ([`pulse`]), however busy this thread is.

mod pulse;
mod refused;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::Pools;
use super::score::Scorers;
use crate::clock::{Clock, wall_ms};
use crate::fleet::{Applied, Fleet, MachineId};
use crate::report::Report;
use crate::report::gate::{Gate, Present};
use crate::report::wire::Decoder;
use crate::telemetry::Quiet;
use crate::transport::{Batch, Datagram};
pub use pulse::Pulse;
pub use refused::{Kind, Refusal, Refused};

/// Time between two looks for machines that are gone and for what time brings to pools.
const SWEEP: Duration = Duration::from_millis(SWEEP_MS);
const SWEEP_MS: u64 = 50;
/// Messages that wait for the intake at most, each a batch of datagrams; more are dropped and
/// counted, newest first.
pub const QUEUE_MAX: usize = 1_024;

/// Datagrams that are decoded, then applied, at a stretch: what is read of them stays near.
const PART: usize = 64;

/// What the intake is told.
pub enum Event {
    /// These arrived.
    Datagrams(Batch),
    /// These were made in this process: unsigned, and from no network.
    Own(Batch),
    /// The configuration changed.
    Configure(Setup),
    /// End.
    Stop,
}

/// What reports are measured by.
#[derive(Debug)]
pub struct Setup {
    /// Whose reports count.
    pub farm: String,
    /// Missed reports after which a machine is gone.
    pub miss_limit: u32,
    /// What is asked of them.
    pub gate: Gate,
}

/// What arrived.
#[derive(Debug, Default)]
pub struct Counts {
    /// Datagrams.
    pub datagrams: AtomicU64,
    /// Reports that changed the fleet.
    pub reports: AtomicU64,
    /// Datagrams that found the queue full.
    pub dropped: AtomicU64,
    /// Datagrams and reports that were not used, by reason.
    pub rejected: Mutex<BTreeMap<&'static str, u64>>,
    /// Those of them that tell of something wrong.
    pub refused: Mutex<Refused>,
}

/// The thread's state.
pub struct Intake {
    fleet: Arc<RwLock<Fleet>>,
    gate: Gate,
    decoder: Decoder,
    scorers: Arc<Scorers>,
    pools: Arc<Pools>,
    clock: Clock,
    counts: Arc<Counts>,
    pulse: Arc<Pulse>,
    /// What the fleet knows of the time that was not listened, in milliseconds.
    deaf_ms: u64,
    changes: Arc<watch::Sender<u64>>,
    quiet: Quiet<(IpAddr, &'static str)>,
}

/// What a turn of the loop changed.
#[derive(Debug, Default)]
struct Turn {
    changed: Vec<MachineId>,
    joined: Vec<MachineId>,
    left: Vec<MachineId>,
}

impl Intake {
    /// An intake for this fleet and these pools; `changes` is bumped with every change of either.
    #[must_use]
    pub fn new(
        fleet: Arc<RwLock<Fleet>>,
        gate: Gate,
        scorers: Arc<Scorers>,
        pools: Arc<Pools>,
        changes: Arc<watch::Sender<u64>>,
    ) -> Self {
        let (counts, pulse, quiet) = (Arc::default(), Arc::default(), Quiet::default());
        let (clock, decoder) = (pools.clock(), Decoder::new());
        Self {
            fleet,
            gate,
            decoder,
            scorers,
            pools,
            clock,
            counts,
            pulse,
            deaf_ms: 0,
            changes,
            quiet,
        }
    }

    /// What must beat beside the tasks that receive.
    #[must_use]
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// What has arrived so far.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Works until told to stop.
    pub fn run(mut self, events: &Receiver<Event>) {
        let mut swept_ms = 0;
        loop {
            let first = match events.recv_timeout(SWEEP) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Everything that has arrived is applied before anybody is called gone or anything is
            // scored: however slow a policy is, reports do not age in the queue.
            let now_ms = self.clock.now_ms();
            let (beat_ms, deaf_ms) = self.pulse.read();
            // First: what waited meanwhile was heard when this host listened again.
            self.note_deafness(beat_ms, deaf_ms);
            let mut turn = Turn::default();
            for event in first.into_iter().chain(events.try_iter().take(QUEUE_MAX)) {
                match event {
                    Event::Datagrams(batch) => self.apply(&batch, false, &mut turn),
                    Event::Own(batch) => self.apply(&batch, true, &mut turn),
                    Event::Configure(Setup { farm, miss_limit, gate }) => {
                        self.gate = gate;
                        self.fleet.write().configure(farm, miss_limit);
                    }
                    Event::Stop => return,
                }
            }
            let mut gone = Vec::new();
            if now_ms.saturating_sub(swept_ms) >= SWEEP_MS {
                gone = self.fleet.write().expire(beat_ms.min(now_ms));
                if self.pools.tend(now_ms) {
                    self.changes.send_modify(|changes| *changes += 1);
                }
                swept_ms = now_ms;
            }
            turn.changed.extend(&gone);
            self.refresh(turn.changed);
            self.log(&turn.joined, "machine reports");
            self.log(&turn.left, "machine leaves");
            self.log(&gone, "machine is gone: its reports have stopped");
        }
    }

    /// Tells the fleet of time that was not listened up to the last beat.
    fn note_deafness(&mut self, beat_ms: u64, deaf_ms: u64) {
        let length_ms = deaf_ms.saturating_sub(self.deaf_ms);
        if length_ms == 0 {
            return;
        }
        self.deaf_ms = deaf_ms;
        self.fleet.write().was_deaf(length_ms, beat_ms);
        if self.quiet.may((IpAddr::V4(Ipv4Addr::UNSPECIFIED), "deaf")) {
            tracing::warn!(
                length_ms,
                "this host was held up and did not listen: no machine is called gone for that time"
            );
        }
    }

    /// Takes a batch of datagrams to the fleet; those of this process are not questioned.
    fn apply(&mut self, batch: &Batch, is_own: bool, turn: &mut Turn) {
        // An empty gate is open.
        let gate = is_own.then(|| std::mem::take(&mut self.gate));
        let before = turn.changed.len();
        let mut datagrams = batch.iter().peekable();
        while datagrams.peek().is_some() {
            self.apply_part(datagrams.by_ref().take(PART), turn);
        }
        if let Some(gate) = gate {
            self.gate = gate;
        }
        let reports = (turn.changed.len() - before) as u64;
        self.counts.datagrams.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.counts.reports.fetch_add(reports, Ordering::Relaxed);
    }

    fn apply_part<'b>(&mut self, datagrams: impl Iterator<Item = Datagram<'b>>, turn: &mut Turn) {
        let (reports, arrivals) = self.decode(datagrams);
        let fleet = Arc::clone(&self.fleet);
        let mut fleet = fleet.write();
        let found = fleet.find_all(&reports);
        let now = Present { wall_ms: wall_ms(), up_ms: self.clock.now_ms() };
        for ((report, found), (from, received_ms)) in reports.iter().zip(found).zip(arrivals) {
            if !fleet.is_of_farm(report) {
                self.count("other_farm");
            } else if self.may_enter(report, from, now, found.is_some()) {
                let applied = fleet.apply_to(found, report, from, received_ms);
                self.note(&fleet, applied, report, from, turn);
            }
        }
        drop(fleet);
        self.decoder.reuse(reports);
    }

    /// The reports of datagrams, each with where it came from and when.
    fn decode<'b>(
        &mut self,
        datagrams: impl Iterator<Item = Datagram<'b>>,
    ) -> (Vec<Report<'b>>, Vec<(IpAddr, u64)>) {
        let mut reports = Vec::with_capacity(PART);
        let mut arrivals = Vec::with_capacity(PART);
        for Datagram { bytes, from, received } in datagrams {
            match self.decoder.decode_onto(&mut reports, bytes, &self.gate.keyring) {
                Ok(()) => arrivals.resize(reports.len(), (from, self.clock.ms_at(received))),
                Err(error) => {
                    if self.refuse(from, None, error.reason(), &error) {
                        tracing::warn!(%from, %error, "report refused");
                    }
                }
            }
        }
        (reports, arrivals)
    }

    /// Whether a report of this farm may count at all.
    fn may_enter(
        &mut self,
        report: &Report<'_>,
        from: IpAddr,
        now: Present,
        is_known: bool,
    ) -> bool {
        let Err(barred) = self.gate.admit(report, from, now, || is_known) else { return true };
        if self.refuse(from, Some(report.machine), barred.reason(), &barred) {
            tracing::warn!(%from, machine = report.machine, error = %barred, "report refused");
        }
        false
    }

    /// Takes note of what became of a report.
    fn note(
        &mut self,
        fleet: &Fleet,
        applied: Applied,
        report: &Report<'_>,
        from: IpAddr,
        turn: &mut Turn,
    ) {
        let (reason, detail) = match applied {
            Applied::Joined(id) => {
                turn.joined.push(id);
                return turn.changed.push(id);
            }
            Applied::Left(id) => {
                turn.left.push(id);
                return turn.changed.push(id);
            }
            Applied::Changed(id) => return turn.changed.push(id),
            // These happen on healthy networks.
            Applied::Duplicate => return self.count("duplicate"),
            Applied::Older => return self.count("older"),
            Applied::ForeignFarm => return self.count("other_farm"),
            Applied::Namesake { id, is_new } => {
                if is_new {
                    warn_of_namesake(fleet, id);
                }
                ("namesake", "the agent that had this name first still reports")
            }
            Applied::OldBoot => ("old_boot", "its agent started before the one that reports"),
            Applied::Full => ("fleet_full", "no room for one more machine"),
        };
        if self.refuse(from, Some(report.machine), reason, &detail) {
            tracing::debug!(%from, machine = report.machine, reason, "report not used");
        }
    }

    fn count(&self, reason: &'static str) {
        *self.counts.rejected.lock().entry(reason).or_default() += 1;
    }

    /// Counts and remembers; true when it may be logged.
    fn refuse(
        &mut self,
        from: IpAddr,
        machine: Option<&str>,
        reason: &'static str,
        detail: &dyn std::fmt::Display,
    ) -> bool {
        self.count(reason);
        let kind = (from, reason, machine.map(Box::from));
        self.counts.refused.lock().add(kind, self.clock.now_ms(), || detail.to_string());
        self.quiet.may((from, reason))
    }

    fn log(&self, machines: &[MachineId], what: &str) {
        for id in machines {
            if let Some(machine) = self.fleet.read().get(*id) {
                tracing::info!(machine = %machine.name, from = %machine.source, "{what}");
            }
        }
    }

    fn refresh(&mut self, mut changed: Vec<MachineId>) {
        changed.sort_unstable();
        changed.dedup();
        if changed.is_empty() {
            return;
        }
        self.scorers.refresh(&changed, self.clock.now_ms());
        self.changes.send_modify(|changes| *changes += 1);
    }
}

fn warn_of_namesake(fleet: &Fleet, id: MachineId) {
    let Some(machine) = fleet.get(id) else { return };
    let Some(other) = machine.namesake() else { return };
    tracing::warn!(
        machine = %machine.name,
        counts = %machine.source,
        refused = %other.source,
        "two agents report under one name: the first one counts while it lives; set agent.machine"
    );
}
