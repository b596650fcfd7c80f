//! `GET /v1/decisions`: why that target, as JSON.
//!
//! Everything is as it was at the moment of the pick, before the pick itself was counted. Numbers that
//! are not known are `null`. Where `candidates_complete` is false the candidates are the chosen ones and
//! some of the nearest by load, so many as `candidates_shown` of all `targets`, and `tied` and `excluded`
//! count among those. They were found in an order of the loads that was `order_age_ms` old: at most a
//! second while picks go on, ten after a pause, 0 with `explain=1`; their numbers are of the moment. A
//! machine that is `null` is `gone` from the pool since.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::body::{decode, finite, formula_text, strategy_text};
use super::error::ApiError;
use crate::pick::Pools;
use crate::pick::decision::{self, Candidate, Unwanted, WhyNot};

/// Decisions listed where no limit is given, and at most.
const LIMIT: usize = 20;
const LIMIT_MAX: usize = 1_000;

/// The query string of `/v1/decisions`.
pub(super) struct Query {
    pub(super) pool: Option<String>,
    pub(super) limit: usize,
}

pub(super) fn query(query: &str) -> Result<Query, ApiError> {
    let mut wanted = Query { pool: None, limit: LIMIT };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        match name {
            "pool" => wanted.pool = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|n| (1..=LIMIT_MAX).contains(n));
                wanted.limit = limit.ok_or_else(|| {
                    let message = format!("limit={value} is not a number from 1 to {LIMIT_MAX}");
                    ApiError::bad_parameter(message, "without it, 20 are listed")
                })?;
            }
            unknown => {
                let message = format!("unknown parameter {unknown:?}");
                return Err(ApiError::bad_parameter(message, "known are pool and limit"));
            }
        }
    }
    Ok(wanted)
}

/// One decision.
#[derive(Serialize)]
pub(super) struct Decision {
    decision: String,
    /// By this host's wall clock, from the age.
    time: String,
    age_ms: u64,
    pool: String,
    request: Request,
    /// Best first.
    chosen: Vec<Arc<str>>,
    /// `strategy` or `native`.
    by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_native: Option<Arc<str>>,
    formula: String,
    strategy: String,
    targets: usize,
    eligible: usize,
    filtered: Filtered,
    /// True: ejections were ignored because too few targets would have been left.
    panic: bool,
    /// Equal in two decisions if no target changed between them.
    table_version: u64,
    #[serde(flatten)]
    detail: Option<Detail>,
}

#[derive(Serialize)]
struct Request {
    /// What strategies see of the client's key, in hexadecimal.
    key_hash: Option<String>,
    n: usize,
    excluded: usize,
    /// What was wanted of labels.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    labels: Option<Box<str>>,
    lease: bool,
}

/// Targets of the pool that were not to be picked, by why.
#[derive(Serialize)]
struct Filtered {
    /// Machines that offered the service and are gone: in no pool, so as of now.
    #[serde(skip_serializing_if = "Option::is_none")]
    gone_now: Option<usize>,
    not_ready: usize,
    ejected: usize,
    /// Of the candidates.
    excluded: usize,
    /// Of the candidates: their labels are not what was wanted.
    labels: usize,
    /// Not filtered: to strategies they are as the median or, where a metric is missing, the last choice.
    unknown_load: usize,
}

#[derive(Serialize)]
struct Detail {
    /// Candidates that could be picked and had the load of the chosen one, itself included.
    tied: usize,
    candidates_complete: bool,
    candidates_shown: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_age_ms: Option<u32>,
    candidates: Vec<Considered>,
}

#[derive(Serialize)]
struct Considered {
    /// `None`: gone since, and its name with it.
    machine: Option<Arc<str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    gone: bool,
    /// 1: the best; absent: not chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    load: Option<f64>,
    weight: f32,
    in_flight: u32,
    picks: u32,
    age_ms: u32,
    latency_us: u32,
    error_rate: f32,
    warm: f32,
    eligible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

impl Decision {
    pub(super) fn of(pools: &Pools, decision: &decision::Decision) -> Self {
        let decision::Decision { scene, request, pool, .. } = decision;
        let age_ms = pools.clock().now_ms().saturating_sub(decision.at_ms);
        let time = SystemTime::now() - Duration::from_millis(age_ms);
        let tally = scene.tally;
        let unwanted = |why| {
            let is_so = |candidate: &&Candidate| candidate.unwanted == Some(why);
            scene.candidates.iter().filter(is_so).count()
        };
        let considered = |(slot, machine, candidate): (u32, Option<&Arc<str>>, &Candidate)| {
            let rank = scene.chosen.iter().position(|chosen| *chosen == slot);
            Considered::of(machine, candidate, rank)
        };
        Self {
            decision: pools.name_of(decision),
            time: humantime::format_rfc3339_millis(time).to_string(),
            age_ms,
            pool: pool.name().to_owned(),
            request: Request {
                key_hash: (request.key_hash != 0).then(|| format!("{:016x}", request.key_hash)),
                n: request.n,
                excluded: request.excluded,
                labels: request.constraint.clone(),
                lease: request.has_lease,
            },
            chosen: scene.chosen.iter().filter_map(|slot| scene.name_of(*slot)).collect(),
            by: if decision.strategy.is_ok() { "strategy" } else { "native" },
            why_native: decision.strategy.as_ref().err().cloned(),
            formula: formula_text(decision.formula.as_ref()),
            strategy: strategy_text(&decision.strategy),
            targets: tally.targets,
            eligible: tally.eligible,
            filtered: Filtered {
                gone_now: None,
                not_ready: tally.targets - tally.live,
                ejected: tally.live.saturating_sub(tally.eligible),
                excluded: unwanted(Unwanted::Excluded),
                labels: unwanted(Unwanted::Labels),
                unknown_load: tally.unknown,
            },
            panic: scene.is_panic,
            table_version: scene.version,
            detail: Some(Detail {
                tied: scene.tied(),
                candidates_complete: scene.is_complete(),
                candidates_shown: scene.candidates.len(),
                order_age_ms: scene.order_age_ms,
                candidates: scene.named().map(considered).collect(),
            }),
        }
    }

    /// With the number of machines that are gone now.
    pub(super) fn with_gone(mut self, gone: usize) -> Self {
        self.filtered.gone_now = Some(gone);
        self
    }

    /// Without its candidates, for lists.
    pub(super) fn brief(self) -> Self {
        Self { detail: None, ..self }
    }
}

impl Considered {
    fn of(machine: Option<&Arc<str>>, candidate: &Candidate, rank: Option<usize>) -> Self {
        let why_not = match candidate.why_not {
            Some(WhyNot::NotReady) => Some("not ready".to_owned()),
            Some(WhyNot::Ejected(why)) => Some(format!("ejected: {}", why.name())),
            Some(WhyNot::Returning) => Some("returning".to_owned()),
            None => candidate.unwanted.map(|unwanted| match unwanted {
                Unwanted::Excluded => "excluded by the request".to_owned(),
                Unwanted::Labels => "not wanted by its labels".to_owned(),
            }),
        };
        Self {
            machine: machine.cloned(),
            gone: machine.is_none(),
            rank: rank.map(|rank| rank + 1),
            load: finite(candidate.load),
            weight: candidate.weight,
            in_flight: candidate.in_flight,
            picks: candidate.picks,
            age_ms: candidate.age_ms,
            latency_us: candidate.latency_us,
            error_rate: candidate.error_rate,
            warm: candidate.warm,
            eligible: candidate.why_not.is_none(),
            why_not,
        }
    }
}
