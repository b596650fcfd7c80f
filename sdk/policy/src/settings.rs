//! A policy's settings: a JSON object from the host's configuration, into a type of the policy's.

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

#[cfg(test)]
mod tests {
    #[test]
    fn settings_for_a_policy_without_settings_are_refused() {
        assert!(super::none(" { } ").is_ok());
        let error = super::none(r#"{"weight":1}"#).expect_err("no settings");
        assert!(error.contains("weight"), "{error}");
    }
}
