//! `[agent]`: what a machine samples, offers and says of itself.
//!
//! In: the table's keys. Out: checked values with the defaults filled in.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::read::Section;
use super::source::{MetricSource, SourceKind, SystemMetric};
use super::{as_text, preset};
use crate::report::{INTERVAL_MS_MAX, METRICS_MAX, SERVICES_MAX, is_name};

/// Samples of a window at most: an hour at one a second.
pub const WINDOW_MAX: i64 = 3_600;
/// Samples of a metric are at least this far apart: closer ones cost more than they tell.
pub const EVERY_MIN: Duration = Duration::from_millis(10);
/// Time between two reports or samples at most.
pub(super) const EVERY_MAX: Duration = Duration::from_millis(INTERVAL_MS_MAX as u64);
/// The time limit of a page or a command at most: who is slower than this says nothing of now.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// A value is not kept longer than this, unless it never expires.
pub(super) const EXPIRES_MAX: Duration = Duration::from_hours(24);
/// The time limit of a page or a command where none is written.
const USUAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a pushed value counts where nothing is written.
const USUAL_PUSH_EXPIRES: Duration = Duration::from_secs(30);
/// How long a sample counts at least where nothing is written.
const USUAL_EXPIRES_MIN: Duration = Duration::from_secs(10);

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

/// `[[agent.metric]]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricConfig {
    /// Its name in reports.
    pub name: String,
    /// Where its samples come from.
    pub source: MetricSource,
    /// Time between two samples; nothing for pushed ones.
    #[serde(serialize_with = "as_text")]
    pub every: Duration,
    /// Samples averaged; the agent is silent until every window is full. 1: no window.
    pub window: usize,
    /// A sample counts so many times less than the next one, >= 1; 1: all alike.
    pub decay: f64,
    /// What counts as 1: the average is divided by it, > 0.
    pub capacity: f64,
    /// Time from the last good sample until the metric is unknown; 0: never.
    #[serde(serialize_with = "as_text")]
    pub expires: Duration,
    /// Time that a page or a command may take.
    #[serde(serialize_with = "as_text")]
    pub timeout: Duration,
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
    /// Free words; they hide the machine's of the same name.
    pub labels: BTreeMap<String, String>,
    /// Its own metrics; they hide the machine's of the same name.
    #[serde(rename = "metric")]
    pub metrics: Vec<MetricConfig>,
}

impl MetricConfig {
    /// A metric with the defaults of its source.
    #[must_use]
    pub fn new(name: &str, source: MetricSource) -> Self {
        let every = source.usual_every();
        Self {
            name: name.to_owned(),
            every,
            window: source.usual_window(),
            decay: 1.0,
            capacity: 1.0,
            expires: usual_expires(&source, every, USUAL_TIMEOUT),
            timeout: USUAL_TIMEOUT,
            source,
        }
    }
}

/// Three samples in a row may fail, and a short time is no reason to forget.
fn usual_expires(source: &MetricSource, every: Duration, timeout: Duration) -> Duration {
    match source.kind {
        SourceKind::Push => USUAL_PUSH_EXPIRES,
        _ => (3 * every + timeout).clamp(USUAL_EXPIRES_MIN, EXPIRES_MAX),
    }
}

impl ServiceConfig {
    /// A service without metrics or counters.
    #[must_use]
    pub fn new(name: &str, address: &str) -> Self {
        Self {
            name: name.to_owned(),
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
}

impl AgentConfig {
    /// When the first report leaves, if every source gives what it should.
    #[must_use]
    pub fn first_report_after(&self) -> Duration {
        let of_services = self.services.iter().flat_map(|service| &service.metrics);
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
        let of_services = self.services.iter().flat_map(|service| &service.metrics);
        let metrics = self.metrics.iter().chain(of_services).map(|metric| &metric.source);
        let counters = self.services.iter().flat_map(ServiceConfig::counters).flatten();
        metrics.chain(counters).any(|source| source.kind == SourceKind::Push)
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        let metric = |name: &str, what| MetricConfig::new(name, MetricSource::system(what));
        Self {
            machine: host_name(),
            interval: Duration::from_secs(2),
            weight: 1.0,
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
    section.finish();
    config
}

/// A metric; `None` where its source cannot be used, which is noted.
pub(super) fn metric(mut section: Section<'_>) -> Option<MetricConfig> {
    let name = section.required_name("name");
    section.require("source");
    let source: Option<MetricSource> = section.checked("source");
    // The other keys are read in any case, so that their mistakes are told at once.
    let stand_in = || MetricSource::system(SystemMetric::Cpu);
    let usual = MetricConfig::new(&name, source.clone().unwrap_or_else(stand_in));
    let every = section.duration("every", usual.every, EVERY_MIN..=EVERY_MAX);
    let timeout = section.duration("timeout", usual.timeout, EVERY_MIN..=TIMEOUT_MAX);
    let expires = usual_expires(&usual.source, every, timeout);
    let config = MetricConfig {
        every,
        timeout,
        window: section.integer("window", usual.window, 1..=WINDOW_MAX),
        decay: section.number("decay", usual.decay, 1.0..=1e6, "from 1 to 1000000"),
        capacity: section.weight("capacity"),
        expires: section.duration("expires", expires, Duration::ZERO..=EXPIRES_MAX),
        ..usual
    };
    section.finish();
    source.map(|_| config)
}

fn service(mut section: Section<'_>) -> ServiceConfig {
    let name = section.required_name("name");
    let usual = ServiceConfig::new(&name, &section.address("address"));
    preset::fill(&mut section, &usual.address);
    section.hand_down(&["every", "timeout"]);
    let config = ServiceConfig {
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
    section.bound("metric", config.metrics.len(), METRICS_MAX);
    section.finish();
    config
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| is_name(name)).unwrap_or_else(|| "localhost".to_owned())
}
