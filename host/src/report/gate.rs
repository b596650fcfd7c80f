//! Who may report: a decoded report, where it came from and the time in; "let in" or a reason out.
//!
//! Stamps: where reports are signed, one must say when it was sent, and that must be near the wall clock
//! of this host, so that a captured one cannot be played back later. A machine of which this host
//! knows nothing must have sent its report since this host started: what was captured before does
//! not bring it to life. Later ones are told from copies by boot and sequence. This is the only
//! place where wall clocks of two machines are compared. Networks: the first rule that fits a machine's
//! name says where it may report from; a name that no rule fits may come from anywhere.

use std::net::IpAddr;
use std::time::Duration;

use super::{Keyring, Report};

/// The difference of clocks that may be allowed at most: machines that are gone are remembered for twice
/// that and more, and with them what they sent last.
pub const SKEW_MAX: Duration = Duration::from_secs(600);

/// Stamps and clocks are cut to whole milliseconds: an age comes out too large by less than this, and so
/// does the difference of two of them.
const ROUNDING_MS: u64 = 1;

/// What this host asks of a report.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    /// Whose signatures are good.
    pub keyring: Keyring,
    /// Where machines may report from; the first rule that fits a name counts.
    pub rules: Vec<Rule>,
    /// Difference of clocks that is allowed, in milliseconds; 0: stamps are not looked at.
    pub skew_max_ms: u64,
}

/// Where machines of some names may report from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// A name; `*` stands for any characters.
    pub machines: String,
    /// The networks.
    pub networks: Vec<Network>,
}

/// An address and how many of its first bits count, `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// The present time. The wall clock is read first: what is sent from the start on is no older than that.
#[derive(Debug, Clone, Copy)]
pub struct Present {
    /// By the wall clock, milliseconds since 1970.
    pub wall_ms: u64,
    /// Since this host started, in milliseconds.
    pub up_ms: u64,
}

/// Why a report of good form is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Barred {
    /// It could be of any time.
    #[error("signed, but does not say when it was sent")]
    Unstamped,
    /// It was not sent now.
    #[error(
        "sent {skew_s} s {} by its clock; reports.max_skew is {max_s} s: set the clocks, or allow more",
        if *.is_ahead { "ahead" } else { "ago" }
    )]
    Skew {
        /// Seconds between the stamp and this host's clock.
        skew_s: u64,
        /// The stamp is in the future.
        is_ahead: bool,
        /// What is allowed.
        max_s: u64,
    },
    /// It was sent when this host did not run.
    #[error("sent {age_s} s ago by its clock, before this host started")]
    BeforeStart {
        /// Seconds since the stamp.
        age_s: u64,
    },
    /// It came from where its machine is not.
    #[error("reports.allow lets {rule:?} report from other networks")]
    Network {
        /// The rule's pattern.
        rule: String,
    },
}

impl Barred {
    /// A word for counters and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unstamped => "unstamped",
            Self::Skew { .. } => "skew",
            Self::BeforeStart { .. } => "before_start",
            Self::Network { .. } => "network",
        }
    }
}

impl Gate {
    /// Whether a report may count. `is_known` says whether this host has heard of its machine before.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        report: &Report<'_>,
        from: IpAddr,
        now: Present,
        is_known: impl FnOnce() -> bool,
    ) -> Result<(), Barred> {
        let rule = self.rules.iter().find(|rule| fits(&rule.machines, report.machine));
        if let Some(rule) = rule.filter(|rule| !rule.networks.iter().any(|of| of.contains(from))) {
            return Err(Barred::Network { rule: rule.machines.clone() });
        }
        if self.keyring.signing_id() == 0 || self.skew_max_ms == 0 {
            return Ok(());
        }
        if report.sent_ms == 0 {
            return Err(Barred::Unstamped);
        }
        let skew_ms = now.wall_ms.abs_diff(report.sent_ms);
        if skew_ms > self.skew_max_ms {
            let is_ahead = report.sent_ms > now.wall_ms;
            let max_s = self.skew_max_ms / 1_000;
            return Err(Barred::Skew { skew_s: skew_ms / 1_000, is_ahead, max_s });
        }
        // By its age, not by the time of the start: the wall clock may have been set since.
        let age_ms = now.wall_ms.saturating_sub(report.sent_ms);
        if age_ms > now.up_ms.saturating_add(ROUNDING_MS) && !is_known() {
            return Err(Barred::BeforeStart { age_s: age_ms / 1_000 });
        }
        Ok(())
    }
}

impl Network {
    /// Whether an address is in it. An IPv4 address in IPv6 form is the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.checked_shr(32 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.checked_shr(128 - bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// `10.0.0.0/8`, or one address.
impl std::str::FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| ()))?;
        let network = Self { address, bits };
        // Bits beyond the network's are a slip: 10.1.2.3/8.
        let is_whole = bits <= most && {
            let host_bits = u32::from(most - bits);
            let zeros = match address {
                IpAddr::V4(address) => address.to_bits().trailing_zeros(),
                IpAddr::V6(address) => address.to_bits().trailing_zeros(),
            };
            zeros >= host_bits
        };
        is_whole.then_some(network).ok_or(())
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Whether a name fits a pattern in which `*` stands for any characters.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let Some((middle, end)) = rest.rsplit_once('*') else { return name.ends_with(rest) };
    for part in middle.split('*') {
        // The first place is the best: it leaves most for what follows.
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests;
