//! What an operator may do with policies.
//!
//! Who asks for a change needs the admin token, which is compared in constant time; without one in the
//! configuration nobody may. A change is made by the policies' thread and answered when pools have it, or, where
//! that takes longer than who asks wants to wait (`Prefer: respond-async`, `Prefer: wait=5`) or than requests may
//! take, with 202 and where to look.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::policies::shown;
use super::{ApiError, Name, View, shadow};
use crate::config::is_policy_name;
use crate::pick::supply::{Action, Event, Wish};
use crate::policy::Form;
use crate::serve::ANSWER;

/// Carries an uploaded policy's signatures.
const SIGNATURE: &str = "loadline-signature";
/// What clients say of how long they wait (RFC 7240).
const PREFER: &str = "prefer";
/// A request is answered so long before its time is over.
const MARGIN: Duration = Duration::from_secs(5);

/// Whether a wish was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// Pools have what is wanted.
    Now,
    /// It takes longer than the request waits.
    Later,
}

/// Until when a request waits for its wish to be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Patience(Instant);

/// Of a request that is answered before its wish was followed.
#[derive(Serialize)]
struct Later {
    message: &'static str,
    see: String,
}

impl Patience {
    /// Of a request that begins now.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let most = ANSWER.saturating_sub(MARGIN);
        let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
        Self(Instant::now() + preferred_wait(lines).unwrap_or(most).min(most))
    }

    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// How long these lines of `Prefer` want to wait; what is not understood is no wish.
fn preferred_wait<'l>(lines: impl Iterator<Item = &'l str>) -> Option<Duration> {
    let mut wait = None;
    for preference in lines.flat_map(|line| line.split(',')) {
        let preference = preference.split(';').next().unwrap_or_default().trim();
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        if name.trim().eq_ignore_ascii_case("wait") {
            let seconds = value.trim().trim_matches('"').parse().ok();
            wait = seconds.map(Duration::from_secs).or(wait);
        } else if name.eq_ignore_ascii_case("respond-async") {
            wait = wait.or(Some(Duration::ZERO));
        }
    }
    wait
}

/// `PUT /v1/policies/{name}`: the file's content is the body.
pub(super) async fn upload(
    State(view): State<Arc<View>>,
    Name(name): Name,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let patience = Patience::of(&headers);
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
    let action = Action::Upload { form, bytes: body.to_vec(), signatures };
    follow(&view, &name, action, patience).await
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
) -> Result<Response, ApiError> {
    allowed(&view, &headers)?;
    follow(&view, &name, Action::Delete, Patience::of(&headers)).await
}

/// `POST /v1/policies/{name}/activate?generation=`; without one: what is in shadow is promoted.
pub(super) async fn activate(
    State(view): State<Arc<View>>,
    Name(name): Name,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let patience = Patience::of(&headers);
    allowed(&view, &headers)?;
    let query = query.unwrap_or_default();
    if query.is_empty() && !shadow::briefs(&view, &name).is_empty() {
        return follow(&view, &name, Action::Promote, patience).await;
    }
    let generation = query.strip_prefix("generation=").unwrap_or_default();
    if generation.is_empty() || !generation.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let hint = "generation= takes the beginning of one that GET /v1/policies/NAME lists";
        return Err(ApiError::bad_parameter("which generation?", hint));
    }
    follow(&view, &name, Action::Activate(generation.to_ascii_lowercase()), patience).await
}

/// `POST /v1/policies/{name}/rollback`
pub(super) async fn roll_back(
    State(view): State<Arc<View>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    allowed(&view, &headers)?;
    follow(&view, &name, Action::Activate(String::new()), Patience::of(&headers)).await
}

/// Asks for something, and shows the policy.
async fn follow(
    view: &View,
    name: &str,
    action: Action,
    patience: Patience,
) -> Result<Response, ApiError> {
    let followed = wish(view, name, action, patience).await?;
    answer(followed, format!("/v1/policies/{name}"), || shown(view, name))
}

/// Whether this request may change something.
pub(super) fn allowed(view: &View, headers: &HeaderMap) -> Result<(), ApiError> {
    let admin = view.admin.read();
    let Some(token) = &*admin else { return Err(ApiError::admin_off()) };
    let given =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.filter(|given| token.is(given)).map(drop).ok_or_else(ApiError::unauthorised)
}

/// Asks for something, and waits for it as long as is wanted.
pub(super) async fn wish(
    view: &View,
    name: &str,
    action: Action,
    patience: Patience,
) -> Result<Followed, ApiError> {
    let (done, followed) = oneshot::channel();
    let wish = Wish { name: name.to_owned(), action, done };
    view.supply.lock().send(Event::Wish(wish)).map_err(|_| ApiError::stopping())?;
    match timeout(patience.left(), followed).await {
        Ok(Ok(outcome)) => outcome.map(|_| Followed::Now).map_err(ApiError::from),
        Ok(Err(_)) => Err(ApiError::stopping()),
        Err(_) => Ok(Followed::Later),
    }
}

/// What is shown of what was wanted, or where to see it later.
pub(super) fn answer<T: Serialize>(
    followed: Followed,
    see: String,
    shown: impl FnOnce() -> Result<Json<T>, ApiError>,
) -> Result<Response, ApiError> {
    if followed == Followed::Now {
        return shown().map(IntoResponse::into_response);
    }
    let message = "accepted, and not done yet: GET `see` shows what becomes of it";
    let later = Json(Later { message, see: see.clone() });
    Ok((StatusCode::ACCEPTED, [(LOCATION, see)], later).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&str], seconds: Option<u64>) {
        let wait = preferred_wait(lines.iter().copied());
        assert_eq!(wait, seconds.map(Duration::from_secs), "{lines:?}");
    }

    #[test]
    fn clients_say_how_long_they_wait() {
        check(&[], None);
        check(&["return=minimal"], None);
        check(&["respond-async"], Some(0));
        check(&["Respond-Async, wait=7"], Some(7));
        check(&["wait = \"7\"; x=y, respond-async"], Some(7));
        check(&["return=minimal", "wait=3"], Some(3));
        check(&["wait=soon"], None);
        check(&["wait=-1, respond-async"], Some(0));
        let now = Instant::now();
        let mut headers = HeaderMap::new();
        headers.insert(PREFER, axum::http::HeaderValue::from_static("wait=3600"));
        assert!(Patience::of(&headers).0 < now + ANSWER, "before the request's time is over");
    }
}
