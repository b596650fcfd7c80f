//! The walk of one report: datagram → authentic → decoded → fleet → every pool's formula and strategy.
//!
//! One thread owns this walk; reports and new formulas come to it over a bounded channel. Bad
//! datagrams are counted by reason, logged at most once a minute a source and reason, and never stop
//! the loop. The fleet's lock is held for the application of a batch, not for guest calls.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::pool::Pool;
use super::score::Scorer;
use crate::clock::Clock;
use crate::fleet::{Applied, Fleet, MachineId};
use crate::policy::FormulaGuest;
use crate::report::{Keyring, wire};
use crate::telemetry::Quiet;
use crate::transport::Datagram;

/// Time between two looks for machines that are gone.
const SWEEP: Duration = Duration::from_millis(50);
/// Messages that wait for the intake at most, each a batch of datagrams; more are dropped and
/// counted, newest first.
pub const QUEUE_MAX: usize = 1_024;

/// What the intake is told.
pub enum Event {
    /// These arrived.
    Datagrams(Vec<Datagram>),
    /// A pool's next formula.
    Formula {
        /// By index.
        pool: usize,
        /// Started and tried.
        guest: Box<FormulaGuest>,
    },
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
    scorers: Vec<Scorer>,
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
        pools: &[Arc<Pool>],
        clock: Clock,
        changes: Arc<watch::Sender<u64>>,
    ) -> Self {
        let scorers = pools.iter().map(|pool| Scorer::new(Arc::clone(pool))).collect();
        let (counts, quiet) = (Arc::default(), Quiet::default());
        Self { fleet, keyring, scorers, clock, counts, changes, quiet }
    }

    /// What has arrived so far.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Works until told to stop.
    pub fn run(mut self, events: &Receiver<Event>) {
        let mut swept_ms = 0;
        let sweep_ms = u64::try_from(SWEEP.as_millis()).unwrap_or(u64::MAX);
        loop {
            match events.recv_timeout(SWEEP) {
                Ok(Event::Datagrams(batch)) => self.take(&batch),
                Ok(Event::Formula { pool, guest }) => self.replace_formula(pool, *guest),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let now_ms = self.clock.now_ms();
            if now_ms.saturating_sub(swept_ms) >= sweep_ms {
                swept_ms = now_ms;
                self.sweep(now_ms);
            }
        }
    }

    /// Takes a batch of datagrams to the fleet and what changed to the pools.
    pub fn take(&mut self, batch: &[Datagram]) {
        let (mut changed, mut joined) = (Vec::new(), Vec::new());
        self.counts.datagrams.fetch_add(batch.len() as u64, Ordering::Relaxed);
        {
            let fleet = Arc::clone(&self.fleet);
            let mut fleet = fleet.write();
            for datagram in batch {
                self.apply(&mut fleet, datagram, &mut changed, &mut joined);
            }
        }
        self.counts.reports.fetch_add(changed.len() as u64, Ordering::Relaxed);
        changed.sort_unstable();
        changed.dedup();
        self.refresh(&changed, self.clock.now_ms());
        self.log(&joined, "machine reports");
    }

    fn apply(
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

    fn sweep(&mut self, now_ms: u64) {
        let gone = self.fleet.write().expire(now_ms);
        self.refresh(&gone, now_ms);
        self.log(&gone, "machine is gone: its reports have stopped");
    }

    fn log(&self, machines: &[MachineId], what: &str) {
        for id in machines {
            if let Some(machine) = self.fleet.read().get(*id) {
                tracing::info!(machine = %machine.name, from = %machine.source, "{what}");
            }
        }
    }

    fn refresh(&mut self, changed: &[MachineId], now_ms: u64) {
        if changed.is_empty() {
            return;
        }
        let fleet = self.fleet.read();
        for scorer in &mut self.scorers {
            scorer.refresh(&fleet, changed, now_ms);
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn replace_formula(&mut self, pool: usize, guest: FormulaGuest) {
        if let Some(scorer) = self.scorers.get_mut(pool) {
            scorer.replace(guest, &self.fleet.read(), self.clock.now_ms());
            self.changes.send_modify(|changes| *changes += 1);
        }
    }
}
