//! One counter of a service: what its source says in, requests since the agent's start out.
//!
//! The source's counter may start again from 0 (its server restarted); the reported one only grows.
//! A count of what is open now (`in_flight`) is reported as it was last said, however long ago: a
//! server that hangs says nothing new, and 0 would look idle. For the same reason a counter of which
//! nothing was ever said is unknown and not 0, and a service whose open requests are unknown is
//! reported without counts and with a small part of its weight: it still gets work, and little.

use tokio::time::Instant;

use super::account::{Account, Origin, Standing, Words};
use super::source::Reading;
use crate::config::{AgentConfig, ServiceConfig};
use crate::report::Service;

/// Counters of a service.
pub(super) const COUNTERS: [&str; 3] = ["accepted", "completed", "in_flight"];

/// What is left of the weight of a service whose open requests are unknown: as much as a target has that
/// has just started.
const UNKNOWN_SHARE: f64 = 0.01;

/// One counter.
#[derive(Debug)]
pub(super) struct Tally {
    account: Account,
    /// It is a count of what is open now, which also falls.
    level: bool,
    /// The source's number at the last look.
    last: Option<f64>,
    total: f64,
    /// Nothing was said yet.
    is_fresh: bool,
}

/// The counters of a service for a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    accepted: u64,
    completed: u64,
    in_flight: u32,
    /// How many are open is counted, and not known.
    is_unknown: bool,
}

const TOTAL: Words = Words {
    known: "the counter is known",
    unknown: "the counter is unknown: reports go out without what the service accepted and completed",
};
const LEVEL: Words = Words {
    known: "the counter is known",
    unknown: "the counter is unknown: reports go out without the service's counts and with a \
              hundredth of its weight, so that it does not look idle",
};

/// Three a service; `None`: not counted.
pub(super) fn tallies(config: &AgentConfig) -> Vec<Option<Tally>> {
    let of_service = |service: &ServiceConfig| {
        let (sources, id) = (service.offer.counters(), service.id());
        [0, 1, 2].map(|index| {
            let origin = Origin {
                service: Some(&id),
                name: COUNTERS[index],
                source: sources[index]?,
                every: service.offer.every,
                timeout: service.offer.timeout,
                window: 1,
            };
            let level = index == 2;
            let words = if level { LEVEL } else { TOTAL };
            Some(Tally::new(level, Account::new(origin, words, config.interval)))
        })
    };
    config.services.iter().flat_map(of_service).collect()
}

impl Counts {
    /// Of each service, for a report that leaves now.
    pub(super) fn of(tallies: &mut [Option<Tally>], now: Instant) -> Vec<Self> {
        let counts = tallies.chunks_exact_mut(3).map(|of_service| {
            // Not counted is 0, counted and unknown is none.
            let mut next = of_service
                .iter_mut()
                .map(|tally| tally.as_mut().map_or(Some(0), |tally| tally.count(now)));
            let mut next = || next.next().flatten();
            Self::known(next(), next(), next())
        });
        counts.collect()
    }

    fn known(accepted: Option<u64>, completed: Option<u64>, in_flight: Option<u64>) -> Self {
        let Some(in_flight) = in_flight else {
            return Self { is_unknown: true, ..Self::default() };
        };
        // One of the two without the other looks as if requests went in and never came out.
        let (accepted, completed) = accepted.zip(completed).unwrap_or_default();
        let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
        Self { accepted, completed, in_flight, is_unknown: false }
    }

    /// A service with these counts.
    pub(super) fn put(self, service: Service<'_>) -> Service<'_> {
        let Self { accepted, completed, in_flight, is_unknown } = self;
        let share = if is_unknown { UNKNOWN_SHARE } else { 1.0 };
        let weight = (service.weight * share).max(f64::MIN_POSITIVE);
        Service { accepted, completed, in_flight, weight, ..service }
    }
}

impl Tally {
    fn new(level: bool, account: Account) -> Self {
        Self { account, level, last: None, total: 0.0, is_fresh: true }
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Takes what the source gave.
    pub(super) fn take(&mut self, reading: Reading, now: Instant) {
        let Some(value) = self.account.hear(reading) else { return };
        if value < 0.0 {
            self.account.refuse_number(value);
            return;
        }
        self.account.accept(true, now);
        self.count_to(value);
    }

    fn count_to(&mut self, value: f64) {
        self.is_fresh = false;
        match self.last.replace(value) {
            _ if self.level => self.total = value,
            Some(last) if value >= last => self.total += value - last,
            // The first look, or the source began anew: what it says counts from here.
            _ => {}
        }
    }

    /// Counts so many more, or fewer of what is open.
    pub(super) fn add(&mut self, amount: f64, now: Instant) {
        let least = if self.level { -self.total } else { 0.0 };
        self.total += amount.max(least);
        self.is_fresh = false;
        self.account.accept(true, now);
    }

    /// Goes on from the count of the agent before, unless its source has said something already.
    pub(super) fn inherit(&mut self, before: &Self) {
        if self.is_fresh {
            (self.last, self.total, self.is_fresh) = (before.last, before.total, before.is_fresh);
            self.account.inherit(&before.account);
        }
    }

    /// How it stands.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        self.account.standing(self.is_known().then_some(self.total), now)
    }

    /// The number for a report; `None`: nothing was said yet.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.account.reported(self.is_known(), now);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, and a tally is never below 0"
        )]
        let count = self.total as u64;
        self.is_known().then_some(count)
    }

    /// Who pushes what it takes and finishes has done neither before it says so.
    fn is_known(&self) -> bool {
        !self.is_fresh || (self.account.is_pushed() && !self.level)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tally(level: bool) -> Tally {
        let origin = Origin {
            service: Some("web"),
            name: COUNTERS[if level { 2 } else { 0 }],
            source: &"http-json:http://127.0.0.1:1/#/a".parse().expect("a source"),
            every: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            window: 1,
        };
        Tally::new(level, Account::new(origin, LEVEL, Duration::from_secs(2)))
    }

    #[test]
    fn a_counter_that_starts_again_does_not_fall() {
        let (mut tally, now) = (tally(false), Instant::now());
        let totals = [100.0, 130.0, 5.0, 8.0].map(|value| {
            tally.take(Reading::Value(value), now);
            tally.count(now)
        });
        assert_eq!(totals, [0, 30, 30, 33].map(Some));
    }

    #[test]
    fn open_requests_follow_their_source_and_never_fall_below_none() {
        let (mut tally, now) = (tally(true), Instant::now());
        tally.take(Reading::Value(4.0), now);
        assert_eq!(tally.count(now), Some(4));
        tally.add(-1.0, now);
        assert_eq!(tally.count(now), Some(3));
        tally.add(-9.0, now);
        assert_eq!(tally.count(now), Some(0));
        tally.add(7.0, now);
        tally.take(Reading::Silent("it hangs".to_owned()), now);
        assert_eq!(tally.count(now), Some(7), "a server that hangs is not idle");
    }
}
