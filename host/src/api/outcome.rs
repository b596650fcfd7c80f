//! The body of `POST /v1/outcomes`: one JSON object or an array of them in, outcomes out.
//!
//! Nothing is counted of a body with a mistake; the first one is named by its field, with the place in
//! the array where there is one.

use serde_json::{Map, Value};

use super::error::ApiError;
use crate::pick::feedback::{Feedback, FeedbackTarget, OUTCOMES_MAX};
use crate::pick::health::Outcome;

/// Fields of an outcome.
const FIELDS: [&str; 5] = ["pool", "target", "decision", "latency_us", "ok"];

/// Reads a body.
pub(super) fn read(body: &[u8]) -> Result<Vec<Feedback>, ApiError> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_body(format!("the body is not JSON: {error}")))?;
    match value {
        Value::Array(values) if values.len() > OUTCOMES_MAX => {
            let message = format!("{} outcomes in one call, {OUTCOMES_MAX} at most", values.len());
            Err(ApiError::bad_body(message))
        }
        Value::Array(values) => {
            let one = |(place, value)| {
                feedback(value).map_err(|what| ApiError::bad_body(format!("[{place}].{what}")))
            };
            values.into_iter().enumerate().map(one).collect()
        }
        one => Ok(vec![feedback(one).map_err(ApiError::bad_body)?]),
    }
}

fn feedback(value: Value) -> Result<Feedback, String> {
    let Value::Object(mut fields) = value else {
        return Err("target: an outcome is an object".to_owned());
    };
    if let Some(unknown) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        return Err(format!("{unknown}: unknown field; known are {}", FIELDS.join(", ")));
    }
    let [pool, target, decision] =
        ["pool", "target", "decision"].map(|field| text(&mut fields, field));
    let target = match (pool?, target?, decision?) {
        (pool, Some(machine), None) => {
            FeedbackTarget::Machine { pool: pool.unwrap_or_default(), machine }
        }
        (None, None, Some(decision)) => FeedbackTarget::Decision(decision),
        (Some(_), None, Some(_)) => return Err("pool: a decision has its own".to_owned()),
        (_, Some(_), Some(_)) => return Err("decision: write it or target, not both".to_owned()),
        (_, None, None) => return Err("target: is missing, and so is decision".to_owned()),
    };
    let latency_us = fields.get("latency_us").and_then(Value::as_u64);
    let latency_us = latency_us.ok_or("latency_us: must be a whole number of microseconds")?;
    let ok = fields.get("ok").and_then(Value::as_bool).ok_or("ok: must be true or false")?;
    let latency_us = u32::try_from(latency_us).unwrap_or(u32::MAX);
    Ok(Feedback { target, outcome: Outcome { latency_us, ok } })
}

fn text(fields: &mut Map<String, Value>, field: &str) -> Result<Option<String>, String> {
    match fields.remove(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{field}: must be a string")),
    }
}
