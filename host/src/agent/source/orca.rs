//! ORCA load reports (Open Request Cost Aggregation): the header `endpoint-load-metrics` of an answer,
//! or its body, in; the wanted fields out.
//!
//! Two forms are read: `TEXT name=value, named_metrics.foo=value` and `JSON {…}`, the latter with the
//! field names of the protocol or in camel case. A value that is negative, not finite or said twice
//! is of no use; the others count.

use std::io::Read;

use serde_json::Value;

use super::Reading;
use super::http_json::whole;

/// The header of a report.
pub(super) const HEADER: &str = "endpoint-load-metrics";
/// Asks a server that only reports on demand for a report, as vLLM does.
pub(super) const FORMAT_HEADER: &str = "endpoint-load-metrics-format";
/// A report in a body is a few lines.
const BYTES_MAX: u64 = 1 << 20;

/// One reading a field.
///
/// # Errors
/// There is no report in the answer.
pub(super) fn read(
    header: Option<&[u8]>,
    body: impl Read,
    fields: &[Box<str>],
) -> Result<Vec<Reading>, String> {
    let text = match header {
        Some(header) => header.to_vec(),
        None => whole(body, BYTES_MAX)?,
    };
    let text = String::from_utf8_lossy(&text);
    let values = values(text.trim())?;
    Ok(fields.iter().map(|field| reading(&values, field)).collect())
}

/// Names with their values, NaN for what is not a number.
fn values(text: &str) -> Result<Vec<(String, f64)>, String> {
    if let Some(text) = text.strip_prefix("TEXT ") {
        return Ok(text.split(',').filter_map(pair).collect());
    }
    let json = text.strip_prefix("JSON ").unwrap_or(text);
    if !json.starts_with('{') {
        let what =
            format!("the answer has no header {HEADER} with TEXT or JSON, nor is its body one");
        return Err(what);
    }
    let report: Value = serde_json::from_str(json).map_err(|error| format!("not JSON: {error}"))?;
    let mut values = Vec::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        let name = snake_case(name);
        match value {
            Value::Object(map) => {
                values.extend(
                    map.iter().map(|(key, value)| (format!("{name}.{key}"), number(value))),
                );
            }
            value => values.push((name, number(value))),
        }
    }
    Ok(values)
}

fn pair(text: &str) -> Option<(String, f64)> {
    let (name, value) = text.split_once(['=', ':'])?;
    Some((name.trim().to_owned(), value.trim().parse().unwrap_or(f64::NAN)))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// `cpuUtilization` is JSON's name of `cpu_utilization`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

fn reading(values: &[(String, f64)], field: &str) -> Reading {
    let mut found = values.iter().filter(|(name, _)| *name == *field);
    match (found.next(), found.next()) {
        (None, _) => Reading::Useless(format!("the report has no {field}")),
        (Some(_), Some(_)) => Reading::Useless(format!("the report says {field} twice")),
        (Some((_, value)), None) if value.is_finite() && *value >= 0.0 => Reading::Value(*value),
        (Some((_, value)), None) => {
            Reading::Useless(format!("{field} is {value}, not a number >= 0"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: Option<&str>, body: &str, field: &str, expected: Option<f64>) {
        let header = header.map(str::as_bytes);
        let readings = read(header, body.as_bytes(), &[field.into()]).expect("a report");
        match (&readings[0], expected) {
            (Reading::Value(value), Some(expected)) => assert!((value - expected).abs() < 1e-12),
            (Reading::Useless(_), None) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_and_json_say_the_same() {
        let text = Some(
            "TEXT cpu_utilization=0.3, named_metrics.kv_cache:0.12,utilization.x=NaN,eps=-1,rps=1,rps=2",
        );
        let json =
            Some(r#"JSON {"cpu_utilization":0.3,"named_metrics":{"kv_cache":0.12},"eps":-1}"#);
        for report in [text, json] {
            check(report, "", "cpu_utilization", Some(0.3));
            check(report, "", "named_metrics.kv_cache", Some(0.12));
            check(report, "", "eps", None);
            check(report, "", "mem_utilization", None);
        }
        check(text, "", "utilization.x", None);
        check(text, "", "rps", None);
        check(None, r#"{"applicationUtilization": 1.5}"#, "application_utilization", Some(1.5));
        check(None, "TEXT mem_utilization=0.5\r\n", "mem_utilization", Some(0.5));
    }

    #[test]
    fn an_answer_without_a_report_says_what_is_missing() {
        let error = read(None, &b"OK"[..], &["eps".into()]).expect_err("no report");
        assert!(error.contains("endpoint-load-metrics"), "{error}");
    }
}
