//! The host: receives, decides, answers; and becomes another one while it does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::judge::judge;
use super::{HANDOVER, RunError};
use crate::api::{self, AdminToken, View};
use crate::clock::{Clock, WallClock};
use crate::config::{ConfigState, HostConfig, PoolConfig, Problem, ReportsConfig};
use crate::fleet::Fleet;
use crate::pick::Pools;
use crate::pick::intake::{self, Intake};
use crate::pick::score::Scorers;
use crate::pick::supply::{self, Supply};
use crate::policy::{Limits, PolicyEngine, Rules, Ticker, Tolls};
use crate::report::Keyring;
use crate::serve::{self, Names, Server};
use crate::transport::{Batch, Connections, Inlet, Place, Room, Status};

/// Time for open requests to finish when the host stops.
const DRAIN_WAIT: Duration = Duration::from_secs(4);
/// A running host.
pub struct Host {
    config: HostConfig,
    reports: ReportsConfig,
    http: SocketAddr,
    server: Server,
    /// Of addresses before, while connections are left.
    retired: Vec<Server>,
    receiver: Receiver,
    /// Go on when the receiver is replaced.
    connections: Arc<Connections>,
    /// For frames of connections that are open.
    keyring: watch::Sender<Keyring>,
    view: Arc<View>,
    changes: watch::Receiver<u64>,
    intake: SyncSender<intake::Event>,
    /// Of the intake's queue.
    room: Room,
    supply: mpsc::Sender<supply::Event>,
    threads: Vec<JoinHandle<()>>,
    pulse: tokio::task::JoinHandle<()>,
}

/// The way in for reports.
struct Receiver {
    port: u16,
    silence: watch::Sender<Duration>,
    task: tokio::task::JoinHandle<()>,
}

/// What a host has of its process.
#[derive(Debug, Clone, Default)]
pub(super) struct Surroundings {
    /// Where it is shown which configuration is in force.
    pub(super) state: ConfigState,
    /// What schedules go by.
    pub(super) wall: WallClock,
}

impl Host {
    pub(super) async fn start(
        config: &HostConfig,
        reports: &ReportsConfig,
        pools: &[PoolConfig],
        Surroundings { state, wall }: Surroundings,
    ) -> Result<Self, RunError> {
        let gate = reports.gate()?;
        let listen = |source| RunError::Listen { address: config.listen, source };
        let listener = serve::bind(config.listen, None).map_err(listen)?;
        let http = listener.local_addr().map_err(listen)?;
        let transport = Arc::new(Status::default());
        let connections = Arc::new(Connections::new(Arc::clone(&transport)));
        let inlet = Inlet::bind(reports, Arc::clone(&transport), Arc::clone(&connections));
        let inlet = inlet.map_err(|source| cannot_receive(reports, source))?;
        let keyring = watch::Sender::new(gate.keyring.clone());

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
        let events = (supply_events.clone(), supply_queue);
        let (mut supply, (ticker, tolls)) =
            supply_of(config, events, (Arc::clone(&asked), scorers), changes)?;
        supply.set_wall_clock(wall);
        let view = Arc::new(View {
            pools: asked,
            fleet,
            board: supply.board(),
            intake: Arc::clone(&counts),
            pulse: Arc::clone(&pulse),
            transport,
            config: state,
            supply: Mutex::new(supply_events.clone()),
            names: RwLock::new(Names::of(config)),
            admin: RwLock::new(config.admin_token()?.map(|token| AdminToken::new(&token))),
            ticker,
            tolls,
            rules: RwLock::new(Rules::of(config)),
            stopping: AtomicBool::new(false),
        });
        let threads = vec![
            spawn("loadline-intake", move || intake.run(&intake_queue))?,
            start_supply(supply, pools.to_vec()).await?,
        ];
        let (room, event) = (Room::default(), intake::Event::Datagrams);
        let hand_over = deliver_to(intake_events.clone(), room.clone(), counts, event);
        let receiver = Receiver::start(inlet, hand_over, keyring.subscribe());
        let router = api::router(Arc::clone(&view));
        Ok(Self {
            config: config.clone(),
            reports: reports.clone(),
            http,
            server: Server::start(listener, router, serve::Limits::default(), api::too_slow),
            retired: Vec::new(),
            receiver,
            connections,
            keyring,
            view,
            changes: changed,
            intake: intake_events,
            room,
            supply: supply_events,
            threads,
            pulse: tokio::spawn(async move { pulse.run(clock).await }),
        })
    }

    /// Takes another configuration over, each part beside the old one first: no report and no request
    /// is lost. What cannot be done leaves that part as it was.
    pub(super) async fn apply(
        &mut self,
        config: &HostConfig,
        reports: &ReportsConfig,
        pools: &[PoolConfig],
    ) -> Vec<Problem> {
        let gate = match reports.gate() {
            Ok(gate) => gate,
            Err(error) => return error.problems,
        };
        match config.admin_token() {
            Ok(token) => *self.view.admin.write() = token.map(|token| AdminToken::new(&token)),
            Err(error) => return error.problems,
        }
        *self.view.rules.write() = Rules::of(config);
        self.keyring.send_replace(gate.keyring.clone());
        let mut problems = Vec::new();
        if config.listen != self.config.listen {
            problems.extend(self.listen_on(config.listen).err());
        }
        if reports.is_heard_like(&self.reports) {
            self.receiver.silence.send_replace(reports.silence);
            self.reports = reports.clone();
        } else {
            problems.extend(self.hear(reports).err());
        }
        self.view.pools.remember(config.decisions);
        let setup =
            intake::Setup { farm: reports.farm.clone(), miss_limit: config.miss_limit, gate };
        let intake = self.intake.clone();
        // The intake's queue may be full for a moment. It is told as soon as there is room.
        let told =
            tokio::task::spawn_blocking(move || intake.send(intake::Event::Configure(setup)));
        if !matches!(told.await, Ok(Ok(()))) {
            problems.push(Problem::new("reports", "the intake has ended"));
        }
        problems.extend(self.supply_with(config, pools).await.err());
        self.config = HostConfig { listen: self.config.listen, ..config.clone() };
        *self.view.names.write() = Names::of(&self.config);
        problems
    }

    /// Serves HTTP there: binds first, then closes the old listener; its clients come over.
    fn listen_on(&mut self, address: SocketAddr) -> Result<(), Problem> {
        let bound = serve::bind(address, Some(&self.server))
            .and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (http, listener) = bound.map_err(|error| {
            let what = format!("cannot listen on {address}: {error}; {} serves on", self.http);
            Problem::new("host.listen", what)
        })?;
        let router = api::router(Arc::clone(&self.view));
        let server = Server::start(listener, router, serve::Limits::default(), api::too_slow);
        let mut old = std::mem::replace(&mut self.server, server);
        old.retire();
        self.retired.retain(|server| !server.has_ended());
        self.retired.push(old);
        self.http = http;
        self.config.listen = address;
        Ok(())
    }

    /// Hears reports there, beside the old way in for a moment.
    fn hear(&mut self, reports: &ReportsConfig) -> Result<(), Problem> {
        let mut here = reports.clone();
        if here.groups.port == 0 {
            here.groups.port = self.receiver.port; // any port: the one that its agents know
        }
        let (status, connections) =
            (Arc::clone(&self.view.transport), Arc::clone(&self.connections));
        let inlet = Inlet::bind(&here, status, connections).map_err(|error| {
            let what = format!(
                "cannot receive on {}: {error}; {} serves on",
                reports.groups, self.reports.groups
            );
            Problem::new("reports.group", what)
        })?;
        let hand_over = self.way_in(intake::Event::Datagrams);
        let receiver = Receiver::start(inlet, hand_over, self.keyring.subscribe());
        let old = std::mem::replace(&mut self.receiver, receiver);
        tokio::spawn(async move {
            tokio::time::sleep(HANDOVER).await;
            old.task.abort();
        });
        self.reports = reports.clone();
        Ok(())
    }

    /// Has these pools supplied from that folder; waits until each has its guests, or says why not.
    async fn supply_with(&self, config: &HostConfig, pools: &[PoolConfig]) -> Result<(), Problem> {
        let (done, supplied) = oneshot::channel();
        let (pools, folder) = (pools.to_vec(), config.policies.clone());
        let setup = supply::Setup { pools, folder, rules: Rules::of(config), done };
        let told = self.supply.send(supply::Event::Configure(setup));
        let ended = || Problem::new("pool", "the policies' thread has ended");
        told.map_err(|_| ended())?;
        supplied.await.map_err(|_| ended())
    }

    /// Looks at the policies folder at once.
    pub(super) fn look(&self) {
        // A thread that has ended is told of when the host stops.
        self.supply.send(supply::Event::LookNow).ok();
    }

    /// Where HTTP is served.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// The port of reports, by UDP and TCP.
    #[must_use]
    pub fn report_port(&self) -> u16 {
        self.receiver.port
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

    /// Reports that changed the fleet so far.
    #[must_use]
    pub fn reports(&self) -> u64 {
        self.view.intake.reports.load(Ordering::Relaxed)
    }

    /// Hands over datagrams as if they had been received: the in-memory transport.
    pub fn deliver(&self, batch: Batch) {
        self.way_in(intake::Event::Datagrams)(batch);
    }

    /// What hears the reports that this process makes itself.
    pub(super) fn ear(&self) -> impl Fn(Batch) + Clone + Send + Sync + 'static {
        self.way_in(intake::Event::Own)
    }

    fn way_in(
        &self,
        event: fn(Batch) -> intake::Event,
    ) -> impl Fn(Batch) + Clone + Send + Sync + 'static {
        let counts = Arc::clone(&self.view.intake);
        deliver_to(self.intake.clone(), self.room.clone(), counts, event)
    }

    /// What of it has ended, and should never while it runs.
    pub(super) fn ended(&self) -> Option<String> {
        let threads = self.threads.iter().filter(|thread| thread.is_finished());
        let thread = threads.filter_map(|thread| thread.thread().name()).next();
        let tasks = [("receiving", &self.receiver.task), ("the pulse", &self.pulse)];
        let task = || tasks.iter().find(|(_, task)| task.is_finished()).map(|(name, _)| *name);
        thread.or_else(task).map(str::to_owned)
    }

    /// Takes no new connection and finishes the open requests.
    pub(super) async fn close(self) -> Closed {
        self.view.stopping.store(true, Ordering::Relaxed);
        let Self { intake, supply, threads, receiver, connections, pulse, server, retired, .. } =
            self;
        let mut closing = JoinSet::new();
        for server in retired.into_iter().chain([server]) {
            closing.spawn(server.close(DRAIN_WAIT));
        }
        closing.join_all().await;
        Closed { intake, supply, threads, connections, tasks: [receiver.task, pulse] }
    }
}

impl Receiver {
    fn start(
        inlet: Inlet,
        hand_over: impl Fn(Batch) + Clone + Send + Sync + 'static,
        keyring: watch::Receiver<Keyring>,
    ) -> Self {
        let (port, silence) = (inlet.port(), inlet.silence());
        Self { port, silence, task: tokio::spawn(inlet.run(hand_over, judge(keyring))) }
    }
}

/// A host that answers no more.
pub(super) struct Closed {
    intake: SyncSender<intake::Event>,
    supply: mpsc::Sender<supply::Event>,
    threads: Vec<JoinHandle<()>>,
    connections: Arc<Connections>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Closed {
    /// Ends what is left.
    pub(super) async fn end(self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        self.connections.close();
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

fn cannot_receive(reports: &ReportsConfig, source: io::Error) -> RunError {
    RunError::Reports { port: reports.groups.port, source }
}

/// Puts batches into the intake's queue; a full queue drops them and counts it.
fn deliver_to(
    intake: SyncSender<intake::Event>,
    room: Room,
    counts: Arc<intake::Counts>,
    event: fn(Batch) -> intake::Event,
) -> impl Fn(Batch) + Clone {
    move |batch| {
        let len = batch.len() as u64;
        if len == 0 {
            return;
        }
        let admitted = room.admit(batch);
        let taken = admitted.is_some_and(|batch| intake.try_send(event(batch)).is_ok());
        if !taken {
            counts.dropped.fetch_add(len, Ordering::Relaxed);
        }
    }
}

/// What supplies the pools, and what its engine tells.
fn supply_of(
    config: &HostConfig,
    events: (mpsc::Sender<supply::Event>, mpsc::Receiver<supply::Event>),
    (pools, scorers): (Arc<Pools>, Arc<Scorers>),
    changes: Arc<watch::Sender<u64>>,
) -> Result<(Supply, (Ticker, Tolls)), RunError> {
    let engine = PolicyEngine::new(Limits::default())?;
    let told = (engine.ticker().clone(), engine.tolls().clone());
    let folder = config.policies.clone();
    let mut supply = Supply::new(engine, folder, events, pools, scorers, changes);
    supply.set_rules(Rules::of(config));
    Ok((supply, told))
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
