//! `[[pool]]`: whose targets, under which policies, and when targets are left out.

use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::as_text;
use super::read::Section;
#[cfg(feature = "host")]
use super::schedule::{self, EntryConfig};
use super::settings::settings;
use super::shadow::{self, ShadowConfig};
#[cfg(feature = "host")]
use crate::calendar::Zone;

/// Failures in a row that may be asked for, at most.
pub const FAILURES_MAX: i64 = 1_000_000;
/// An ejection at least: shorter ones would not be noticed.
pub const EJECTION_MIN: Duration = Duration::from_millis(10);
/// An ejection at most, however often the target failed.
pub const EJECTION_MAX: Duration = Duration::from_secs(300);
/// A slow start at most.
pub const SLOW_START_MAX: Duration = Duration::from_hours(1);

/// `[[pool]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolConfig {
    /// What applications ask for.
    pub name: String,
    /// The service whose targets these are.
    pub service: String,
    /// The policy that computes loads.
    pub formula: String,
    /// Its settings.
    pub formula_settings: serde_json::Value,
    /// The policy that chooses.
    pub strategy: String,
    /// Its settings.
    pub strategy_settings: serde_json::Value,
    /// What happens when the strategy fails.
    pub on_fault: OnFault,
    /// The label that names what fails together, as a zone or a rack; `None`: targets fail one by one.
    #[serde(serialize_with = "or_empty")]
    pub failure_domain: Option<String>,
    /// The zone whose clocks the schedule goes by.
    #[cfg(feature = "host")]
    pub time_zone: Zone,
    /// Other policies for times of day; empty: always these.
    #[cfg(feature = "host")]
    pub schedule: Vec<EntryConfig>,
    /// A policy that is tried beside one of these; `None`: none is.
    pub shadow: Option<ShadowConfig>,
    /// When targets are left out, and how they come back.
    pub health: HealthConfig,
}

/// What happens when a policy fails. Its guest is rebuilt in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFault {
    /// Native answers meanwhile, however often.
    Native,
    /// Native answers meanwhile; if it fails too often, the last good generation serves instead.
    #[default]
    LastGood,
    /// The same, but requests are refused where native code would have answered.
    Refuse,
}

impl FromStr for OnFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "last-good" => Ok(Self::LastGood),
            "native" => Ok(Self::Native),
            "refuse" => Ok(Self::Refuse),
            other => Err(format!("{other:?} is none of \"last-good\", \"native\" and \"refuse\"")),
        }
    }
}

/// `[pool.health]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HealthConfig {
    /// Failed outcomes in a row after which a target is ejected; 0: never for that.
    pub consecutive_failures: u32,
    /// Length of a target's first ejection; the second is twice as long, and so on.
    #[serde(serialize_with = "as_text")]
    pub ejection_time: Duration,
    /// Share of the pool's live targets that may be ejected at once, but one at least; 0: none.
    pub max_ejected: f64,
    /// Share of the live targets that must be left; with fewer, ejections are ignored, and with none
    /// in any case.
    pub panic_threshold: f64,
    /// Time in which a target that joins or returns warms up; 0: it is warm at once.
    #[serde(serialize_with = "as_text")]
    pub slow_start: Duration,
    /// Share of its work with which it starts, above 0 to 1.
    pub slow_start_min: f64,
    /// Curve of its rise, > 0: 1 is a straight line, above 1 rises early, below 1 late.
    pub slow_start_aggression: f64,
}

impl PoolConfig {
    /// A pool of the service of the same name, under the default policies.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            service: name.to_owned(),
            formula: "weighted".to_owned(),
            formula_settings: serde_json::json!({}),
            strategy: "balanced".to_owned(),
            strategy_settings: serde_json::json!({}),
            on_fault: OnFault::default(),
            failure_domain: None,
            #[cfg(feature = "host")]
            time_zone: Zone::default(),
            #[cfg(feature = "host")]
            schedule: Vec::new(),
            shadow: None,
            health: HealthConfig::default(),
        }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            ejection_time: Duration::from_secs(30),
            max_ejected: 0.1,
            panic_threshold: 0.5,
            slow_start: Duration::from_secs(30),
            slow_start_min: 0.1,
            slow_start_aggression: 1.0,
        }
    }
}

pub(super) fn pools(sections: Option<Vec<Section<'_>>>) -> Vec<PoolConfig> {
    let mut pools: Vec<_> = sections.into_iter().flatten().map(pool).collect();
    if !pools.iter().any(|pool| pool.name == "default") {
        pools.insert(0, PoolConfig::new("default"));
    }
    pools
}

fn pool(mut section: Section<'_>) -> PoolConfig {
    let name = section.required_name("name");
    let default = PoolConfig::new(&name);
    #[cfg_attr(not(feature = "host"), expect(unused_mut, reason = "a schedule is a host's"))]
    let mut config = PoolConfig {
        service: section.name("service", name),
        formula: section.policy_name("formula", default.formula),
        formula_settings: settings(&mut section, "formula_settings"),
        strategy: section.policy_name("strategy", default.strategy),
        strategy_settings: settings(&mut section, "strategy_settings"),
        on_fault: section.checked("on_fault").unwrap_or_default(),
        failure_domain: section.name_or_none("failure_domain"),
        shadow: shadow::shadow(&mut section),
        health: section.section("health").map_or(default.health, health),
        name: default.name,
        #[cfg(feature = "host")]
        time_zone: default.time_zone,
        #[cfg(feature = "host")]
        schedule: default.schedule,
    };
    #[cfg(feature = "host")]
    schedule::schedule(&mut section, &mut config);
    #[cfg(not(feature = "host"))]
    for key in ["time_zone", "schedule"] {
        section.skip(key);
    }
    section.finish();
    config
}

fn health(mut section: Section<'_>) -> HealthConfig {
    let default = HealthConfig::default();
    let ejection = EJECTION_MIN..=EJECTION_MAX;
    let slow_start = Duration::ZERO..=SLOW_START_MAX;
    let config = HealthConfig {
        consecutive_failures: section.integer(
            "consecutive_failures",
            default.consecutive_failures,
            0..=FAILURES_MAX,
        ),
        ejection_time: section.duration("ejection_time", default.ejection_time, ejection),
        max_ejected: section.share("max_ejected", default.max_ejected),
        panic_threshold: section.share("panic_threshold", default.panic_threshold),
        slow_start: section.duration("slow_start", default.slow_start, slow_start),
        slow_start_min: section.part("slow_start_min", default.slow_start_min),
        slow_start_aggression: section.weight("slow_start_aggression"),
    };
    section.finish();
    config
}

fn or_empty<S: Serializer>(name: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_deref().unwrap_or_default())
}
