//! `loadline policy inspect`: what a file is, as text or JSON.

use std::fmt::Write;

use serde_json::json;

use super::{Failure, Subject};
use crate::config::Origin;
use crate::policy::inspect::Inspection;

use crate::policy::schema::Setting;
use crate::policy::steps::Steps;
use crate::policy::{FormulaGuest, Kind, PolicyEngine, StrategyGuest};

/// What to look at.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// What it says of itself when it is started.
struct Own {
    kind: Kind,
    name: String,
    version: String,
    /// JSON Schema, as it gives it.
    schema: String,
    settings: Vec<Setting>,
    /// Name, and fallback where it has one.
    metrics: Vec<(String, Option<f64>)>,
}

/// What is in the file and, if it is a policy, what it says of itself.
pub(super) fn inspect(arguments: &Arguments, origin: &Origin) -> Result<String, Failure> {
    let subject = &arguments.subject;
    let engine = subject.engine(origin)?;
    let bytes = super::content(&subject.file, engine.limits.file_bytes)
        .map_err(|reason| subject.failed(&reason))?;
    let found = Inspection::of(&bytes);
    let own = own(&engine, subject);
    if arguments.json {
        return Ok(as_json(&found, &own).to_string());
    }
    Ok(as_text(subject, &found, &own))
}

fn own(engine: &PolicyEngine, subject: &Subject) -> Result<Own, String> {
    let module = subject.load(engine, &Steps::default())?;
    let (name, settings) = (subject.name(), &*subject.settings);
    let (about, metrics) = match module.kind() {
        Kind::Formula => {
            let guest = FormulaGuest::start(engine, &name, &module, settings)
                .map_err(|error| error.to_string())?;
            let metrics = guest.metrics().iter().map(|used| (used.name.clone(), used.fallback));
            (guest.description.clone(), metrics.collect())
        }
        Kind::Strategy => {
            let guest = StrategyGuest::start(engine, &name, &module, settings, 1)
                .map_err(|error| error.to_string())?;
            (guest.description.clone(), Vec::new())
        }
    };
    let settings = about.schema().settings();
    let (name, version, schema) = (about.name, about.version, about.settings_schema);
    Ok(Own { kind: module.kind(), name, version, schema, settings, metrics })
}

fn as_json(found: &Inspection, own: &Result<Own, String>) -> serde_json::Value {
    let mut all = json!(found);
    all["policy"] = match own {
        Ok(own) => json!({
            "kind": own.kind,
            "name": own.name,
            "version": own.version,
            "metrics": own.metrics.iter()
                .map(|(name, fallback)| json!({"name": name, "fallback": fallback}))
                .collect::<Vec<_>>(),
            "settings_schema": serde_json::from_str(&own.schema).unwrap_or(json!(own.schema)),
        }),
        Err(reason) => json!({"refused": reason}),
    };
    all
}

fn as_text(subject: &Subject, found: &Inspection, own: &Result<Own, String>) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        // A string can always be written to.
        writeln!(text, "{key:<12}{value}").unwrap_or_default();
    };
    line("file", &subject.file.display().to_string());
    match own {
        Ok(own) => line("policy", &format!("{} {} {}", own.kind, own.name, own.version)),
        Err(reason) => line("refused", reason),
    }
    line("form", found.form);
    line("generation", &found.generation);
    line("size", &format!("{} bytes, {} of them code", found.size, found.code_size));
    line("sdk", found.sdk.as_deref().unwrap_or("not named"));
    let list = |of: &[String], none: &str| match of {
        [] => none.to_owned(),
        of => of.join(", "),
    };
    line("made by", &list(&found.producers, "not named"));
    line("imports", &list(&found.imports, "none"));
    let interfaces: std::collections::BTreeSet<_> =
        found.exports.iter().filter_map(|name| Some(name.split_once('#')?.0)).collect();
    let exports: Vec<_> = if interfaces.is_empty() {
        found.exports.iter().map(String::as_str).collect()
    } else {
        interfaces.into_iter().collect()
    };
    let exports: Vec<_> = exports.into_iter().map(str::to_owned).collect();
    line("exports", &list(&exports, "none"));
    if let Some(broken) = &found.broken {
        line("broken", broken);
    }
    if let Ok(own) = own {
        if own.kind == Kind::Formula {
            let shown = |(name, fallback): &(String, Option<f64>)| match fallback {
                Some(fallback) if fallback.is_nan() => format!("{name} (optional)"),
                Some(fallback) => format!("{name} (else {fallback})"),
                None => name.clone(),
            };
            let metrics: Vec<_> = own.metrics.iter().map(shown).collect();
            line("metrics", &metrics.join(", "));
        }
        if own.settings.is_empty() {
            let takes_none = own.schema.contains("additionalProperties");
            line("settings", if takes_none { "none" } else { "not described" });
        }
        for (index, Setting { name, form, about }) in own.settings.iter().enumerate() {
            let colon = if about.is_empty() { "" } else { ": " };
            let key = if index == 0 { "settings" } else { "" };
            line(key, &format!("{name}, {form}{colon}{about}"));
        }
    }
    text.trim_end().to_owned()
}
