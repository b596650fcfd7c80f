//! `/v1/policies/{name}/shadow`: what a policy in shadow has shown, and its beginning and end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::body::finite;
use super::wish::{Patience, allowed, answer, wish};
use super::{ApiError, Name, View};
use crate::config::{PROMOTE_P99, PromoteConfig};
use crate::pick::shadow::{
    Choice, Disagreement, Figures, LoadPair, Loads, Shown, Spread, State as Doing,
};
use crate::pick::supply::{Action, ShadowWish};
use crate::policy::Kind;
use crate::quantiles::Quantiles;

const BODY_HINT: &str = "{\"pool\":\"web\",\"share\":0.5,\"generation\":\"0a1b\",\"promote\":\
                         {\"picks\":10000,\"faults\":0,\"agreement\":0.9,\"p99_us\":1000}}, \
                         all of it may be left out";

/// A policy in shadow of a pool, in a line.
#[derive(Serialize)]
pub(super) struct Brief {
    pool: String,
    policy: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#as: Option<Kind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<String>,
    pub(super) state: &'static str,
    /// Whether it may still be asked something.
    #[serde(skip)]
    pub(super) is_active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    picks: u64,
    agreement: Option<f64>,
    faults: u64,
}

/// `GET /v1/policies/{name}/shadow`, for each pool.
#[derive(Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    brief: Brief,
    /// What it is compared with: `name@generation`; `null`: native code.
    beside: Option<String>,
    share: f64,
    running_ms: u64,
    /// Of `picks`.
    agreed: u64,
    by_native: u64,
    no_answer: u64,
    /// Picks that were not compared, and what else was lost.
    missed: Missed,
    faults_by_reason: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_fault: Option<String>,
    /// CPU time of its picks, of a formula: of its batches.
    time_us: Times,
    spread: Spreads,
    worst: Vec<Apart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loads: Option<LoadsBeside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promote: Option<Bounds>,
}

#[derive(Serialize)]
struct Missed {
    not_ready: u64,
    dropped: u64,
    updates_dropped: u64,
    fed_anew: u64,
}

/// Quantiles; `null`: nothing was measured.
#[derive(Serialize)]
struct Times {
    p50: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

#[derive(Serialize)]
struct Spreads {
    targets: usize,
    live: Even,
    candidate: Even,
    /// Targets with the most different counts.
    apart: Vec<Count>,
}

#[derive(Serialize)]
struct Even {
    largest_share: Option<f64>,
    max_over_mean: Option<f64>,
    variation: Option<f64>,
}

#[derive(Serialize)]
struct Count {
    machine: Arc<str>,
    live: u64,
    candidate: u64,
}

/// A pick on which the two differed.
#[derive(Serialize)]
struct Apart {
    ms_ago: u64,
    key_hash: u64,
    random: u64,
    by_native: bool,
    /// How much larger the candidate's load is; `null`: one of the two is not known.
    excess: Option<f64>,
    live: Chosen,
    /// `null`: it named nobody.
    candidate: Option<Chosen>,
}

#[derive(Serialize)]
struct Chosen {
    /// `null`: it has left since.
    machine: Option<Arc<str>>,
    weight: f64,
    age_ms: u32,
    in_flight: u32,
    latency_us: u32,
    error_rate: f32,
    warm: f32,
    /// As each of the two knew them.
    known_live: Known,
    known_to_candidate: Known,
}

#[derive(Serialize)]
struct Known {
    load: Option<f64>,
    picks: u32,
}

/// Loads of a formula beside the live ones.
#[derive(Serialize)]
struct LoadsBeside {
    compared: u64,
    alike: u64,
    bad: u64,
    without_a_metric: u64,
    missing: BTreeSet<Arc<str>>,
    /// Share of pairs of targets that both put in the same order.
    same_order: Option<f64>,
    /// Relative to the larger one, 0 to 1.
    difference: Times,
    worst: Vec<Pair>,
}

#[derive(Serialize)]
struct Pair {
    machine: Arc<str>,
    live: Option<f64>,
    candidate: Option<f64>,
    difference: f64,
}

/// When a candidate is promoted by itself.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Bounds {
    picks: u64,
    faults: u64,
    agreement: f64,
    p99_us: u64,
}

/// The body of a POST.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wanted {
    pool: String,
    generation: String,
    share: f64,
    promote: Option<Bounds>,
}

impl Default for Wanted {
    fn default() -> Self {
        let (pool, generation) = (String::new(), String::new());
        Self { pool, generation, share: 1.0, promote: None }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::of(&PromoteConfig::default())
    }
}

impl Brief {
    pub(super) fn of(pool: &str, shown: &Shown) -> Self {
        let report = shown.report();
        let why = match &report.state {
            Doing::Waiting(why) | Doing::Stopped(why) | Doing::Passed(why) => Some(why.clone()),
            _ => None,
        };
        let candidate = shown.candidate.as_ref();
        Self {
            pool: pool.to_owned(),
            policy: Arc::clone(&shown.policy),
            r#as: candidate.map(|(_, kind)| *kind),
            generation: candidate.map(|(decider, _)| decider.generation.to_string()),
            state: report.state.name(),
            is_active: report.state.is_active(),
            why,
            picks: report.figures.picks,
            agreement: finite(report.figures.agreement()),
            faults: report.figures.fault_count(),
        }
    }
}

impl Run {
    fn of(pool: &str, shown: &Shown, now_ms: u64) -> Self {
        let report = shown.report();
        let Figures { worst, loads, .. } = &report.figures;
        let figures = &report.figures;
        let is_formula = shown.candidate.as_ref().is_some_and(|(_, kind)| *kind == Kind::Formula);
        let count = |(machine, [live, candidate]): &(Arc<str>, [u64; 2])| Count {
            machine: Arc::clone(machine),
            live: *live,
            candidate: *candidate,
        };
        Self {
            brief: Brief::of(pool, shown),
            beside: shown.beside.as_ref().map(ToString::to_string),
            share: shown.share,
            running_ms: now_ms.saturating_sub(report.since_ms),
            agreed: figures.agreed,
            by_native: figures.native,
            no_answer: figures.no_answer,
            missed: Missed {
                not_ready: figures.not_ready,
                dropped: figures.dropped_picks,
                updates_dropped: figures.dropped_updates,
                fed_anew: figures.fed_anew,
            },
            faults_by_reason: figures.faults.clone(),
            last_fault: figures.last_fault.clone(),
            time_us: Times::of(&figures.time_us),
            spread: Spreads {
                targets: report.spreads.targets,
                live: Even::of(report.spreads.live),
                candidate: Even::of(report.spreads.candidate),
                apart: report.apart.iter().map(count).collect(),
            },
            worst: worst.iter().map(|worst| Apart::of(worst, now_ms)).collect(),
            loads: is_formula.then(|| LoadsBeside::of(loads, report.spreads.order)),
            promote: shown.bounds.as_ref().map(Bounds::of),
        }
    }
}

impl Times {
    fn of(quantiles: &Quantiles) -> Self {
        let max = (quantiles.count() > 0).then_some(quantiles.max());
        // A bucket's middle may be above the largest value in it.
        let at = |share| {
            finite(quantiles.quantile(share).min(quantiles.max())).filter(|_| max.is_some())
        };
        Self { p50: at(0.5), p99: at(0.99), max }
    }
}

impl Even {
    fn of(spread: Spread) -> Self {
        Self {
            largest_share: finite(spread.largest_share),
            max_over_mean: finite(spread.max_over_mean),
            variation: finite(spread.variation),
        }
    }
}

impl Apart {
    fn of(worst: &Disagreement, now_ms: u64) -> Self {
        Self {
            ms_ago: now_ms.saturating_sub(worst.at_ms),
            key_hash: worst.key_hash,
            random: worst.random,
            by_native: worst.is_native,
            excess: finite(worst.excess),
            live: Chosen::of(&worst.live),
            candidate: worst.candidate.as_ref().map(Chosen::of),
        }
    }
}

impl Chosen {
    fn of(choice: &Choice) -> Self {
        let Choice { machine, live, candidate } = choice;
        Self {
            machine: machine.clone(),
            weight: live.weight,
            age_ms: live.age_ms,
            in_flight: live.in_flight,
            latency_us: live.latency_us,
            error_rate: live.error_rate,
            warm: live.warm,
            known_live: Known { load: finite(live.load), picks: live.picks },
            known_to_candidate: Known { load: finite(candidate.load), picks: candidate.picks },
        }
    }
}

impl LoadsBeside {
    fn of(loads: &Loads, order: f64) -> Self {
        let pair = |pair: &LoadPair| Pair {
            machine: Arc::clone(&pair.machine),
            live: finite(pair.live),
            candidate: finite(pair.candidate),
            difference: pair.difference,
        };
        Self {
            compared: loads.compared,
            alike: loads.alike,
            bad: loads.bad,
            without_a_metric: loads.without,
            missing: loads.missing.clone(),
            same_order: finite(order),
            difference: Times::of(&loads.difference),
            worst: loads.worst.iter().map(pair).collect(),
        }
    }
}

impl Bounds {
    fn of(bounds: &PromoteConfig) -> Self {
        let PromoteConfig { picks, faults, agreement, p99 } = bounds;
        let p99_us = u64::try_from(p99.as_micros()).unwrap_or(u64::MAX);
        Self { picks: *picks, faults: *faults, agreement: *agreement, p99_us }
    }

    fn checked(self) -> Result<PromoteConfig, ApiError> {
        let Self { picks, faults, agreement, p99_us } = self;
        let p99 = Duration::from_micros(p99_us);
        if picks == 0 || !(0.0..=1.0).contains(&agreement) || !PROMOTE_P99.contains(&p99) {
            let what =
                "promote wants picks above 0, an agreement from 0 to 1, a p99_us from 1 to 50000";
            return Err(ApiError::bad_parameter(what, BODY_HINT));
        }
        Ok(PromoteConfig { picks, faults, agreement, p99 })
    }
}

/// The pools that a policy is in shadow of.
pub(super) fn briefs(view: &View, name: &str) -> Vec<Brief> {
    runs(view, name, Brief::of)
}

fn runs<T>(view: &View, name: &str, show: impl Fn(&str, &Shown) -> T) -> Vec<T> {
    let pools = view.pools.all();
    let shown = pools.iter().filter_map(|pool| Some((pool.name(), pool.shadow()?)));
    let named = shown.filter(|(_, shown)| *shown.policy == *name);
    named.map(|(pool, shown)| show(pool, &shown)).collect()
}

/// `GET /v1/policies/{name}/shadow`
pub(super) async fn get(
    State(view): State<Arc<View>>,
    Name(name): Name,
) -> Result<Json<Vec<Run>>, ApiError> {
    shown(&view, &name)
}

fn shown(view: &View, name: &str) -> Result<Json<Vec<Run>>, ApiError> {
    let now_ms = view.pools.clock().now_ms();
    let runs = runs(view, name, |pool, shown| Run::of(pool, shown, now_ms));
    if runs.is_empty() { Err(ApiError::no_shadow(name)) } else { Ok(Json(runs)) }
}

/// `POST /v1/policies/{name}/shadow`
pub(super) async fn begin(
    State(view): State<Arc<View>>,
    Name(name): Name,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    allowed(&view, &headers)?;
    let patience = Patience::of(&headers);
    let body = body.map_err(|error| ApiError::bad_parameter(error.to_string(), BODY_HINT))?;
    let wanted: Wanted = if body.trim_ascii().is_empty() {
        Wanted::default()
    } else {
        let read = serde_json::from_slice(&body);
        read.map_err(|error| ApiError::bad_parameter(format!("the body: {error}"), BODY_HINT))?
    };
    let Wanted { pool, generation, share, promote } = wanted;
    if !(share > 0.0 && share <= 1.0) {
        return Err(ApiError::bad_parameter("share is above 0 and at most 1", BODY_HINT));
    }
    let promote = promote.map(Bounds::checked).transpose()?;
    let action = Action::Shadow(ShadowWish { pool, generation, share, promote });
    let followed = wish(&view, &name, action, patience).await?;
    answer(followed, format!("/v1/policies/{name}/shadow"), || shown(&view, &name))
}

/// `DELETE /v1/policies/{name}/shadow?pool=`
pub(super) async fn end(
    State(view): State<Arc<View>>,
    Name(name): Name,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    allowed(&view, &headers)?;
    let patience = Patience::of(&headers);
    let query = query.unwrap_or_default();
    let pool = match query.split_once('=') {
        None if query.is_empty() => None,
        Some(("pool", pool)) => Some(super::body::decode(pool)?),
        _ => return Err(ApiError::bad_parameter(query, "known is pool=")),
    };
    let followed = wish(&view, &name, Action::EndShadow(pool), patience).await?;
    answer(followed, format!("/v1/policies/{name}/shadow"), || shown(&view, &name))
}
