//! The agent: readings of this machine in, encoded report frames out.
//!
//! Every source is read by a task of its own ([`beat`]) and every push comes as an [`Event`]; the
//! report carries what is known of them when it is due. Invariants: no report leaves before every
//! window is full (a half-filled one would look idle) or has had its time; a source that hangs or
//! fails delays nothing, its metrics become unknown (NaN); `seq` counts from 1 without gaps; after a
//! pause one report leaves, not a burst. [`Agent`] takes the time as an argument (but for the stamp of
//! signed reports) and knows no socket; [`run`] gives it a clock and sends what it makes.

mod account;
mod beat;
mod drive;
mod heritage;
mod meter;
#[cfg(feature = "agent")]
mod push;
mod say;
mod source;
mod tally;
mod window;

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::config::{AgentConfig, ConfigState, MetricConfig};
use crate::report::{Keyring, State};
use crate::telemetry::Quiet;
use account::Account;
pub use account::Standing;
pub use drive::run;
pub use heritage::{Heritage, Succession};
use meter::Meter;
pub use source::Reading;
use tally::Tally;

/// A step that comes later than this means that the process was held up.
const STALL: Duration = Duration::from_secs(1);

/// Makes the reports of one machine.
pub struct Agent {
    config: AgentConfig,
    /// What it says of the machine.
    state: watch::Receiver<State>,
    /// What there is to say of its configuration.
    known: ConfigState,
    farm: String,
    keyring: Keyring,
    boot: u64,
    seq: u64,
    /// The machine's metrics, then each service's, in the configuration's order.
    meters: Vec<Meter>,
    /// Three a service: accepted, completed, in flight; `None`: not counted.
    tallies: Vec<Option<Tally>>,
    /// Since when a first report is waited for; `None`: reports go out.
    waiting_since: Option<Instant>,
    next_report: Instant,
    needs_answers: bool,
    /// Machines of an agent before that are none of this one's, and how often that is still said.
    farewells: Vec<(String, u32)>,
    /// What the log knows of the answers.
    answered: Option<bool>,
    quiet: Quiet<&'static str>,
}

/// What a reading or a push is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A metric, by its number among the machine's and then the services'.
    Meter(usize),
    /// A counter, by its number: three a service.
    Tally(usize),
}

/// How an agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its machine leaves.
    Leaving,
    /// Another one reports on for it.
    Replaced,
}

/// What an agent is told.
#[derive(Debug)]
pub enum Event {
    /// A source was read.
    Readings(Vec<(Place, Reading)>),
    /// An application pushed.
    Pushed(Vec<(Place, Change)>),
    /// Somebody wants to know how the metrics stand.
    Asked(oneshot::Sender<Vec<Standing>>),
}

/// What a push does to a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// It is this now.
    Set(f64),
    /// It is so much more, or less.
    Add(f64),
}

impl Agent {
    /// An agent that has not read anything. `boot` is in milliseconds since 1970.
    #[must_use]
    pub fn new(
        config: AgentConfig,
        farm: String,
        keyring: Keyring,
        boot: u64,
        now: Instant,
    ) -> Self {
        let meter = |metric: &MetricConfig, service: Option<&str>| {
            Meter::new(metric, service, config.interval)
        };
        let of_machine = config.metrics.iter().map(|metric| meter(metric, None));
        let of_services = config.services.iter().flat_map(|service| {
            let id = service.id();
            let own = service.offer.metrics.iter().map(|metric| meter(metric, Some(&id)));
            own.collect::<Vec<_>>()
        });
        let meters = of_machine.chain(of_services).collect();
        let tallies = tally::tallies(&config);
        let state = watch::channel(config.state).1;
        Self {
            config,
            state,
            known: ConfigState::default(),
            farm,
            keyring,
            boot,
            seq: 0,
            meters,
            tallies,
            waiting_since: Some(now),
            next_report: now,
            needs_answers: false,
            farewells: Vec::new(),
            answered: None,
            quiet: Quiet::default(),
        }
    }

    /// Says of itself, from its next report on, what is wanted here; without this, what its configuration
    /// says.
    #[must_use]
    pub fn in_state(mut self, state: watch::Receiver<State>) -> Self {
        self.state = state;
        self
    }

    /// Says in its reports what is wrong with the newest configuration, because many an agent has nobody
    /// who reads its log.
    #[must_use]
    pub fn telling_of(mut self, known: ConfigState) -> Self {
        self.known = known;
        self
    }

    /// Reports only while every source answers: for a machine that has no agent of its own, where
    /// nothing else says that it is alive.
    #[must_use]
    pub fn needing_answers(mut self) -> Self {
        self.needs_answers = true;
        self
    }

    /// When there is something to do next, if nothing is heard until then.
    #[must_use]
    pub fn due(&self) -> Instant {
        let Some(since) = self.waiting_since else {
            return self.next_report;
        };
        let waits = self.accounts().filter_map(|account| account.patience_ends(since)).max();
        waits.unwrap_or(self.next_report)
    }

    /// Takes what was read, pushed or asked.
    pub fn hear(&mut self, event: Event, now: Instant) {
        self.notice_pause(now);
        match event {
            Event::Readings(readings) => {
                for (place, reading) in readings {
                    match place {
                        Place::Meter(index) => self.meters[index].take(reading, now),
                        Place::Tally(index) => {
                            if let Some(tally) = &mut self.tallies[index] {
                                tally.take(reading, now);
                            }
                        }
                    }
                }
            }
            Event::Pushed(changes) => {
                for (place, change) in changes {
                    self.change(place, change, now);
                }
            }
            Event::Asked(answer) => {
                let meters = self.meters.iter().map(|meter| meter.standing(now));
                let tallies = self.tallies.iter().flatten().map(|tally| tally.standing(now));
                answer.send(meters.chain(tallies).collect()).ok(); // whoever asked may be gone
            }
        }
    }

    fn change(&mut self, place: Place, change: Change, now: Instant) {
        match place {
            Place::Meter(index) => match change {
                Change::Set(value) => self.meters[index].take(Reading::Value(value), now),
                Change::Add(amount) => self.meters[index].add(amount, now),
            },
            Place::Tally(index) => {
                let Some(tally) = &mut self.tallies[index] else { return };
                match change {
                    Change::Set(value) => tally.take(Reading::Value(value), now),
                    Change::Add(amount) => tally.add(amount, now),
                }
            }
        }
    }

    /// Makes the frames of the report, if it is due; else none.
    pub fn step(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.notice_pause(now);
        if !self.is_settled(now) {
            return Vec::new();
        }
        self.waiting_since = None;
        if now < self.next_report {
            return Vec::new();
        }
        self.next_report = following(self.next_report, self.config.interval, now);
        if self.needs_answers && !self.check_answers() {
            return Vec::new(); // silence says it: hosts count it as gone
        }
        let state = *self.state.borrow();
        self.frames(state, now)
    }

    /// Whether a report of use could leave now.
    fn is_ready(&self, now: Instant) -> bool {
        self.is_settled(now) && (!self.needs_answers || self.silent().is_none())
    }

    /// Whether nothing holds the first report back.
    fn is_settled(&self, now: Instant) -> bool {
        let is_settled = |since| self.accounts().all(|account| account.is_settled(since, now));
        self.waiting_since.is_none_or(is_settled)
    }

    /// The last report: hosts take the machine out at once. No frame when there was no report yet.
    pub fn leave(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if self.seq == 0 { Vec::new() } else { self.frames(State::Leaving, now) }
    }

    /// After a pause of this process: what is too old by now is waited for, as at the start.
    fn notice_pause(&mut self, now: Instant) {
        if now <= self.due() + STALL {
            return;
        }
        let restarted = self.meters.iter_mut().filter_map(|meter| meter.restart(now).then_some(()));
        if restarted.count() > 0 {
            self.waiting_since = Some(now);
        }
    }

    /// Whether every source answers; a change is told.
    fn check_answers(&mut self) -> bool {
        let silent = self.silent();
        let answered = silent.is_none();
        if self.answered != Some(answered) {
            let machine = &*self.config.machine;
            match silent {
                None => tracing::info!(machine, "the machine answers: it is reported"),
                Some(why) => {
                    tracing::warn!(machine, why, "the machine does not answer: not reported");
                }
            }
        }
        self.answered = Some(answered);
        answered
    }

    /// Why some source does not answer; `None`: all do.
    fn silent(&self) -> Option<&str> {
        let mut silent = self.accounts().filter(|account| !account.answers());
        silent.next().map(|account| account.trouble().unwrap_or("no answer yet"))
    }

    /// Of every metric and counter.
    fn accounts(&self) -> impl Iterator<Item = &Account> {
        let tallies = self.tallies.iter().flatten().map(Tally::account);
        self.meters.iter().map(Meter::account).chain(tallies)
    }
}

/// Every metric of an agent, in the order of [`Place::Meter`].
fn all_metrics(config: &AgentConfig) -> impl Iterator<Item = &MetricConfig> {
    let of_services = config.services.iter().flat_map(|service| &service.offer.metrics);
    config.metrics.iter().chain(of_services)
}

/// The next time of a fixed beat after `now`: what was missed is left out.
fn following(last: Instant, every: Duration, now: Instant) -> Instant {
    let next = last + every;
    if next > now { next } else { now + every }
}

#[cfg(test)]
mod tests;
