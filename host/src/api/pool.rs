//! `/v1/pools`: how a pool and its two policies are doing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde::Serialize;

use super::schedule::Schedule;
use super::shadow::Brief;
use crate::pick::pool::{self, Answers};
use crate::policy::{Decider, Generation, Kind};

/// `GET /v1/pools`
#[derive(Serialize)]
pub(super) struct Pool {
    pub(super) name: String,
    service: String,
    targets: usize,
    eligible: usize,
    /// Ready for work and left out for what applications say of them.
    ejected: usize,
    /// True: ejections are ignored because too few targets would be left.
    panic: bool,
    leases: usize,
    picks: Picks,
    bad_loads: u64,
    pub(super) formula: PoolPolicy,
    pub(super) strategy: PoolPolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<Schedule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<Brief>,
}

#[derive(Serialize)]
struct Picks {
    by_strategy: u64,
    native: u64,
    nobody_eligible: u64,
    /// Because the strategy did not serve (`on_fault = "refuse"`).
    refused: u64,
}

/// One of a pool's two policies.
#[derive(Serialize)]
pub(super) struct PoolPolicy {
    /// As configured, at this time of the day.
    pub(super) policy: Arc<str>,
    state: &'static str,
    /// `name@generation`; of another policy until the configured one has started.
    serving: Option<String>,
    pub(super) generation: Option<String>,
    /// Generations that failed too often here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) quarantined: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<Arc<str>>,
    /// In so many seconds a guest that failed, or could not be started, is started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    again_in_s: Option<f64>,
    faults: u64,
    swaps: u64,
    last_minute: LastMinute,
}

/// How much of what was asked of a policy it did not answer: picks of a strategy, loads of a formula.
#[derive(Serialize)]
struct LastMinute {
    answers: u64,
    /// Picks by native code; loads that were a target's last good one.
    native: u64,
    /// 0 to 1; `null`: nothing was asked.
    native_share: Option<f64>,
}

impl From<Answers> for LastMinute {
    fn from(answers: Answers) -> Self {
        let (native, native_share) = (answers.native, answers.native_share());
        Self { answers: answers.all(), native, native_share }
    }
}

/// To a tenth of a second.
fn seconds_until(instant: Instant) -> f64 {
    (instant.saturating_duration_since(Instant::now()).as_secs_f64() * 10.0).round() / 10.0
}

impl Pool {
    pub(super) fn of(pool: &pool::Pool, now_ms: u64) -> Self {
        let policy = |kind| {
            let status = pool.status(kind);
            PoolPolicy {
                policy: pool.policy_name(kind),
                state: if status.serving.is_some() { "active" } else { "native" },
                serving: status.serving.as_ref().map(Decider::to_string),
                generation: status.serving.map(|decider| decider.generation.to_string()),
                quarantined: status.quarantined.iter().map(Generation::to_string).collect(),
                trouble: status.trouble,
                again_in_s: status.again.map(seconds_until),
                faults: status.faults.values().sum(),
                swaps: status.swaps,
                last_minute: pool.lately(kind, now_ms).into(),
            }
        };
        let (counts, tally) = (pool.counts(), pool.tally());
        Self {
            name: pool.name().to_owned(),
            service: pool.service().to_owned(),
            targets: tally.targets,
            eligible: tally.eligible,
            ejected: tally.ejected,
            panic: pool.is_panic(),
            leases: tally.leases,
            picks: Picks {
                by_strategy: counts.by_guest.load(Ordering::Relaxed),
                native: counts.by_native.load(Ordering::Relaxed),
                nobody_eligible: counts.nobody.load(Ordering::Relaxed),
                refused: counts.refused.load(Ordering::Relaxed),
            },
            bad_loads: counts.bad_loads.load(Ordering::Relaxed),
            formula: policy(Kind::Formula),
            strategy: policy(Kind::Strategy),
            schedule: pool.schedule().map(|standing| Schedule::of(&standing)),
            shadow: pool.shadow().map(|shown| Brief::of(pool.name(), &shown)),
        }
    }
}
