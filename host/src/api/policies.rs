//! `/v1/policies`: what is known of each policy.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::pool::{Pool, PoolPolicy};
use super::shadow::{self, Brief};
use super::{ApiError, Name, View};
use crate::pick::pool;
use crate::policy::library::{Fate, Uploaded};
use crate::policy::{Entry, Kept, Kind, Origin, Step, Vouch};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    upload: Option<Upload>,
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

/// The last content that was sent, and what became of it.
#[derive(Serialize)]
struct Upload {
    generation: String,
    /// `compiling`, `used` or `refused`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
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
            upload: entry.uploaded.as_ref().map(Upload::of),
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

impl Upload {
    fn of(uploaded: &Uploaded) -> Self {
        let (state, reason) = match &uploaded.fate {
            Fate::Compiling => ("compiling", None),
            Fate::Used => ("used", None),
            Fate::Refused(reason) => ("refused", Some(reason.clone())),
        };
        let (generation, since_s) =
            (uploaded.generation.to_string(), seconds_since(uploaded.since));
        Self { generation, state, reason, since_s }
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

pub(super) fn shown(view: &View, name: &str) -> Result<Json<Policy>, ApiError> {
    let board = Arc::clone(&view.board.lock());
    let (name, entry) = board.get_key_value(name).ok_or_else(|| ApiError::unknown_policy(name))?;
    Ok(Json(Policy::of(name, entry, view)))
}
