//! One metric as the agent keeps it: readings in, the number of the report or "unknown" out.
//!
//! Invariants: what is not finite never gets into the window; a metric whose last good sample is
//! older than its expiry is unknown until its window is full of newer ones; what is added is added to
//! the last value, however old; what becomes unknown is said in the log once, with the reason, and so
//! is its return. Times come in as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::source::Reading;
use super::window::Window;
use crate::config::{MetricConfig, SourceKind};

/// An agent waits for a window at least this long before it reports without the metric.
const PATIENCE_MIN: Duration = Duration::from_secs(10);
/// And so many times as long as the window needs.
const PATIENCE_WINDOWS: u32 = 3;

/// One metric.
#[derive(Debug)]
pub(super) struct Meter {
    name: String,
    source: String,
    capacity: f64,
    expires: Duration,
    /// How long the first report waits for it.
    patience: Duration,
    /// By when a source without trouble has given a first value.
    first_due: Duration,
    /// Since when reports want it.
    wanted: Option<Instant>,
    pushed: bool,
    window: Window,
    size: usize,
    /// The last good sample; what is added is added to it.
    last: f64,
    /// When the last good sample came.
    sampled: Option<Instant>,
    /// Why the last reading was none.
    trouble: Option<String>,
    /// Whether the source answered the last time, be it with a useless value.
    answers: bool,
    samples: u64,
    useless: u64,
    /// Nothing waits for it any more.
    settled: bool,
    /// What the log knows of it.
    known: Option<bool>,
}

/// How a metric stands, for people.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub source: String,
    /// What a report would say now; `None`: unknown.
    pub value: Option<f64>,
    /// Milliseconds since the last good sample.
    pub age_ms: Option<u64>,
    /// Good samples so far.
    pub samples: u64,
    /// Readings that were of no use.
    pub useless: u64,
    /// Why the last reading was of no use.
    pub trouble: Option<String>,
}

impl Meter {
    pub(super) fn new(config: &MetricConfig, interval: Duration) -> Self {
        let pushed = config.source.kind == SourceKind::Push;
        let window = u32::try_from(config.window).unwrap_or(u32::MAX);
        let patience = match window {
            _ if pushed => Duration::ZERO,
            // No window: its first value is waited for, but no longer than a report.
            1 => interval,
            _ => config
                .every
                .saturating_mul(window)
                .saturating_mul(PATIENCE_WINDOWS)
                .max(PATIENCE_MIN),
        };
        Self {
            name: config.name.clone(),
            source: config.source.to_string(),
            capacity: config.capacity,
            expires: config.expires,
            patience,
            // One reading more than the window has: some are differences.
            first_due: config.every.saturating_mul(window.saturating_add(1)) + config.timeout,
            wanted: None,
            pushed,
            window: Window::new(config.window, config.decay),
            size: config.window,
            last: 0.0,
            sampled: None,
            trouble: None,
            answers: pushed,
            samples: 0,
            useless: 0,
            settled: pushed,
            known: None,
        }
    }

    /// Takes what its source gave.
    pub(super) fn take(&mut self, reading: Reading, now: Instant) {
        self.answers = !matches!(reading, Reading::Silent(_));
        match reading {
            Reading::Value(value) if value.is_finite() => {
                if self.is_expired(now) {
                    self.window.clear();
                }
                self.window.push(value);
                self.last = value;
                self.sampled = Some(now);
                self.samples += 1;
                self.trouble = None;
                self.settled |= self.is_full();
            }
            Reading::Value(value) => self.refuse(format!("{value} is not a number to count with")),
            Reading::NotYet => {}
            Reading::Useless(why) | Reading::Silent(why) => self.refuse(why),
        }
    }

    fn refuse(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            tracing::debug!(metric = %self.name, source = %self.source, %why, "no value");
        }
        self.trouble = Some(why);
        self.useless += 1;
        // As many tries as a window needs, and none was good: it is not worth a wait.
        self.settled |= self.samples == 0 && self.useless >= self.size as u64;
    }

    /// Adds to the last value, however old it is: what applications push. At first it is 0.
    pub(super) fn add(&mut self, amount: f64, now: Instant) {
        self.take(Reading::Value(self.last + amount), now);
    }

    /// Goes on from what was pushed to the agent before.
    pub(super) fn inherit(&mut self, before: &Self) {
        if !(self.pushed && before.pushed) {
            return;
        }
        before.window.oldest_first().for_each(|sample| self.window.push(sample));
        (self.last, self.sampled) = (before.last, before.sampled);
        (self.samples, self.known) = (before.samples, before.known);
    }

    /// Whether the first report may leave without waiting for this metric.
    pub(super) fn is_settled(&self, started: Instant, now: Instant) -> bool {
        self.settled || now >= started + self.patience
    }

    /// When the first report stops waiting for this metric.
    pub(super) fn patience_ends(&self, started: Instant) -> Option<Instant> {
        (!self.settled).then(|| started + self.patience)
    }

    /// Whether the source answered the last time it was asked.
    pub(super) fn answers(&self) -> bool {
        self.answers
    }

    /// Why the last reading was none.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The number for a report, NaN where it is unknown.
    pub(super) fn value(&mut self, now: Instant) -> f64 {
        if self.is_expired(now) {
            self.window.clear();
        }
        let value = self.present();
        let wanted = *self.wanted.get_or_insert(now);
        let is_late = now.saturating_duration_since(wanted) > self.first_due;
        if !value.is_nan() || self.trouble.is_some() || is_late || self.known.is_some() {
            self.tell(!value.is_nan());
        }
        value
    }

    /// Begins as a fresh agent does, if time has passed over it: after a pause of the process. What
    /// was unknown before is not waited for.
    pub(super) fn restart(&mut self, now: Instant) -> bool {
        let was_good = self.sampled.is_some() && self.known != Some(false) && !self.pushed;
        let restarts = was_good && self.is_expired(now);
        if restarts {
            self.window.clear();
            self.sampled = None;
            (self.samples, self.useless, self.settled, self.known) = (0, 0, false, None);
        }
        restarts
    }

    /// How it stands.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        let value = if self.is_expired(now) { f64::NAN } else { self.present() };
        let age = self.sampled.map(|sampled| now.saturating_duration_since(sampled));
        Standing {
            name: self.name.clone(),
            source: self.source.clone(),
            value: value.is_finite().then_some(value),
            age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            samples: self.samples,
            useless: self.useless,
            trouble: self.trouble.clone(),
        }
    }

    fn present(&self) -> f64 {
        // Pushes have no beat: their average is that of as many as there were.
        let enough = self.is_full() || self.pushed;
        if enough { self.window.average() / self.capacity } else { f64::NAN }
    }

    fn is_full(&self) -> bool {
        self.window.is_full()
    }

    fn is_expired(&self, now: Instant) -> bool {
        let past = |sampled| now.saturating_duration_since(sampled) > self.expires;
        !self.expires.is_zero() && self.sampled.is_none_or(past)
    }

    /// Says what has changed, once.
    fn tell(&mut self, known: bool) {
        let before = self.known.replace(known);
        if before == Some(known) || (before.is_none() && (known || self.pushed)) {
            return;
        }
        let (metric, source) = (&self.name, &self.source);
        if known {
            tracing::info!(metric, source, "the metric is known");
        } else {
            let nothing = if self.pushed { "nothing was pushed" } else { "no value came" };
            let why = self.trouble.as_deref().unwrap_or(nothing);
            tracing::warn!(metric, source, why, "the metric is unknown: reports go out without it");
        }
    }
}
