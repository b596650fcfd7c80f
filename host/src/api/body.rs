//! What HTTP clients send and get: query strings in, JSON shapes out.
//!
//! Durations are milliseconds, loads finite numbers or `null` for "not known". Fields are only added.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::error::ApiError;
use crate::fleet;
use crate::pick::lease::{LEASE_MAX, LEASE_MIN};
use crate::pick::pool::{self, TargetStatus};
use crate::pick::{Answer, PickRequest, Picked, Pools, TARGETS_MAX};
use crate::policy::{Decider, Kind};
use crate::report::State;

/// A parameter of the contract whose behaviour comes with sessions.
const LATER: [&str; 1] = ["ticket"];
const KNOWN: &str = "known are pool, key, n, exclude, where, lease and explain";
/// Machines one request may exclude: bounds what it can cost.
const EXCLUDE_MAX: usize = 256;

/// The query string of `/v1/target`.
pub(super) fn pick_request(query: &str) -> Result<PickRequest, ApiError> {
    let mut request = PickRequest { n: 1, ..PickRequest::default() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name)?;
        let value = decode(value)?;
        match name.as_str() {
            "pool" => request.pool = value,
            "key" => request.key = value,
            "n" => {
                let wanted = value.parse().ok().filter(|n| (1..=TARGETS_MAX).contains(n));
                request.n = wanted.ok_or_else(|| {
                    let message = format!("n={value} is not a number from 1 to {TARGETS_MAX}");
                    ApiError::bad_parameter(message, "n=3 gives the best target and two others")
                })?;
            }
            "exclude" => {
                let machines = value.split(',').filter(|machine| !machine.is_empty());
                request.exclude.extend(machines.map(str::to_owned));
            }
            "where" => {
                let term = value.parse().and_then(|term| request.constraint.and(term));
                term.map_err(|what| {
                    let hint = "where=zone=a,gpu=h100|a100,tier!=test: all of it must hold of a target's labels";
                    ApiError::bad_parameter(format!("where={value}: {what}"), hint)
                })?;
            }
            "lease" => request.lease = Some(lease(&value)?),
            "explain" => {
                request.explain = match value.as_str() {
                    "1" => true,
                    "0" => false,
                    _ => {
                        let message = format!("explain={value} is neither 0 nor 1");
                        return Err(ApiError::bad_parameter(message, "leave it out"));
                    }
                };
            }
            later if LATER.contains(&later) => return Err(ApiError::not_implemented(later)),
            unknown => {
                let message = format!("unknown parameter {unknown:?}");
                return Err(ApiError::bad_parameter(message, KNOWN));
            }
        }
    }
    if request.exclude.len() > EXCLUDE_MAX {
        let message = format!("exclude names more than {EXCLUDE_MAX} machines");
        return Err(ApiError::bad_parameter(message, "ask for n targets instead"));
    }
    Ok(request)
}

fn lease(value: &str) -> Result<Duration, ApiError> {
    let length = humantime::parse_duration(value).ok();
    length.filter(|length| (LEASE_MIN..=LEASE_MAX).contains(length)).ok_or_else(|| {
        let [least, most] = [LEASE_MIN, LEASE_MAX].map(humantime::format_duration);
        let message = format!("lease={value} is not a duration from {least} to {most}");
        ApiError::bad_parameter(message, "lease=30s")
    })
}

/// Percent-decoding, with `+` for a space as forms write it.
pub(super) fn decode(text: &str) -> Result<String, ApiError> {
    let spaced = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&spaced).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| {
        let message = format!("{text:?} is not percent-encoded UTF-8");
        ApiError::bad_parameter(message, "curl -G --data-urlencode encodes for you")
    })
}

/// `GET /v1/target`
#[derive(Serialize)]
pub(super) struct Target {
    #[serde(flatten)]
    target: One,
    pool: String,
    decision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    policy: Deciders,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<One>,
}

#[derive(Serialize)]
struct One {
    machine: Arc<str>,
    service: String,
    address: Arc<str>,
    url: String,
    load: Option<f64>,
}

/// `name@generation`, or why native code answered.
#[derive(Serialize)]
struct Deciders {
    formula: String,
    strategy: String,
}

impl Target {
    pub(super) fn of(answer: &Answer) -> Self {
        let pool = &answer.pool;
        let one = |picked: &Picked| One {
            machine: Arc::clone(&picked.machine),
            service: pool.service().to_owned(),
            address: host_and_port(&picked.address).into(),
            url: url(&picked.address),
            load: finite(picked.load),
        };
        let formula = formula_text(pool.serving(Kind::Formula).as_ref());
        let strategy = strategy_text(&answer.strategy);
        Self {
            target: one(&answer.target),
            pool: pool.name().to_owned(),
            decision: answer.decision.clone(),
            lease: answer.lease.clone(),
            policy: Deciders { formula, strategy },
            others: answer.others.iter().map(one).collect(),
        }
    }
}

/// Whose loads these are.
pub(super) fn formula_text(formula: Option<&Decider>) -> String {
    formula.map_or_else(|| "none (last good loads)".to_owned(), Decider::to_string)
}

/// Who chose.
pub(super) fn strategy_text(by: &Result<Decider, Arc<str>>) -> String {
    match by {
        Ok(decider) => decider.to_string(),
        Err(why) => format!("native ({why})"),
    }
}

/// The address without a URL's scheme and path.
pub(super) fn host_and_port(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn url(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

pub(super) fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// The targets of all pools by machine.
pub(super) struct Targets {
    by_machine: HashMap<Arc<str>, Vec<MachineTarget>>,
}

#[derive(Serialize, Clone)]
struct MachineTarget {
    pool: String,
    service: String,
    address: Arc<str>,
    load: Option<f64>,
    eligible: bool,
    picks: u32,
    /// Open now.
    leases: u32,
    /// Slow-start share, 0 to 1; 1: warm.
    warm: f32,
    outcomes: Outcomes,
    #[serde(skip_serializing_if = "Option::is_none")]
    ejected: Option<Ejected>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<Missing>,
}

/// What applications say of a target.
#[derive(Serialize, Clone)]
struct Outcomes {
    ok: u64,
    failed: u64,
    /// Moving averages; `null` and 0: nothing is known.
    latency_us: Option<u32>,
    error_rate: f32,
}

#[derive(Serialize, Clone)]
struct Ejected {
    why: &'static str,
    returns_in_ms: u64,
}

/// A metric without which a target has no load, and who wants it.
#[derive(Serialize, Clone)]
struct Missing {
    metric: Arc<str>,
    wanted_by: String,
    /// A metric that the target does report under a similar name.
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<Box<str>>,
}

impl Targets {
    pub(super) fn of(pools: &Pools) -> Self {
        let mut by_machine: HashMap<Arc<str>, Vec<MachineTarget>> = HashMap::new();
        for pool in &*pools.all() {
            let now_ms = pools.clock().now_ms();
            for status in pool.target_statuses(now_ms) {
                let machine = Arc::clone(&status.machine);
                let target = MachineTarget::of(pool, status, now_ms);
                by_machine.entry(machine).or_default().push(target);
            }
        }
        Self { by_machine }
    }
}

impl MachineTarget {
    fn of(pool: &pool::Pool, status: TargetStatus, now_ms: u64) -> Self {
        let formula = pool.policy_name(Kind::Formula);
        let wanted_by = || format!("formula {formula} of pool {}", pool.name());
        let missing = |metric| Missing { metric, wanted_by: wanted_by(), nearest: None };
        Self {
            pool: pool.name().to_owned(),
            service: pool.service().to_owned(),
            address: host_and_port(&status.address).into(),
            load: finite(status.load),
            eligible: status.eligible,
            picks: status.picks,
            leases: status.leases,
            warm: status.warm,
            outcomes: Outcomes {
                ok: status.outcomes[0],
                failed: status.outcomes[1],
                latency_us: (status.latency_us > 0).then_some(status.latency_us),
                error_rate: status.error_rate,
            },
            ejected: status.ejection.map(|ejection| Ejected {
                why: ejection.why.name(),
                returns_in_ms: ejection.until_ms.saturating_sub(now_ms),
            }),
            missing: status.missing.into_iter().map(missing).collect(),
        }
    }
}

/// `GET /v1/machines`
#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) name: Arc<str>,
    alive: bool,
    state: State,
    source: String,
    age_ms: u64,
    interval_ms: u32,
    /// Silence after which it is gone: longer where reports get lost.
    gone_after_ms: u64,
    boot: u64,
    seq: u64,
    /// A second agent that reports under this name and is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    namesake: Option<Namesake>,
    loss: Loss,
    weight: f64,
    metrics: BTreeMap<Box<str>, Option<f64>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<Box<str>, Box<str>>,
    services: Vec<Service>,
    targets: Vec<MachineTarget>,
}

#[derive(Serialize)]
struct Namesake {
    source: String,
    boot: u64,
}

#[derive(Serialize)]
struct Loss {
    received: u64,
    lost: u64,
    /// Of the last 128 reports.
    recent: f64,
    /// 128 bits in hexadecimal, newest lowest, 1 = lost.
    history: String,
}

#[derive(Serialize)]
struct Service {
    name: Box<str>,
    address: Arc<str>,
    weight: f64,
    accepted: u64,
    completed: u64,
    in_flight: u32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metrics: BTreeMap<Box<str>, Option<f64>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<Box<str>, Box<str>>,
}

impl Machine {
    pub(super) fn of(machine: &fleet::Machine, targets: &Targets, now_ms: u64) -> Self {
        let service = |service: &fleet::Offered| Service {
            name: (&*service.name).into(),
            address: Arc::clone(&service.address),
            weight: service.weight,
            accepted: service.accepted,
            completed: service.completed,
            in_flight: service.in_flight,
            metrics: metrics(&service.metrics),
            labels: service.labels.iter().cloned().collect(),
        };
        let loss = machine.loss;
        Self {
            name: Arc::clone(&machine.name),
            alive: machine.alive,
            state: machine.state,
            source: machine.source.to_string(),
            age_ms: now_ms.saturating_sub(machine.captured_ms),
            interval_ms: machine.interval_ms,
            gone_after_ms: machine.patience_ms,
            boot: machine.boot,
            seq: machine.seq,
            namesake: machine
                .namesake()
                .map(|other| Namesake { source: other.source.to_string(), boot: other.boot }),
            loss: Loss {
                received: loss.received,
                lost: loss.lost,
                recent: loss.recent(),
                history: format!("{:032x}", loss.history),
            },
            weight: machine.weight,
            metrics: metrics(&machine.metrics),
            labels: machine.labels.iter().cloned().collect(),
            services: machine.services.iter().map(service).collect(),
            targets: Self::targets(machine, targets),
        }
    }

    fn targets(machine: &fleet::Machine, targets: &Targets) -> Vec<MachineTarget> {
        let mut targets = targets.by_machine.get(&machine.name).cloned().unwrap_or_default();
        for missing in targets.iter_mut().flat_map(|target| &mut target.missing) {
            let services = machine.services.iter().map(|service| &service.metrics);
            let reported = services.chain([&machine.metrics]).flat_map(|known| &*known.names);
            let nearest = crate::config::nearest(&missing.metric, reported.map(|name| &**name));
            missing.nearest = nearest.filter(|name| *name != &*missing.metric).map(Into::into);
        }
        targets
    }
}

fn metrics(measured: &fleet::Measured) -> BTreeMap<Box<str>, Option<f64>> {
    let values = measured.values.iter().map(|value| finite(*value));
    measured.names.iter().cloned().zip(values).collect()
}
