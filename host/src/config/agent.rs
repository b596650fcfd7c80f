//! `[agent]`: what a machine samples, offers and says of itself.
//!
//! In: the table's keys. Out: checked values with the defaults filled in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::as_text;
use super::metric::{EVERY_MAX, EVERY_MIN, MetricConfig, metric};
use super::offer::{Offer, offer};
use super::read::Section;
use super::source::{MetricSource, SourceKind, SystemMetric};
use crate::report::{LABELS_MAX, METRICS_MAX, SERVICES_MAX, State, is_name};

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
    /// Whether it takes work; never [`State::Leaving`].
    pub state: State,
    /// Where applications push metrics and services' counters.
    pub push: PushAddress,
    /// Free words for constraints and failure domains.
    pub labels: BTreeMap<String, String>,
    /// What is sampled.
    #[serde(rename = "metric")]
    pub metrics: Vec<MetricConfig>,
    /// What is offered; empty: the service `default`.
    #[serde(rename = "service")]
    pub services: Vec<ServiceConfig>,
}

/// `agent.push`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushAddress {
    /// Nowhere: `"off"`.
    Off,
    /// A loopback address and port.
    Tcp(SocketAddr),
    /// A Unix socket: `"unix:/run/loadline/push"`.
    Unix(PathBuf),
}

/// `[[agent.service]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceConfig {
    /// Names the pool's service.
    pub name: String,
    /// Tells it from others of its name on this machine; `None`: there is no other. Hosts see a replica as a
    /// machine of its own, `MACHINE:REPLICA`.
    pub replica: Option<String>,
    /// Whether it is offered.
    pub enabled: bool,
    /// Where it is, and how its load is read.
    #[serde(flatten)]
    pub offer: Offer,
}

impl ServiceConfig {
    /// A service without metrics or counters.
    #[must_use]
    pub fn new(name: &str, address: &str) -> Self {
        let offer = Offer::new(address);
        Self { name: name.to_owned(), replica: None, enabled: true, offer }
    }

    /// Its name on this machine: `NAME`, or `NAME:REPLICA`.
    #[must_use]
    pub fn id(&self) -> String {
        self.replica.as_deref().map_or_else(|| self.name.clone(), |of| under(&self.name, of))
    }
}

impl AgentConfig {
    /// The names under which it reports: the machine's, if anything of it is no replica, and one for each
    /// replica, with that.
    #[must_use]
    pub fn machines(&self) -> Vec<(Option<&str>, String)> {
        let replicas: BTreeSet<_> = self.services.iter().map(|of| of.replica.as_deref()).collect();
        let replicas = if replicas.is_empty() { [None].into() } else { replicas };
        let name = |of: Option<&str>| {
            of.map_or_else(|| self.machine.clone(), |of| under(&self.machine, of))
        };
        replicas.into_iter().map(|of| (of, name(of))).collect()
    }

    /// When the first report leaves, if every source gives what it should.
    #[must_use]
    pub fn first_report_after(&self) -> Duration {
        let of_services = self.services.iter().flat_map(|service| &service.offer.metrics);
        let waits = self.metrics.iter().chain(of_services).map(|metric| match metric.window {
            _ if metric.source.kind == SourceKind::Push => Duration::ZERO,
            1 => metric.every.min(self.interval),
            window => metric.every.saturating_mul(u32::try_from(window).unwrap_or(u32::MAX)),
        });
        waits.max().unwrap_or(Duration::ZERO)
    }

    /// Whether anything is pushed.
    #[must_use]
    pub fn takes_pushes(&self) -> bool {
        let of_services = self.services.iter().flat_map(|service| service.offer.sources());
        let mut sources = self.metrics.iter().map(|metric| &metric.source).chain(of_services);
        sources.any(|source| source.kind == SourceKind::Push)
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        let metric = |name: &str, what| MetricConfig::new(name, MetricSource::system(what));
        Self {
            machine: host_name(),
            interval: Duration::from_secs(2),
            weight: 1.0,
            state: State::Ready,
            push: PushAddress::Off,
            labels: BTreeMap::new(),
            metrics: vec![metric("cpu", SystemMetric::Cpu), metric("memory", SystemMetric::Memory)],
            services: Vec::new(),
        }
    }
}

impl FromStr for PushAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forms = "\"127.0.0.1:14100\", \"unix:/path\" or \"off\"";
        if text == "off" {
            return Ok(Self::Off);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            let fits = path.is_absolute();
            return if fits {
                Ok(Self::Unix(path))
            } else {
                Err(format!("{text:?} is not {forms}"))
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| format!("{text:?} is not {forms}"))?;
        if address.ip().is_loopback() {
            return Ok(Self::Tcp(address));
        }
        let what = "anyone on the network could change what this machine reports";
        Err(format!("{address} is not a loopback address, and {what}; write {forms}"))
    }
}

impl fmt::Display for PushAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for PushAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

pub(super) fn agent(mut section: Section<'_>) -> AgentConfig {
    let default = AgentConfig::default();
    let config = AgentConfig {
        machine: section.name("machine", default.machine),
        interval: section.duration("interval", default.interval, EVERY_MIN..=EVERY_MAX),
        weight: section.weight("weight"),
        state: section.checked("state").unwrap_or(default.state),
        push: section.checked("push").unwrap_or(default.push),
        labels: section.labels("labels"),
        metrics: match section.sections("metric") {
            None => default.metrics,
            Some(sections) => sections.into_iter().filter_map(metric).collect(),
        },
        services: section.sections("service").into_iter().flatten().map(service).collect(),
    };
    if config.push == PushAddress::Off && config.takes_pushes() {
        let what = "is off, and there are metrics or counters whose source is push: write where \
                    applications push them, \"127.0.0.1:14100\" or \"unix:/run/loadline/push\"";
        section.wrong("push", what);
    }
    section.bound("metric", config.metrics.len(), METRICS_MAX);
    section.bound("service", config.services.len(), SERVICES_MAX);
    let machines = config.machines();
    let has_replicas = machines.iter().any(|(replica, _)| replica.is_some());
    // Those of replicas have one more.
    if has_replicas && config.labels.len() == LABELS_MAX {
        section.bound("labels", LABELS_MAX + 1, LABELS_MAX);
    }
    if let Some((_, long)) = machines.iter().find(|(_, machine)| !is_name(machine)) {
        section
            .wrong("service", &format!("{long:?} is too long for the name of a replica's machine"));
    }
    section.finish();
    config
}

fn service(mut section: Section<'_>) -> ServiceConfig {
    let name = section.required_name("name");
    let enabled = section.boolean("enabled", true);
    let replica = section.name_or_none("replica");
    let config = ServiceConfig { name, replica, enabled, offer: offer(&mut section) };
    section.finish();
    config
}

fn under(name: &str, replica: &str) -> String {
    format!("{name}:{replica}")
}

/// The system's name of this machine; `localhost` where it has none to use.
pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| is_name(name)).unwrap_or_else(|| "localhost".to_owned())
}
