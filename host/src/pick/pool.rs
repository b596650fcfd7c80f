//! A pool: the targets of one service, its strategy's guest, and what the two sides share.
//!
//! Two locks, always taken in this order: the strategy's guest ([`seat`]), then the table. The table is
//! held for [`PART_ROWS`](super::table::PART_ROWS) rows at a stretch and never across a guest call, so that
//! a native answer needs no guest. A request waits at most [`GUEST_WAIT`] for the guest; the guest itself
//! is bounded by its deadlines. Table and guest change together under the guest's lock: an answer that
//! does not fit the table is the guest's fault. Here is what a request does; [`feed`] is what the guest
//! is told of reports, [`notes`] what it is told between reports, [`policies`] which policies serve,
//! [`counts`] how much they were stood in for, [`listen`] what a shadow hears.

mod choice;
mod counts;
mod feed;
mod listen;
mod notes;
mod policies;
mod seat;
pub(super) mod sieve;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use parking_lot::Mutex;

use super::constraint::Constraint;
use super::decision::{Asked, Scene};
use super::health::Ejection;
use super::shadow::Shown;
use super::supply::Event;
use super::table::{Noted, Row, Table, Tally};
use super::{PickRequest, Picked, TARGETS_MAX, key_hash};
use crate::config::{OnFault, PoolConfig};
use crate::policy::guest::Request;
use crate::policy::{Decider, Kind};
use choice::hand_out;
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
    /// The label that names what fails together; locked for moments.
    failure_domain: Mutex<Option<Arc<str>>>,
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
    constraint: &'r Constraint,
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
            constraint: &request.constraint,
            has_lease: request.lease.is_some(),
            explain: request.explain,
        }
    }

    /// What is remembered of it.
    pub(super) fn asked(&self) -> Asked {
        let (key_hash, excluded) = (self.request.key, self.exclude.len());
        let constraint = (!self.constraint.is_empty()).then(|| self.constraint.to_string().into());
        Asked { key_hash, n: self.n, excluded, constraint, has_lease: self.has_lease }
    }
}

/// What a target looks like from the other side of the pool.
#[derive(Debug, Clone)]
pub struct TargetStatus {
    /// The machine's name.
    pub machine: Arc<str>,
    /// Where to send work.
    pub address: Arc<str>,
    /// NaN: not known yet; infinite: a metric is missing.
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
            failure_domain: Mutex::new(domain(config)),
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

    /// Has another health, other failure domains and another way with faults from now on.
    pub(super) fn reconfigure(&self, config: &PoolConfig) {
        *self.on_fault.lock() = config.on_fault;
        *self.failure_domain.lock() = domain(config);
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
}

fn domain(config: &PoolConfig) -> Option<Arc<str>> {
    config.failure_domain.as_deref().map(Arc::from)
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
