//! `[agent]`: what a machine samples, offers and says of itself.
//!
//! In: the table's keys. Out: checked values with the defaults filled in.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::as_text;
use super::read::Section;
use crate::report::{INTERVAL_MS_MAX, is_name};

/// Samples of a window at most: an hour at one a second.
pub const WINDOW_MAX: i64 = 3_600;
/// Samples of a metric are at least this far apart: closer ones cost more than they tell.
pub const EVERY_MIN: Duration = Duration::from_millis(10);

/// `[agent]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentConfig {
    /// This machine's name in reports.
    pub machine: String,
    /// Time between two reports.
    #[serde(serialize_with = "as_text")]
    pub interval: Duration,
    /// Capacity relative to other machines, > 0.
    pub weight: f64,
    /// Free words for constraints and failure domains.
    pub labels: BTreeMap<String, String>,
    /// What is sampled.
    #[serde(rename = "metric")]
    pub metrics: Vec<MetricConfig>,
    /// What is offered; empty: the service `default`.
    #[serde(rename = "service")]
    pub services: Vec<ServiceConfig>,
}

/// `[[agent.metric]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricConfig {
    /// Its name in reports.
    pub name: String,
    /// Where its samples come from.
    pub source: MetricSource,
    /// Time between two samples.
    #[serde(serialize_with = "as_text")]
    pub every: Duration,
    /// Samples averaged; the agent is silent until every window is full.
    pub window: usize,
}

/// What an agent can sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum MetricSource {
    /// Share of all cores that is busy, 0 to 1.
    #[serde(rename = "system:cpu")]
    SystemCpu,
    /// Share of memory that is not available, 0 to 1.
    #[serde(rename = "system:memory")]
    SystemMemory,
}

impl MetricSource {
    const ALL: [(&str, Self); 2] =
        [("system:cpu", Self::SystemCpu), ("system:memory", Self::SystemMemory)];
}

/// `[[agent.service]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceConfig {
    /// Names the pool's service.
    pub name: String,
    /// `host:port` or a URL; empty: the source address of the reports.
    pub address: String,
    /// Capacity relative to the other machines of the service, > 0.
    pub weight: f64,
}

impl Default for AgentConfig {
    fn default() -> Self {
        let metric = |name: &str, source| MetricConfig {
            name: name.to_owned(),
            source,
            every: Duration::from_millis(500),
            window: 5,
        };
        Self {
            machine: host_name(),
            interval: Duration::from_secs(2),
            weight: 1.0,
            labels: BTreeMap::new(),
            metrics: vec![
                metric("cpu", MetricSource::SystemCpu),
                metric("memory", MetricSource::SystemMemory),
            ],
            services: Vec::new(),
        }
    }
}

pub(super) fn agent(mut section: Section<'_>) -> AgentConfig {
    let default = AgentConfig::default();
    let longest = Duration::from_millis(INTERVAL_MS_MAX.into());
    let config = AgentConfig {
        machine: section.name("machine", default.machine),
        interval: section.duration("interval", default.interval, EVERY_MIN..=longest),
        weight: section.weight("weight"),
        labels: section.labels("labels"),
        metrics: match section.sections("metric") {
            None => default.metrics,
            Some(sections) => sections.into_iter().map(metric).collect(),
        },
        services: section.sections("service").into_iter().flatten().map(service).collect(),
    };
    section.finish();
    config
}

fn metric(mut section: Section<'_>) -> MetricConfig {
    let longest = Duration::from_millis(INTERVAL_MS_MAX.into());
    let config = MetricConfig {
        name: section.required_name("name"),
        source: section.choice("source", &MetricSource::ALL),
        every: section.duration("every", Duration::from_millis(500), EVERY_MIN..=longest),
        window: section.integer("window", 5, 1..=WINDOW_MAX),
    };
    section.finish();
    config
}

fn service(mut section: Section<'_>) -> ServiceConfig {
    let config = ServiceConfig {
        name: section.required_name("name"),
        address: section.address("address"),
        weight: section.weight("weight"),
    };
    section.finish();
    config
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| is_name(name)).unwrap_or_else(|| "localhost".to_owned())
}
