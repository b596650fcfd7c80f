//! `[[agent.metric]]`, and the same table of a service or a machine without an agent: a name, where its
//! samples come from, and what is made of them.
//!
//! In: the table's keys. Out: checked values with the defaults of the source filled in.

use std::time::Duration;

use serde::Serialize;

use super::as_text;
use super::read::Section;
use super::source::{MetricSource, SourceKind, SystemMetric};
use crate::report::INTERVAL_MS_MAX;

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
pub(super) const USUAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a pushed value counts where nothing is written.
const USUAL_PUSH_EXPIRES: Duration = Duration::from_secs(30);
/// How long a sample counts at least where nothing is written.
const USUAL_EXPIRES_MIN: Duration = Duration::from_secs(10);

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
