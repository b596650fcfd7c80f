//! The walk of one report: datagram → authentic → decoded → fleet → every pool's formula and strategy.
//!
//! One thread owns this walk; reports come to it over a bounded channel. Bad
//! datagrams are counted by reason, logged at most once a minute a source and reason, and never stop
//! the loop. The fleet is written only while a batch is applied; guests run beside its readers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::Pools;
use super::score::Scorers;
use crate::clock::Clock;
use crate::fleet::{Applied, Fleet, MachineId};
use crate::report::{Keyring, wire};
use crate::telemetry::Quiet;
use crate::transport::Datagram;

/// Time between two looks for machines that are gone and for what time brings to pools.
const SWEEP: Duration = Duration::from_millis(SWEEP_MS);
const SWEEP_MS: u64 = 50;
/// An idle gap that means that this process was held up: nobody is called gone then.
const STALL_MS: u64 = 1_000;
/// Messages that wait for the intake at most, each a batch of datagrams; more are dropped and
/// counted, newest first.
pub const QUEUE_MAX: usize = 1_024;

/// What the intake is told.
pub enum Event {
    /// These arrived.
    Datagrams(Vec<Datagram>),
    /// End.
    Stop,
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
}

/// The thread's state.
pub struct Intake {
    fleet: Arc<RwLock<Fleet>>,
    keyring: Keyring,
    scorers: Arc<Scorers>,
    pools: Arc<Pools>,
    clock: Clock,
    counts: Arc<Counts>,
    changes: Arc<watch::Sender<u64>>,
    quiet: Quiet<(IpAddr, &'static str)>,
}

impl Intake {
    /// An intake for this fleet and these pools; `changes` is bumped with every change of either.
    #[must_use]
    pub fn new(
        fleet: Arc<RwLock<Fleet>>,
        keyring: Keyring,
        scorers: Arc<Scorers>,
        pools: Arc<Pools>,
        changes: Arc<watch::Sender<u64>>,
    ) -> Self {
        let (counts, quiet, clock) = (Arc::default(), Quiet::default(), pools.clock());
        Self { fleet, keyring, scorers, pools, clock, counts, changes, quiet }
    }

    /// What has arrived so far.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Works until told to stop.
    pub fn run(mut self, events: &Receiver<Event>) {
        let (mut swept_ms, mut worked_ms) = (0, 0);
        loop {
            let first = match events.recv_timeout(SWEEP) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Everything that has arrived is applied before anybody is called gone or anything is
            // scored: however slow a policy is, reports do not age in the queue.
            let now_ms = self.clock.now_ms();
            let (mut changed, mut joined) = (Vec::new(), Vec::new());
            for event in first.into_iter().chain(events.try_iter().take(QUEUE_MAX)) {
                match event {
                    Event::Datagrams(batch) => self.apply(&batch, &mut changed, &mut joined),
                    Event::Stop => return,
                }
            }
            let mut gone = Vec::new();
            if now_ms.saturating_sub(swept_ms) >= SWEEP_MS {
                // After a pause of this process the reports of that time are still to be read.
                if now_ms.saturating_sub(worked_ms) < STALL_MS {
                    gone = self.fleet.write().expire(now_ms);
                }
                if self.pools.tend(now_ms) {
                    self.changes.send_modify(|changes| *changes += 1);
                }
                swept_ms = now_ms;
            }
            changed.extend(&gone);
            self.refresh(changed);
            self.log(&joined, "machine reports");
            self.log(&gone, "machine is gone: its reports have stopped");
            worked_ms = self.clock.now_ms();
        }
    }

    /// Takes a batch of datagrams to the fleet; what changed and who is new.
    fn apply(
        &mut self,
        batch: &[Datagram],
        changed: &mut Vec<MachineId>,
        joined: &mut Vec<MachineId>,
    ) {
        let before = changed.len();
        let fleet = Arc::clone(&self.fleet);
        let mut fleet = fleet.write();
        for datagram in batch {
            self.apply_one(&mut fleet, datagram, changed, joined);
        }
        let reports = (changed.len() - before) as u64;
        self.counts.datagrams.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.counts.reports.fetch_add(reports, Ordering::Relaxed);
    }

    fn apply_one(
        &mut self,
        fleet: &mut Fleet,
        datagram: &Datagram,
        changed: &mut Vec<MachineId>,
        joined: &mut Vec<MachineId>,
    ) {
        let reports = match wire::decode(&datagram.bytes, &self.keyring) {
            Ok(reports) => reports,
            Err(error) => {
                if self.reject(datagram.from, error.reason()) {
                    tracing::warn!(from = %datagram.from, %error, "report refused");
                }
                return;
            }
        };
        let received_ms = self.clock.ms_at(datagram.received);
        for report in &reports {
            let reason = match fleet.apply(report, datagram.from, received_ms) {
                Applied::Joined(id) => {
                    joined.push(id);
                    changed.push(id);
                    continue;
                }
                Applied::Changed(id) => {
                    changed.push(id);
                    continue;
                }
                Applied::Duplicate => "duplicate",
                Applied::Older => "older",
                Applied::OldBoot => "old_boot",
                Applied::ForeignFarm => "other_farm",
                Applied::Full => "fleet_full",
            };
            // These happen on healthy networks too: counted, and logged for who looks closely.
            if self.reject(datagram.from, reason) {
                tracing::debug!(from = %datagram.from, machine = report.machine, reason, "report not used");
            }
        }
    }

    /// Counts; true when it may be logged.
    fn reject(&mut self, from: IpAddr, reason: &'static str) -> bool {
        *self.counts.rejected.lock().entry(reason).or_default() += 1;
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
