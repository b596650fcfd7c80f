//! What a policy says of itself, and whether settings are what it says that it takes.
//!
//! A guest's words: cut, escaped, and believed in nothing but what they say of its own settings.

use std::sync::Arc;

use super::guest::StartError;
use super::room::{CallError, printable};
use super::schema::{Schema, in_one_line};

/// A settings schema at most, in bytes.
const SCHEMA_BYTES_MAX: usize = 64 << 10;

/// What a policy says of itself.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Description {
    /// By its own name.
    pub name: String,
    /// By its own count.
    pub version: String,
    /// What it may be set to; the text is as the policy gave it.
    pub settings_schema: String,
    #[serde(skip)]
    schema: Schema,
}

impl Description {
    /// From the answer of `describe`.
    ///
    /// # Errors
    /// The settings schema is none.
    pub(super) fn new(
        name: &str,
        version: &str,
        settings_schema: String,
    ) -> Result<Self, CallError> {
        let schema = if settings_schema.len() > SCHEMA_BYTES_MAX {
            Err(format!("longer than {SCHEMA_BYTES_MAX} bytes"))
        } else {
            Schema::parse(&settings_schema)
        };
        let schema = schema.map_err(|reason| {
            let what = format!("its settings schema: {}", printable(&reason));
            CallError::BadAnswer { call: "describe", what }
        })?;
        Ok(Self { name: printable(name), version: printable(version), settings_schema, schema })
    }

    /// What it may be set to.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Compares settings, a JSON object, with the schema.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(super) fn check(&self, policy: &Arc<str>, settings: &str) -> Result<(), StartError> {
        let reason = match serde_json::from_str(settings) {
            Ok(settings) => in_one_line(&self.schema.check(&settings)),
            Err(error) => format!("they are not JSON: {error}"),
        };
        if reason.is_empty() {
            return Ok(());
        }
        Err(StartError::Settings { name: Arc::clone(policy), reason })
    }
}
