//! `weighted`: the sum of each metric, relative to its capacity, times its weight.
//!
//! The default formula. Use it when a load is a mix of a few metrics that each matter by itself.
//!
//! Settings: `weights` (metric name to weight, >= 0; default `{"cpu": 0.5, "memory": 0.5}`),
//! `capacity` (metric name to the value that counts as 1; default 1 each). Every weighted metric is
//! required; a weight of 0 leaves the metric out. Load = sum of weight * value / capacity; a
//! negative value counts as 0.

use std::collections::BTreeMap;

use loadline_sdk::{Formula, MetricUse, Row, export_formula, settings};
use serde::Deserialize;

/// The formula: one factor (weight / capacity) a metric.
#[derive(Debug, Default)]
pub struct Weighted {
    metrics: Vec<String>,
    factors: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    weights: BTreeMap<String, f64>,
    capacity: BTreeMap<String, f64>,
}

impl Default for Settings {
    fn default() -> Self {
        let weights = [("cpu", 0.5), ("memory", 0.5)];
        Self {
            weights: weights.into_iter().map(|(name, weight)| (name.to_owned(), weight)).collect(),
            capacity: BTreeMap::new(),
        }
    }
}

impl Formula for Weighted {
    const SETTINGS_SCHEMA: &'static str = r#"{
        "type": "object", "additionalProperties": false,
        "properties": {
            "weights": {"type": "object", "minProperties": 1,
                "additionalProperties": {"type": "number", "minimum": 0},
                "default": {"cpu": 0.5, "memory": 0.5},
                "description": "how much each metric counts; 0 leaves it out"},
            "capacity": {"type": "object", "default": {},
                "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
                "description": "the value of a weighted metric that counts as 1; 1 where none is named"}
        }
    }"#;

    fn configure(&mut self, settings: &str) -> Result<(), String> {
        let Settings { weights, capacity } = settings::parse(settings)?;
        if let Some(name) = capacity.keys().find(|name| !weights.contains_key(*name)) {
            return Err(format!("capacity.{name}: there is no weights.{name}"));
        }
        for (name, weight) in weights {
            let capacity = capacity.get(&name).copied().unwrap_or(1.0);
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(format!("weights.{name}: {weight} is not a number >= 0"));
            }
            if !(capacity.is_finite() && capacity > 0.0) {
                return Err(format!("capacity.{name}: {capacity} is not a number > 0"));
            }
            if weight > 0.0 {
                self.metrics.push(name);
                self.factors.push(weight / capacity);
            }
        }
        if self.metrics.is_empty() {
            return Err("weights: at least one metric needs a weight > 0".to_owned());
        }
        Ok(())
    }

    fn metrics(&self) -> Vec<MetricUse> {
        self.metrics.iter().cloned().map(MetricUse::required).collect()
    }

    fn load(&mut self, row: Row<'_>) -> f64 {
        let terms = row.values.iter().zip(&self.factors);
        terms.map(|(value, factor)| value.max(0.0) * factor).sum()
    }
}

export_formula!(Weighted);

#[cfg(test)]
mod tests {
    use loadline_sdk::testing::FormulaHost;

    use super::*;

    #[track_caller]
    fn check(settings: &str, metrics: &[(&str, f64)], expected: f64) {
        let mut host = FormulaHost::<Weighted>::new(settings).expect("good settings");
        let load = host.load(metrics);
        assert!((load - expected).abs() < 1e-12, "{load} instead of {expected}");
    }

    #[test]
    fn worked_example_of_the_first_load_balancer() {
        check(
            r#"{"weights":{"a":0.4,"b":0.3,"c":0.2,"d":0.5}}"#,
            &[("a", 15.0), ("b", 32.0), ("c", 19.0), ("d", 10.0)],
            24.4,
        );
    }

    #[test]
    fn defaults_weigh_cpu_and_memory_alike() {
        check("{}", &[("cpu", 0.8), ("memory", 0.2)], 0.5);
    }

    #[test]
    fn capacity_scales_and_weight_zero_leaves_out() {
        check(r#"{"weights":{"rps":2,"cpu":0},"capacity":{"rps":500}}"#, &[("rps", 250.0)], 1.0);
    }

    #[track_caller]
    fn check_refused(settings: &str, named: &str) {
        let error = FormulaHost::<Weighted>::new(settings).map(|_| ()).expect_err("bad settings");
        assert!(error.contains(named), "{error}");
    }

    #[test]
    fn bad_settings_are_named() {
        check_refused(r#"{"weights":{"cpu":-1}}"#, "weights.cpu");
        check_refused(r#"{"weights":{}}"#, "at least one");
        check_refused(r#"{"capacity":{"cpu":0}}"#, "capacity.cpu");
        check_refused(r#"{"capacity":{"rps":1}}"#, "no weights.rps");
        check_refused(r#"{"wieghts":{}}"#, "wieghts");
    }
}
