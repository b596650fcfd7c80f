//! The configuration file: TOML text in, a checked [`Config`] or every problem at once out.
//!
//! Durations are `Duration` here and `"500ms"` in the file; ratios are 0 to 1. No `Option` means
//! "default": defaults are filled in, so that `loadline config print` shows what is in force. The
//! environment is not read here but handed to an [`Origin`], and secrets are named by file, never held.

mod agent;
mod change;
mod document;
mod host;
mod keys;
mod limits;
mod machine;
mod metric;
mod offer;
mod origin;
mod pool;
mod preset;
mod read;
mod relay;
mod reports;
#[cfg(feature = "host")]
mod schedule;
mod settings;
mod shadow;
mod signatures;
mod source;
mod state;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::report::gate::SKEW_MAX;
use crate::report::is_name;
use agent::agent;
pub(crate) use agent::host_name;
pub use agent::{AgentConfig, PushAddress, ServiceConfig};
pub use change::{Change, changes};
use document::Document;
pub use document::{Place, VARIABLE_PREFIX};
pub use host::HostConfig;
use host::host;
pub use keys::{AllowConfig, KeyConfig, Secret, SecretSource};
pub use limits::{LimitsConfig, PolicyConfig, Wasi};
pub use machine::MachineConfig;
use machine::machine;
pub use metric::{EVERY_MIN, MetricConfig, TIMEOUT_MAX, WINDOW_MAX};
pub use offer::Offer;
pub use origin::{Origin, Role, USUAL_FILE, Written};
use pool::pools;
pub use pool::{
    EJECTION_MAX, EJECTION_MIN, FAILURES_MAX, HealthConfig, OnFault, PoolConfig, SLOW_START_MAX,
};
pub use preset::PRESETS;
use read::Section;
pub(crate) use read::nearest;
pub use relay::RelayConfig;
pub use reports::{Carrier, Destination, Groups, PORT};
#[cfg(feature = "host")]
pub use schedule::EntryConfig;
pub use shadow::{PROMOTE_FAULTS_MAX, PROMOTE_P99, PROMOTE_PICKS, PromoteConfig, ShadowConfig};
pub use signatures::{KeyId, PublicKey, SignatureMode, SignaturesConfig};
#[cfg(feature = "host")]
pub(crate) use signatures::{from_hex, hex};
pub use source::{
    Fold, Label, Labels, MetricSource, NginxField, Of, Part, Query, Selector, SourceKind,
    SystemMetric, SystemSource, Term,
};
pub use state::{ConfigState, InForce};

/// The annotated file with every key and its default.
pub const DEFAULT_FILE: &str = include_str!("../../config/loadline.toml");
/// Missed reports before a machine is gone, at most.
pub const MISS_LIMIT_MAX: i64 = 1_000;
/// Picks whose reasons are remembered, at most: each takes up to 4 KB.
pub const DECISIONS_MAX: i64 = 65_536;
/// How long a removed policy may be used on, at most.
pub const REMOVAL_GRACE_MAX: Duration = Duration::from_hours(1);

/// Bytes of a receive buffer at least: below, the kernel takes its own minimum.
pub const RECEIVE_BUFFER_MIN: i64 = 4_096;
/// Bytes of a receive buffer at most: half of what the kernel can count.
pub const RECEIVE_BUFFER_MAX: i64 = 1 << 30;
/// The time without multicast after which a host says so, at most.
pub const SILENCE_MAX: Duration = Duration::from_hours(24);

/// What one process does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Samples this machine and reports; `None`: it does not.
    pub agent: Option<AgentConfig>,
    /// How reports travel.
    pub reports: ReportsConfig,
    /// Where `loadline relay` sends what it hears.
    pub relay: Option<RelayConfig>,
    /// Receives reports and answers; `None`: it does not.
    pub host: Option<HostConfig>,
    /// Machines without an agent, which the host looks at itself.
    #[serde(rename = "machine")]
    pub machines: Vec<MachineConfig>,
    /// The pools, `default` always among them.
    #[serde(rename = "pool")]
    pub pools: Vec<PoolConfig>,
}

/// `[reports]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportsConfig {
    /// Which farm's reports count; two farms may share a group.
    pub farm: String,
    /// Multicast groups, and the port of all reports.
    #[serde(flatten)]
    pub groups: Groups,
    /// Interfaces by name; empty: every one that can multicast.
    pub interfaces: Vec<String>,
    /// Hops of a multicast report; 0: it stays on this machine, 1: on the local network.
    pub ttl: u8,
    /// Where reports go besides the groups.
    pub send_to: Vec<Destination>,
    /// Whether a host takes reports by TCP.
    pub tcp: bool,
    /// Bytes of a host's receive buffer, for each socket; the kernel may give less.
    pub receive_buffer: usize,
    /// A host says it when no multicast came for so long; zero: never.
    #[serde(serialize_with = "as_text")]
    pub silence: Duration,
    /// Secrets of signed reports, the signing one first; empty: unsigned.
    pub keys: Vec<KeyConfig>,
    /// How far the stamp of a signed report may be from this machine's clock; 0: not looked at.
    #[serde(serialize_with = "as_text")]
    pub max_skew: Duration,
    /// Where machines may report from; the first one that fits a name counts.
    pub allow: Vec<AllowConfig>,
}

impl ReportsConfig {
    /// Whether a host hears the same datagrams by both; what it makes of them may differ.
    #[must_use]
    pub fn is_heard_like(&self, other: &Self) -> bool {
        let Self { farm, ttl, send_to, silence, keys, max_skew, allow, .. } = self.clone();
        *self == Self { farm, ttl, send_to, silence, keys, max_skew, allow, ..other.clone() }
    }

    /// Whether nobody but this machine is heard.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.interfaces == ["lo"]
    }

    /// Whether an agent sends to the same places by both; what it sends may differ.
    #[must_use]
    pub fn is_sent_like(&self, other: &Self) -> bool {
        let Self { farm, tcp, receive_buffer, silence, keys, max_skew, allow, .. } = self.clone();
        let rest = other.clone();
        *self == Self { farm, tcp, receive_buffer, silence, keys, max_skew, allow, ..rest }
    }
}

/// Tells what secret files hold from what they held, those for each purpose by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secrets {
    /// Of signed reports.
    pub reports: [u8; 32],
    /// Of calls that change something.
    pub admin: [u8; 32],
}

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key with its path, `agent.metric[0].every`; empty: the file as a whole.
    pub key: String,
    /// Where it was written; `None`: nowhere.
    pub place: Option<Place>,
    /// What is wrong and what would be right.
    pub what: String,
}

impl Problem {
    /// A problem of a key.
    pub(crate) fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), place: None, what: what.into() }
    }

    /// A problem of the file as a whole.
    pub(crate) fn of_all(what: impl Into<String>) -> Self {
        Self::new("", what)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.key.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.key, self.what)
    }
}

/// Everything wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// Where it was read; `None`: from no file.
    pub file: Option<PathBuf>,
    /// In the order of the file's sections.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            match (&problem.place, &self.file) {
                (Some(Place::Line(line)), Some(file)) => {
                    write!(f, "{end}{}:{line}: {problem}", file.display())?;
                }
                (Some(Place::Variable(name)), _) => write!(f, "{end}{name}: {problem}")?,
                _ => write!(f, "{end}{problem}")?,
            }
        }
        Ok(())
    }
}

impl From<Vec<Problem>> for ConfigError {
    fn from(problems: Vec<Problem>) -> Self {
        Self { file: None, problems }
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        vec![problem].into()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            agent: Some(AgentConfig::default()),
            reports: ReportsConfig::default(),
            relay: None,
            host: Some(HostConfig::default()),
            machines: Vec::new(),
            pools: vec![PoolConfig::new("default")],
        }
    }
}

impl Default for ReportsConfig {
    fn default() -> Self {
        Self {
            farm: "default".to_owned(),
            groups: Groups::default(),
            interfaces: Vec::new(),
            ttl: 1,
            send_to: Vec::new(),
            tcp: true,
            receive_buffer: 8 << 20,
            silence: Duration::from_secs(30),
            keys: Vec::new(),
            max_skew: Duration::from_secs(60),
            allow: Vec::new(),
        }
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Every problem of the file, or that it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Origin::new(Some(path.to_owned()), std::iter::empty(), Role::AsWritten).load()
    }

    /// Checks a file's text.
    ///
    /// # Errors
    /// Every problem of the text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::from_document(Document::parse(text)?)
    }

    fn from_document(document: Document) -> Result<Self, ConfigError> {
        let Document { table, places, mut problems } = document;
        let mut root = Section::new(table, String::new(), &places, &mut problems);
        let config = Self {
            agent: root.section("agent").map(agent),
            reports: root.section("reports").map_or_else(ReportsConfig::default, reports),
            relay: root.section("relay").map(relay::relay),
            host: root.section("host").map(host),
            machines: root.sections("machine").into_iter().flatten().map(machine).collect(),
            pools: pools(root.sections("pool")),
        };
        root.finish();
        config.check_together(&mut problems);
        for problem in &mut problems {
            problem.place = problem.place.take().or_else(|| places.of(&problem.key).cloned());
        }
        if problems.is_empty() { Ok(config) } else { Err(problems.into()) }
    }

    /// Tells what the secret files hold now from what they held.
    ///
    /// # Errors
    /// Every secret file that cannot be used.
    pub fn secrets(&self) -> Result<Secrets, ConfigError> {
        let token = self.host.as_ref().map_or(Ok(None), HostConfig::admin_token);
        let failed = [self.reports.keyring().err(), token.err()].into_iter().flatten();
        let problems: Vec<_> = failed.flat_map(|error| error.problems).collect();
        if !problems.is_empty() {
            return Err(problems.into());
        }
        let reports = digest(self.reports.secret_files());
        Ok(Secrets { reports, admin: digest(self.token_file().into_iter()) })
    }

    /// The files that hold secrets.
    #[must_use]
    pub fn secret_files(&self) -> Vec<&Path> {
        self.reports.secret_files().chain(self.token_file()).collect()
    }

    fn token_file(&self) -> Option<&Path> {
        let token = self.host.as_ref().map(|host| host.admin_token_file.as_path());
        token.filter(|file| !file.as_os_str().is_empty())
    }

    /// Whether a relay runs: not beside a host, which has the report port for itself.
    #[must_use]
    pub fn is_relay(&self) -> bool {
        self.relay.is_some() && self.host.is_none()
    }

    /// What is dangerous though it works.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.reports.warnings(self.host.is_some() || self.is_relay());
        if self.relay.is_some() && self.host.is_some() {
            let what = "[relay] is not run beside [host], which has the report port for itself: start \
                        loadline host and loadline relay, each as a process of its own";
            warnings.push(what.to_owned());
        }
        warnings
    }

    /// The configuration in force, as a file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field of a configuration has a TOML form")
    }

    fn check_together(&self, problems: &mut Vec<Problem>) {
        let mut report = |key: String, what: String| problems.push(Problem::new(key, what));
        if self.agent.is_none() && self.host.is_none() && self.relay.is_none() {
            let what = "nothing to do: write [agent], [host] or both (without any file both run)";
            report(String::new(), what.to_owned());
        }
        if self.relay.as_ref().is_some_and(|relay| relay.is_circular(&self.reports)) {
            let what = "the relay would send to the group that it hears: name another group, or apart \
                        interfaces in [reports] and [relay]";
            report("relay.group".to_owned(), what.to_owned());
        }
        if let Some(name) = twice(self.pools.iter().map(|pool| &pool.name)) {
            report("pool".to_owned(), format!("two pools are named {name:?}"));
        }
        let by_policy = self.host.iter().flat_map(|host| &host.by_policy);
        if let Some(name) = twice(by_policy.map(|policy| &policy.name)) {
            report("host.policy".to_owned(), format!("two policies are named {name:?}"));
        }
        if let Some(name) = twice(self.machines.iter().map(|machine| &machine.name)) {
            report("machine".to_owned(), format!("two machines are named {name:?}"));
        }
        if self.host.is_none() && !self.machines.is_empty() {
            let what = "machines without an agent are read by a host: write [host], or remove them";
            report("machine".to_owned(), what.to_owned());
        }
        for machine in &self.machines {
            if let Some(name) = twice(machine.offer.metrics.iter().map(|metric| &metric.name)) {
                let what = format!("two metrics of {:?} are named {name:?}", machine.name);
                report("machine.metric".to_owned(), what);
            }
        }
        if let Some(agent) = &self.agent {
            if let Some(name) = twice(agent.metrics.iter().map(|metric| &metric.name)) {
                report("agent.metric".to_owned(), format!("two metrics are named {name:?}"));
            }
            let of = |service: &ServiceConfig| (service.name.clone(), service.replica.clone());
            let services: Vec<_> = agent.services.iter().map(of).collect();
            if let Some((name, _)) = twice(services.iter()) {
                let what = format!(
                    "two services are named {name:?}: if they are replicas, give each a replica = \"…\" of its own"
                );
                report("agent.service".to_owned(), what);
            }
        }
        if let Some(id) = twice(self.reports.keys.iter().map(|key| key.id)) {
            report("reports.keys".to_owned(), format!("two keys have the id {id}"));
        }
        if let Some(host) = &self.host
            && !host.insecure
            && !host.listen.ip().is_loopback()
        {
            let what = format!(
                "{} can be reached by other machines, without TLS or a password; listen on \
                 127.0.0.1, or write insecure = true where the network is trusted",
                host.listen
            );
            report("host.listen".to_owned(), what);
        }
    }
}

fn digest<'f>(files: impl Iterator<Item = &'f Path>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for file in files {
        // What cannot be read any more is no secret: seen at the next look.
        let secret = std::fs::read(file).unwrap_or_default();
        digest.update(Sha256::digest(secret.trim_ascii()));
    }
    digest.finalize().into()
}

fn reports(mut section: Section<'_>) -> ReportsConfig {
    let default = ReportsConfig::default();
    let config = ReportsConfig {
        farm: section.name("farm", default.farm),
        groups: section.groups(default.groups),
        interfaces: section.strings("interfaces"),
        ttl: section.integer("ttl", default.ttl, 0..=u8::MAX.into()),
        send_to: section.destinations("send_to"),
        tcp: section.boolean("tcp", default.tcp),
        receive_buffer: section.integer(
            "receive_buffer",
            default.receive_buffer,
            RECEIVE_BUFFER_MIN..=RECEIVE_BUFFER_MAX,
        ),
        silence: section.duration("silence", default.silence, Duration::ZERO..=SILENCE_MAX),
        keys: section.sections("keys").into_iter().flatten().map(keys::key).collect(),
        max_skew: section.duration("max_skew", default.max_skew, Duration::ZERO..=SKEW_MAX),
        allow: section.sections("allow").into_iter().flatten().map(keys::allow).collect(),
    };
    section.finish();
    config
}

/// A policy's name is a file's stem: letters, digits, `-`, `_` and inner dots.
#[must_use]
pub fn is_policy_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    is_name(name) && name.chars().all(allowed) && !name.starts_with('.') && !name.ends_with('.')
}

fn twice<T: Ord + Copy>(names: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    let mut names = names;
    names.find(|name| !seen.insert(*name))
}

fn as_text<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

#[cfg(test)]
mod tests;
