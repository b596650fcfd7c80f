//! Keeps every pool supplied with guests of the newest good generation.
//!
//! In: "look at the folder", "this guest failed". Out: guests that were started, configured and
//! tried, swapped in while requests go on. One thread, with a stack for the compiler. Invariants: a
//! generation that does not start changes nothing and is not tried again until the file changes; a
//! guest that failed is rebuilt from the same generation after a jittered, doubling back-off.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::intake;
use super::pool::Pool;
use crate::clock::Clock;
use crate::policy::guest::{Request, TargetView};
use crate::policy::watch::Watch;
use crate::policy::{
    CallError, Entry, FormulaGuest, Generation, Kind, Library, Module, PolicyEngine, StartError,
    StrategyGuest,
};

/// Time without events after which a burst of changes is over and files are whole.
const SETTLE: Duration = Duration::from_millis(100);
/// Time between two looks at the folder without any event.
const RESCAN: Duration = Duration::from_secs(2);
/// First and longest wait before a failed guest is rebuilt.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A guest that served this long starts again with the first wait.
const CALM: Duration = Duration::from_secs(60);
/// Picks of a trial: every fourth with few candidates.
const TRIAL_PICKS: u64 = 16;

/// What the supply is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Something changed in the folder.
    Look,
    /// A pool's guest failed and was dropped.
    Failed {
        /// By index.
        pool: usize,
        /// Which of its two.
        kind: Kind,
    },
    /// End.
    Stop,
}

/// The library's entries as of its last change, for whoever wants to show them.
pub type Board = Arc<Mutex<Arc<BTreeMap<Arc<str>, Entry>>>>;

/// The thread's state.
pub struct Supply {
    library: Library,
    folder: PathBuf,
    watch: Option<Watch>,
    pools: Vec<Arc<Pool>>,
    /// Formula and strategy of each pool.
    seats: Vec<[Seat; 2]>,
    intake: SyncSender<intake::Event>,
    events: (Sender<Event>, Receiver<Event>),
    board: Board,
    clock: Clock,
    changes: Arc<watch::Sender<u64>>,
}

/// What is known of one pool's formula or strategy.
#[derive(Default)]
struct Seat {
    /// The generation last tried, good or bad.
    tried: Option<Generation>,
    /// The last good one, to rebuild from.
    good: Option<Arc<Module>>,
    /// When a failed guest is rebuilt.
    rebuild: Option<Instant>,
    failures: u32,
    seated: Option<Instant>,
}

impl Supply {
    /// A supply for these pools from this folder.
    #[must_use]
    pub fn new(
        engine: PolicyEngine,
        folder: PathBuf,
        events: (Sender<Event>, Receiver<Event>),
        pools: Vec<Arc<Pool>>,
        intake: SyncSender<intake::Event>,
        clock: Clock,
        changes: Arc<watch::Sender<u64>>,
    ) -> Self {
        let library = Library::new(engine, folder.clone());
        let seats = pools.iter().map(|_| Default::default()).collect();
        let board = Arc::default();
        let watch = None;
        Self { library, folder, watch, pools, seats, intake, events, board, clock, changes }
    }

    /// Where the policies are shown.
    #[must_use]
    pub fn board(&self) -> Board {
        Arc::clone(&self.board)
    }

    /// Loads what is there now; every pool has its guests, or says why not.
    pub fn start(&mut self) {
        self.rewatch();
        self.library.rescan();
        self.supply();
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        let mut next_look = Instant::now() + RESCAN;
        loop {
            let rebuilds = self.seats.iter().flatten().filter_map(|seat| seat.rebuild);
            let due = rebuilds.fold(next_look, Instant::min);
            match self.events.1.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Event::Look) => next_look = Instant::now() + SETTLE,
                Ok(Event::Failed { pool, kind }) => {
                    self.seats[pool][index(kind)].failed(Instant::now());
                    self.changed();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + RESCAN;
                self.rewatch();
                if self.library.rescan() {
                    self.supply();
                }
            }
            self.rebuild();
        }
    }

    /// Watches the folder, if that is possible now.
    fn rewatch(&mut self) {
        // A folder that was removed and made again is another folder: the watch is set anew when
        // there was none or its folder is gone.
        if self.watch.is_some() && self.folder.is_dir() {
            return;
        }
        let events = self.events.0.clone();
        // The receiver lives as long as this thread: a send that fails has nobody to tell.
        let look = move || events.send(Event::Look).unwrap_or_default();
        self.watch = Watch::start(&self.folder, look)
            .inspect_err(|error| {
                tracing::debug!(folder = %self.folder.display(), %error, "no watch, looking every {RESCAN:?}");
            })
            .ok();
    }

    /// Gives every pool the newest generation that it has not tried.
    fn supply(&mut self) {
        for pool in 0..self.pools.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let name = self.pools[pool].policy_name(kind).to_owned();
                match self.library.module(&name) {
                    None => self.pools[pool].note_trouble(kind, &self.no_policy(&name)),
                    Some(module)
                        if self.seats[pool][index(kind)].tried == Some(module.generation) => {}
                    Some(module) => self.seat(pool, kind, &module),
                }
            }
        }
        self.changed();
    }

    fn no_policy(&self, name: &str) -> String {
        let refused = self.library.entries().get(name).and_then(|entry| entry.refused.as_ref());
        if let Some(refused) = refused {
            return refused.reason.clone();
        }
        let folder = self.folder.display();
        format!("there is no policy {name}: drop {name}.wasm or {name}.formula into {folder}")
    }

    fn rebuild(&mut self) {
        for pool in 0..self.pools.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let seat = &mut self.seats[pool][index(kind)];
                if seat.rebuild.is_some_and(|at| at <= Instant::now()) {
                    seat.rebuild = None;
                    if let Some(module) = seat.good.clone() {
                        self.seat(pool, kind, &module);
                    }
                    self.changed();
                }
            }
        }
    }

    /// Starts, tries and seats a guest of this module.
    fn seat(&mut self, pool: usize, kind: Kind, module: &Arc<Module>) {
        let seat = &mut self.seats[pool][index(kind)];
        seat.tried = Some(module.generation);
        let seated = match kind {
            Kind::Formula => self.seat_formula(pool, module),
            Kind::Strategy => self.seat_strategy(pool, module),
        };
        let seat = &mut self.seats[pool][index(kind)];
        let (policy, generation) = (self.pools[pool].policy_name(kind), module.generation);
        let pool = &self.pools[pool];
        match seated {
            Ok(()) => {
                tracing::info!(pool = pool.name(), policy, %kind, %generation, "policy serves");
                seat.good = Some(Arc::clone(module));
                seat.rebuild = None;
                seat.seated = Some(Instant::now());
            }
            Err(error) => {
                let kept = pool.status(kind).serving.map_or("none".to_owned(), |g| g.to_string());
                tracing::warn!(pool = pool.name(), policy, %kind, %generation, %error, kept, "policy not used");
                pool.note_trouble(kind, &format!("generation {generation} is not used: {error}"));
                // The good generation was being rebuilt: go on trying, ever more rarely.
                let was_good = seat.good.as_ref().is_some_and(|good| good.generation == generation);
                if was_good && pool.status(kind).serving.is_none() {
                    seat.failed(Instant::now());
                }
            }
        }
    }

    fn seat_formula(&mut self, pool: usize, module: &Module) -> Result<(), StartError> {
        let config = &self.pools[pool].config;
        let (name, settings) = (Arc::from(&*config.formula), config.formula_settings.to_string());
        let start = || FormulaGuest::start(self.library.engine(), &name, module, &settings);
        try_formula(&mut start()?)?;
        let guest = Box::new(start()?);
        // The intake ends after us only if it panicked; its fleet is frozen then anyway.
        if self.intake.send(intake::Event::Formula { pool, guest }).is_err() {
            tracing::error!("the intake has ended: formulas cannot be replaced");
        }
        Ok(())
    }

    fn seat_strategy(&mut self, pool: usize, module: &Module) -> Result<(), StartError> {
        let config = &self.pools[pool].config;
        let (name, settings) = (Arc::from(&*config.strategy), config.strategy_settings.to_string());
        let start = || {
            let seed = fastrand::u64(..);
            StrategyGuest::start(self.library.engine(), &name, module, &settings, seed)
        };
        try_strategy(&mut start()?)?;
        Ok(self.pools[pool].seat_strategy(start()?, self.clock.now_ms())?)
    }

    fn changed(&self) {
        *self.board.lock() = Arc::new(self.library.entries().clone());
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl Seat {
    /// Sets the time of the next rebuild.
    fn failed(&mut self, now: Instant) {
        if self.seated.is_some_and(|at| now.duration_since(at) > CALM) {
            self.failures = 0;
        }
        let (first, longest) = BACK_OFF;
        let wait = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures += 1;
        // A quarter more or less: pools that failed together do not come back together.
        self.rebuild = Some(now + wait.mul_f64(0.75 + fastrand::f64() / 2.0));
    }
}

fn index(kind: Kind) -> usize {
    match kind {
        Kind::Formula => 0,
        Kind::Strategy => 1,
    }
}

/// A few rows through a formula that nobody waits for.
fn try_formula(guest: &mut FormulaGuest) -> Result<(), CallError> {
    let slots = [0, 1, 2, 3];
    let mut values = Vec::new();
    for value in [0.0, 0.5, 1.0, 1e6] {
        let row = guest.metrics().iter().map(|metric| metric.fallback.unwrap_or(value));
        values.extend(row);
    }
    guest.evaluate(0, &slots, &values)?;
    guest.evaluate(1, &[], &[])?;
    guest.leave(&slots)?;
    let state = guest.save()?;
    guest.restore(&state)?;
    Ok(())
}

/// A small fleet and some picks through a strategy that nobody waits for.
fn try_strategy(guest: &mut StrategyGuest) -> Result<(), CallError> {
    let view = |slot: u32| TargetView {
        slot,
        load: if slot == 3 { f64::NAN } else { f64::from(slot) / 8.0 },
        weight: 1.0,
        in_flight: 0,
        picks: slot,
        age_ms: 0,
        latency_us: 0,
        error_rate: 0.0,
        eligible: slot != 5,
        warm: 1.0,
    };
    let request = |random| Request { key: random, class: 0, cost: 1.0, now_ms: random, random };
    let check = |guest: &mut StrategyGuest, call, slot: Option<u32>| match slot {
        Some(slot) if slot >= 8 || slot == 5 => {
            Err(guest.nonsense(call, format!("slot {slot} of a trial fleet may not be picked")))
        }
        _ => Ok(()),
    };
    if let Some(slot) = guest.pick(request(0))? {
        return Err(guest.nonsense("pick", format!("slot {slot} of an empty fleet")));
    }
    guest.update(0, &(0..8).map(view).collect::<Vec<_>>())?;
    for round in 0..TRIAL_PICKS {
        let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = guest.pick(request(random))?;
        check(guest, "pick", slot)?;
        if round % 4 == 0 {
            let slot = guest.pick_among(request(random), &[1, 2])?;
            check(guest, "pick-among", slot)?;
        }
    }
    guest.leave(&[0, 1])?;
    let state = guest.save()?;
    guest.restore(&state)?;
    Ok(())
}
