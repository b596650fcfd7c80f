//! Where a relay sends what it hears, as written in `[relay]`.
//!
//! What it hears, and with which keys, is `[reports]`.

use std::time::Duration;

use serde::Serialize;

use super::read::Section;
use super::{Destination, Groups, PORT, ReportsConfig, as_text};

/// Time that reports may wait to share a frame, at most.
const EVERY_MAX: Duration = Duration::from_secs(1);
/// Relays that a report may go through, at most.
const HOPS_MAX: i64 = 16;

/// `[relay]`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayConfig {
    /// Groups to send to, and their port; usually none.
    #[serde(flatten)]
    pub groups: Groups,
    /// Interfaces to multicast on; empty: every one that can.
    pub interfaces: Vec<String>,
    /// Hops of a multicast report.
    pub ttl: u8,
    /// Hosts, or other relays.
    pub send_to: Vec<Destination>,
    /// Reports wait so long for others to share their frame.
    #[serde(serialize_with = "as_text")]
    pub every: Duration,
    /// Relays that a report may go through, this one included.
    pub hops: u8,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            groups: Groups { v4: None, v6: None, port: PORT },
            interfaces: Vec::new(),
            ttl: 1,
            send_to: Vec::new(),
            every: Duration::from_millis(50),
            hops: 1,
        }
    }
}

impl RelayConfig {
    /// Whether it sends anywhere.
    #[must_use]
    pub fn has_destination(&self) -> bool {
        !self.groups.is_empty() || !self.send_to.is_empty()
    }

    /// Whether frames go to the same places by both, in the same way.
    #[must_use]
    pub fn is_sent_like(&self, other: &Self) -> bool {
        let Self { every, hops, .. } = *self;
        *self == Self { every, hops, ..other.clone() }
    }

    /// How frames leave it: as an agent's would, by these destinations.
    #[must_use]
    pub fn outgoing(&self, heard: &ReportsConfig) -> ReportsConfig {
        ReportsConfig {
            groups: self.groups,
            interfaces: self.interfaces.clone(),
            ttl: self.ttl,
            send_to: self.send_to.clone(),
            ..heard.clone()
        }
    }

    /// Whether it would multicast where it hears.
    pub(super) fn is_circular(&self, heard: &ReportsConfig) -> bool {
        let (there, here) = (self.groups, heard.groups);
        let is_same = there.port == here.port
            && (there.v4.is_some() && there.v4 == here.v4
                || there.v6.is_some() && there.v6 == here.v6);
        let is_apart = !self.interfaces.is_empty()
            && !heard.interfaces.is_empty()
            && !self.interfaces.iter().any(|name| heard.interfaces.contains(name));
        is_same && !is_apart
    }
}

pub(super) fn relay(mut section: Section<'_>) -> RelayConfig {
    let default = RelayConfig::default();
    let config = RelayConfig {
        groups: section.groups(default.groups),
        interfaces: section.strings("interfaces"),
        ttl: section.integer("ttl", default.ttl, 0..=u8::MAX.into()),
        send_to: section.destinations("send_to"),
        every: section.duration("every", default.every, Duration::ZERO..=EVERY_MAX),
        hops: section.integer("hops", default.hops, 1..=HOPS_MAX),
    };
    section.finish();
    config
}
