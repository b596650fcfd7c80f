//! The relay: one task that receives, one that packs, one that sends.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::RunError;
use super::judge::judge;
use crate::clock::wall_ms;
use crate::config::{Config, ConfigError, Problem};
use crate::relay::Relay;
use crate::telemetry::Quiet;
use crate::transport::{Batch, Connections, Inlet, Outlet, Place, Status};

/// Batches that wait to be packed: some seconds of a large farm. More are dropped and counted.
const QUEUE_MAX: usize = 1_024;
/// Frames that wait for a destination that is slow or away: as many reports as a farm may have.
const BACKLOG: usize = 4_096;
/// Time for the last frames to leave.
const LEAVE_WAIT: std::time::Duration = std::time::Duration::from_secs(1);

/// A running relay.
pub struct RunningRelay {
    status: Arc<Status>,
    port: u16,
    relayed: Arc<AtomicU64>,
    receiver: JoinHandle<()>,
    connections: Arc<Connections>,
    sender: JoinHandle<()>,
}

impl RunningRelay {
    /// Starts to hear what `[reports]` says and to send where `[relay]` says.
    ///
    /// # Errors
    /// What could not be started; nothing runs then.
    pub fn start(config: &Config) -> Result<Self, RunError> {
        let Some(relay) = config.relay.as_ref().filter(|relay| relay.has_destination()) else {
            let what = "a relay needs to know where reports go: write [relay] with send_to or group, \
                        or loadline relay udp://HOST:12000";
            return Err(ConfigError::from(Problem::new("relay", what)).into());
        };
        let gate = config.reports.gate()?;
        for warning in config.reports.warnings(true) {
            tracing::warn!("{warning}");
        }
        let status = Arc::new(Status::default());
        let port = |source| RunError::Reports { port: config.reports.groups.port, source };
        let connections = Arc::new(Connections::new(Arc::clone(&status)));
        let heard = (Arc::clone(&status), Arc::clone(&connections));
        let inlet = Inlet::bind(&config.reports, heard.0, heard.1).map_err(port)?;
        let port = inlet.port();
        let judge = judge(watch::Sender::new(gate.keyring.clone()).subscribe());
        let state = Relay::new(gate, config.reports.farm.clone(), relay.hops, Instant::now());
        let (batches, queue) = mpsc::channel(QUEUE_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        let take = move |batch: Batch| {
            let len = batch.len() as u64;
            if batches.try_send(batch).is_err() {
                lost.fetch_add(len, Ordering::Relaxed); // said by who packs
            }
        };
        let (frames, outgoing) = mpsc::channel(BACKLOG);
        let relayed = Arc::default();
        let packer = Packing { state, every: relay.every, relayed: Arc::clone(&relayed), dropped };
        let outlet = Outlet::new(&relay.outgoing(&config.reports), BACKLOG);
        tokio::spawn(packer.run(queue, frames));
        let receiver = tokio::spawn(inlet.run(take, judge));
        let sender = tokio::spawn(outlet.run(outgoing));
        Ok(Self { status, port, relayed, receiver, connections, sender })
    }

    /// Where the groups are heard now.
    #[must_use]
    pub fn joined(&self) -> Vec<Place> {
        self.status.joined()
    }

    /// The port on which reports are heard.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Reports that went through so far.
    #[must_use]
    pub fn relayed(&self) -> u64 {
        self.relayed.load(Ordering::Relaxed)
    }

    /// Sends what is there and ends.
    pub async fn stop(self) {
        // Their end closes the packer's queue, and that the sender's.
        self.receiver.abort();
        self.connections.close();
        match timeout(LEAVE_WAIT, self.sender).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the sending task failed"),
            Err(_) => tracing::warn!("the last reports did not leave in time"),
        }
    }
}

/// The packing task's state.
struct Packing {
    state: Relay,
    every: std::time::Duration,
    relayed: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

impl Packing {
    /// Waits for a report, then for more that share its frame, and packs them.
    async fn run(mut self, mut queue: mpsc::Receiver<Batch>, frames: mpsc::Sender<Vec<u8>>) {
        let mut quiet = Quiet::default();
        while let Some(first) = queue.recv().await {
            sleep(self.every).await;
            let mut batches = vec![first];
            while let Ok(batch) = queue.try_recv() {
                batches.push(batch);
            }
            let relayed = self.state.pack(&batches, Instant::now(), wall_ms());
            self.relayed.fetch_add(relayed.reports as u64, Ordering::Relaxed);
            for (from, reason) in relayed.refused {
                complain(from, reason, &mut quiet);
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(dropped, "datagrams came faster than they could be packed");
            }
            for frame in relayed.frames {
                if frames.send(frame).await.is_err() {
                    return; // nobody sends any more: the process is stopping
                }
            }
        }
    }
}

/// Duplicates and what other relays sent happen on healthy networks; the rest is worth a look.
fn complain(from: IpAddr, reason: &'static str, quiet: &mut Quiet<(IpAddr, &'static str)>) {
    if !quiet.may((from, reason)) {
        return;
    }
    if matches!(reason, "duplicate" | "hops" | "other_farm") {
        tracing::debug!(%from, reason, "report not relayed");
    } else {
        tracing::warn!(%from, reason, "report not relayed");
    }
}
