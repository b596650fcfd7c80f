//! The thread of a shadow run: what the pool's table lets it hear in, figures and faults out.
//!
//! Invariants: it never waits for the live pool and holds the table's lock only while it takes over what
//! was heard; a fault of its guests ends here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::bounds::{Verdict, judge};
use super::figures::excess;
use super::mirror::Mirror;
use super::{
    Choice, Disagreement, Figures, Guests, LoadPair, Report, Shown, Spec, Spreads, State,
    Surroundings,
};
use crate::background;
use crate::pick::pool::{HOSTS, Pool};
use crate::pick::score::beside::Due;
use crate::pick::supply::Event;
use crate::pick::table::tap::Heard;
use crate::pick::table::{Fed, PART_ROWS};
use crate::policy::guest::{Request, TargetView};
use crate::policy::{CallError, StartError};

/// Time between two looks at what was heard.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two reports, if there is anything new.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// So many faults within this time are too many, as for a policy that serves.
const FAULTS_MAX: usize = 3;
const FAULTS_WINDOW: Duration = Duration::from_secs(60);
/// First wait before a failed candidate is built anew; it doubles.
const BACK_OFF: Duration = Duration::from_millis(500);

/// The thread's state.
pub(super) struct Run {
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
    /// A run that begins.
    pub(super) fn new(
        spec: &Spec,
        guests: Guests,
        pool: &Arc<Pool>,
        of: Surroundings,
        shown: &Arc<Shown>,
    ) -> Self {
        Self {
            spec: spec.clone(),
            mirror: Mirror::new(guests.formula.is_some()),
            guests: Some(guests),
            pool: Arc::clone(pool),
            of,
            shown: Arc::clone(shown),
            figures: Figures::default(),
            reading: Some(Fed::default()),
            buffer: Vec::new(),
            now_ms: 0,
            again: None,
            failed: VecDeque::new(),
            end: None,
            passed: None,
        }
    }

    /// Runs to its end.
    pub(super) fn run(mut self) {
        if let Err(error) = background::stand_back() {
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
                None => {
                    loads.lacks(&loaded.missing);
                    self.mirror.loaded(loaded.slot, f64::INFINITY);
                }
                Some(load) if load.is_finite() && load >= 0.0 => {
                    self.mirror.loaded(loaded.slot, load + 0.0);
                    let live = self.mirror.get(loaded.slot).map(|target| target.live);
                    let Some(live) = live.filter(|live| live.load.is_finite()) else { continue };
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
