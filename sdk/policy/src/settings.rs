//! A policy's settings: a JSON object from the host's configuration, into a type of the policy's.

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;

/// The schema of a policy without settings.
pub const NONE_SCHEMA: &str = r#"{"type":"object","additionalProperties":false}"#;

/// Accepts the empty object only.
///
/// # Errors
/// There are settings, and this policy takes none.
pub fn none(settings: &str) -> Result<(), String> {
    let inner = settings.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    match inner {
        Some(inner) if inner.trim().is_empty() => Ok(()),
        _ => Err(format!("this policy takes no settings, got {settings}")),
    }
}

/// Reads the settings into a type with `#[derive(Deserialize)]`; `#[serde(default,
/// deny_unknown_fields)]` on it gives defaults and refuses misspelled keys.
///
/// # Errors
/// Which key is wrong and why.
pub fn parse<T: DeserializeOwned>(settings: &str) -> Result<T, String> {
    serde_json::from_str(settings).map_err(|error| error.to_string())
}

/// The value of the setting `name`, if it is in its range.
///
/// # Errors
/// It is not; the message says what may be.
pub fn in_range(name: &str, value: f64, range: RangeInclusive<f64>) -> Result<f64, String> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("{name}: {value} is not a number from {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn setting_out_of_range_is_named_with_its_range() {
        assert_eq!(super::in_range("spill", 0.0, 0.0..=9.0), Ok(0.0));
        let error = super::in_range("spill", f64::NAN, 0.0..=9.0).expect_err("not a number");
        assert_eq!(error, "spill: NaN is not a number from 0 to 9");
    }

    #[test]
    fn settings_for_a_policy_without_settings_are_refused() {
        assert!(super::none(" { } ").is_ok());
        let error = super::none(r#"{"weight":1}"#).expect_err("no settings");
        assert!(error.contains("weight"), "{error}");
    }
}
