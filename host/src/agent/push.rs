//! What applications push: HTTP on loopback or a Unix socket in, changes for the agent out.
//!
//! `POST /v1/metrics` `{"sessions": 12, "queue": {"add": 1}}` sets or adds to metrics whose source is
//! `push`; `POST /v1/services/NAME` does the same with a service's metrics and its counters
//! (`accepted`, `completed`, `in_flight`). One request is taken whole or refused whole. `GET
//! /v1/metrics` shows how every metric stands. Requests of web pages (with an `Origin`, or to a host that is
//! neither an address nor a name of this machine) are refused: a page that somebody visits must not change what this
//! machine reports. What a client may take is bounded ([`limits`]), so that none keeps the others out.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::tally::COUNTERS;
use super::{Change, Event, Place, Standing};
use crate::config::{
    AgentConfig, MetricConfig, MetricSource, PushAddress, SourceKind, host_name, nearest,
};
use crate::listen::{self, Families};
use crate::serve::{Limits, Listener, Names as ServerNames, Server};

/// Bytes of a push at most: a few hundred names with numbers.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Connections of applications at most, and one in so many files that the process may open.
const CONNECTIONS_MAX: (u64, u64) = (256, 8);
/// Time for a push to come in and be taken: it is short, and comes from this machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Time for open pushes to be taken when the agent ends.
const END_WAIT: Duration = Duration::from_millis(200);

/// Time between two tries to listen: the agent that this one follows may still do.
const RETRY: Duration = Duration::from_millis(100);
/// Tries after which it is said that it does not succeed.
const TRIES_IN_SILENCE: u32 = 50;

/// Takes pushes; ends when it is dropped.
pub(super) struct Pushes {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Pushes {
    /// Takes pushes where the configuration says; must be called inside a runtime.
    pub(super) fn start(config: &AgentConfig, events: &mpsc::Sender<Event>) -> Option<Self> {
        let is_by_address = match &config.push {
            PushAddress::Off => return None,
            PushAddress::Tcp(_) => true,
            PushAddress::Unix(_) => false,
        };
        let mut router = router(Taken { names: Names::new(config).into(), events: events.clone() });
        if is_by_address {
            let names = Arc::new(ServerNames::listed([&*host_name()]));
            router = router.layer(middleware::from_fn_with_state(names, refuse_other_names));
        }
        let address = config.push.clone();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let listener = tokio::select! {
                listener = listen(&address) => listener,
                _ = &mut stopped => return,
            };
            let server = Server::start(listener, router, limits(), Refused::too_slow);
            stopped.await.ok(); // whoever would say so is gone: the same
            server.close(END_WAIT).await;
        });
        Some(Self { stop, task })
    }

    /// Takes no more; what has begun to come is taken, or refused.
    pub(super) async fn end(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that takes pushes failed");
        }
    }
}

/// What applications may take.
fn limits() -> Limits {
    let (most, one_in) = CONNECTIONS_MAX;
    Limits {
        connections: listen::room_for(most, one_in),
        head_bytes: 16 << 10,
        answer: ANSWER_LIMIT,
        ..Limits::default()
    }
}

/// Tries to listen until it succeeds: reports go on without.
async fn listen(address: &PushAddress) -> Listener {
    let mut tries = 0;
    loop {
        tries += 1;
        match bind(address) {
            Ok(listener) => return listener,
            Err(error) if tries == TRIES_IN_SILENCE => {
                tracing::warn!(%address, %error, "cannot listen for pushes; it is tried on; set agent.push");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn bind(address: &PushAddress) -> io::Result<Listener> {
    match address {
        PushAddress::Off => Err(io::ErrorKind::Unsupported.into()),
        PushAddress::Tcp(address) => {
            listen::tcp(*address, Families::Apart, std::iter::empty()).map(Listener::from)
        }
        PushAddress::Unix(path) => bind_unix(path).map(Listener::from),
    }
}

/// A socket file that nobody listens on any more is taken over. Who may reach it may push, as on
/// loopback: the folder's permissions decide.
fn bind_unix(path: &FilePath) -> io::Result<UnixListener> {
    let bound = UnixListener::bind(path);
    let is_left_over = || std::os::unix::net::UnixStream::connect(path).is_err();
    let listener = match bound {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over() => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// What may be pushed, and where it goes.
#[derive(Clone)]
struct Taken {
    names: Arc<Names>,
    events: mpsc::Sender<Event>,
}

/// Pushed names with their places.
struct Names {
    machine: BTreeMap<String, Place>,
    services: BTreeMap<String, BTreeMap<String, Place>>,
}

impl Names {
    fn new(config: &AgentConfig) -> Self {
        let mut numbers = (0..).map(Place::Meter);
        let mut pushed = |metrics: &[MetricConfig]| -> BTreeMap<String, Place> {
            let numbered = metrics.iter().zip(&mut numbers);
            let pushed = numbered.filter(|(metric, _)| is_pushed(&metric.source));
            pushed.map(|(metric, place)| (metric.name.clone(), place)).collect()
        };
        let machine = pushed(&config.metrics);
        let mut services = BTreeMap::new();
        for (number, service) in config.services.iter().enumerate() {
            let mut names = pushed(&service.offer.metrics);
            let counters = service.offer.counters().into_iter().zip(COUNTERS).enumerate();
            for (index, (source, name)) in counters {
                if source.is_some_and(is_pushed) {
                    names.insert(name.to_owned(), Place::Tally(3 * number + index));
                }
            }
            services.insert(service.id(), names);
        }
        Self { machine, services }
    }
}

fn is_pushed(source: &MetricSource) -> bool {
    source.kind == SourceKind::Push
}

fn router(taken: Taken) -> Router {
    Router::new()
        .route("/v1/metrics", get(show).post(push_metrics))
        .route("/v1/services/{name}", post(push_service))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(refuse_web_pages))
        .with_state(taken)
}

/// Web pages say where they are from.
async fn refuse_web_pages(request: Request, next: Next) -> Response {
    if request.headers().contains_key(header::ORIGIN) {
        return Refused::web_page().into_response();
    }
    next.run(request).await
}

/// A page whose name was made to lead to this machine asks by that name.
async fn refuse_other_names(
    State(names): State<Arc<ServerNames>>,
    request: Request,
    next: Next,
) -> Response {
    if names.check(&request).is_err() {
        return Refused::web_page().into_response();
    }
    next.run(request).await
}

async fn show(State(taken): State<Taken>) -> Result<Json<Vec<Standing>>, Refused> {
    let (ask, answer) = oneshot::channel();
    taken.events.send(Event::Asked(ask)).await.map_err(|_| Refused::stopping())?;
    answer.await.map(Json).map_err(|_| Refused::stopping())
}

async fn push_metrics(State(taken): State<Taken>, body: Bytes) -> Result<StatusCode, Refused> {
    let changes = changes(&body, &taken.names.machine, "metric")?;
    taken.tell(changes).await
}

async fn push_service(
    State(taken): State<Taken>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let names = taken.names.services.get(&name).ok_or_else(|| {
        let known = taken.names.services.keys().map(String::as_str);
        Refused::unknown("service", &name, known)
    })?;
    let changes = changes(&body, names, "metric or counter")?;
    taken.tell(changes).await
}

impl Taken {
    async fn tell(&self, changes: Vec<(Place, Change)>) -> Result<StatusCode, Refused> {
        let told = self.events.send(Event::Pushed(changes)).await;
        told.map(|()| StatusCode::NO_CONTENT).map_err(|_| Refused::stopping())
    }
}

/// Every change of a body, or the first that cannot be made.
fn changes(
    body: &[u8],
    names: &BTreeMap<String, Place>,
    what: &str,
) -> Result<Vec<(Place, Change)>, Refused> {
    let body: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        Refused::bad(format!("the body is not an object like {{\"name\": 1.5}}: {error}"))
    })?;
    let change = |(name, value): (&String, &Value)| {
        let place = names
            .get(name)
            .copied()
            .ok_or_else(|| Refused::unknown(what, name, names.keys().map(String::as_str)))?;
        let change = change(value).ok_or_else(|| {
            let forms = "a number, {\"set\": number} or {\"add\": number}";
            Refused::bad(format!("{name}: {value} is not {forms}"))
        })?;
        match (place, change) {
            (Place::Tally(_), Change::Set(count)) if count < 0.0 => {
                Err(Refused::bad(format!("{name}: {count} is below 0")))
            }
            _ => Ok((place, change)),
        }
    };
    body.iter().map(change).collect()
}

fn change(value: &Value) -> Option<Change> {
    if let Some(number) = value.as_f64() {
        return Some(Change::Set(number));
    }
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let set = object.get("set").and_then(Value::as_f64).map(Change::Set);
    set.or_else(|| object.get("add").and_then(Value::as_f64).map(Change::Add))
}

/// A request that was not taken.
struct Refused {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refused {
    fn new(status: StatusCode, code: &'static str, message: String) -> Self {
        Self { status, code, message }
    }

    fn bad(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_push", message)
    }

    fn web_page() -> Self {
        let message = "web pages may not push".to_owned();
        Self::new(StatusCode::FORBIDDEN, "web_page", message)
    }

    /// The answer to a push that did not come in time.
    fn too_slow(limit: Duration) -> Response {
        let message = format!("the push was not there within {limit:?}");
        Self::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message).into_response()
    }

    fn stopping() -> Self {
        let message = "the agent is stopping".to_owned();
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message)
    }

    fn unknown<'n>(what: &str, name: &str, known: impl Iterator<Item = &'n str> + Clone) -> Self {
        let names: Vec<_> = known.clone().collect();
        let hint = match nearest(name, known) {
            Some(near) => format!("did you mean {near}?"),
            None if names.is_empty() => "none has the source push".to_owned(),
            None => format!("known here: {}", names.join(", ")),
        };
        let message = format!("no {what} {name:?} is pushed here; {hint}");
        Self::new(StatusCode::NOT_FOUND, "unknown_name", message)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        (self.status, Json(body)).into_response()
    }
}
