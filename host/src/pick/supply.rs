//! Keeps every pool supplied with guests of the newest good generation.
//!
//! In: "look at the folder", "this guest failed", an operator's wish, another configuration. Out: guests
//! that were started, configured and tried, swapped in while requests go on. One thread. Invariants: a
//! generation that does not start changes nothing and is not tried again until the file changes, unless
//! the machine was short of something; a pool that the configuration changes keeps what serves it until
//! what is wanted instead has started, and a new pool is offered only when it has its guests; nothing that this
//! thread does waits for the compilation of a file; a guest
//! that failed is rebuilt after a jittered, doubling back-off, and one that fails too often makes way
//! for the last good generation; what else happens in the folder never keeps a change from being seen.

mod coming;
mod plans;
mod seat;
mod shadows;
mod uploads;
mod wishes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::Pools;
use super::make::Make;
use super::pool::{Heir, Pool, index};
use super::score::Scorers;
use super::shadow::{Running, State};
use crate::clock::{Clock, WallClock};
use crate::config::PoolConfig;
use crate::policy::library::is_of_policy;
use crate::policy::{Entry, Kind, Library, PolicyEngine, Rules, StartError, Steps};
use crate::watch::{Hint, Pace, Watch};
use coming::Coming;
use plans::Plan;
use seat::Seat;
use shadows::Place;
pub use shadows::ShadowWish;
use uploads::Upload;
pub use wishes::{Action, Wish};

/// What the supply is told.
#[derive(Debug)]
pub enum Event {
    /// Something changed in the folder.
    Look(Hint),
    /// Look at once.
    LookNow,
    /// The configuration changed.
    Configure(Setup),
    /// An operator wants something.
    Wish(Wish),
    /// A policy was compiled, or something is wrong with it.
    Compiled,
    /// A pool's guest failed and was dropped.
    Failed {
        /// By number.
        pool: u64,
        /// Which of its two.
        kind: Kind,
        /// Of the guest.
        serial: u64,
    },
    /// A shadow's bounds hold.
    Passed {
        /// The pool, by number.
        pool: u64,
        /// Of the shadow.
        serial: u64,
        /// What it has shown, in words.
        figures: String,
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
    /// What else is wanted of them.
    pub rules: Rules,
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
    /// The configuration that is taken when its files are compiled.
    coming: Option<Coming>,
    /// What operators sent and is not compiled yet.
    uploads: Vec<Upload>,
    served: Vec<Served>,
    pools: Arc<Pools>,
    scorers: Arc<Scorers>,
    events: (Sender<Event>, Receiver<Event>),
    board: Board,
    clock: Clock,
    /// What schedules go by.
    wall: WallClock,
    changes: Arc<watch::Sender<u64>>,
    /// Shadow runs that were told to end.
    ending: Vec<Running>,
}

/// A pool with what it wants when, its formula's and its strategy's seat, and its shadow.
struct Served {
    pool: Arc<Pool>,
    plan: Plan,
    seats: [Seat; 2],
    shadow: Place,
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
        let (served, board) = (Vec::new(), Board::default());
        let (shown, told) = (Arc::clone(&board), Arc::clone(&changes));
        let library = Library::new(engine, folder.clone(), move |entries| {
            *shown.lock() = Arc::new(entries.clone());
            told.send_modify(|changes| *changes += 1);
        });
        let look = events.0.clone();
        // The receiver lives as long as this thread: a send that fails has nobody to tell.
        let look = move |hint| look.send(Event::Look(hint)).unwrap_or_default();
        let watch = Watch::new(is_of_policy, look);
        let (clock, wall) = (pools.clock(), WallClock::default());
        let ending = Vec::new();
        Self {
            library,
            folder,
            watch,
            coming: None,
            uploads: Vec::new(),
            served,
            pools,
            scorers,
            events,
            board,
            clock,
            wall,
            changes,
            ending,
        }
    }

    /// Follows these rules.
    pub fn set_rules(&mut self, rules: Rules) {
        self.library.set_rules(rules);
    }

    /// Takes the time of day from this clock.
    pub fn set_wall_clock(&mut self, wall: WallClock) {
        self.wall = wall;
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
        self.look();
        self.configure(pools);
        self.library.compile_last(true);
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        let mut pace = Pace::new(Instant::now());
        let wake = self.events.0.clone();
        self.library.compile_beside(move || wake.send(Event::Compiled).unwrap_or_default());
        loop {
            let seats = self.served.iter().flat_map(|served| &served.seats);
            // What a coming configuration may bring back is not given up.
            let removed = self.library.due().filter(|_| self.coming.is_none());
            let due = seats.filter_map(Seat::due).chain(removed).chain(self.next_entry());
            let due = due.chain(self.library.collect_due()).chain(self.uploads_due());
            let due = due.fold(pace.due(), Instant::min);
            match self.events.1.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Event::Look(hint)) => pace.note(hint, Instant::now()),
                Ok(Event::LookNow) => pace.hurry(Instant::now()),
                Ok(Event::Configure(setup)) => self.prepare(setup),
                Ok(Event::Wish(wish)) => self.follow(wish),
                Ok(Event::Failed { pool, kind, serial }) => self.failed(pool, kind, serial),
                Ok(Event::Passed { pool, serial, figures }) => self.passed(pool, serial, &figures),
                Ok(Event::Compiled) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    return self.end_shadows();
                }
            }
            self.collect_uploads();
            if let Some(file) = self.library.collect() {
                self.supply();
                self.came(&file);
                pace.hurry(Instant::now());
            }
            if Instant::now() >= pace.due() {
                self.watch.keep(std::slice::from_ref(&self.folder));
                if self.look() {
                    self.supply();
                }
                pace.looked(Instant::now());
            }
            self.configure_if_ready();
            if self.coming.is_none() && self.library.give_up(Instant::now()) {
                self.supply();
            }
            self.follow_schedules();
            self.start_again();
            self.settle_shadows();
        }
    }

    /// Looks at the folder; true when any entry changed.
    fn look(&mut self) -> bool {
        let watch = &self.watch;
        self.library.rescan(&|path| watch.is_writing(path))
    }

    /// Works for these pools from now on.
    fn configure(&mut self, pools: &[PoolConfig]) {
        let mut known = std::mem::take(&mut self.served);
        for config in pools {
            let plan = Plan::of(config, self.wall.now_ms());
            let same = known.iter().position(|served| served.pool.is_of(config));
            let served = same.map(|place| known.swap_remove(place));
            let mut served = served.unwrap_or_else(|| {
                let (wanted, events) = (plan.wanted().clone(), self.events.0.clone());
                let pool = Arc::new(Pool::new(config, wanted, events));
                self.scorers.add(&pool, self.clock.now_ms());
                let (plan, seats, shadow) = Default::default();
                Served { pool, plan, seats, shadow }
            });
            served.pool.reconfigure(config);
            served.pool.want(plan.wanted().clone());
            served.plan = plan;
            served.shadow.configure(config.shadow.as_ref());
            self.served.push(served);
        }
        self.follow_schedules();
        self.supply();
        self.pools.replace(self.served.iter().map(|served| Arc::clone(&served.pool)).collect());
        self.say_missing();
        for mut gone in known {
            let state = State::Stopped("its pool is gone".to_owned());
            gone.shadow.end(state, &mut self.ending);
            self.scorers.remove(&gone.pool);
            gone.pool.close();
        }
        self.settle_shadows();
        self.changed();
    }

    /// Looks for policies in this folder from now on.
    fn move_to(&mut self, folder: PathBuf) {
        if self.folder != folder {
            self.folder.clone_from(&folder);
            self.library.move_to(folder);
            self.watch.keep(std::slice::from_ref(&self.folder));
        }
    }

    /// A pool's guest failed; nothing to do if it is not the one that was seated last.
    fn failed(&mut self, pool: u64, kind: Kind, serial: u64) {
        let Some(place) = self.served.iter().position(|served| served.pool.number == pool) else {
            return;
        };
        let Served { pool, seats, .. } = &mut self.served[place];
        let seat = &mut seats[index(kind)];
        let Some(bad) = seat.made_from(serial) else { return };
        let now = Instant::now();
        let fails_too_often = seat.note_fault(now) && pool.rolls_back();
        match self.last_good(place, kind, &bad).filter(|_| fails_too_often) {
            Some(good) => self.roll_back(place, kind, &bad, good),
            None => self.served[place].seats[index(kind)].start_again(bad, now),
        }
        self.changed();
    }

    /// What served this seat before under the name of what failed, or the built-in of the name.
    fn last_good(&mut self, place: usize, kind: Kind, bad: &Make) -> Option<Make> {
        let seat = &self.served[place].seats[index(kind)];
        if let Some(before) = seat.before(&bad.wanted.policy) {
            return Some(before.clone());
        }
        let module = self.library.built_in_module(&bad.wanted.policy)?;
        let serves = module.kind() == kind && seat.is_other(module.generation);
        serves.then(|| Make { wanted: bad.wanted.clone(), module })
    }

    fn roll_back(&mut self, place: usize, kind: Kind, bad: &Make, good: Make) {
        let Served { pool, seats, .. } = &mut self.served[place];
        let (generation, back_to) = (bad.module.generation, good.module.generation);
        tracing::error!(
            pool = pool.name(), policy = %bad.wanted.policy, %kind, %generation, %back_to,
            "policy failed too often and is quarantined, the last good generation serves"
        );
        seats[index(kind)].quarantine(generation);
        pool.note_quarantine(kind, generation);
        self.seat(place, kind, good);
    }

    /// Gives every pool the newest generation that it has not tried.
    fn supply(&mut self) {
        for place in 0..self.served.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let Served { pool, seats, .. } = &mut self.served[place];
                let wanted = pool.wanted(kind);
                let seat = &mut seats[index(kind)];
                let Some(module) = self.library.module(&wanted.policy) else {
                    let why = no_policy(&self.library, &self.folder, &wanted.policy);
                    if seat.has(&wanted.policy) {
                        seat.forget();
                        pool.withdraw(kind, &why);
                    }
                    pool.note_trouble(kind, &why);
                    continue;
                };
                let limits = self.library.limits(&wanted.policy);
                if !seat.is_news(&wanted, module.generation, limits) {
                    continue;
                }
                let is_bad = seat.is_quarantined(module.generation);
                let is_back = !seat.has(&wanted.policy);
                let make = Make { wanted, module };
                if !is_bad {
                    self.seat(place, kind, make);
                } else if is_back {
                    self.seat_last_good(place, kind, &make);
                }
            }
        }
        self.changed();
    }

    /// Starts what is due again.
    fn start_again(&mut self) {
        for place in 0..self.served.len() {
            for kind in [Kind::Formula, Kind::Strategy] {
                let seat = &mut self.served[place].seats[index(kind)];
                if let Some(make) = seat.take_due(Instant::now()) {
                    self.seat(place, kind, make);
                    self.changed();
                }
            }
        }
    }

    /// Starts, tries and seats a guest.
    fn seat(&mut self, place: usize, kind: Kind, make: Make) {
        let steps = Steps::default();
        let seated = match kind {
            Kind::Formula => self.seat_formula(&self.served[place].pool, &make, &steps),
            Kind::Strategy => self.seat_strategy(&self.served[place].pool, &make, &steps),
        };
        let Served { pool, seats, .. } = &mut self.served[place];
        pool.note_steps(kind, steps.taken());
        let seat = &mut seats[index(kind)];
        let (policy, generation) = (&make.wanted.policy, make.module.generation);
        match seated {
            Ok(serial) => {
                tracing::info!(pool = pool.name(), %policy, %kind, %generation, "policy serves");
                seat.seated(make, serial, Instant::now());
            }
            Err(error) => {
                let kept = pool.serving(kind).map_or("none".to_owned(), |kept| kept.to_string());
                tracing::warn!(pool = pool.name(), %policy, %kind, %generation, %error, kept, "policy not used");
                pool.note_trouble(kind, &format!("generation {generation} is not used: {error}"));
                seat.could_not_start(make, error.may_pass(), Instant::now());
            }
        }
    }

    /// The serial number of the guest that serves now.
    fn seat_formula(&self, pool: &Pool, make: &Make, steps: &Steps) -> Result<u64, StartError> {
        let engine = self.library.engine(&make.wanted.policy);
        make.try_formula(&engine, steps)?;
        self.swap(steps, |heir| {
            let guest = make.formula(&engine)?;
            let serial = guest.serial;
            self.scorers.replace(pool, guest, heir, self.clock.now_ms())?;
            Ok(serial)
        })
    }

    fn seat_strategy(&self, pool: &Pool, make: &Make, steps: &Steps) -> Result<u64, StartError> {
        let engine = self.library.engine(&make.wanted.policy);
        make.try_strategy(&engine, steps)?;
        self.swap(steps, |heir| {
            let guest = make.strategy(&engine)?;
            let serial = guest.serial;
            pool.seat_strategy(guest, heir, self.clock.now_ms())?;
            Ok(serial)
        })
    }

    /// Swaps with the old one's state, or, where the new one fails on that, without.
    fn swap(
        &self,
        steps: &Steps,
        swap: impl Fn(Heir) -> Result<u64, StartError>,
    ) -> Result<u64, StartError> {
        match steps.run("swap", || swap(Heir::OfState)) {
            Err(StartError::Call(fault)) if fault.call() == "restore" => {
                tracing::warn!(%fault, "the old one's state cannot be taken over: swapped without");
                steps.run("swap", || swap(Heir::OfNothing))
            }
            swapped => swapped,
        }
    }

    fn changed(&self) {
        for Served { pool, seats, .. } in &self.served {
            for kind in [Kind::Formula, Kind::Strategy] {
                pool.note_again(kind, seats[index(kind)].due());
            }
        }
        *self.board.lock() = Arc::new(self.library.entries().clone());
        self.changes.send_modify(|changes| *changes += 1);
    }
}

fn no_policy(library: &Library, folder: &Path, name: &str) -> String {
    let refused = library.entries().get(name).and_then(|entry| entry.refused.as_ref());
    if let Some(refused) = refused {
        return refused.reason.clone();
    }
    let waiting = library.entries().get(name).and_then(|entry| entry.waiting.as_ref());
    if let Some(waiting) = waiting {
        return format!("{name} {}", waiting.why);
    }
    let folder = folder.display();
    format!("there is no policy {name}: drop {name}.wasm or {name}.formula into {folder}")
}
