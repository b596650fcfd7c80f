//! What `[[agent.service]]` and `[[machine]]` say alike: where a service is, and how its load is read.
//!
//! In: the table's keys, with what its preset says filled in. Out: checked values.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::metric::{EVERY_MAX, EVERY_MIN, MetricConfig, TIMEOUT_MAX, USUAL_TIMEOUT, metric};
use super::read::Section;
use super::source::MetricSource;
use super::{as_text, preset};
use crate::report::METRICS_MAX;

/// A service's address, capacity and sources.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Offer {
    /// `host:port` or a URL; empty: the source address of the reports.
    pub address: String,
    /// Capacity relative to the other machines of the service, > 0.
    pub weight: f64,
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
    /// Free words for constraints and failure domains; a service's hide the machine's of the same name.
    pub labels: BTreeMap<String, String>,
    /// What is read; a service's metrics hide the machine's of the same name.
    #[serde(rename = "metric")]
    pub metrics: Vec<MetricConfig>,
}

impl Offer {
    /// Without metrics or counters.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            weight: 1.0,
            every: Duration::from_secs(2),
            timeout: USUAL_TIMEOUT,
            accepted: None,
            completed: None,
            in_flight: None,
            labels: BTreeMap::new(),
            metrics: Vec::new(),
        }
    }

    /// Its counters: requests accepted, completed and in flight.
    #[must_use]
    pub fn counters(&self) -> [Option<&MetricSource>; 3] {
        [self.accepted.as_ref(), self.completed.as_ref(), self.in_flight.as_ref()]
    }

    /// All that is read for it.
    pub(super) fn sources(&self) -> impl Iterator<Item = &MetricSource> {
        let metrics = self.metrics.iter().map(|metric| &metric.source);
        metrics.chain(self.counters().into_iter().flatten())
    }
}

/// Reads these keys of a table.
pub(super) fn offer(section: &mut Section<'_>) -> Offer {
    let usual = Offer::new(&section.address("address"));
    preset::fill(section, &usual.address);
    section.hand_down(&["every", "timeout"]);
    let offer = Offer {
        weight: section.weight("weight"),
        every: section.duration("every", usual.every, EVERY_MIN..=EVERY_MAX),
        timeout: section.duration("timeout", usual.timeout, EVERY_MIN..=TIMEOUT_MAX),
        accepted: section.checked("accepted"),
        completed: section.checked("completed"),
        in_flight: section.checked("in_flight"),
        labels: section.labels("labels"),
        metrics: section.sections("metric").into_iter().flatten().filter_map(metric).collect(),
        ..usual
    };
    section.bound("metric", offer.metrics.len(), METRICS_MAX);
    offer
}
