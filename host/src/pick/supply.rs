//! Keeps every pool supplied with guests of the newest good generation.
//!
//! In: "look at the folder", "this guest failed", another configuration. Out: guests that were started, configured and
//! tried, swapped in while requests go on. One thread. Invariants: a generation that does not start
//! changes nothing and is not tried again until the file changes, unless the machine was short of
//! something; a pool that the configuration changes keeps what serves it until what is wanted instead
//! has started, and a new pool is offered only when it has its guests; a guest that failed is rebuilt from the last good generation after a jittered, doubling
//! back-off; what else happens in the folder never keeps a change from being seen.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::Pools;
use super::pool::{Pool, Wanted, index};
use super::score::Scorers;
use crate::clock::Clock;
use crate::config::PoolConfig;
use crate::policy::guest::{Request, TargetView};
use crate::policy::library::policy_name;
use crate::policy::{
    CallError, Entry, FormulaGuest, Generation, Kind, Library, Module, PolicyEngine, StartError,
    StrategyGuest,
};
use crate::watch::{Hint, Pace, Watch};

/// First and longest wait before a failed guest is rebuilt.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Times that a generation which never served is started again, when the machine was at fault.
const RETRIES_MAX: u32 = 5;
/// A guest that served this long starts again with the first wait.
const CALM: Duration = Duration::from_secs(60);
/// Picks of a trial: every fourth with few candidates.
const TRIAL_PICKS: u64 = 16;

/// What the supply is told.
#[derive(Debug)]
pub enum Event {
    /// Something changed in the folder.
    Look(Hint),
    /// Look at once.
    LookNow,
    /// The configuration changed.
    Configure(Setup),
    /// A pool's guest failed and was dropped.
    Failed {
        /// By number.
        pool: u64,
        /// Which of its two.
        kind: Kind,
        /// Of the guest.
        serial: u64,
    },
    /// End.
    Stop,
}

/// What the supply works for.
#[derive(Debug)]
pub struct Setup {
    /// The pools, in the configuration's order.
    pub pools: Vec<PoolConfig>,
    /// Where policies are dropped.
    pub folder: PathBuf,
    /// Told when every pool has its guests, or says why not.
    pub done: oneshot::Sender<()>,
}

/// The library's entries as of its last change, for whoever wants to show them.
pub type Board = Arc<Mutex<Arc<BTreeMap<Arc<str>, Entry>>>>;

/// The thread's state.
pub struct Supply {
    library: Library,
    folder: PathBuf,
    watch: Watch,
    served: Vec<Served>,
    pools: Arc<Pools>,
    scorers: Arc<Scorers>,
    events: (Sender<Event>, Receiver<Event>),
    board: Board,
    clock: Clock,
    changes: Arc<watch::Sender<u64>>,
}

/// A pool with its formula's and its strategy's seat.
struct Served {
    pool: Arc<Pool>,
    seats: [Seat; 2],
}

/// What a guest is started from.
#[derive(Clone)]
struct Make {
    wanted: Wanted,
    module: Arc<Module>,
}

/// What is known of one pool's formula or strategy.
#[derive(Default)]
struct Seat {
    /// What was wanted and the newest generation of it that was tried, good or bad.
    tried: Option<(Wanted, Generation)>,
    /// The last good one, to rebuild from.
    good: Option<Make>,
    /// The guest that was seated last.
    serial: u64,
    /// What is started again, and when.
    again: Option<(Instant, Make)>,
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
        pools: Arc<Pools>,
        scorers: Arc<Scorers>,
        changes: Arc<watch::Sender<u64>>,
    ) -> Self {
        let library = Library::new(engine, folder.clone());
        let (served, board) = (Vec::new(), Arc::default());
        let look = events.0.clone();
        // The receiver lives as long as this thread: a send that fails has nobody to tell.
        let look = move |hint| look.send(Event::Look(hint)).unwrap_or_default();
        let watch = Watch::new(|path| policy_name(path).is_some(), look);
        let clock = pools.clock();
        Self { library, folder, watch, served, pools, scorers, events, board, clock, changes }
    }

    /// Where the policies are shown.
    #[must_use]
    pub fn board(&self) -> Board {
        Arc::clone(&self.board)
    }

    /// Loads what is there now; every one of these pools has its guests then, or says why not.
    pub fn start(&mut self, pools: &[PoolConfig]) {
        self.watch.keep(std::slice::from_ref(&self.folder));
        // Nothing is served yet: there is nobody to give way to.
        self.library.compile_last(false);
        self.library.rescan();
        self.configure(pools);
        self.library.compile_last(true);
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        let mut pace = Pace::new(Instant::now());
        loop {
            let seats = self.served.iter().flat_map(|served| &served.seats);
            let again = seats.filter_map(|seat| seat.again.as_ref());
            let due = again.map(|(at, _)| *at).fold(pace.due(), Instant::min);
            match self.events.1.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Event::Look(hint)) => pace.note(hint, Instant::now()),
                Ok(Event::LookNow) => pace.hurry(Instant::now()),
                Ok(Event::Configure(setup)) => {
                    self.move_to(setup.folder);
                    self.configure(&setup.pools);
                    setup.done.send(()).ok(); // nobody waits if the process is stopping
                }
                Ok(Event::Failed { pool, kind, serial }) => self.failed(pool, kind, serial),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= pace.due() {
                self.watch.keep(std::slice::from_ref(&self.folder));
                if self.library.rescan() {
                    self.supply();
                }
                pace.looked(Instant::now());
            }
            self.start_again();
        }
    }

    /// Works for these pools from now on.
    fn configure(&mut self, pools: &[PoolConfig]) {
        let mut known = std::mem::take(&mut self.served);
        for config in pools {
            let same = known.iter().position(|served| served.pool.is_of(config));
            let served = same.map(|place| known.swap_remove(place));
            let served = served.unwrap_or_else(|| {
                let pool = Arc::new(Pool::new(config, self.events.0.clone()));
                self.scorers.add(&pool, self.clock.now_ms());
                Served { pool, seats: Default::default() }
            });
            served.pool.reconfigure(config);
            self.served.push(served);
        }
        self.supply();
        self.pools.replace(self.served.iter().map(|served| Arc::clone(&served.pool)).collect());
        for gone in known {
            self.scorers.remove(&gone.pool);
            gone.pool.close();
        }
        self.changed();
    }

    /// Looks for policies in this folder from now on.
    fn move_to(&mut self, folder: PathBuf) {
        if self.folder != folder {
            self.folder.clone_from(&folder);
            self.library.move_to(folder);
            self.watch.keep(std::slice::from_ref(&self.folder));
            self.library.rescan();
        }
    }

    /// A pool's guest failed; nothing to do if it is not the one that was seated last.
    fn failed(&mut self, pool: u64, kind: Kind, serial: u64) {
        let served = self.served.iter_mut().find(|served| served.pool.number == pool);
        let seat = served.map(|served| &mut served.seats[index(kind)]);
        if let Some(seat) = seat.filter(|seat| seat.serial == serial)
            && let Some(good) = seat.good.clone()
        {
            seat.start_again(Instant::now(), good);
        }
        self.changed();
    }

    /// Gives every pool the newest generation that it has not tried.
    fn supply(&mut self) {
        for place in 0..self.served.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let Served { pool, seats } = &mut self.served[place];
                let wanted = pool.wanted(kind);
                let Some(module) = self.library.module(&wanted.policy) else {
                    pool.note_trouble(kind, &no_policy(&self.library, &self.folder, &wanted));
                    continue;
                };
                let seat = &mut seats[index(kind)];
                let trial = Some((wanted.clone(), module.generation));
                if seat.tried != trial {
                    seat.tried = trial;
                    seat.failures = 0;
                    self.seat(place, kind, Make { wanted, module });
                }
            }
        }
        self.changed();
    }

    /// Starts what is due again.
    fn start_again(&mut self) {
        for place in 0..self.served.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let again = &mut self.served[place].seats[index(kind)].again;
                if let Some((_, make)) = again.take_if(|(at, _)| *at <= Instant::now()) {
                    self.seat(place, kind, make);
                    self.changed();
                }
            }
        }
    }

    /// Starts, tries and seats a guest.
    fn seat(&mut self, place: usize, kind: Kind, make: Make) {
        let seated = match kind {
            Kind::Formula => self.seat_formula(&self.served[place].pool, &make),
            Kind::Strategy => self.seat_strategy(&self.served[place].pool, &make),
        };
        let Served { pool, seats } = &mut self.served[place];
        let seat = &mut seats[index(kind)];
        let (policy, generation) = (&make.wanted.policy, make.module.generation);
        match seated {
            Ok(serial) => {
                tracing::info!(pool = pool.name(), %policy, %kind, %generation, "policy serves");
                seat.good = Some(make);
                seat.serial = serial;
                seat.again = None;
                seat.seated = Some(Instant::now());
            }
            Err(error) => {
                let kept = pool.serving(kind).map_or("none".to_owned(), |kept| kept.to_string());
                tracing::warn!(pool = pool.name(), %policy, %kind, %generation, %error, kept, "policy not used");
                pool.note_trouble(kind, &format!("generation {generation} is not used: {error}"));
                // A good generation that fails now may work again; any other only if it was the
                // machine's fault, and not for ever.
                let is_same = |good: &Make| {
                    good.module.generation == generation && good.wanted == make.wanted
                };
                let was_good = seat.good.as_ref().is_some_and(is_same);
                if was_good || (error.may_pass() && seat.failures < RETRIES_MAX) {
                    seat.start_again(Instant::now(), make);
                }
            }
        }
    }

    /// The serial number of the guest that serves now.
    fn seat_formula(&self, pool: &Pool, make: &Make) -> Result<u64, StartError> {
        let Wanted { policy, settings } = &make.wanted;
        let start = || FormulaGuest::start(self.library.engine(), policy, &make.module, settings);
        try_formula(&mut start()?)?;
        let guest = start()?;
        let serial = guest.serial;
        self.scorers.replace(pool, guest, self.clock.now_ms())?;
        Ok(serial)
    }

    fn seat_strategy(&self, pool: &Pool, make: &Make) -> Result<u64, StartError> {
        let Wanted { policy, settings } = &make.wanted;
        let start = || {
            let seed = fastrand::u64(..);
            StrategyGuest::start(self.library.engine(), policy, &make.module, settings, seed)
        };
        try_strategy(&mut start()?)?;
        let guest = start()?;
        let serial = guest.serial;
        pool.seat_strategy(guest, self.clock.now_ms())?;
        Ok(serial)
    }

    fn changed(&self) {
        *self.board.lock() = Arc::new(self.library.entries().clone());
        self.changes.send_modify(|changes| *changes += 1);
    }
}

impl Seat {
    /// Sets the time at which this is started again.
    fn start_again(&mut self, now: Instant, make: Make) {
        if self.seated.take().is_some_and(|at| now.duration_since(at) > CALM) {
            self.failures = 0;
        }
        let (first, longest) = BACK_OFF;
        let wait = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        // A quarter more or less: pools that failed together do not come back together.
        self.again = Some((now + wait.mul_f64(0.75 + fastrand::f64() / 2.0), make));
    }
}

fn no_policy(library: &Library, folder: &Path, wanted: &Wanted) -> String {
    let name = &wanted.policy;
    let refused = library.entries().get(name).and_then(|entry| entry.refused.as_ref());
    if let Some(refused) = refused {
        return refused.reason.clone();
    }
    let folder = folder.display();
    format!("there is no policy {name}: drop {name}.wasm or {name}.formula into {folder}")
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
