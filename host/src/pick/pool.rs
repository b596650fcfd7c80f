//! A pool: the targets of one service, its strategy's guest, and what the two sides share.
//!
//! Two locks, always taken in this order: the strategy's guest, then the table. The table is held for
//! [`PART_ROWS`] rows at a stretch and never across a guest call, so that a native answer needs no
//! guest. A request waits at most [`GUEST_WAIT`] for the guest; the guest itself is bounded by its deadlines. Table and guest
//! change together under the guest's lock: an answer that does not fit the table is the guest's fault.
//! What happens to targets between reports is noted in the table and told to the guest in one `update`
//! for many: before the next pick where strict strategies depend on it, else with the intake's sweep.

mod notes;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::decision::{Asked, Focus, Scene};
use super::health::Ejection;
use super::native;
use super::supply::Event;
use super::table::{Fed, Fresh, Noted, PART_ROWS, Row, Table, Tally};
use super::{PickRequest, Picked, TARGETS_MAX, key_hash};
use crate::config::{OnFault, PoolConfig};
use crate::policy::guest::{Request, TargetView};
use crate::policy::{CallError, Decider, Generation, Kind, StrategyGuest};

/// What a request waits for the guest at most; then it is answered natively.
///
/// A little more than a guest's own deadline: a guest that never ends is gone by then, and however many
/// wait, their turn comes, so that strategies which count are exact. Only on a machine so busy that
/// threads do not run for that long are some answered natively.
const GUEST_WAIT: Duration = Duration::from_millis(20);
/// Time of trying before other threads of this core are given way: longer than an update takes.
const SPIN: Duration = Duration::from_micros(200);
/// What anybody tries for before it sleeps for the seat.
const SEAT_PATIENCE: Duration = Duration::from_millis(2);
/// Time after which no further rank is asked for; what was chosen is answered.
const RANKS_WAIT: Duration = Duration::from_millis(10);
/// Hosts that choose, as strategies are told: others are not heard of. What targets report of others'
/// requests tells more: see `policies/balanced`.
const HOSTS: u32 = 1;
/// Why the strategy did not choose although nothing is wrong with it.
const BUSY: &str = "busy";
const NO_ANSWER: &str = "no answer";
/// Rounds in which a new guest catches up with what changes while it is fed, at most.
const CATCH_UP_MAX: usize = 8;
/// Changed rows that may be left for the moment of the swap.
const CAUGHT_UP_ROWS: usize = 64;

/// The targets of one service under one formula and one strategy, which may be changed.
#[derive(Debug)]
pub struct Pool {
    name: String,
    service: String,
    /// Tells it from every other pool of this process, those that are gone included.
    pub(super) number: u64,
    /// By kind.
    wanted: Mutex<[Wanted; 2]>,
    on_fault: Mutex<OnFault>,
    strategy: Mutex<Seat>,
    /// Threads that try for the guest's seat.
    waiting: AtomicU32,
    table: Mutex<Table>,
    /// Something is noted that the guest is to be told before its next pick.
    has_news: AtomicBool,
    /// What is shown of each policy; locked last and for moments.
    statuses: [Mutex<PolicyStatus>; 2],
    counts: Counts,
    supply: Sender<Event>,
}

/// A policy as the configuration wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) policy: Arc<str>,
    /// A JSON object.
    pub(super) settings: Arc<str>,
}

/// Where a guest sits, or why nobody does.
enum Seat {
    Guest(Box<StrategyGuest>),
    Native(Arc<str>),
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Guest(guest) => write!(f, "guest {}", guest.decider),
            Self::Native(why) => write!(f, "native: {why}"),
        }
    }
}

/// How one of a pool's policies is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// What decides; `None`: native answers.
    pub serving: Option<Decider>,
    /// Why native answers are given, or why the newest generation is not used.
    pub trouble: Option<Arc<str>>,
    /// Faults of its guests.
    pub faults: u64,
    /// Swaps to another generation.
    pub swaps: u64,
    /// Generations that failed too often, and do not serve here any more.
    pub quarantined: Vec<Generation>,
}

/// What was answered how often.
#[derive(Debug, Default)]
pub struct Counts {
    /// Picks that the strategy's guest chose.
    pub by_guest: AtomicU64,
    /// Picks that were chosen natively.
    pub by_native: AtomicU64,
    /// Requests without an eligible target.
    pub nobody: AtomicU64,
    /// Requests that were refused because the strategy did not serve.
    pub refused: AtomicU64,
    /// Loads that were NaN, infinite or negative.
    pub bad_loads: AtomicU64,
    /// Outcomes of its targets: successes.
    pub served: AtomicU64,
    /// And failures.
    pub failed: AtomicU64,
}

/// A request as the guest and the table understand it.
pub(super) struct Ask<'r> {
    pub(super) request: Request,
    n: usize,
    exclude: &'r [String],
    has_lease: bool,
    explain: bool,
}

impl<'r> Ask<'r> {
    pub(super) fn new(request: &'r PickRequest, now_ms: u64) -> Self {
        Self {
            request: Request {
                key: key_hash(&request.key),
                class: 0,
                cost: 1.0,
                now_ms,
                random: fastrand::u64(..),
            },
            n: request.n.clamp(1, TARGETS_MAX),
            exclude: &request.exclude,
            has_lease: request.lease.is_some(),
            explain: request.explain,
        }
    }

    /// What is remembered of it.
    pub(super) fn asked(&self) -> Asked {
        let (key_hash, excluded) = (self.request.key, self.exclude.len());
        Asked { key_hash, n: self.n, excluded, has_lease: self.has_lease }
    }
}

/// What a target looks like from the other side of the pool.
#[derive(Debug, Clone)]
pub struct TargetStatus {
    /// The machine's name.
    pub machine: Arc<str>,
    /// Where to send work.
    pub address: Arc<str>,
    /// NaN: not known.
    pub load: f64,
    /// Whether it may be picked.
    pub eligible: bool,
    /// Picks since the capture of its report, without those whose lease has ended.
    pub picks: u32,
    /// Leases open now.
    pub leases: u32,
    /// Mean latency of its successful outcomes in microseconds, 0: none known.
    pub latency_us: u32,
    /// Share of failed outcomes, 0 to 1.
    pub error_rate: f32,
    /// Outcomes since it came to the pool: successes and failures.
    pub outcomes: [u64; 2],
    /// Its time out, if it has one.
    pub ejection: Option<Ejection>,
    /// Slow-start share, 0 to 1.
    pub warm: f32,
    /// Metrics that the formula needs and the target does not report.
    pub missing: Vec<Arc<str>>,
}

impl Pool {
    pub(super) fn new(config: &PoolConfig, supply: Sender<Event>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let not_yet: Arc<str> = "not loaded yet".into();
        let table = Table::new(config.health.clone());
        Self {
            name: config.name.clone(),
            service: config.service.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            wanted: Mutex::new(Wanted::both(config)),
            on_fault: Mutex::new(config.on_fault),
            strategy: Mutex::new(Seat::Native(not_yet)),
            waiting: AtomicU32::new(0),
            table: Mutex::new(table),
            has_news: AtomicBool::new(false),
            statuses: [Mutex::default(), Mutex::default()],
            counts: Counts::default(),
            supply,
        }
    }

    /// Wants other policies and another health from now on. Whoever is seated serves until the
    /// supply has seated the new ones.
    pub(super) fn reconfigure(&self, config: &PoolConfig) {
        *self.wanted.lock() = Wanted::both(config);
        *self.on_fault.lock() = config.on_fault;
        self.table.lock().configure(config.health.clone());
    }

    /// Gives its guest back: the pool was taken out of the configuration.
    pub(super) fn close(&self) {
        let gone = Seat::Native("the pool was taken out of the configuration".into());
        let old = std::mem::replace(&mut *self.seat(), gone);
        drop(old); // outside the lock
    }

    /// Whether this pool can become the configured one: another service has other targets.
    pub(super) fn is_of(&self, config: &PoolConfig) -> bool {
        self.name == config.name && self.service == config.service
    }

    /// As configured.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The service whose targets these are.
    #[must_use]
    pub fn service(&self) -> &str {
        &self.service
    }

    /// What the configuration wants.
    pub(super) fn wanted(&self, kind: Kind) -> Wanted {
        self.wanted.lock()[index(kind)].clone()
    }

    /// Targets known, eligible or not.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.tally().targets
    }

    /// Targets that may be picked.
    #[must_use]
    pub fn eligible(&self) -> usize {
        self.tally().eligible
    }

    /// How many targets are what.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.table.lock().tally()
    }

    /// Whether ejections are ignored because too few targets would be left.
    #[must_use]
    pub fn is_panic(&self) -> bool {
        self.table.lock().is_panic()
    }

    /// Ejections so far, by reason.
    #[must_use]
    pub fn ejections(&self) -> BTreeMap<&'static str, u64> {
        self.table.lock().ejections()
    }

    /// Every target.
    #[must_use]
    pub fn target_statuses(&self, now_ms: u64) -> Vec<TargetStatus> {
        let (mut statuses, mut from) = (Vec::new(), 0);
        loop {
            let table = self.table.lock();
            let part = table.part(from);
            if part.is_empty() {
                return statuses;
            }
            statuses.extend(part.iter().flatten().map(|row| TargetStatus::of(row, now_ms)));
            from += part.len();
        }
    }

    /// How one of its policies is doing.
    #[must_use]
    pub fn status(&self, kind: Kind) -> PolicyStatus {
        self.status_of(kind).lock().clone()
    }

    /// What decides; `None`: native answers.
    #[must_use]
    pub fn serving(&self, kind: Kind) -> Option<Decider> {
        self.status_of(kind).lock().serving.clone()
    }

    /// What was answered how often.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The policy's configured name.
    #[must_use]
    pub fn policy_name(&self, kind: Kind) -> Arc<str> {
        Arc::clone(&self.wanted.lock()[index(kind)].policy)
    }

    /// The strategy's ranked choice, each target checked; or why the guest did not choose.
    pub(super) fn ask_guest(
        &self,
        ask: &Ask<'_>,
        scene: &mut Option<Scene>,
    ) -> Result<(Vec<Picked>, Decider), Arc<str>> {
        let Some(mut seat) = self.try_seat(GUEST_WAIT) else {
            return Err(BUSY.into());
        };
        if self.has_news.load(Ordering::Acquire) {
            self.tell_part(&mut seat, Noted::Now, ask.request.now_ms);
        }
        let guest = match &mut *seat {
            Seat::Guest(guest) => guest,
            Seat::Native(why) => return Err(Arc::clone(why)),
        };
        let decider = guest.decider.clone();
        let mut chosen = Vec::with_capacity(ask.n);
        if let Err(fault) = self.choose(guest, ask, &mut chosen) {
            let why = self.vacate(&mut seat, Kind::Strategy, &fault);
            if chosen.is_empty() {
                return Err(why);
            }
        }
        let picked = hand_out(&mut self.table.lock(), &chosen, ask, scene);
        if picked.is_empty() && self.has_candidate(ask) {
            return Err(NO_ANSWER.into());
        }
        Ok((picked, decider))
    }

    /// The choice without a guest; of ejected targets if there is no other: no request fails for them.
    pub(super) fn ask_native(&self, ask: &Ask<'_>, scene: &mut Option<Scene>) -> Vec<Picked> {
        let mut table = self.table.lock();
        let mut chosen: Vec<u32> = Vec::new();
        let mut taken = table.slots_of(ask.exclude);
        while chosen.len() < ask.n {
            let is_free = |slot: u32| !taken.contains(&slot);
            let best = native::best(&table, |slot, row| row.eligible && is_free(slot));
            let any = || native::best(&table, |slot, row| row.is_live() && is_free(slot));
            let best = if chosen.is_empty() { best.or_else(any) } else { best };
            let Some(slot) = best else { break };
            taken.insert(slot);
            chosen.push(slot);
        }
        if let Some(first) = chosen.first() {
            // A guest that was busy did not count it.
            table.note(*first, Noted::Now);
            self.has_news.store(true, Ordering::Release);
        }
        hand_out(&mut table, &chosen, ask, scene)
    }

    pub(super) fn count(&self, by_guest: bool, nobody: bool) {
        let counter = match (nobody, by_guest) {
            (true, _) => &self.counts.nobody,
            (false, true) => &self.counts.by_guest,
            (false, false) => &self.counts.by_native,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the guest for `n` different targets, best first. What was chosen before a fault is good.
    fn choose(
        &self,
        guest: &mut StrategyGuest,
        ask: &Ask<'_>,
        chosen: &mut Vec<u32>,
    ) -> Result<(), CallError> {
        let start = Instant::now();
        let unwanted = match ask.exclude {
            [] => HashSet::new(),
            machines => self.table.lock().slots_of(machines),
        };
        let mut uncounted = Vec::new(); // the guest takes them for picked, and they are not
        if let Some(slot) = guest.pick(ask.request)? {
            self.check(slot).map_err(|what| guest.nonsense("pick", what))?;
            if unwanted.contains(&slot) {
                uncounted.push(slot);
            } else {
                chosen.push(slot);
            }
        }
        if chosen.len() == ask.n || (ask.n == 1 && unwanted.is_empty()) {
            return self.correct(guest, &uncounted, ask.request.now_ms);
        }
        let mut candidates = self.candidates(|slot| unwanted.contains(&slot));
        while chosen.len() < ask.n && start.elapsed() < RANKS_WAIT {
            candidates.retain(|slot| chosen.last() != Some(slot));
            if candidates.is_empty() {
                break;
            }
            let Some(slot) = guest.pick_among(ask.request, &candidates)? else { break };
            if !candidates.contains(&slot) {
                let what = format!("slot {slot} is not one of the candidates");
                return Err(guest.nonsense("pick-among", what));
            }
            if !chosen.is_empty() {
                uncounted.push(slot);
            }
            chosen.push(slot);
        }
        self.correct(guest, &uncounted, ask.request.now_ms)
    }

    /// Whether the guest may answer this slot.
    fn check(&self, slot: u32) -> Result<(), String> {
        let table = self.table.lock();
        let row = table.get(slot).ok_or_else(|| format!("slot {slot} holds no target"))?;
        if row.eligible {
            return Ok(());
        }
        Err(format!("slot {slot} is {} and may not be picked", row.fresh.machine))
    }

    fn candidates(&self, is_unwanted: impl Fn(u32) -> bool) -> Vec<u32> {
        let table = self.table.lock();
        let wanted = |(slot, row): &(u32, &Row)| row.eligible && !is_unwanted(*slot);
        table.rows().filter(wanted).map(|(slot, _)| slot).collect()
    }

    /// Whether there is somebody to answer with, at worst a target that is ejected.
    fn has_candidate(&self, ask: &Ask<'_>) -> bool {
        let table = self.table.lock();
        if table.tally().live == 0 {
            return false;
        }
        let unwanted = table.slots_of(ask.exclude);
        table.rows().any(|(slot, row)| row.is_live() && !unwanted.contains(&slot))
    }

    /// Tells the guest the true state of targets that it believes picked.
    fn correct(
        &self,
        guest: &mut StrategyGuest,
        slots: &[u32],
        now_ms: u64,
    ) -> Result<(), CallError> {
        if slots.is_empty() {
            return Ok(());
        }
        let views: Vec<_> = {
            let table = self.table.lock();
            slots.iter().filter_map(|slot| table.view(*slot, now_ms)).collect()
        };
        guest.update(now_ms, HOSTS, &views)
    }

    /// Writes targets and tells the guest, a part at a time: picks go on in between.
    pub(super) fn publish(&self, left: &[u32], fresh: Vec<(u32, Fresh)>, now_ms: u64) {
        for left in left.chunks(PART_ROWS) {
            self.publish_part(left, &mut std::iter::empty(), now_ms);
        }
        let mut fresh = fresh.into_iter();
        while fresh.len() > 0 {
            self.publish_part(&[], &mut fresh.by_ref().take(PART_ROWS), now_ms);
            self.give_way();
        }
    }

    fn publish_part(
        &self,
        left: &[u32],
        fresh: &mut dyn Iterator<Item = (u32, Fresh)>,
        now_ms: u64,
    ) {
        let mut seat = self.seat();
        let views: Vec<_> = {
            let mut table = self.table.lock();
            left.iter().for_each(|slot| table.remove(*slot));
            let put = |(slot, fresh)| {
                table.put(slot, fresh, now_ms);
                table.view(slot, now_ms)
            };
            let views = fresh.filter_map(put).collect();
            if table.has_noted(Noted::Now) {
                self.has_news.store(true, Ordering::Release);
            }
            views
        };
        if let Seat::Guest(guest) = &mut *seat
            && let Err(fault) = tell(guest, left, &views, now_ms)
        {
            self.vacate(&mut seat, Kind::Strategy, &fault);
        }
    }

    /// Puts a configured guest in the seat: feeds it the fleet, carries the old one's state over and
    /// swaps. Requests are served by the old one meanwhile, but for the last moment.
    ///
    /// # Errors
    /// The new guest failed; the old one stays.
    pub(super) fn seat_strategy(
        &self,
        mut guest: StrategyGuest,
        now_ms: u64,
    ) -> Result<(), CallError> {
        let decider = guest.decider.clone();
        let mut fed = Fed::default();
        // Picks go on meanwhile: catch up without the lock until little is left for it.
        for _ in 0..CATCH_UP_MAX {
            if self.feed(&mut guest, &mut fed, now_ms)? <= CAUGHT_UP_ROWS {
                break;
            }
        }
        let mut seat = self.seat();
        self.feed(&mut guest, &mut fed, now_ms)?;
        // Another policy would not understand its state.
        if let Seat::Guest(old) = &mut *seat
            && old.decider.policy == decider.policy
        {
            match old.save() {
                Ok(state) => log_restored(&decider.policy, guest.restore(&state)?),
                // Its state is lost with it; the new guest is good.
                Err(fault) => self.note_fault(Kind::Strategy, &fault, None),
            }
        }
        let old = std::mem::replace(&mut *seat, Seat::Guest(Box::new(guest)));
        self.note_serving(Kind::Strategy, decider);
        drop(seat);
        drop(old); // unmapping its memory takes longer than a pick
        Ok(())
    }

    /// Tells the guest what has changed since it was fed; the number of rows.
    fn feed(
        &self,
        guest: &mut StrategyGuest,
        fed: &mut Fed,
        now_ms: u64,
    ) -> Result<usize, CallError> {
        let mut rows = 0;
        loop {
            let part = self.table.lock().feed(fed, now_ms);
            tell(guest, &part.left, &part.views, now_ms)?;
            rows += part.left.len() + part.views.len();
            if part.is_last {
                return Ok(rows);
            }
        }
    }

    pub(super) fn note_serving(&self, kind: Kind, decider: Decider) {
        let mut status = self.status_of(kind).lock();
        if status.serving.as_ref() != Some(&decider) {
            status.swaps += 1;
        }
        status.quarantined.retain(|generation| *generation != decider.generation);
        status.serving = Some(decider);
        status.trouble = None;
    }

    /// A generation failed too often.
    pub(super) fn note_quarantine(&self, kind: Kind, generation: Generation) {
        self.status_of(kind).lock().quarantined.push(generation);
    }

    /// Whether a policy that fails too often makes way for the last good one.
    pub(super) fn rolls_back(&self) -> bool {
        *self.on_fault.lock() != OnFault::Native
    }

    /// Whether a request is refused for which the strategy could not be asked for this reason: not
    /// for a moment's haste, and not where the strategy has no answer.
    pub(super) fn refuses(&self, why: &str) -> bool {
        why != BUSY && why != NO_ANSWER && *self.on_fault.lock() == OnFault::Refuse
    }

    /// There is no policy of the wanted name any more. A strategy is stood in for natively; a formula
    /// serves on, because there are no loads without one.
    pub(super) fn withdraw(&self, kind: Kind, why: &str) {
        if kind == Kind::Formula {
            return;
        }
        let old = std::mem::replace(&mut *self.seat(), Seat::Native("no policy".into()));
        drop(old); // outside the lock
        let mut status = self.status_of(kind).lock();
        status.serving = None;
        status.trouble = Some(why.into());
    }

    /// The newest generation cannot be used; whatever serves goes on.
    pub(super) fn note_trouble(&self, kind: Kind, trouble: &str) {
        self.status_of(kind).lock().trouble = Some(trouble.into());
    }

    /// A guest failed and is dropped: counts it and, if it was serving, asks for another one.
    pub(super) fn note_fault(&self, kind: Kind, fault: &CallError, serving: Option<u64>) {
        let mut status = self.status_of(kind).lock();
        let policy = match &status.serving {
            Some(decider) => Arc::clone(&decider.policy),
            None => self.policy_name(kind),
        };
        tracing::warn!(pool = self.name(), %policy, %kind, %fault, "policy failed");
        status.faults += 1;
        status.serving = None;
        status.trouble = Some(fault.to_string().into());
        drop(status);
        // The supply ends after the pools' users: a closed channel means that we are stopping.
        if let Some(serial) = serving {
            self.supply.send(Event::Failed { pool: self.number, kind, serial }).ok();
        }
    }

    pub(super) fn count_bad_loads(&self, count: u64) {
        self.counts.bad_loads.fetch_add(count, Ordering::Relaxed);
    }

    /// The guest's seat within `wait`. Tried again and again rather than slept for: a thread that is
    /// woken comes milliseconds late on a busy machine, and a lock that was handed to it is held by
    /// a sleeper meanwhile.
    fn try_seat(&self, wait: Duration) -> Option<MutexGuard<'_, Seat>> {
        if let Some(seat) = self.strategy.try_lock() {
            return Some(seat);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let seat = self.keep_trying(wait);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        seat
    }

    fn keep_trying(&self, wait: Duration) -> Option<MutexGuard<'_, Seat>> {
        let start = Instant::now();
        while start.elapsed() < wait.min(SEAT_PATIENCE) {
            if let Some(seat) = self.strategy.try_lock() {
                return Some(seat);
            }
            // Giving way at once would let a thread of low priority have its whole turn first; not
            // giving way at all would keep a holder on the same core from ending, and so would many
            // that do not.
            if start.elapsed() < SPIN && self.waiting.load(Ordering::Relaxed) == 1 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // So many want it that only a queue is fair.
        self.strategy.try_lock_for(wait.saturating_sub(start.elapsed()))
    }

    /// The guest's seat, however long its guest takes: its deadlines bound that.
    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.try_seat(SEAT_PATIENCE).unwrap_or_else(|| self.strategy.lock())
    }

    /// Lets those go first who try for the seat: who takes it again at once would always win.
    fn give_way(&self) {
        let start = Instant::now();
        while self.waiting.load(Ordering::Relaxed) > 0 && start.elapsed() < SPIN {
            std::thread::yield_now();
        }
    }

    fn vacate(&self, seat: &mut Seat, kind: Kind, fault: &CallError) -> Arc<str> {
        let why: Arc<str> = fault.reason().into();
        let failed = std::mem::replace(seat, Seat::Native(Arc::clone(&why)));
        let serial = match &failed {
            Seat::Guest(guest) => Some(guest.serial),
            Seat::Native(_) => None,
        };
        self.note_fault(kind, fault, serial);
        why
    }

    fn status_of(&self, kind: Kind) -> &Mutex<PolicyStatus> {
        &self.statuses[index(kind)]
    }
}

impl Wanted {
    /// Formula and strategy.
    fn both(config: &PoolConfig) -> [Self; 2] {
        let wanted = |policy: &str, settings: &serde_json::Value| Self {
            policy: policy.into(),
            settings: settings.to_string().into(),
        };
        [
            wanted(&config.formula, &config.formula_settings),
            wanted(&config.strategy, &config.strategy_settings),
        ]
    }
}

/// The place of a kind in a pool's pairs.
pub(super) fn index(kind: Kind) -> usize {
    match kind {
        Kind::Formula => 0,
        Kind::Strategy => 1,
    }
}

/// Counts the first as picked, reads all from the table and keeps what was seen.
fn hand_out(
    table: &mut Table,
    chosen: &[u32],
    ask: &Ask<'_>,
    scene: &mut Option<Scene>,
) -> Vec<Picked> {
    let Some(first) = chosen.first() else { return Vec::new() };
    let now_ms = ask.request.now_ms;
    if let Some(scene) = scene {
        let unwanted = &match ask.exclude {
            [] => HashSet::new(),
            machines => table.slots_of(machines),
        };
        scene.take(table, &Focus { chosen, unwanted, explain: ask.explain, now_ms });
    }
    table.count_pick(*first, ask.has_lease, now_ms);
    chosen.iter().filter_map(|slot| table.get(*slot).map(Picked::of)).collect()
}

impl TargetStatus {
    fn of(row: &Row, now_ms: u64) -> Self {
        let (latency_us, error_rate) = row.health.averages(now_ms);
        Self {
            machine: Arc::clone(&row.fresh.machine),
            address: Arc::clone(&row.fresh.address),
            load: row.fresh.load,
            eligible: row.eligible,
            picks: row.picks(),
            leases: row.usage.leases(),
            latency_us,
            error_rate,
            outcomes: row.health.counts,
            ejection: row.health.ejection,
            warm: row.health.warm(now_ms),
            missing: row.fresh.missing.clone(),
        }
    }
}

impl Picked {
    fn of(row: &Row) -> Self {
        Self {
            machine: Arc::clone(&row.fresh.machine),
            address: Arc::clone(&row.fresh.address),
            load: row.fresh.load,
        }
    }
}

fn tell(
    guest: &mut StrategyGuest,
    left: &[u32],
    views: &[TargetView],
    now_ms: u64,
) -> Result<(), CallError> {
    if !left.is_empty() {
        guest.leave(left)?;
    }
    if !views.is_empty() {
        guest.update(now_ms, HOSTS, views)?;
    }
    Ok(())
}

pub(super) fn log_restored(policy: &str, restored: bool) {
    if !restored {
        tracing::info!(policy, "the new generation starts without the old one's state");
    }
}
