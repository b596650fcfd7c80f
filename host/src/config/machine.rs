//! `[[machine]]`: machines without an agent, which the host looks at itself.
//!
//! In: the table's keys. Out: what an agent of that machine would be told to read, less what only a
//! program on it can see.

use std::time::Duration;

use serde::Serialize;

use super::agent::{AgentConfig, PushAddress, ServiceConfig};
use super::as_text;
use super::metric::{EVERY_MAX, EVERY_MIN};
use super::offer::{Offer, offer};
use super::read::Section;
use super::source::SourceKind;
use crate::report::State;

/// `[[machine]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineConfig {
    /// Its name.
    pub name: String,
    /// The service that it offers.
    pub service: String,
    /// Time between two looks at whether every page answered.
    #[serde(serialize_with = "as_text")]
    pub interval: Duration,
    /// Whether it takes work; never [`State::Leaving`].
    pub state: State,
    /// Where it is, and what is read of it.
    #[serde(flatten)]
    pub offer: Offer,
}

impl MachineConfig {
    /// What an agent of that machine would be configured with.
    #[must_use]
    pub fn as_agent(&self) -> AgentConfig {
        let Offer { weight, labels, metrics, .. } = self.offer.clone();
        let usual = Offer::new(&self.offer.address);
        let counted = Offer {
            weight: usual.weight,
            labels: usual.labels,
            metrics: usual.metrics,
            ..self.offer.clone()
        };
        AgentConfig {
            machine: self.name.clone(),
            interval: self.interval,
            weight,
            state: self.state,
            push: PushAddress::Off,
            labels,
            metrics,
            services: vec![ServiceConfig {
                name: self.service.clone(),
                replica: None,
                enabled: true,
                offer: counted,
            }],
        }
    }
}

pub(super) fn machine(mut section: Section<'_>) -> MachineConfig {
    let name = section.required_name("name");
    section.require("address");
    let config = MachineConfig {
        name,
        service: section.name("service", "default".to_owned()),
        interval: section.duration("interval", Duration::from_secs(2), EVERY_MIN..=EVERY_MAX),
        state: section.checked("state").unwrap_or(State::Ready),
        offer: offer(&mut section),
    };
    for source in config.offer.sources() {
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
