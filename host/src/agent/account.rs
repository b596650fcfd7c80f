//! How one source has answered: what it gave in; whether it is worth a wait, and what people are told of
//! it, out.
//!
//! Metrics and counters alike are waited for with the same patience, become unknown in the same way
//! and say so in the log once, with the reason, as they do of their return. Pushes are waited for by nobody.
//! Times come in as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::source::Reading;
use crate::config::{MetricSource, SourceKind};

/// An agent waits for a window at least this long before it reports without the metric.
const PATIENCE_MIN: Duration = Duration::from_secs(10);
/// And so many times as long as the window needs.
const PATIENCE_WINDOWS: u32 = 3;

/// Where a number comes from, and how it is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    /// Whose number it is; `None`: the machine's.
    pub(super) service: Option<&'a str>,
    pub(super) name: &'a str,
    pub(super) source: &'a MetricSource,
    /// Time between two looks.
    pub(super) every: Duration,
    /// Time of one look.
    pub(super) timeout: Duration,
    /// Good readings that it takes.
    pub(super) window: usize,
}

/// What the log says of a number that comes and goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    pub(super) known: &'static str,
    pub(super) unknown: &'static str,
}

/// One source's account.
#[derive(Debug)]
pub(super) struct Account {
    service: Option<String>,
    name: String,
    source: String,
    words: Words,
    pushed: bool,
    /// How long the first report waits for it.
    patience: Duration,
    /// By when a source without trouble has given a first value.
    first_due: Duration,
    /// Good readings that it takes.
    window: u64,
    /// Since when reports want it.
    wanted: Option<Instant>,
    /// When the last good reading came.
    sampled: Option<Instant>,
    /// Why the last reading was none.
    trouble: Option<String>,
    /// What the last good reading is without.
    left_out: Option<String>,
    /// Whether the source answered the last time, be it with a useless value.
    answers: bool,
    samples: u64,
    useless: u64,
    /// Nothing waits for it any more.
    settled: bool,
    /// What the log knows of it.
    known: Option<bool>,
}

/// How a metric or a counter stands, for people.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Standing {
    /// Whose it is; `None`: the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
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
    /// What the last good sample is without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl Account {
    /// `interval` is that of the reports.
    pub(super) fn new(origin: Origin<'_>, words: Words, interval: Duration) -> Self {
        let pushed = origin.source.kind == SourceKind::Push;
        let window = u32::try_from(origin.window).unwrap_or(u32::MAX);
        let patience = match window {
            _ if pushed => Duration::ZERO,
            // No window: its first value is waited for, but no longer than a report.
            1 => interval,
            _ => origin
                .every
                .saturating_mul(window)
                .saturating_mul(PATIENCE_WINDOWS)
                .max(PATIENCE_MIN),
        };
        Self {
            service: origin.service.map(str::to_owned),
            name: origin.name.to_owned(),
            source: origin.source.to_string(),
            words,
            pushed,
            patience,
            // One reading more than the window has: some are differences.
            first_due: origin.every.saturating_mul(window.saturating_add(1)) + origin.timeout,
            window: origin.window as u64,
            wanted: None,
            sampled: None,
            trouble: None,
            left_out: None,
            answers: pushed,
            samples: 0,
            useless: 0,
            settled: pushed,
            known: None,
        }
    }

    pub(super) fn is_pushed(&self) -> bool {
        self.pushed
    }

    /// Takes a reading; the number in it, if there is one to count with.
    pub(super) fn hear(&mut self, reading: Reading) -> Option<f64> {
        self.answers = !matches!(reading, Reading::Silent(_));
        let (value, left_out) = match reading {
            Reading::Value(value) => (value, None),
            Reading::Partly(value, left_out) => (value, Some(left_out)),
            Reading::NotYet => return None,
            Reading::Useless(why) | Reading::Silent(why) => {
                self.refuse(why);
                return None;
            }
        };
        if !value.is_finite() {
            self.refuse_number(value);
            return None;
        }
        if left_out.is_some() && left_out != self.left_out {
            let (service, name, source) = (&self.service, &self.name, &self.source);
            tracing::debug!(service, name, source, left_out, "a part of it is left out");
        }
        self.left_out = left_out;
        Some(value)
    }

    /// It gave a good reading; `enough`: as many as it takes.
    pub(super) fn accept(&mut self, enough: bool, now: Instant) {
        self.sampled = Some(now);
        self.samples += 1;
        self.trouble = None;
        self.settled |= enough;
    }

    /// It gave a number that is of no use.
    pub(super) fn refuse_number(&mut self, value: f64) {
        self.refuse(format!("{value} is not a number to count with"));
    }

    fn refuse(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            let (service, name, source) = (&self.service, &self.name, &self.source);
            tracing::debug!(service, name, source, why, "no value");
        }
        self.trouble = Some(why);
        self.useless += 1;
        // As many tries as a window needs, and none was good: it is not worth a wait.
        self.settled |= self.samples == 0 && self.useless >= self.window;
    }

    /// Goes on from the account of the agent before.
    pub(super) fn inherit(&mut self, before: &Self) {
        self.sampled = before.sampled;
        (self.samples, self.known) = (before.samples, before.known);
    }

    /// Begins as a fresh one.
    pub(super) fn restart(&mut self) {
        self.sampled = None;
        (self.samples, self.useless, self.settled, self.known) = (0, 0, false, None);
    }

    /// Whether it has given good readings and is not known to be lost.
    pub(super) fn was_good(&self) -> bool {
        self.sampled.is_some() && self.known != Some(false)
    }

    /// Whether the last good reading, if there was any, is older than this.
    pub(super) fn is_older(&self, than: Duration, now: Instant) -> bool {
        self.sampled.is_none_or(|sampled| now.saturating_duration_since(sampled) > than)
    }

    /// Whether the first report may leave without waiting for it.
    pub(super) fn is_settled(&self, started: Instant, now: Instant) -> bool {
        self.settled || now >= started + self.patience
    }

    /// When the first report stops waiting for it.
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

    /// A report goes out with it, or without. Says what has changed, once.
    pub(super) fn reported(&mut self, known: bool, now: Instant) {
        let wanted = *self.wanted.get_or_insert(now);
        let is_late = now.saturating_duration_since(wanted) > self.first_due;
        let may_tell = known || self.trouble.is_some() || is_late || self.known.is_some();
        if !may_tell {
            return;
        }
        let before = self.known.replace(known);
        if before == Some(known) || (before.is_none() && (known || self.pushed)) {
            return;
        }
        let (service, name, source) = (&self.service, &self.name, &self.source);
        if known {
            tracing::info!(service, name, source, "{}", self.words.known);
        } else {
            let nothing = if self.pushed { "nothing was pushed" } else { "no value came" };
            let why = self.trouble.as_deref().unwrap_or(nothing);
            tracing::warn!(service, name, source, why, "{}", self.words.unknown);
        }
    }

    /// How it stands, with this value.
    pub(super) fn standing(&self, value: Option<f64>, now: Instant) -> Standing {
        let age = self.sampled.map(|sampled| now.saturating_duration_since(sampled));
        Standing {
            service: self.service.clone(),
            name: self.name.clone(),
            source: self.source.clone(),
            value,
            age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            samples: self.samples,
            useless: self.useless,
            trouble: self.trouble.clone(),
            left_out: self.left_out.clone(),
        }
    }
}
