//! What an operator wants of the policies of a folder: whose they are, what they may use, how they go.

use std::time::Duration;

use super::super::engine::Limits;
use super::super::signature::Trust;
use crate::config::{HostConfig, LimitsConfig, PolicyConfig};

/// What an operator may set.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// How long a removed file's generation is used on.
    pub grace: Duration,
    /// Whose signatures count.
    pub trust: Trust,
    /// What a policy may use.
    limits: LimitsConfig,
    /// What those may that are named.
    by_policy: Vec<PolicyConfig>,
}

impl Rules {
    /// As configured.
    #[must_use]
    pub fn of(host: &HostConfig) -> Self {
        let HostConfig { removal_grace, signatures, limits, by_policy, .. } = host.clone();
        Self { grace: removal_grace, trust: Trust::new(&signatures), limits, by_policy }
    }

    /// What the policy of this name may use.
    #[must_use]
    pub fn limits(&self, name: &str) -> Limits {
        match self.by_policy.iter().find(|policy| policy.name == name) {
            Some(own) => Limits { wasi: own.wasi, ..Limits::from(&own.limits) },
            None => Limits::from(&self.limits),
        }
    }
}
