//! A pool: the targets of one service, its strategy's guest, and what the two sides share.
//!
//! Two locks, always taken in this order: the strategy's guest ([`seat`]), then the table. The table is
//! held for [`PART_ROWS`](super::table::PART_ROWS) rows at a stretch and never across a guest call, so that
//! a native answer needs no guest. A request waits at most [`GUEST_WAIT`] for the guest; the guest itself
//! is bounded by its deadlines. Table and guest change together under the guest's lock: an answer that
//! does not fit the table is the guest's fault. Here is what a request does; [`feed`] is what the guest
//! is told of reports, [`notes`] what it is told between reports, [`policies`] which policies serve,
//! [`counts`] how much they were stood in for, [`listen`] what a shadow hears.

mod counts;
mod feed;
mod listen;
mod notes;
mod policies;
mod seat;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::decision::{Asked, Focus, Scene};
use super::health::Ejection;
use super::native;
use super::shadow::Shown;
use super::supply::Event;
use super::table::{Noted, Row, Table, Tally};
use super::{PickRequest, Picked, TARGETS_MAX, key_hash};
use crate::config::{OnFault, PoolConfig};
use crate::policy::guest::Request;
use crate::policy::{CallError, Decider, Kind, StrategyGuest};
use counts::Looks;
pub use counts::{Answers, Counts};
pub(super) use feed::{HOSTS, Heir, log_restored};
pub use policies::PolicyStatus;
use policies::{BUSY, NO_ANSWER, Scheduled};
pub(super) use policies::{Wanted, index};
use seat::{Chair, Seat};

/// What a request waits for the guest at most; then it is answered natively.
///
/// A little more than a guest's own deadline: a guest that never ends is gone by then, and however many
/// wait, their turn comes, so that strategies which count are exact. Only on a machine so busy that
/// threads do not run for that long are some answered natively.
const GUEST_WAIT: Duration = Duration::from_millis(20);
/// Time after which no further rank is asked for; what was chosen is answered.
const RANKS_WAIT: Duration = Duration::from_millis(10);
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
    strategy: Chair,
    table: Mutex<Table>,
    /// Something is noted that the guest is to be told before its next pick.
    has_news: AtomicBool,
    /// What is shown of each policy; locked last and for moments.
    statuses: [Mutex<PolicyStatus>; 2],
    counts: Counts,
    /// At the counts, at times.
    looks: Mutex<Looks>,
    supply: Sender<Event>,
    /// What is shown of the policy that is tried beside one of its two.
    shadow: Mutex<Option<Arc<Shown>>>,
    schedule: Scheduled,
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
    pub(super) fn new(config: &PoolConfig, wanted: [Wanted; 2], supply: Sender<Event>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let table = Table::new(config.health.clone());
        Self {
            name: config.name.clone(),
            service: config.service.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            wanted: Mutex::new(wanted),
            on_fault: Mutex::new(config.on_fault),
            strategy: Chair::empty("not loaded yet"),
            table: Mutex::new(table),
            has_news: AtomicBool::new(false),
            statuses: [Mutex::default(), Mutex::default()],
            counts: Counts::default(),
            looks: Mutex::default(),
            supply,
            shadow: Mutex::default(),
            schedule: Scheduled::default(),
        }
    }

    /// Has another health and another way with faults from now on.
    pub(super) fn reconfigure(&self, config: &PoolConfig) {
        *self.on_fault.lock() = config.on_fault;
        self.table.lock().configure(config.health.clone());
    }

    /// Gives its guest back: the pool was taken out of the configuration.
    pub(super) fn close(&self) {
        let gone = Seat::Native("the pool was taken out of the configuration".into());
        let old = std::mem::replace(&mut *self.strategy.take(), gone);
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

    /// The strategy's ranked choice, each target checked; or why the guest did not choose.
    pub(super) fn ask_guest(
        &self,
        ask: &Ask<'_>,
        scene: &mut Option<Scene>,
    ) -> Result<(Vec<Picked>, Decider), Arc<str>> {
        let Some(mut seat) = self.strategy.within(GUEST_WAIT) else {
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
        let picked = hand_out(&mut self.table.lock(), &chosen, ask, false, scene);
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
        hand_out(&mut table, &chosen, ask, true, scene)
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
        Err(format!("slot {slot} is {} and may not be picked", row.named.machine))
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
}

/// Counts the first as picked, reads all from the table and keeps what was seen.
fn hand_out(
    table: &mut Table,
    chosen: &[u32],
    ask: &Ask<'_>,
    is_native: bool,
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
    // A shadow is asked for the first choice; what is left out it cannot know.
    let request = ask.exclude.is_empty().then_some(ask.request);
    table.hear_pick(*first, is_native, now_ms, request);
    chosen.iter().filter_map(|slot| table.get(*slot).map(Picked::of)).collect()
}

impl TargetStatus {
    fn of(row: &Row, now_ms: u64) -> Self {
        let (latency_us, error_rate) = row.health.averages(now_ms);
        Self {
            machine: Arc::clone(&row.named.machine),
            address: Arc::clone(&row.named.address),
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
            machine: Arc::clone(&row.named.machine),
            address: Arc::clone(&row.named.address),
            load: row.fresh.load,
        }
    }
}
