//! One metric as the agent keeps it: readings in, the number of the report or "unknown" out.
//!
//! Invariants: what is not finite never gets into the window; a metric whose last good sample is
//! older than its expiry is unknown until its window is full of newer ones; what is added is added to
//! the last value, however old. Times come in as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::account::{Account, Origin, Standing, Words};
use super::source::Reading;
use super::window::Window;
use crate::config::MetricConfig;

/// One metric.
#[derive(Debug)]
pub(super) struct Meter {
    account: Account,
    capacity: f64,
    expires: Duration,
    window: Window,
    /// The last good sample; what is added is added to it.
    last: f64,
}

const WORDS: Words = Words {
    known: "the metric is known",
    unknown: "the metric is unknown: reports go out without it",
};

impl Meter {
    /// `service`: whose metric it is; `None`: the machine's.
    pub(super) fn new(config: &MetricConfig, service: Option<&str>, interval: Duration) -> Self {
        let origin = Origin {
            service,
            name: &config.name,
            source: &config.source,
            every: config.every,
            timeout: config.timeout,
            window: config.window,
        };
        Self {
            account: Account::new(origin, WORDS, interval),
            capacity: config.capacity,
            expires: config.expires,
            window: Window::new(config.window, config.decay),
            last: 0.0,
        }
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Takes what its source gave.
    pub(super) fn take(&mut self, reading: Reading, now: Instant) {
        let Some(value) = self.account.hear(reading) else { return };
        if self.is_expired(now) {
            self.window.clear();
        }
        self.window.push(value);
        self.last = value;
        self.account.accept(self.window.is_full(), now);
    }

    /// Adds to the last value, however old it is: what applications push. At first it is 0.
    pub(super) fn add(&mut self, amount: f64, now: Instant) {
        self.take(Reading::Value(self.last + amount), now);
    }

    /// Goes on from what was pushed to the agent before.
    pub(super) fn inherit(&mut self, before: &Self) {
        if !(self.account.is_pushed() && before.account.is_pushed()) {
            return;
        }
        before.window.oldest_first().for_each(|sample| self.window.push(sample));
        self.last = before.last;
        self.account.inherit(&before.account);
    }

    /// The number for a report, NaN where it is unknown.
    pub(super) fn value(&mut self, now: Instant) -> f64 {
        if self.is_expired(now) {
            self.window.clear();
        }
        let value = self.present();
        self.account.reported(!value.is_nan(), now);
        value
    }

    /// Begins as a fresh agent does, if time has passed over it: after a pause of the process. What
    /// was unknown before is not waited for.
    pub(super) fn restart(&mut self, now: Instant) -> bool {
        let was_good = self.account.was_good() && !self.account.is_pushed();
        let restarts = was_good && self.is_expired(now);
        if restarts {
            self.window.clear();
            self.account.restart();
        }
        restarts
    }

    /// How it stands.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        let value = if self.is_expired(now) { f64::NAN } else { self.present() };
        self.account.standing(value.is_finite().then_some(value), now)
    }

    fn present(&self) -> f64 {
        // Pushes have no beat: their average is that of as many as there were.
        let enough = self.window.is_full() || self.account.is_pushed();
        if enough { self.window.average() / self.capacity } else { f64::NAN }
    }

    fn is_expired(&self, now: Instant) -> bool {
        !self.expires.is_zero() && self.account.is_older(self.expires, now)
    }
}
