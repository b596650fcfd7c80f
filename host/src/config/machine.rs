//! `[[machine]]`: machines without an agent, which the host looks at itself.
//!
//! In: the table's keys, with what its preset says filled in. Out: what an agent of that machine would
//! be told to read, less what only a program on it can see.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::agent::{
    AgentConfig, EVERY_MAX, EVERY_MIN, MetricConfig, PushAddress, ServiceConfig, TIMEOUT_MAX,
    metric,
};
use super::read::Section;
use super::source::{MetricSource, SourceKind};
use super::{as_text, preset};
use crate::report::METRICS_MAX;

/// `[[machine]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineConfig {
    /// Its name.
    pub name: String,
    /// `host:port` or a URL.
    pub address: String,
    /// The service that it offers.
    pub service: String,
    /// Capacity relative to other machines, > 0.
    pub weight: f64,
    /// Time between two looks at whether every page answered.
    #[serde(serialize_with = "as_text")]
    pub interval: Duration,
    /// Time between two looks at scraped counters.
    #[serde(serialize_with = "as_text")]
    pub every: Duration,
    /// Time that such a look may take.
    #[serde(serialize_with = "as_text")]
    pub timeout: Duration,
    /// Requests taken, a counter; `None`: not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<MetricSource>,
    /// Requests finished, a counter; `None`: not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<MetricSource>,
    /// Requests open now; `None`: not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<MetricSource>,
    /// Free words for constraints and failure domains.
    pub labels: BTreeMap<String, String>,
    /// What is read of it.
    #[serde(rename = "metric")]
    pub metrics: Vec<MetricConfig>,
}

impl MachineConfig {
    /// What an agent of that machine would be configured with.
    #[must_use]
    pub fn as_agent(&self) -> AgentConfig {
        let machine = self.clone();
        let service = ServiceConfig {
            every: machine.every,
            timeout: machine.timeout,
            accepted: machine.accepted,
            completed: machine.completed,
            in_flight: machine.in_flight,
            ..ServiceConfig::new(&machine.service, &machine.address)
        };
        AgentConfig {
            machine: machine.name,
            interval: machine.interval,
            weight: machine.weight,
            push: PushAddress::Off,
            labels: machine.labels,
            metrics: machine.metrics,
            services: vec![service],
        }
    }
}

pub(super) fn machine(mut section: Section<'_>) -> MachineConfig {
    let name = section.required_name("name");
    section.require("address");
    let address = section.address("address");
    preset::fill(&mut section, &address);
    section.hand_down(&["every", "timeout"]);
    let usual = ServiceConfig::new("default", &address);
    let config = MachineConfig {
        service: section.name("service", usual.name),
        weight: section.weight("weight"),
        interval: section.duration("interval", Duration::from_secs(2), EVERY_MIN..=EVERY_MAX),
        every: section.duration("every", usual.every, EVERY_MIN..=EVERY_MAX),
        timeout: section.duration("timeout", usual.timeout, EVERY_MIN..=TIMEOUT_MAX),
        accepted: section.checked("accepted"),
        completed: section.checked("completed"),
        in_flight: section.checked("in_flight"),
        labels: section.labels("labels"),
        metrics: section.sections("metric").into_iter().flatten().filter_map(metric).collect(),
        name,
        address,
    };
    section.bound("metric", config.metrics.len(), METRICS_MAX);
    let counters = [&config.accepted, &config.completed, &config.in_flight].into_iter().flatten();
    for source in config.metrics.iter().map(|metric| &metric.source).chain(counters) {
        if matches!(source.kind, SourceKind::System(_) | SourceKind::Push) {
            let what = format!(
                "{:?} can only be had by an agent on that machine; here are pages and commands",
                source.to_string()
            );
            section.wrong("metric", &what);
        }
    }
    section.finish();
    config
}
