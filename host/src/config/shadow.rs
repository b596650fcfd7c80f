//! `[pool.shadow]`: a policy that is tried beside one of the pool's, and when it is promoted.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;

use super::as_text;
use super::read::Section;

/// Picks that may be asked for before a verdict.
pub const PROMOTE_PICKS: RangeInclusive<i64> = 1..=1_000_000_000;
/// Faults that may be allowed.
pub const PROMOTE_FAULTS_MAX: i64 = 1_000_000;
/// A candidate's slow pick that may be allowed: a guest's own deadline for a batch.
pub const PROMOTE_P99: RangeInclusive<Duration> =
    Duration::from_micros(1)..=Duration::from_millis(50);

/// A policy in shadow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowConfig {
    /// The candidate, a formula or a strategy: it is tried beside the pool's one of its kind.
    pub policy: String,
    /// Share of the picks about which it is asked, above 0 to 1.
    pub share: f64,
    /// When it is promoted by itself; `None`: only by hand.
    pub promote: Option<PromoteConfig>,
}

/// Bounds of a candidate. It is promoted when all of them hold after so many picks, and stopped when
/// one is broken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromoteConfig {
    /// Picks that are compared at least.
    pub picks: u64,
    /// Faults at most.
    pub faults: u64,
    /// Share of the picks on which it chose what the pool chose at least, 0 to 1.
    pub agreement: f64,
    /// CPU time that 99 % of its picks (of a formula: of its batches) do not exceed.
    #[serde(serialize_with = "as_text")]
    pub p99: Duration,
}

impl ShadowConfig {
    /// All picks, promoted by hand.
    #[must_use]
    pub fn new(policy: &str) -> Self {
        Self { policy: policy.to_owned(), share: 1.0, promote: None }
    }
}

impl Default for PromoteConfig {
    fn default() -> Self {
        Self { picks: 10_000, faults: 0, agreement: 0.9, p99: Duration::from_millis(1) }
    }
}

/// Reads `shadow = "NAME"` or the table; `None`: there is none, or it is `""`.
pub(super) fn shadow(pool: &mut Section<'_>) -> Option<ShadowConfig> {
    if let Some(policy) = pool.text_or_other("shadow") {
        let policy = Some(policy).filter(|policy| !policy.is_empty())?;
        return pool.as_policy_name("shadow", policy).map(|policy| ShadowConfig::new(&policy));
    }
    let mut section = pool.section("shadow")?;
    section.require("policy");
    let shadow = ShadowConfig {
        policy: section.policy_name("policy", String::new()),
        share: section.part("share", 1.0),
        promote: section.section("promote").map(promote),
    };
    section.finish();
    Some(shadow)
}

fn promote(mut section: Section<'_>) -> PromoteConfig {
    let default = PromoteConfig::default();
    let promote = PromoteConfig {
        picks: section.integer("picks", default.picks, PROMOTE_PICKS),
        faults: section.integer("faults", default.faults, 0..=PROMOTE_FAULTS_MAX),
        agreement: section.share("agreement", default.agreement),
        p99: section.duration("p99", default.p99, PROMOTE_P99),
    };
    section.finish();
    promote
}
