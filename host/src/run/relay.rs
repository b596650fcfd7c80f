//! The relay: one task that receives, one that packs, one that sends; and one that tells what was lost.

mod losses;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use self::losses::{Refusals, say_losses, tell_losses};
use super::judge::judge;
use super::{HANDOVER, RunError};
use crate::clock::wall_ms;
use crate::config::{Config, ConfigError, Problem, RelayConfig, ReportsConfig};
use crate::relay::Relay;
use crate::report::fit::LeftOut;
use crate::report::{Gate, Keyring};
use crate::telemetry::Quiet;
use crate::transport::{Batch, Connections, Inlet, Outlet, Place, Room, Status};

/// Batches that wait to be packed: some seconds of a large farm. More are dropped and counted.
const QUEUE_MAX: usize = 1_024;
/// Frames that wait for a destination that is slow or away: as many reports as a farm may have.
const BACKLOG: usize = 4_096;
/// Time to read what has come when it is told to end: the last report of this machine's agent, too.
const READ_WAIT: Duration = Duration::from_millis(50);
/// Time for the last frames to leave.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// Time between two looks at what was lost on the way in.
const LOSS_LOOK: Duration = Duration::from_secs(60);

/// A running relay.
pub struct RunningRelay {
    reports: ReportsConfig,
    relay: RelayConfig,
    status: Arc<Status>,
    port: u16,
    relayed: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    receiver: JoinHandle<()>,
    silence: watch::Sender<Duration>,
    /// Go on when the receiver is replaced.
    connections: Arc<Connections>,
    /// For frames of connections that are open.
    keyring: watch::Sender<Keyring>,
    packer: mpsc::Sender<Event>,
    /// Of the packer's queue.
    room: Room,
    sender: JoinHandle<()>,
    losses: JoinHandle<()>,
}

/// What the packing task is told.
enum Event {
    Heard(Batch),
    Become(Setup),
}

/// How it packs, from then on.
struct Setup {
    gate: Gate,
    farm: String,
    relay: RelayConfig,
    /// Where frames go; `None`: where they went.
    frames: Option<mpsc::Sender<Vec<u8>>>,
}

impl RunningRelay {
    /// Starts to hear what `[reports]` says and to send where `[relay]` says.
    ///
    /// # Errors
    /// What could not be started; nothing runs then.
    pub fn start(config: &Config) -> Result<Self, RunError> {
        let relay = destined(config)?;
        let reports = &config.reports;
        let gate = reports.gate()?;
        let status = Arc::new(Status::default());
        let connections = Arc::new(Connections::new(Arc::clone(&status)));
        let inlet = Inlet::bind(reports, Arc::clone(&status), Arc::clone(&connections));
        let inlet =
            inlet.map_err(|source| RunError::Reports { port: reports.groups.port, source })?;
        let (port, silence) = (inlet.port(), inlet.silence());
        let keyring = watch::Sender::new(gate.keyring.clone());
        let state = Relay::new(gate, reports.farm.clone(), relay.hops, Instant::now());
        let (packer, queue) = mpsc::channel(QUEUE_MAX);
        let (relayed, dropped, room) = (Arc::default(), Arc::default(), Room::default());
        let (frames, sender) = send(reports, relay);
        let refusals = Arc::new(Refusals::default());
        let packing = Packing {
            state,
            refusals: Arc::clone(&refusals),
            every: relay.every,
            frames,
            relayed: Arc::clone(&relayed),
            dropped: Arc::clone(&dropped),
        };
        tokio::spawn(packing.run(queue));
        let take = hand_to(packer.clone(), room.clone(), Arc::clone(&dropped));
        Ok(Self {
            reports: reports.clone(),
            relay: relay.clone(),
            losses: tokio::spawn(tell_losses(Arc::clone(&status), refusals, LOSS_LOOK, say_losses)),
            status,
            port,
            relayed,
            dropped,
            receiver: tokio::spawn(inlet.run(take, judge(keyring.subscribe()))),
            silence,
            connections,
            keyring,
            packer,
            room,
            sender,
        })
    }

    /// Takes another configuration over while it runs; what cannot be done leaves that part as it was.
    pub(super) async fn apply(&mut self, config: &Config) -> Vec<Problem> {
        let checked = destined(config).and_then(|relay| Ok((relay, config.reports.gate()?)));
        let (relay, gate) = match checked {
            Ok(checked) => checked,
            Err(error) => return error.problems,
        };
        let reports = &config.reports;
        self.keyring.send_replace(gate.keyring.clone());
        let mut problems = Vec::new();
        if reports.is_heard_like(&self.reports) {
            self.silence.send_replace(reports.silence);
            self.reports = reports.clone();
        } else {
            problems.extend(self.hear(reports).err());
        }
        let mut frames = None;
        if !relay.is_sent_like(&self.relay) {
            let (there, sender) = send(reports, relay);
            frames = Some(there);
            self.sender = sender; // the old one ends when it has sent what it has
        }
        self.relay = relay.clone();
        let setup = Setup { gate, farm: reports.farm.clone(), relay: relay.clone(), frames };
        if self.packer.send(Event::Become(setup)).await.is_err() {
            problems.push(Problem::new("relay", "the packing task has ended"));
        }
        problems
    }

    /// Hears reports there, beside the old way in for a moment.
    fn hear(&mut self, reports: &ReportsConfig) -> Result<(), Problem> {
        let mut here = reports.clone();
        if here.groups.port == 0 {
            here.groups.port = self.port; // any port: the one that its agents know
        }
        let (status, connections) = (Arc::clone(&self.status), Arc::clone(&self.connections));
        let inlet = Inlet::bind(&here, status, connections).map_err(|error| {
            let what = format!("cannot receive on {}: {error}", reports.groups);
            Problem::new("reports.group", what)
        })?;
        (self.port, self.silence) = (inlet.port(), inlet.silence());
        let take = hand_to(self.packer.clone(), self.room.clone(), Arc::clone(&self.dropped));
        let receiver = tokio::spawn(inlet.run(take, judge(self.keyring.subscribe())));
        let old = std::mem::replace(&mut self.receiver, receiver);
        tokio::spawn(async move {
            sleep(HANDOVER).await;
            old.abort();
        });
        self.reports = reports.clone();
        Ok(())
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
        sleep(READ_WAIT).await;
        tracing::info!(relayed = self.relayed(), "the relay ends");
        // Their end closes the packer's queue, and that the sender's.
        self.receiver.abort();
        self.connections.close();
        self.losses.abort();
        drop(self.packer);
        match timeout(LEAVE_WAIT, self.sender).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the sending task failed"),
            Err(_) => tracing::warn!("the last reports did not leave in time"),
        }
    }
}

/// `[relay]`, if it says where to.
fn destined(config: &Config) -> Result<&RelayConfig, ConfigError> {
    config.relay.as_ref().filter(|relay| relay.has_destination()).ok_or_else(|| {
        let what = "a relay needs to know where reports go: write [relay] with send_to or group, \
                    or loadline relay udp://HOST:12000";
        Problem::new("relay", what).into()
    })
}

/// Starts to send where `[relay]` says.
fn send(reports: &ReportsConfig, relay: &RelayConfig) -> (mpsc::Sender<Vec<u8>>, JoinHandle<()>) {
    let (frames, outgoing) = mpsc::channel(BACKLOG);
    let outlet = Outlet::new(&relay.outgoing(reports), BACKLOG);
    (frames, tokio::spawn(outlet.run(outgoing)))
}

/// Puts batches into the packer's queue; a full queue drops them and counts it.
fn hand_to(
    packer: mpsc::Sender<Event>,
    room: Room,
    dropped: Arc<AtomicU64>,
) -> impl Fn(Batch) + Clone {
    move |batch: Batch| {
        let len = batch.len() as u64;
        let admitted = room.admit(batch);
        let taken = admitted.is_some_and(|batch| packer.try_send(Event::Heard(batch)).is_ok());
        if !taken {
            dropped.fetch_add(len, Ordering::Relaxed); // said by who packs
        }
    }
}

/// The packing task's state.
struct Packing {
    state: Relay,
    every: Duration,
    frames: mpsc::Sender<Vec<u8>>,
    relayed: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    refusals: Arc<Refusals>,
}

impl Packing {
    /// Waits for a report, then for more that share its frame, and packs them.
    async fn run(mut self, mut queue: mpsc::Receiver<Event>) {
        let mut quiet = Quiet::default();
        while let Some(first) = queue.recv().await {
            let mut batches = match first {
                Event::Heard(batch) => vec![batch],
                Event::Become(setup) => {
                    self.become_this(setup);
                    continue;
                }
            };
            sleep(self.every).await;
            let mut next = None;
            while let Ok(event) = queue.try_recv() {
                match event {
                    Event::Heard(batch) => batches.push(batch),
                    Event::Become(setup) => {
                        next = Some(setup);
                        break;
                    }
                }
            }
            let wall_ms = wall_ms(); // before the other clock, as `Present` wants it
            let relayed = self.state.pack(&batches, Instant::now(), wall_ms);
            self.relayed.fetch_add(relayed.reports as u64, Ordering::Relaxed);
            self.refusals.add(&relayed);
            for (from, left_out) in relayed.shortened {
                if quiet.may((from, "shortened")) {
                    let LeftOut { metrics, services } = left_out;
                    tracing::warn!(%from, metrics, services, "left out of a report that became too long here");
                }
            }
            for (from, reason) in relayed.refused {
                complain(from, reason, &mut quiet);
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(dropped, "datagrams came faster than they could be packed");
            }
            for frame in relayed.frames {
                if self.frames.send(frame).await.is_err() {
                    return; // nobody sends any more: the process is stopping
                }
            }
            if let Some(setup) = next {
                self.become_this(setup);
            }
        }
    }

    fn become_this(&mut self, setup: Setup) {
        let Setup { gate, farm, relay, frames } = setup;
        self.state.configure(gate, farm, relay.hops);
        self.every = relay.every;
        if let Some(frames) = frames {
            self.frames = frames;
        }
    }
}

/// Duplicates and what other relays sent happen on healthy networks; the rest is worth a look.
fn complain(from: IpAddr, reason: &'static str, quiet: &mut Quiet<(IpAddr, &'static str)>) {
    if !quiet.may((from, reason)) {
        return;
    }
    if losses::is_healthy(reason) {
        tracing::debug!(%from, reason, "report not relayed");
    } else {
        tracing::warn!(%from, reason, "report not relayed");
    }
}
