//! The host: receives, decides, answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::RunError;
use super::judge::judge;
use crate::api::{self, View};
use crate::clock::Clock;
use crate::config::{HostConfig, PoolConfig, ReportsConfig};
use crate::fleet::Fleet;
use crate::pick::Pools;
use crate::pick::intake::{self, Intake};
use crate::pick::score::Scorers;
use crate::pick::supply::{self, Supply};
use crate::policy::{Limits, PolicyEngine};
use crate::transport::{Batch, Inlet, Place, Status};

/// Time for open requests to finish when the host stops.
const DRAIN_WAIT: Duration = Duration::from_secs(10);

/// A running host.
pub struct Host {
    http: SocketAddr,
    report_port: u16,
    view: Arc<View>,
    changes: watch::Receiver<u64>,
    intake: SyncSender<intake::Event>,
    supply: mpsc::Sender<supply::Event>,
    threads: Vec<JoinHandle<()>>,
    receiver: tokio::task::JoinHandle<()>,
    pulse: tokio::task::JoinHandle<()>,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
    close: oneshot::Sender<()>,
}

impl Host {
    pub(super) async fn start(
        config: &HostConfig,
        reports: &ReportsConfig,
        pools: &[PoolConfig],
    ) -> Result<Self, RunError> {
        let gate = reports.gate()?;
        let listen = |source| RunError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(listen)?;
        let http = listener.local_addr().map_err(listen)?;
        let port = |source| RunError::Reports { port: reports.groups.port, source };
        let transport = Arc::new(Status::default());
        let inlet = Inlet::bind(reports, Arc::clone(&transport)).map_err(port)?;
        let report_port = inlet.port();
        let judge = judge(gate.keyring.clone());
        let engine = PolicyEngine::new(Limits::default())?;

        let clock = Clock::start();
        let (changes, changed) = watch::channel(0);
        let changes = Arc::new(changes);
        let fleet = Arc::new(RwLock::new(Fleet::new(reports.farm.clone(), config.miss_limit)));
        let (intake_events, intake_queue) = mpsc::sync_channel(intake::QUEUE_MAX);
        let (supply_events, supply_queue) = mpsc::channel();
        let scorers = Arc::new(Scorers::new(Arc::clone(&fleet)));
        let (written, scored) = (Arc::clone(&fleet), Arc::clone(&scorers));
        let asked = Arc::new(Pools::new(clock, config.decisions));
        let (tended, told) = (Arc::clone(&asked), Arc::clone(&changes));
        let intake = Intake::new(written, gate, scored, tended, told);
        let (counts, pulse) = (intake.counts(), intake.pulse());
        let supply = Supply::new(
            engine,
            config.policies.clone(),
            (supply_events.clone(), supply_queue),
            Arc::clone(&asked),
            scorers,
            changes,
        );
        let view = Arc::new(View {
            pools: asked,
            fleet,
            board: supply.board(),
            intake: Arc::clone(&counts),
            pulse: Arc::clone(&pulse),
            transport,
            stopping: AtomicBool::new(false),
        });
        let threads = vec![
            spawn("loadline-intake", move || intake.run(&intake_queue))?,
            start_supply(supply, pools.to_vec()).await?,
        ];
        let (close, closed) = oneshot::channel::<()>();
        let server = axum::serve(listener, api::router(Arc::clone(&view)))
            // A closer that is gone means that the host is: the same as being told.
            .with_graceful_shutdown(async { closed.await.unwrap_or_default() });
        let hand_over = deliver_to(intake_events.clone(), counts);
        Ok(Self {
            http,
            report_port,
            view,
            changes: changed,
            intake: intake_events,
            supply: supply_events,
            threads,
            receiver: tokio::spawn(inlet.run(hand_over, judge)),
            pulse: tokio::spawn(async move { pulse.run(clock).await }),
            server: tokio::spawn(server.into_future()),
            close,
        })
    }

    /// Where HTTP is served.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// The port of reports, by UDP and TCP.
    #[must_use]
    pub fn report_port(&self) -> u16 {
        self.report_port
    }

    /// Where the groups are heard now.
    #[must_use]
    pub fn joined(&self) -> Vec<Place> {
        self.view.transport.joined()
    }

    /// A number that grows with every change of fleet or policies and with what guests are told of
    /// outcomes and leases, to wait for.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The pools, for picks without HTTP.
    #[must_use]
    pub fn pools(&self) -> &Pools {
        &self.view.pools
    }

    /// Hands over datagrams as if they had been received: the in-memory transport.
    pub fn deliver(&self, batch: Batch) {
        self.ear()(batch);
    }

    /// What hears for this host, for those who have much to tell.
    pub(super) fn ear(&self) -> impl Fn(Batch) + Clone + Send + Sync + 'static {
        deliver_to(self.intake.clone(), Arc::clone(&self.view.intake))
    }

    /// Takes no new connection and finishes the open requests.
    pub(super) async fn close(self) -> Closed {
        self.view.stopping.store(true, Ordering::Relaxed);
        // A server that has ended by itself has nothing to close.
        self.close.send(()).ok();
        match timeout(DRAIN_WAIT, self.server).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::error!(%error, "serving HTTP failed"),
            Ok(Err(error)) => tracing::error!(%error, "the HTTP task failed"),
            Err(_) => tracing::warn!("some requests did not finish within {DRAIN_WAIT:?}"),
        }
        let Self { intake, supply, threads, receiver, pulse, .. } = self;
        Closed { intake, supply, threads, tasks: [receiver, pulse] }
    }
}

/// A host that answers no more.
pub(super) struct Closed {
    intake: SyncSender<intake::Event>,
    supply: mpsc::Sender<supply::Event>,
    threads: Vec<JoinHandle<()>>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Closed {
    /// Ends what is left.
    pub(super) async fn end(self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        // Threads that have ended already need not be told.
        self.supply.send(supply::Event::Stop).ok();
        let intake = self.intake;
        let joined = tokio::task::spawn_blocking(move || {
            intake.send(intake::Event::Stop).ok();
            self.threads.into_iter().filter_map(|thread| thread.join().err()).count()
        });
        match joined.await {
            Ok(0) => {}
            Ok(panicked) => tracing::error!(panicked, "threads ended by a panic"),
            Err(error) => tracing::error!(%error, "cannot wait for the threads"),
        }
    }
}

/// Puts batches into the intake's queue; a full queue drops them and counts it.
fn deliver_to(
    intake: SyncSender<intake::Event>,
    counts: Arc<intake::Counts>,
) -> impl Fn(Batch) + Clone {
    move |batch| {
        let len = batch.len() as u64;
        if len == 0 {
            return;
        }
        match intake.try_send(intake::Event::Datagrams(batch)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                counts.dropped.fetch_add(len, Ordering::Relaxed);
            }
        }
    }
}

/// Starts the policies' thread and waits until it has loaded what is there.
async fn start_supply(
    mut supply: Supply,
    pools: Vec<PoolConfig>,
) -> Result<JoinHandle<()>, RunError> {
    let (loaded, wait) = oneshot::channel();
    let thread = thread::Builder::new()
        .name("loadline-policies".to_owned())
        .spawn(move || {
            supply.start(&pools);
            loaded.send(()).ok(); // nobody waits if the start was given up
            supply.run();
        })
        .map_err(RunError::Thread)?;
    if wait.await.is_err() {
        let ended = std::io::Error::other("the policies' thread ended while it loaded");
        return Err(RunError::Thread(ended));
    }
    Ok(thread)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, RunError> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(RunError::Thread)
}
