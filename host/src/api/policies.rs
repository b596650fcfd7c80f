//! `/v1/policies`: what is known of each policy, and what an operator may do with it.
//!
//! Who asks for a change needs the admin token, which is compared in constant time; without one in the
//! configuration nobody may. A change is made by the policies' thread and answered when pools have it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::pool::{Pool, PoolPolicy};
use super::shadow::{self, Brief};
use super::{ApiError, Name, View};
use crate::config::is_policy_name;
use crate::pick::pool;
use crate::pick::supply::{Action, Event, Wish};
use crate::policy::{Entry, Form, Generation, Kept, Kind, Origin, Step, Vouch};

/// Carries an uploaded policy's signatures.
const SIGNATURE: &str = "loadline-signature";
/// What a change may take besides the compilation.
const WISH_WAIT: Duration = Duration::from_secs(30);

/// `GET /v1/policies`
#[derive(Serialize)]
pub(super) struct Policy {
    name: Arc<str>,
    kind: Option<Kind>,
    /// `built-in` or the file.
    origin: String,
    /// `active` in a pool, `shadow` of one, `loaded`, `loading`, `quarantined` in every pool that wants
    /// it, `removed` (its file is gone), `idle` (a built-in nobody asked for), `refused`, or `waiting`
    /// for a signature.
    state: &'static str,
    generation: Option<String>,
    previous: Option<String>,
    load_ms: f64,
    loads: u64,
    refusals: u64,
    /// Newest first.
    generations: Vec<Version>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loading: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Refused>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<Waiting>,
    pools: Vec<Use>,
    /// Pools that it is tried in, or was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadows: Vec<Brief>,
}

/// A generation that can be gone to.
#[derive(Serialize)]
struct Version {
    generation: String,
    /// `active`, `shadow`, `previous`, `loaded` (the newest, in no pool), `quarantined` or `removed`.
    state: &'static str,
    origin: String,
    signature: Signature,
    loaded_s_ago: u64,
    steps: Vec<Taken>,
}

/// A step of a load.
#[derive(Serialize)]
struct Taken {
    step: &'static str,
    ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// A file that is not used.
#[derive(Serialize)]
struct Refused {
    file: String,
    generation: Option<String>,
    reason: String,
    steps: Vec<Taken>,
}

/// A file that is not used yet.
#[derive(Serialize)]
struct Waiting {
    file: String,
    generation: String,
    reason: String,
    since_s: u64,
}

/// Who vouches for a generation.
#[derive(Serialize)]
struct Signature {
    /// `off`, `built-in`, `good`, `missing` or `wrong`.
    state: &'static str,
    /// The id of the key that signed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A pool that names the policy.
#[derive(Serialize)]
struct Use {
    pool: String,
    #[serde(flatten)]
    policy: PoolPolicy,
    r#as: Kind,
    /// Of the last start of a guest here.
    steps: Vec<Taken>,
}

impl Policy {
    fn of(name: &Arc<str>, entry: &Entry, view: &View) -> Self {
        let (pools, shadows) = (&view.pools, shadow::briefs(view, name));
        let now_ms = pools.clock().now_ms();
        let uses = |pool: &Arc<pool::Pool>| {
            let steps = |kind| pool.status(kind).steps.iter().map(Taken::of).collect();
            let Pool { name: pool_name, formula, strategy, .. } = Pool::of(pool, now_ms);
            let both = [(Kind::Formula, formula), (Kind::Strategy, strategy)];
            let named = both.into_iter().filter(|(_, policy)| *policy.policy == **name);
            let used = named.map(|(kind, policy)| Use {
                pool: pool_name.clone(),
                policy,
                r#as: kind,
                steps: steps(kind),
            });
            used.collect::<Vec<_>>()
        };
        let pools: Vec<_> = pools.all().iter().flat_map(uses).collect();
        let newest = entry.newest();
        let generation = newest.map(|kept| kept.generation().to_string());
        let version = |kept| Version::of(kept, entry, &pools, &shadows);
        let versions: Vec<_> = entry.generations.iter().map(version).collect();
        let state = match (versions.first(), &entry.refused) {
            _ if entry.loading.is_some() => "loading",
            (Some(version), _) => version.state,
            (None, Some(_)) => "refused",
            (None, None) if entry.waiting.is_some() => "waiting",
            (None, None) => "idle",
        };
        let waiting = entry.waiting.as_ref().map(|waiting| Waiting {
            file: waiting.path.display().to_string(),
            generation: waiting.generation.to_string(),
            reason: waiting.why.clone(),
            since_s: seconds_since(waiting.since),
        });
        let refused = entry.refused.as_ref().map(|refused| Refused {
            file: refused.path.display().to_string(),
            generation: refused.generation.map(|generation| generation.to_string()),
            reason: refused.reason.clone(),
            steps: refused.steps.iter().map(Taken::of).collect(),
        });
        let steps = newest.into_iter().flat_map(|kept| &kept.steps);
        Self {
            name: Arc::clone(name),
            kind: newest.map(|kept| kept.module.kind()),
            origin: match newest {
                Some(kept) => origin(kept),
                None if entry.is_built_in => "built-in".to_owned(),
                None => "none".to_owned(),
            },
            state,
            generation,
            previous: entry.kept("").map(|kept| kept.generation().to_string()),
            load_ms: steps.map(|step| step.took.as_secs_f64() * 1e3).sum(),
            loads: entry.loads,
            refusals: entry.refusals,
            generations: versions,
            loading: entry.loading.map(|generation| generation.to_string()),
            refused,
            waiting,
            pools,
            shadows,
        }
    }
}

impl Version {
    fn of(kept: &Kept, entry: &Entry, pools: &[Use], shadows: &[Brief]) -> Self {
        let generation = kept.generation().to_string();
        let serves = |used: &Use| used.policy.generation.as_ref() == Some(&generation);
        let is_out = |used: &Use| used.policy.quarantined.contains(&generation);
        let is_tried = |run: &Brief| run.is_active && run.generation.as_ref() == Some(&generation);
        let is_newest =
            entry.generations.first().is_some_and(|of| of.generation() == kept.generation());
        let state = if is_newest && (entry.is_withdrawn || entry.removed.is_some()) {
            "removed"
        } else if pools.iter().any(serves) {
            "active"
        } else if shadows.iter().any(is_tried) {
            "shadow"
        } else if pools.iter().any(is_out) {
            "quarantined"
        } else if is_newest {
            "loaded"
        } else {
            "previous"
        };
        Self {
            state,
            origin: origin(kept),
            signature: Signature::of(&kept.vouch),
            loaded_s_ago: seconds_since(kept.loaded),
            steps: kept.steps.iter().map(Taken::of).collect(),
            generation,
        }
    }
}

impl Signature {
    fn of(vouch: &Vouch) -> Self {
        let (state, key) = match vouch {
            Vouch::Unchecked => ("off", None),
            Vouch::BuiltIn => ("built-in", None),
            Vouch::By(key) => ("good", Some(key.to_string())),
            Vouch::Missing(_) => ("missing", None),
            Vouch::Wrong(_) => ("wrong", None),
        };
        Self { state, key, reason: vouch.trouble().map(str::to_owned) }
    }
}

impl Taken {
    fn of(step: &Step) -> Self {
        let ms = step.took.as_secs_f64() * 1e3;
        Self { step: step.name, ms, failed: step.failed.clone() }
    }
}

fn seconds_since(instant: Instant) -> u64 {
    Instant::now().saturating_duration_since(instant).as_secs()
}

fn origin(kept: &Kept) -> String {
    match &kept.origin {
        Origin::File(path) => path.display().to_string(),
        Origin::BuiltIn => "built-in".to_owned(),
    }
}

pub(super) async fn all(State(view): State<Arc<View>>) -> Json<Vec<Policy>> {
    let board = Arc::clone(&view.board.lock());
    Json(board.iter().map(|(name, entry)| Policy::of(name, entry, &view)).collect())
}

pub(super) async fn one(
    State(view): State<Arc<View>>,
    Name(name): Name,
) -> Result<Json<Policy>, ApiError> {
    shown(&view, &name)
}

fn shown(view: &View, name: &str) -> Result<Json<Policy>, ApiError> {
    let board = Arc::clone(&view.board.lock());
    let (name, entry) = board.get_key_value(name).ok_or_else(|| ApiError::unknown_policy(name))?;
    Ok(Json(Policy::of(name, entry, view)))
}

/// `PUT /v1/policies/{name}`: the file's content is the body.
pub(super) async fn upload(
    State(view): State<Arc<View>>,
    Name(name): Name,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Policy>, ApiError> {
    allowed(&view, &headers)?;
    let most = view.rules.read().limits(&name).file_bytes;
    // Before it is read: who waits for a word before sending it gets this one.
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > most) {
        return Err(ApiError::policy_too_long(most));
    }
    if !is_policy_name(&name) {
        let what = format!("{name:?} is not a policy's name");
        return Err(ApiError::bad_parameter(what, "letters, digits, '-', '_' and '.'"));
    }
    let body = to_bytes(body, most).await;
    let body = body.map_err(|_| ApiError::policy_too_long(most))?;
    let form = if std::str::from_utf8(&body).is_ok_and(|text| !text.contains('\0')) {
        Form::Text
    } else {
        Form::Wasm
    };
    let signatures = signatures(&headers)?;
    wish(&view, &name, Action::Upload { form, bytes: body.to_vec(), signatures }).await?;
    shown(&view, &name)
}

/// The lines of a signature file, in one header or several.
fn signatures(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let lines = headers.get_all(SIGNATURE).iter().map(|line| line.to_str());
    let lines: Vec<_> = lines.collect::<Result<_, _>>().map_err(|_| {
        let hint = "a line of FILE.sig, as `loadline policy sign FILE` writes it";
        ApiError::bad_parameter("the header loadline-signature is not text", hint)
    })?;
    Ok((!lines.is_empty()).then(|| lines.join("\n")))
}

/// `DELETE /v1/policies/{name}`
pub(super) async fn remove(
    State(view): State<Arc<View>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Json<Policy>, ApiError> {
    allowed(&view, &headers)?;
    wish(&view, &name, Action::Delete).await?;
    shown(&view, &name)
}

/// `POST /v1/policies/{name}/activate?generation=`; without one: what is in shadow is promoted.
pub(super) async fn activate(
    State(view): State<Arc<View>>,
    Name(name): Name,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Json<Policy>, ApiError> {
    allowed(&view, &headers)?;
    let query = query.unwrap_or_default();
    if query.is_empty() && !shadow::briefs(&view, &name).is_empty() {
        wish(&view, &name, Action::Promote).await?;
        return shown(&view, &name);
    }
    let generation = query.strip_prefix("generation=").unwrap_or_default();
    if generation.is_empty() || !generation.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let hint = "generation= takes the beginning of one that GET /v1/policies/NAME lists";
        return Err(ApiError::bad_parameter("which generation?", hint));
    }
    wish(&view, &name, Action::Activate(generation.to_ascii_lowercase())).await?;
    shown(&view, &name)
}

/// `POST /v1/policies/{name}/rollback`
pub(super) async fn roll_back(
    State(view): State<Arc<View>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Json<Policy>, ApiError> {
    allowed(&view, &headers)?;
    wish(&view, &name, Action::Activate(String::new())).await?;
    shown(&view, &name)
}

pub(super) async fn wish(
    view: &View,
    name: &str,
    action: Action,
) -> Result<Option<Generation>, ApiError> {
    let (done, followed) = oneshot::channel();
    let wish = Wish { name: name.to_owned(), action, done };
    view.supply.lock().send(Event::Wish(wish)).map_err(|_| ApiError::stopping())?;
    let longest = view.rules.read().limits(name).load + WISH_WAIT;
    match timeout(longest, followed).await {
        Ok(Ok(outcome)) => Ok(outcome?),
        Ok(Err(_)) => Err(ApiError::stopping()),
        Err(_) => Err(ApiError::still_busy()),
    }
}

/// Whether this request may change something.
pub(super) fn allowed(view: &View, headers: &HeaderMap) -> Result<(), ApiError> {
    let admin = view.admin.read();
    let Some(token) = &*admin else { return Err(ApiError::admin_off()) };
    let given =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.filter(|given| token.is(given)).map(drop).ok_or_else(ApiError::unauthorised)
}
