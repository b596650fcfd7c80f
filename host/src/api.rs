//! HTTP in, JSON (or one line of text) out: the only place that knows either.
//!
//! Handlers ask the pools, the fleet and the policies and translate; they decide nothing. [`body`]
//! and [`decision`] are the JSON shapes, [`outcome`] reads what applications report, [`refusal`] shows
//! whose reports are refused, [`policies`] shows policies, [`wish`] follows operators' wishes of them, [`shadow`]
//! does both for those in shadow, [`token`] knows who may have any, [`caller`] who may ask at all, [`error`] is the one place that knows
//! status codes, [`mod@metrics`] what Prometheus reads. A request for a target waits for its
//! guest's deadlines at most.

mod body;
mod caller;
mod config;
mod decision;
mod error;
mod metrics;
mod outcome;
mod policies;
mod pool;
mod refusal;
mod schedule;
mod shadow;
mod token;
mod wish;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use parking_lot::{Mutex, RwLock};

use crate::config::ConfigState;
use crate::fleet::{Fleet, Machine};
use crate::pick::supply::{self, Board};
use crate::pick::{Pools, intake, pick};
use crate::policy::{Rules, Ticker, Tolls};
use crate::serve::Names;
use error::ApiError;
pub use error::too_slow;
pub use token::AdminToken;

/// Header that names the lease of an answer that is an address alone.
const LEASE: &str = "loadline-lease";

/// What the handlers ask.
pub struct View {
    /// For picks.
    pub pools: Arc<Pools>,
    /// For machines.
    pub fleet: Arc<RwLock<Fleet>>,
    /// For policies.
    pub board: Board,
    /// For what is known of the configuration.
    pub config: ConfigState,
    /// For metrics.
    pub intake: Arc<intake::Counts>,
    /// Whether this process listens.
    pub pulse: Arc<intake::Pulse>,
    /// What the sockets tell.
    pub transport: Arc<crate::transport::Status>,
    /// For operators' wishes.
    pub supply: Mutex<mpsc::Sender<supply::Event>>,
    /// Who may change something; `None`: nobody.
    pub admin: RwLock<Option<AdminToken>>,
    /// By which names clients may ask.
    pub names: RwLock<Names>,
    /// What makes policies' deadlines work.
    pub ticker: Ticker,
    /// What is counted of policies' guests.
    pub tolls: Tolls,
    /// What is wanted of policies.
    pub rules: RwLock<Rules>,
    /// Set when the process is stopping: not ready any more.
    pub stopping: AtomicBool,
}

/// The name in a path, decoded once.
struct Name(String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        name.map(|Path(name)| Self(name)).map_err(|_| ApiError::not_utf8("name"))
    }
}

/// The whole API.
pub fn router(view: Arc<View>) -> Router {
    Router::new()
        .route("/v1/target", get(target))
        .route("/v1/outcomes", post(outcomes))
        .route("/v1/leases/{id}", delete(end_lease))
        .route("/v1/decisions", get(decisions))
        .route("/v1/decisions/{id}", get(one_decision))
        .route("/v1/pools", get(pools))
        .route("/v1/machines", get(machines))
        .route("/v1/machines/{name}", get(machine))
        .route("/v1/refused", get(refused))
        .route("/v1/config", get(config_state))
        .route("/v1/policies", get(policies::all))
        .route("/v1/policies/{name}", get(policies::one).put(wish::upload).delete(wish::remove))
        .route("/v1/policies/{name}/activate", post(wish::activate))
        .route("/v1/policies/{name}/rollback", post(wish::roll_back))
        .route(
            "/v1/policies/{name}/shadow",
            get(shadow::get).post(shadow::begin).delete(shadow::end),
        )
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async { ApiError::no_such_call() })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(from_fn_with_state(Arc::clone(&view), caller::check))
        .with_state(view)
}

async fn target(
    State(view): State<Arc<View>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let request = body::pick_request(query.as_deref().unwrap_or_default())?;
    let answer = pick(&view.pools, &request)?;
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    Ok(if accept.starts_with("text/plain") {
        let lease = answer.lease.map(|lease| [(LEASE, lease)]);
        (lease, format!("{}\n", answer.target.address)).into_response()
    } else {
        Json(body::Target::of(&answer)).into_response()
    })
}

async fn outcomes(
    State(view): State<Arc<View>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, ApiError> {
    let body = body.map_err(|error| ApiError::bad_body(error.to_string()))?;
    view.pools.record(&outcome::read(&body)?)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn end_lease(State(view): State<Arc<View>>, Name(id): Name) -> Result<StatusCode, ApiError> {
    let was_open = view.pools.close_lease(&id);
    was_open.then_some(StatusCode::NO_CONTENT).ok_or_else(|| ApiError::unknown_lease(&id))
}

async fn decisions(
    State(view): State<Arc<View>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<decision::Decision>>, ApiError> {
    let decision::Query { pool, limit } = decision::query(query.as_deref().unwrap_or_default())?;
    let pool = pool.map(|pool| view.pools.get(&pool)).transpose()?;
    let newest = view.pools.newest_decisions(pool.as_ref().map(|pool| pool.name()), limit);
    let brief = |decision| decision::Decision::of(&view.pools, decision).brief();
    Ok(Json(newest.iter().map(brief).collect()))
}

async fn one_decision(
    State(view): State<Arc<View>>,
    Name(id): Name,
) -> Result<Json<decision::Decision>, ApiError> {
    let decision = view.pools.decision(&id).ok_or_else(|| ApiError::unknown_decision(&id))?;
    let service = decision.pool.service();
    let offers = |machine: &Machine| machine.services.iter().any(|of| *of.name == *service);
    let is_gone = |(_, machine): &(_, &Machine)| !machine.alive && offers(machine);
    let gone = view.fleet.read().machines().filter(is_gone).count();
    Ok(Json(decision::Decision::of(&view.pools, &decision).with_gone(gone)))
}

async fn pools(State(view): State<Arc<View>>) -> Json<Vec<pool::Pool>> {
    let now_ms = view.pools.clock().now_ms();
    Json(view.pools.all().iter().map(|pool| pool::Pool::of(pool, now_ms)).collect())
}

async fn machines(State(view): State<Arc<View>>) -> Json<Vec<body::Machine>> {
    let targets = body::Targets::of(&view.pools);
    let fleet = view.fleet.read();
    let now_ms = view.pools.clock().now_ms();
    let mut machines: Vec<_> =
        fleet.machines().map(|(_, machine)| body::Machine::of(machine, &targets, now_ms)).collect();
    machines.sort_by(|a, b| a.name.cmp(&b.name));
    Json(machines)
}

async fn machine(
    State(view): State<Arc<View>>,
    Name(name): Name,
) -> Result<Json<body::Machine>, ApiError> {
    let targets = body::Targets::of(&view.pools);
    let fleet = view.fleet.read();
    let (_, machine) = fleet.by_name(&name).ok_or_else(|| ApiError::unknown_machine(&name))?;
    Ok(Json(body::Machine::of(machine, &targets, view.pools.clock().now_ms())))
}

async fn refused(State(view): State<Arc<View>>) -> Json<Vec<refusal::Refusal>> {
    let now_ms = view.pools.clock().now_ms();
    let refused = view.intake.refused.lock();
    Json(refused.kinds().map(|(kind, of)| refusal::Refusal::of(kind, of, now_ms)).collect())
}

async fn config_state(State(view): State<Arc<View>>) -> Json<config::Config> {
    Json(config::Config::of(view.config.get()))
}

/// It is alive in any case: what stands in for a thread does its work.
async fn healthy(State(view): State<Arc<View>>) -> &'static str {
    if view.ticker.is_held() {
        return "ok, but the ticker of policies' deadlines is held and stood in for: restart when you can\n";
    }
    "ok\n"
}

async fn ready(State(view): State<Arc<View>>) -> (StatusCode, &'static str) {
    if view.stopping.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
    }
    if view.pools.all().iter().any(|pool| pool.eligible() > 0) {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no machine has reported yet\n")
    }
}

async fn metrics(State(view): State<Arc<View>>) -> Result<Response, ApiError> {
    let text = metrics::text(&view).map_err(|_| ApiError::cannot_encode())?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT)], text).into_response())
}
