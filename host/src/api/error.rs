//! Errors of the domain to status and body: `{"error":{"code","message","hint"?}}`.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::pick::feedback::{FeedbackError, Untraced};
use crate::pick::{PickError, Unfit};
use crate::policy::WishError;
use crate::serve::Misled;

/// Seconds after which a client without a target may ask again: a machine that starts has reported
/// by then.
const RETRY_AFTER_S: &str = "1";

/// A request that is not answered with what it asked for.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: Option<String>,
}

#[derive(Serialize)]
struct Body<'e> {
    error: Inner<'e>,
}

#[derive(Serialize)]
struct Inner<'e> {
    code: &'e str,
    message: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'e str>,
}

/// The answer where a request's time has passed.
#[must_use]
pub fn too_slow(limit: Duration) -> Response {
    let message = format!("the request was not there and answered within {limit:?}");
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message).into_response()
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn bad_parameter(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", message).hint(hint)
    }

    pub(super) fn not_implemented(parameter: &str) -> Self {
        let message = format!("this version does not know what to do with {parameter}=");
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message).hint("leave it out")
    }

    pub(super) fn unknown_machine(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown_machine", format!("no machine {name:?} reports"))
            .hint("GET /v1/machines lists them")
    }

    pub(super) fn unknown_policy(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown_policy", format!("there is no policy {name:?}"))
            .hint("GET /v1/policies lists them")
    }

    pub(super) fn no_shadow(name: &str) -> Self {
        let message = format!("{name:?} is in shadow of no pool");
        Self::new(StatusCode::NOT_FOUND, "no_shadow", message)
            .hint("POST /v1/policies/NAME/shadow, or shadow = \"NAME\" of a pool, begins it")
    }

    pub(super) fn bad_body(message: impl Into<String>) -> Self {
        let hint =
            "an object like {\"target\":\"web-1\",\"latency_us\":1500,\"ok\":true}, or an array";
        Self::new(StatusCode::BAD_REQUEST, "bad_body", message).hint(hint)
    }

    pub(super) fn unknown_lease(id: &str) -> Self {
        let message = format!("no lease {id:?} is open");
        Self::new(StatusCode::NOT_FOUND, "unknown_lease", message)
            .hint("a lease ends once: by DELETE or by its time")
    }

    pub(super) fn unknown_decision(id: &str) -> Self {
        let message = format!("decision {id:?} is not remembered");
        let hint = "the last ones are (host.decisions); GET /v1/decisions lists them";
        Self::new(StatusCode::NOT_FOUND, "unknown_decision", message).hint(hint)
    }

    pub(super) fn no_such_call() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no_such_call", "there is no such call")
            .hint("GET /v1/target picks a target; see also /v1/machines, /v1/policies, /metrics")
    }

    pub(super) fn method_not_allowed() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "method_not_allowed", "this call has another method")
            .hint("a question is a GET; README.md lists the calls that change something")
    }

    pub(super) fn policy_too_long(max: usize) -> Self {
        let message = format!("the body is cut short or has more than {max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_long", message)
            .hint("the body is the content of a .wasm or .formula file")
    }

    pub(super) fn admin_off() -> Self {
        let message = "calls that change something are off: no admin token is configured";
        Self::new(StatusCode::FORBIDDEN, "admin_off", message)
            .hint("name a file with a token in host.admin_token_file")
    }

    pub(super) fn unauthorised() -> Self {
        let message = "this call needs the admin token";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorised", message)
            .hint("send it as: Authorization: Bearer TOKEN")
    }

    pub(super) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "this host is stopping")
    }

    pub(super) fn web_page() -> Self {
        let message = "web pages from elsewhere may change nothing here";
        Self::new(StatusCode::FORBIDDEN, "web_page", message)
            .hint("ask from a program, without the header Origin")
    }

    pub(super) fn misled(misled: Misled) -> Self {
        match misled {
            Misled::Name(name) => {
                let message = format!("this host does not go by the name {name:?}");
                Self::new(StatusCode::FORBIDDEN, "other_name", message)
                    .hint("ask by address, or write the name into host.names")
            }
            Misled::Twice => {
                let message = "the request has more than one header Host";
                Self::new(StatusCode::BAD_REQUEST, "bad_request", message).hint("send one")
            }
        }
    }

    pub(super) fn not_utf8(what: &str) -> Self {
        let message = format!("the {what} in the path is not UTF-8");
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", message)
            .hint("percent-encode each byte of its UTF-8 form")
    }

    pub(super) fn cannot_encode() -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "cannot_encode", "the metrics could not be written")
    }
}

impl From<PickError> for ApiError {
    fn from(error: PickError) -> Self {
        let message = error.to_string();
        match error {
            PickError::UnknownPool { nearest, .. } => {
                let hint = match nearest {
                    Some(nearest) => format!("did you mean {nearest}?"),
                    None => "GET /v1/pools lists them".to_owned(),
                };
                Self::new(StatusCode::NOT_FOUND, "unknown_pool", message).hint(hint)
            }
            PickError::PolicyFailed { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "policy_failed", message)
                    .hint("GET /v1/pools shows what is wrong with it")
            }
            PickError::LeasesFull => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "leases_full", message)
                    .hint("end leases by DELETE /v1/leases/ID, or pick without one")
            }
            PickError::NobodyEligible { known: 0, .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "nobody_eligible", message).hint(
                    "no machine offers this pool's service; GET /v1/machines shows who reports",
                )
            }
            PickError::NobodyEligible {
                unfit: Some(Unfit { unknown: Some(unknown), .. }), ..
            } => {
                let (label, nearest) = unknown;
                let near = nearest.map(|near| format!(", did you mean {near:?}?"));
                let hint = format!("no target has a label {label:?}{}", near.unwrap_or_default());
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "nobody_eligible", message).hint(hint)
            }
            PickError::NobodyEligible { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "nobody_eligible", message)
                    .hint("GET /v1/machines shows their states and labels")
            }
        }
    }
}

impl From<WishError> for ApiError {
    fn from(error: WishError) -> Self {
        let message = error.to_string();
        match error {
            WishError::Unknown(_) => Self::new(StatusCode::NOT_FOUND, "unknown_policy", message)
                .hint("GET /v1/policies lists them"),
            WishError::Refused(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "policy_refused", message)
                    .hint("nothing was changed; `loadline policy check FILE` shows each step")
            }
            WishError::Overtaken(_) => Self::new(StatusCode::CONFLICT, "overtaken", message).hint(
                "GET /v1/policies/NAME shows what serves; send it again if it is still wanted",
            ),
            WishError::Busy(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
                .hint("GET /v1/policies shows which are `loading`"),
            WishError::NotSigned(_) => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "not_signed",
                message,
            )
            .hint(
                "nothing was changed; send what `loadline policy sign FILE` wrote into FILE.sig \
                     in the header loadline-signature",
            ),
            WishError::NotKept(_) => Self::new(StatusCode::CONFLICT, "not_kept", message)
                .hint("GET /v1/policies/NAME lists those that are; PUT uploads any other"),
            WishError::UnknownPool(_) => Self::new(StatusCode::NOT_FOUND, "unknown_pool", message)
                .hint("GET /v1/pools lists them"),
            WishError::Shadow(_) => Self::new(StatusCode::CONFLICT, "no_shadow", message)
                .hint("GET /v1/pools shows what serves and what is in shadow"),
            WishError::Write { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "cannot_write", message)
                    .hint("the host must be allowed to write its policies folder")
            }
        }
    }
}

impl From<FeedbackError> for ApiError {
    fn from(error: FeedbackError) -> Self {
        let (code, hint) = match error.first {
            Untraced::Pool(_) => ("unknown_pool", "GET /v1/pools lists them".to_owned()),
            Untraced::Machine { .. } => {
                ("unknown_target", "GET /v1/machines lists their targets".to_owned())
            }
            Untraced::Decision(_) => {
                ("unknown_decision", "the last ones are; name the target instead".to_owned())
            }
        };
        let others = if error.all > error.unknown { "; the others are counted" } else { "" };
        Self::new(StatusCode::NOT_FOUND, code, format!("{error}{others}")).hint(hint)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, hint } = self;
        let error = Inner { code, message: &message, hint: hint.as_deref() };
        let mut response = (status, Json(Body { error })).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let value = axum::http::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, value);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let value = axum::http::HeaderValue::from_static(RETRY_AFTER_S);
            response.headers_mut().insert(RETRY_AFTER, value);
        }
        response
    }
}
