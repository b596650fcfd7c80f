//! `[host]`: where a host answers, by which names, with what policies.
//!
//! In: the table's keys. Out: checked values with the defaults filled in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::limits::{self, LimitsConfig, PolicyConfig};
use super::read::Section;
use super::signatures::{self, SignaturesConfig};
use super::{ConfigError, DECISIONS_MAX, MISS_LIMIT_MAX, Problem, REMOVAL_GRACE_MAX, as_text};

/// Stands for every name in `host.names`.
const ANY_NAME: &str = "*";

/// `[host]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostConfig {
    /// Where HTTP is served.
    pub listen: SocketAddr,
    /// Allows a `listen` address that other machines reach, without TLS.
    pub insecure: bool,
    /// By which names clients may ask, besides addresses, `localhost` and this machine's name.
    pub names: Vec<String>,
    /// Where policies are dropped.
    pub policies: PathBuf,
    /// Missed reports after which a machine is gone (plus half an interval).
    pub miss_limit: u32,
    /// Picks whose reasons are remembered; 0: none.
    pub decisions: usize,
    /// How long the generation of a removed policy file is used on.
    #[serde(serialize_with = "as_text")]
    pub removal_grace: Duration,
    /// Holds the token that calls which change something need; empty: those calls are off.
    pub admin_token_file: PathBuf,
    /// Whose signatures policy files need.
    pub signatures: SignaturesConfig,
    /// What every policy may use.
    pub limits: LimitsConfig,
    /// What is wanted of single policies.
    #[serde(rename = "policy")]
    pub by_policy: Vec<PolicyConfig>,
}

impl HostConfig {
    /// Whether clients may ask by any name. Where nothing is written they may on an address that other
    /// machines reach: they do so by names, and whoever reaches it needs no name to read it.
    #[must_use]
    pub fn takes_any_name(&self) -> bool {
        let is_open = self.names.is_empty() && !self.listen.ip().is_loopback();
        is_open || self.names.iter().any(|name| name == ANY_NAME)
    }

    /// Reads the admin token; `None`: there is none.
    ///
    /// # Errors
    /// Its file cannot be used.
    pub fn admin_token(&self) -> Result<Option<Vec<u8>>, ConfigError> {
        let file = &self.admin_token_file;
        if file.as_os_str().is_empty() {
            return Ok(None);
        }
        let least = crate::report::auth::SECRET_BYTES_MIN;
        let token = std::fs::read(file).map_err(|error| error.to_string()).and_then(|bytes| {
            let token = bytes.trim_ascii();
            let is_long = token.len() >= least;
            is_long
                .then(|| token.to_vec())
                .ok_or_else(|| format!("it is shorter than {least} bytes"))
        });
        token.map(Some).map_err(|what| {
            let what = format!("cannot use {}: {what}", file.display());
            Problem::new("host.admin_token_file", what).into()
        })
    }
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 14_000),
            insecure: false,
            names: Vec::new(),
            policies: PathBuf::from("policies"),
            miss_limit: 3,
            removal_grace: Duration::from_secs(10),
            admin_token_file: PathBuf::new(),
            decisions: 1_024,
            signatures: SignaturesConfig::default(),
            limits: LimitsConfig::default(),
            by_policy: Vec::new(),
        }
    }
}

pub(super) fn host(mut section: Section<'_>) -> HostConfig {
    let default = HostConfig::default();
    let limits = section.section("limits").map_or_else(LimitsConfig::default, limits::limits);
    let by_policy = section.sections("policy").into_iter().flatten();
    let by_policy = by_policy.map(|section| limits::policy(section, &limits)).collect();
    let config = HostConfig {
        listen: section.parsed(
            "listen",
            default.listen,
            "an address and port, \"127.0.0.1:14000\"",
        ),
        insecure: section.boolean("insecure", default.insecure),
        names: names(&mut section),
        policies: section.string("policies").map_or(default.policies, PathBuf::from),
        miss_limit: section.integer("miss_limit", default.miss_limit, 1..=MISS_LIMIT_MAX),
        decisions: section.integer("decisions", default.decisions, 0..=DECISIONS_MAX),
        removal_grace: section.duration(
            "removal_grace",
            default.removal_grace,
            Duration::ZERO..=REMOVAL_GRACE_MAX,
        ),
        admin_token_file: section
            .string("admin_token_file")
            .map_or(default.admin_token_file, PathBuf::from),
        signatures: section
            .section("signatures")
            .map_or_else(SignaturesConfig::default, signatures::signatures),
        limits,
        by_policy,
    };
    section.finish();
    config
}

/// Names as clients write them into a URL, without a port.
fn names(section: &mut Section<'_>) -> Vec<String> {
    let names = section.strings("names");
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = |name: &String| !name.is_empty() && name.chars().all(is_part);
    for name in names.iter().filter(|name| *name != ANY_NAME && !is_name(name)) {
        let what = "the name of a host, \"loadline.example\", without scheme and port, or \"*\"";
        section.wrong("names", &format!("{name:?} is not {what}"));
    }
    names
}
