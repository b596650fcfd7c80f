//! `GET /v1/refused`: whose reports were refused lately, and why.

use serde::Serialize;

use crate::pick::intake;

/// Reports of one source that were refused for one reason.
#[derive(Serialize)]
pub(super) struct Refusal {
    source: String,
    /// In whose name, where the report could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Box<str>>,
    reason: &'static str,
    /// What was wrong with a recent one.
    detail: String,
    count: u64,
    last_ms_ago: u64,
}

impl Refusal {
    pub(super) fn of(kind: &intake::Kind, refusal: &intake::Refusal, now_ms: u64) -> Self {
        let (source, reason, machine) = kind;
        Self {
            source: source.to_string(),
            machine: machine.clone(),
            reason,
            detail: refusal.detail.clone(),
            count: refusal.count,
            last_ms_ago: now_ms.saturating_sub(refusal.last_ms),
        }
    }
}
