//! Keeps every pool supplied with guests of the newest good generation.
//!
//! In: "look at the folder", "this guest failed". Out: guests that were started, configured and
//! tried, swapped in while requests go on. One thread. Invariants: a generation that does not start
//! changes nothing and is not tried again until the file changes, unless the machine was short of
//! something; a guest that failed is rebuilt from the last good generation after a jittered, doubling
//! back-off; what else happens in the folder never keeps a change from being seen.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::pool::Pool;
use super::score::Scorers;
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
/// Times that a generation which never served is started again, when the machine was at fault.
const RETRIES_MAX: u32 = 5;
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
        /// Of the guest.
        serial: u64,
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
    /// With what tells the watched folder from another one of its name.
    watch: Option<(Watch, (u64, u64))>,
    pools: Vec<Arc<Pool>>,
    /// Formula and strategy of each pool.
    seats: Vec<[Seat; 2]>,
    scorers: Arc<Scorers>,
    events: (Sender<Event>, Receiver<Event>),
    board: Board,
    clock: Clock,
    changes: Arc<watch::Sender<u64>>,
}

/// What is known of one pool's formula or strategy.
#[derive(Default)]
struct Seat {
    /// The newest generation tried, good or bad.
    tried: Option<Generation>,
    /// The last good one, to rebuild from.
    good: Option<Arc<Module>>,
    /// The guest that was seated last.
    serial: u64,
    /// What is started again, and when.
    again: Option<(Instant, Arc<Module>)>,
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
        scorers: Arc<Scorers>,
        clock: Clock,
        changes: Arc<watch::Sender<u64>>,
    ) -> Self {
        let library = Library::new(engine, folder.clone());
        let seats = pools.iter().map(|_| Default::default()).collect();
        let board = Arc::default();
        let watch = None;
        Self { library, folder, watch, pools, seats, scorers, events, board, clock, changes }
    }

    /// Where the policies are shown.
    #[must_use]
    pub fn board(&self) -> Board {
        Arc::clone(&self.board)
    }

    /// Loads what is there now; every pool has its guests, or says why not.
    pub fn start(&mut self) {
        self.rewatch();
        // Nothing is served yet: there is nobody to give way to.
        self.library.compile_last(false);
        self.library.rescan();
        self.supply();
        self.library.compile_last(true);
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        let mut next_look = Instant::now() + RESCAN;
        let mut look_by = None; // however many changes follow the first one
        loop {
            let again = self.seats.iter().flatten().filter_map(|seat| seat.again.as_ref());
            let due = again.map(|(at, _)| *at).fold(next_look, Instant::min);
            match self.events.1.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Event::Look) => {
                    let now = Instant::now();
                    next_look = (now + SETTLE).min(*look_by.get_or_insert(now + RESCAN));
                }
                Ok(Event::Failed { pool, kind, serial }) => self.failed(pool, kind, serial),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next_look {
                look_by = None;
                self.rewatch();
                if self.library.rescan() {
                    self.supply();
                }
                next_look = Instant::now() + RESCAN;
            }
            self.start_again();
        }
    }

    /// A pool's guest failed; nothing to do if it is not the one that was seated last.
    fn failed(&mut self, pool: usize, kind: Kind, serial: u64) {
        let seat = &mut self.seats[pool][index(kind)];
        if let Some(good) = seat.good.clone().filter(|_| seat.serial == serial) {
            seat.start_again(Instant::now(), good);
        }
        self.changed();
    }

    /// Watches the folder, if that is possible now and it is not the one that is watched.
    fn rewatch(&mut self) {
        let about = std::fs::metadata(&self.folder).ok().filter(std::fs::Metadata::is_dir);
        let Some(folder) = about.map(|about| (about.dev(), about.ino())) else {
            self.watch = None;
            return;
        };
        if self.watch.as_ref().is_some_and(|(_, watched)| *watched == folder) {
            return;
        }
        let events = self.events.0.clone();
        // The receiver lives as long as this thread: a send that fails has nobody to tell.
        let look = move || events.send(Event::Look).unwrap_or_default();
        let started = Watch::start(&self.folder, look).inspect_err(|error| {
            tracing::debug!(folder = %self.folder.display(), %error, "no watch, looking every {RESCAN:?}");
        });
        self.watch = started.ok().map(|watch| (watch, folder));
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
                    Some(module) => {
                        self.seats[pool][index(kind)].tried = Some(module.generation);
                        self.seats[pool][index(kind)].failures = 0;
                        self.seat(pool, kind, &module);
                    }
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

    /// Starts what is due again.
    fn start_again(&mut self) {
        for pool in 0..self.pools.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let again = &mut self.seats[pool][index(kind)].again;
                if let Some((_, module)) = again.take_if(|(at, _)| *at <= Instant::now()) {
                    self.seat(pool, kind, &module);
                    self.changed();
                }
            }
        }
    }

    /// Starts, tries and seats a guest of this module.
    fn seat(&mut self, pool: usize, kind: Kind, module: &Arc<Module>) {
        let seated = match kind {
            Kind::Formula => self.seat_formula(pool, module),
            Kind::Strategy => self.seat_strategy(pool, module),
        };
        let seat = &mut self.seats[pool][index(kind)];
        let (policy, generation) = (self.pools[pool].policy_name(kind), module.generation);
        let pool = &self.pools[pool];
        match seated {
            Ok(serial) => {
                tracing::info!(pool = pool.name(), policy, %kind, %generation, "policy serves");
                seat.good = Some(Arc::clone(module));
                seat.serial = serial;
                seat.again = None;
                seat.seated = Some(Instant::now());
            }
            Err(error) => {
                let kept = pool.status(kind).serving.map_or("none".to_owned(), |g| g.to_string());
                tracing::warn!(pool = pool.name(), policy, %kind, %generation, %error, kept, "policy not used");
                pool.note_trouble(kind, &format!("generation {generation} is not used: {error}"));
                // A good generation that fails now may work again; any other only if it was the
                // machine's fault, and not for ever.
                let was_good = seat.good.as_ref().is_some_and(|good| good.generation == generation);
                if was_good || (error.may_pass() && seat.failures < RETRIES_MAX) {
                    seat.start_again(Instant::now(), Arc::clone(module));
                }
            }
        }
    }

    /// The serial number of the guest that serves now.
    fn seat_formula(&mut self, pool: usize, module: &Module) -> Result<u64, StartError> {
        let config = &self.pools[pool].config;
        let (name, settings) = (Arc::from(&*config.formula), config.formula_settings.to_string());
        let start = || FormulaGuest::start(self.library.engine(), &name, module, &settings);
        try_formula(&mut start()?)?;
        let guest = start()?;
        let serial = guest.serial;
        self.scorers.replace(pool, guest, self.clock.now_ms())?;
        Ok(serial)
    }

    fn seat_strategy(&mut self, pool: usize, module: &Module) -> Result<u64, StartError> {
        let config = &self.pools[pool].config;
        let (name, settings) = (Arc::from(&*config.strategy), config.strategy_settings.to_string());
        let start = || {
            let seed = fastrand::u64(..);
            StrategyGuest::start(self.library.engine(), &name, module, &settings, seed)
        };
        try_strategy(&mut start()?)?;
        let guest = start()?;
        let serial = guest.serial;
        self.pools[pool].seat_strategy(guest, self.clock.now_ms())?;
        Ok(serial)
    }

    fn changed(&self) {
        *self.board.lock() = Arc::new(self.library.entries().clone());
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl Seat {
    /// Sets the time at which this module is started again.
    fn start_again(&mut self, now: Instant, module: Arc<Module>) {
        if self.seated.take().is_some_and(|at| now.duration_since(at) > CALM) {
            self.failures = 0;
        }
        let (first, longest) = BACK_OFF;
        let wait = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        // A quarter more or less: pools that failed together do not come back together.
        self.again = Some((now + wait.mul_f64(0.75 + fastrand::f64() / 2.0), module));
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
        accepted: u64::from(slot),
        completed: 0,
        identity: u64::from(slot),
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
    guest.update(0, 1, &(0..8).map(view).collect::<Vec<_>>())?;
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
