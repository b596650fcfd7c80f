//! A setup as a scenario writes it: a TOML table in, a checked [`Setup`] or every problem out.

use std::ops::RangeInclusive;

use toml::Table;

use super::Setup;
use crate::config::nearest;

/// Units between two claims at least: they are sent all the time of a run.
const CLAIMS_MIN: f64 = 0.001;

impl Setup {
    /// A checked setup from what a scenario says of it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(in crate::sim) fn read(table: &Table) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let keys = keys();
        for (key, value) in table {
            if !keys.contains(key) {
                let hint = match nearest(key, keys.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("there are {}", keys.join(", ")),
                };
                problems.push(format!("setup.{key}: unknown key, {hint}"));
                continue;
            }
            let alone = Table::from_iter([(key.clone(), value.clone())]);
            if let Err(error) = alone.try_into::<Setup>() {
                problems.push(format!("setup.{key}: {}", error.message()));
            }
        }
        if problems.is_empty()
            && let Ok(setup) = table.clone().try_into::<Setup>()
        {
            problems = out_of_range(&setup);
            if problems.is_empty() {
                return Ok(setup);
            }
        }
        Err(problems)
    }
}

/// The keys that a setup has.
fn keys() -> Vec<String> {
    let all = Setup { incident: Some((0.0, 1.0)), ..Setup::default() };
    let table = Table::try_from(all).unwrap_or_default();
    table.into_iter().map(|(key, _)| key).collect()
}

fn out_of_range(setup: &Setup) -> Vec<String> {
    let mut problems = Vec::new();
    let mut check = |key: &str, value: f64, range: RangeInclusive<f64>| {
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            problems.push(format!("setup.{key}: {value} is not between {low} and {high}"));
        }
    };
    #[expect(clippy::cast_precision_loss, reason = "what is too large stays too large")]
    let count = |value: u64| value as f64;
    check("servers", count(setup.servers as u64), 1.0..=10_000.0);
    check("hosts", count(setup.hosts as u64), 1.0..=1_000.0);
    check("requests", count(setup.requests), 100.0..=1e9);
    check("utilisation", setup.utilisation, 0.01..=2.0);
    check("every", setup.every, 0.001..=1e6);
    check("delay", setup.delay, 0.0..=1e6);
    check("loss", setup.loss, 0.0..=1.0);
    check("service_ms", setup.service_ms, 0.1..=1e6);
    check("slowed_to", setup.slowed_to, 0.0..=1.0);
    check("failures", setup.failures, 0.0..=1.0);
    check("failure_work", setup.failure_work, 0.0..=100.0);
    check("keys", count(setup.keys), 0.0..=1e6);
    check("key_skew", setup.key_skew, 0.0..=10.0);
    check("claims", setup.claims, 0.0..=1e6);
    if let Some((start, end)) = setup.incident {
        check("incident", start, 0.0..=1e9);
        check("incident", end, start..=1e9);
    }
    if setup.claims > 0.0 && setup.claims < CLAIMS_MIN {
        let claims = setup.claims;
        problems.push(format!("setup.claims: {claims} is neither 0 nor at least {CLAIMS_MIN}"));
    }
    problems
}
