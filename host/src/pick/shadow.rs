//! A candidate beside one of a pool's policies: it sees every update and a share of the picks, and
//! decides nothing.
//!
//! In: what the pool's table lets it hear ([`super::table::tap`]). Out: a [`Report`]. It runs on a thread
//! of its own with guests of its own; a candidate strategy is told the live loads, a candidate formula
//! computes loads of its own from the same reports and another guest of the pool's strategy chooses by
//! them. Invariants: no pick and no report waits for it; nothing of the live pool is changed, not its
//! guests, counts, faults or breaker; memory is bounded, and when it falls behind, what is lost is
//! counted and the candidate fed anew; a candidate that fails is built anew after a back-off and
//! stopped when it fails too often, and nobody else notices.

mod bounds;
mod figures;
mod mirror;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::make::Make;
use super::pool::{HOSTS, Pool};
use super::score::beside::{Beside, Due};
use super::supply::Event;
use super::table::tap::{Heard, Tap};
use super::table::{Fed, PART_ROWS};
use crate::clock::Clock;
use crate::config::PromoteConfig;
use crate::fleet::Fleet;
use crate::policy::guest::{Request, TargetView};
use crate::policy::{
    CallError, Decider, Kind, Limits, PolicyEngine, StartError, Steps, StrategyGuest,
};
use bounds::{Verdict, judge};
use figures::excess;
pub use figures::{Choice, Disagreement, Figures, LoadPair, Loads, Spread, Spreads};
use mirror::Mirror;

/// Time between two looks at what was heard.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two reports, if there is anything new.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// How far a candidate stands back for threads that serve.
const NICE: i32 = 10;
/// So many faults within this time are too many, as for a policy that serves.
const FAULTS_MAX: usize = 3;
const FAULTS_WINDOW: Duration = Duration::from_secs(60);
/// First wait before a failed candidate is built anew; it doubles.
const BACK_OFF: Duration = Duration::from_millis(500);

/// What is tried, and how.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) candidate: Make,
    /// The pool's strategy, if the candidate is a formula: it chooses by its loads.
    pub(super) partner: Option<Make>,
    /// What each of them may use.
    pub(super) limits: Vec<Limits>,
    /// What serves where the candidate would; `None`: native code.
    pub(super) beside: Option<Decider>,
    /// Share of the picks, above 0 to 1.
    pub(super) share: f64,
    /// When it is promoted by itself.
    pub(super) bounds: Option<PromoteConfig>,
}

impl Spec {
    pub(super) fn kind(&self) -> Kind {
        self.candidate.module.kind()
    }

    /// Whether a run of one says all about the other.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_partner = match (&self.partner, &other.partner) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            _ => false,
        };
        let shares = [self.share, other.share].map(f64::to_bits);
        same_partner
            && self.candidate.is_same(&other.candidate)
            && self.limits == other.limits
            && self.beside == other.beside
            && shares[0] == shares[1]
            && self.bounds == other.bounds
    }
}

/// How a shadow is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing runs, for this reason.
    Waiting(String),
    /// It is being told of the targets.
    Feeding,
    /// It is asked.
    Running,
    /// It failed and is built anew.
    Rebuilding,
    /// It has ended, for this reason.
    Stopped(String),
    /// Its bounds hold, and it is about to serve.
    Passed(String),
    /// It serves now.
    Promoted,
}

impl State {
    /// In a word.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting(_) => "waiting",
            Self::Feeding => "feeding",
            Self::Running => "running",
            Self::Rebuilding => "rebuilding",
            Self::Stopped(_) => "stopped",
            Self::Passed(_) => "passed",
            Self::Promoted => "promoted",
        }
    }

    /// Whether it may still be asked something.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Feeding | Self::Running | Self::Rebuilding | Self::Passed(_))
    }
}

/// What a shadow run has shown so far.
#[derive(Debug, Clone)]
pub struct Report {
    /// How it is doing.
    pub state: State,
    /// Everything counted.
    pub figures: Figures,
    /// How work would have been spread.
    pub spreads: Spreads,
    /// Targets with the most different counts: machine, live, and the candidate's.
    pub apart: Vec<(Arc<str>, [u64; 2])>,
    /// When it began, in milliseconds of the host's clock.
    pub since_ms: u64,
}

/// A shadow as others see it.
#[derive(Debug)]
pub struct Shown {
    serial: u64,
    /// The candidate's name.
    pub policy: Arc<str>,
    /// What it is; `None`: nothing of that name is known.
    pub candidate: Option<(Decider, Kind)>,
    /// What serves where it would; `None`: native code, or nothing runs.
    pub beside: Option<Decider>,
    /// Share of the picks about which it is asked.
    pub share: f64,
    /// When it is promoted by itself.
    pub bounds: Option<PromoteConfig>,
    report: Mutex<Arc<Report>>,
    /// How it is to end.
    end: Mutex<Option<State>>,
    is_ending: AtomicBool,
}

impl Shown {
    /// Of a candidate that does not run.
    pub(super) fn idle(policy: &Arc<str>, spec: Option<&Spec>, state: State, now_ms: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let decider = |make: &Make| Decider {
            policy: Arc::clone(&make.wanted.policy),
            generation: make.module.generation,
        };
        let report = Report {
            state,
            figures: Figures::default(),
            spreads: Spreads::default(),
            apart: Vec::new(),
            since_ms: now_ms,
        };
        Self {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            policy: Arc::clone(policy),
            candidate: spec.map(|spec| (decider(&spec.candidate), spec.kind())),
            beside: spec.and_then(|spec| spec.beside.clone()),
            share: spec.map_or(0.0, |spec| spec.share),
            bounds: spec.and_then(|spec| spec.bounds.clone()),
            report: Mutex::new(Arc::new(report)),
            end: Mutex::new(None),
            is_ending: AtomicBool::new(false),
        }
    }

    /// What it has shown so far.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        Arc::clone(&self.report.lock())
    }

    /// Tells it from every other of this process.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    fn note_state(&self, state: State) {
        let mut report = self.report.lock();
        *report = Arc::new(Report { state, ..Report::clone(&report) });
    }
}

/// A shadow that runs, or has ended by itself.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) shown: Arc<Shown>,
    thread: JoinHandle<()>,
}

/// The candidate's guests.
pub(super) struct Guests {
    strategy: StrategyGuest,
    formula: Option<Beside>,
}

/// What a run needs of its host.
pub(super) struct Surroundings {
    /// Within what the candidate may use.
    pub(super) engine: PolicyEngine,
    /// Within what the pool's strategy may use, where that chooses.
    pub(super) partner: PolicyEngine,
    pub(super) fleet: Arc<RwLock<Fleet>>,
    pub(super) events: Sender<Event>,
    pub(super) changes: Arc<watch::Sender<u64>>,
    pub(super) clock: Clock,
}

impl Guests {
    /// Starts and tries what a spec asks for.
    ///
    /// # Errors
    /// The candidate, or the pool's strategy beside it, does not start.
    pub(super) fn tried(spec: &Spec, pool: &Pool, of: &Surroundings) -> Result<Self, StartError> {
        let (candidate, steps) = (&spec.candidate, Steps::default());
        let Some(partner) = &spec.partner else {
            candidate.try_strategy(&of.engine, &steps)?;
            return Ok(Self { strategy: candidate.strategy(&of.engine)?, formula: None });
        };
        candidate.try_formula(&of.engine, &steps)?;
        let formula = candidate.formula(&of.engine)?;
        let formula = Beside::new(Arc::clone(&of.fleet), pool.service(), formula);
        Ok(Self { strategy: partner.strategy(&of.partner)?, formula: Some(formula) })
    }
}

impl Running {
    /// Starts a run.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn start(
        spec: &Spec,
        guests: Guests,
        pool: &Arc<Pool>,
        of: Surroundings,
    ) -> std::io::Result<Self> {
        let policy = &spec.candidate.wanted.policy;
        let shown = Shown::idle(policy, Some(spec), State::Feeding, of.clock.now_ms());
        let shown = Arc::new(shown);
        pool.attach(Tap::new(shown.serial, spec.share));
        let has_loads = guests.formula.is_some();
        let run = Run {
            spec: spec.clone(),
            guests: Some(guests),
            pool: Arc::clone(pool),
            of,
            shown: Arc::clone(&shown),
            mirror: Mirror::new(has_loads),
            figures: Figures::default(),
            reading: Some(Fed::default()),
            buffer: Vec::new(),
            now_ms: 0,
            again: None,
            failed: VecDeque::new(),
            end: None,
            passed: None,
        };
        let thread = thread::Builder::new().name("loadline-shadow".to_owned());
        let thread = thread.spawn(move || run.run())?;
        Ok(Self { shown, thread })
    }

    /// Ends it soon, like this.
    pub(super) fn end(&self, state: State) {
        *self.shown.end.lock() = Some(state.clone());
        self.shown.is_ending.store(true, Ordering::Release);
        self.shown.note_state(state);
        self.thread.thread().unpark();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until it has ended: a guest's deadlines at most.
    pub(super) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!(policy = %self.shown.policy, "a shadow ended by a panic");
        }
    }
}

/// The thread's state.
struct Run {
    spec: Spec,
    /// `None`: they failed.
    guests: Option<Guests>,
    pool: Arc<Pool>,
    of: Surroundings,
    shown: Arc<Shown>,
    mirror: Mirror,
    figures: Figures,
    /// Targets are still being read, up to there.
    reading: Option<Fed>,
    buffer: Vec<Heard>,
    /// Of what was heard last.
    now_ms: u64,
    /// When the candidate is built anew.
    again: Option<Instant>,
    /// Its last faults.
    failed: VecDeque<Instant>,
    /// It has ended like this.
    end: Option<State>,
    /// It was judged good, with these figures.
    passed: Option<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.pool.detach(self.shown.serial);
        if self.end.is_none() {
            self.end = Some(State::Stopped("its thread ended by a panic".to_owned()));
            self.shown.note_state(self.state());
        }
    }
}

impl Run {
    fn run(mut self) {
        // Of this thread alone.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "a shadow runs at normal priority");
        }
        let (mut reported, mut has_news) = (Instant::now(), true);
        while self.end.is_none() {
            has_news |= self.turn();
            self.judge();
            if has_news && reported.elapsed() >= REPORT_EVERY {
                self.report();
                (reported, has_news) = (Instant::now(), false);
            }
            if self.is_ending() {
                self.end.clone_from(&self.shown.end.lock());
            } else if self.end.is_none() && self.reading.is_none() {
                thread::park_timeout(PAUSE);
            }
        }
        self.report();
    }

    fn is_ending(&self) -> bool {
        self.shown.is_ending.load(Ordering::Acquire)
    }

    /// Takes in what was heard; whether there was anything.
    fn turn(&mut self) -> bool {
        let (serial, now_ms) = (self.shown.serial, self.of.clock.now_ms());
        let mut buffer = std::mem::take(&mut self.buffer);
        let heard = self.pool.listen(serial, &mut buffer, self.reading.as_mut(), now_ms);
        let Some((dropped, part)) = heard else {
            self.end = Some(State::Stopped("another one took its place".to_owned()));
            return true;
        };
        let had_news = !buffer.is_empty() || part.is_some();
        for heard in buffer.drain(..) {
            if self.end.is_some() || self.is_ending() {
                return true;
            }
            self.hear(heard);
        }
        self.buffer = buffer;
        self.now_ms = now_ms;
        if let Some(part) = part {
            part.left.iter().for_each(|slot| self.mirror.left(*slot));
            part.views.into_iter().for_each(|view| self.mirror.told(view, now_ms));
            self.reading.take_if(|_| part.is_last);
        }
        self.figures.dropped_updates += dropped.updates;
        self.figures.dropped_picks += dropped.picks;
        if dropped.updates + dropped.picks > 0 {
            self.figures.fed_anew += 1;
            self.mirror.clear();
            self.reading = Some(Fed::default());
        }
        let was_built = self.build_anew();
        self.tell();
        had_news || was_built
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Told { view, now_ms } => {
                self.now_ms = now_ms;
                self.mirror.told(view, now_ms);
            }
            Heard::Left(slot) => self.mirror.left(slot),
            Heard::Picked { slot, now_ms, request: None, .. } => {
                self.now_ms = now_ms;
                self.mirror.picked(slot);
            }
            Heard::Picked { slot, is_native, now_ms, request: Some(request) } => {
                self.now_ms = now_ms;
                self.tell();
                if self.reading.is_some() || self.guests.is_none() {
                    self.figures.not_ready += 1;
                    self.mirror.picked(slot);
                } else if let Err(fault) = self.ask(slot, is_native, request) {
                    self.mirror.picked(slot);
                    self.fail(&fault);
                }
            }
        }
    }

    /// Asks the candidate what the live pool was asked, and compares.
    fn ask(&mut self, slot: u32, is_native: bool, request: Request) -> Result<(), CallError> {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        let begin = cpu_time();
        let chosen = guests.strategy.pick(request)?;
        let took = cpu_time().saturating_sub(begin);
        if let Some(chosen) = chosen
            && let Err(what) = check(&self.mirror, chosen)
        {
            return Err(guests.strategy.nonsense("pick", what));
        }
        if guests.formula.is_none() {
            self.figures.time_us.add(took.as_secs_f64() * 1e6);
        }
        self.compare(slot, chosen, is_native, request);
        match chosen {
            Some(chosen) => self.mirror.picked_both(slot, chosen, request.now_ms),
            None => self.mirror.picked(slot),
        }
        Ok(())
    }

    fn compare(&mut self, live: u32, chosen: Option<u32>, is_native: bool, request: Request) {
        let figures = &mut self.figures;
        figures.picks += 1;
        figures.native += u64::from(is_native);
        figures.no_answer += u64::from(chosen.is_none());
        if chosen == Some(live) {
            figures.agreed += 1;
            return;
        }
        let load = |slot: u32| self.mirror.view(slot, self.now_ms).map(|view| view.load);
        let known = self.mirror.get(live).map_or(f64::NAN, |target| target.live.load);
        if !self.figures.is_bad(excess(known, chosen.and_then(load))) {
            return;
        }
        let choices = [Some(live), chosen].map(|slot| self.choice(slot?));
        let disagreement = Disagreement::of(&request, is_native, choices);
        disagreement.into_iter().for_each(|disagreement| self.figures.keep(disagreement));
    }

    fn choice(&self, slot: u32) -> Option<Choice> {
        let live = self.mirror.get(slot)?.live;
        let candidate = self.mirror.view(slot, self.now_ms)?;
        let machine = self.pool.machine_at(slot, live.identity);
        let live = TargetView { age_ms: candidate.age_ms, ..live };
        Some(Choice { machine, live, candidate })
    }

    /// Tells the candidate what it does not know.
    fn tell(&mut self) {
        if !self.mirror.has_news() {
            return;
        }
        if let Err(fault) = self.try_tell() {
            self.fail(&fault);
        }
    }

    fn try_tell(&mut self) -> Result<(), CallError> {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        let left = self.mirror.take_left();
        for left in left.chunks(PART_ROWS) {
            guests.strategy.leave(left)?;
        }
        if let Some(formula) = &mut guests.formula {
            formula.leave(&left)?;
            self.evaluate()?;
        }
        let views = self.mirror.take_dirty(self.now_ms);
        let Some(guests) = &mut self.guests else { return Ok(()) };
        views
            .chunks(PART_ROWS)
            .try_for_each(|views| guests.strategy.update(self.now_ms, HOSTS, views))
    }

    /// Loads of the reports that the candidate formula has not seen.
    fn evaluate(&mut self) -> Result<(), CallError> {
        let due = self.mirror.take_due();
        let named = |slot: u32| {
            let target = self.mirror.get(slot)?;
            let machine = self.pool.machine_at(slot, target.live.identity)?;
            Some(Due { slot, machine, captured_ms: target.captured_ms })
        };
        let due: Vec<_> = due.into_iter().filter_map(named).collect();
        let formula = self.guests.as_mut().and_then(|guests| guests.formula.as_mut());
        let Some(formula) = formula.filter(|_| !due.is_empty()) else { return Ok(()) };
        let begin = cpu_time();
        let loaded = formula.evaluate(&due, self.now_ms)?;
        let took = cpu_time().saturating_sub(begin);
        self.figures.time_us.add(took.as_secs_f64() * 1e6);
        for loaded in loaded {
            let loads = &mut self.figures.loads;
            match loaded.load {
                None => loads.lacks(&loaded.missing),
                Some(load) if load.is_finite() && load >= 0.0 => {
                    self.mirror.loaded(loaded.slot, load + 0.0);
                    let live = self.mirror.get(loaded.slot).map(|target| target.live);
                    let Some(live) = live.filter(|live| !live.load.is_nan()) else { continue };
                    if let Some(machine) = self.pool.machine_at(loaded.slot, live.identity) {
                        loads.compare(LoadPair::new(machine, live.load, load));
                    }
                }
                Some(_) => loads.bad += 1,
            }
        }
        Ok(())
    }

    /// The candidate failed.
    fn fail(&mut self, fault: &CallError) {
        self.guests = None;
        self.figures.note_fault(fault);
        let (pool, policy) = (self.pool.name(), &self.spec.candidate.wanted.policy);
        tracing::warn!(pool, %policy, %fault, "policy in shadow failed");
        let now = Instant::now();
        self.failed.push_back(now);
        while self.failed.front().is_some_and(|at| now.duration_since(*at) > FAULTS_WINDOW) {
            self.failed.pop_front();
        }
        if self.failed.len() >= FAULTS_MAX {
            let times = self.failed.len();
            self.stop(format!("it failed {times} times in a minute, the last time: {fault}"));
        } else {
            let wait = BACK_OFF.saturating_mul(1 << (self.failed.len() - 1));
            self.again = Some(now + wait);
        }
    }

    /// Starts the candidate again if it is time; whether it was.
    fn build_anew(&mut self) -> bool {
        if self.again.take_if(|at| *at <= Instant::now()).is_none() {
            return false;
        }
        match Guests::tried(&self.spec, &self.pool, &self.of) {
            Ok(guests) => {
                self.guests = Some(guests);
                self.mirror.forget_told();
            }
            Err(StartError::Call(fault)) => self.fail(&fault),
            Err(error) => self.stop(format!("it does not start again: {error}")),
        }
        true
    }

    fn stop(&mut self, why: String) {
        let (pool, policy) = (self.pool.name(), &self.spec.candidate.wanted.policy);
        let generation = self.spec.candidate.module.generation;
        tracing::warn!(pool, %policy, %generation, why, "shadow run stopped");
        self.end = Some(State::Stopped(why));
    }

    /// Looks whether the bounds hold or are broken.
    fn judge(&mut self) {
        let Some(bounds) = &self.spec.bounds else { return };
        if self.passed.is_some() || self.end.is_some() {
            return;
        }
        match judge(bounds, &self.figures) {
            Verdict::Open => {}
            Verdict::Stop(why) => self.stop(why),
            Verdict::Promote(figures) => {
                let (pool, serial) = (self.pool.number, self.shown.serial);
                self.passed = Some(figures.clone());
                self.report();
                // A closed channel means that we are stopping.
                self.of.events.send(Event::Passed { pool, serial, figures }).ok();
            }
        }
    }

    fn state(&self) -> State {
        // What others have said of its end is so, whatever became of it meanwhile.
        let said = self.shown.end.lock().clone();
        match (said.as_ref().or(self.end.as_ref()), &self.passed) {
            (Some(end), _) => end.clone(),
            (None, Some(figures)) => State::Passed(figures.clone()),
            (None, None) if self.guests.is_none() => State::Rebuilding,
            (None, None) if self.reading.is_some() => State::Feeding,
            (None, None) => State::Running,
        }
    }

    /// Shows what there is.
    fn report(&self) {
        let spreads = Spreads::of(&self.mirror);
        let named = |(slot, _, handed): &(u32, u64, [u64; 2])| {
            let identity = self.mirror.get(*slot)?.live.identity;
            Some((self.pool.machine_at(*slot, identity)?, *handed))
        };
        let apart = spreads.apart.iter().filter_map(named).collect();
        let since_ms = self.shown.report.lock().since_ms;
        let (state, figures) = (self.state(), self.figures.clone());
        let report = Report { state, figures, spreads, apart, since_ms };
        *self.shown.report.lock() = Arc::new(report);
        self.of.changes.send_modify(|changes| *changes += 1);
    }
}

/// Whether the candidate may answer this slot.
fn check(mirror: &Mirror, slot: u32) -> Result<(), String> {
    match mirror.get(slot) {
        None => Err(format!("slot {slot} holds no target")),
        Some(target) if target.live.eligible => Ok(()),
        Some(_) => Err(format!("the target in slot {slot} may not be picked")),
    }
}

/// CPU time of this thread: a candidate is not blamed for the machine's other work.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
