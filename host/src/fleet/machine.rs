//! One machine as of its last report, and what it offers.
//!
//! In: reports that are newer than what is known. Metric names are shared between machines that report
//! the same ones, and a row's parts are written anew only where they changed.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use super::patience::DeadRule;
use super::{FORGET_AFTER_MS, Loss, Namesake};
use crate::report::{self, MetricNames, Metrics, Report, Service, State, address};

/// Sets of metric names, and names of services, remembered for sharing: farms have a few makes of machines.
const NAMES_MAX: usize = 64;

/// Free words by their names, shared by whoever shows them or chooses by them; other ones are another list.
pub type Labels = Arc<[(Box<str>, Box<str>)]>;

/// Values with their names.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Same order and length as `values`.
    pub names: MetricNames,
    /// What was reported; not finite: not reported.
    pub values: Vec<f64>,
}

/// One service of a machine.
#[derive(Debug, Clone)]
pub struct Offered {
    /// Names the pool's service; shared by machines that offer it.
    pub name: Arc<str>,
    /// As reported; empty: the machine's source address.
    reported: Box<str>,
    /// Where it can be reached.
    pub address: Arc<str>,
    /// Capacity, > 0.
    pub weight: f64,
    /// The service's own metrics.
    pub metrics: Measured,
    /// Requests taken since the agent started.
    pub accepted: u64,
    /// Requests finished since the agent started.
    pub completed: u64,
    /// Requests open.
    pub in_flight: u32,
    /// Free words; they hide the machine's of the same name.
    pub labels: Labels,
}

/// One machine as of its last report.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name.
    pub name: Arc<str>,
    /// When its agent started, milliseconds since 1970 by its own clock.
    pub boot: u64,
    /// The last report's number.
    pub seq: u64,
    /// Milliseconds between its reports.
    pub interval_ms: u32,
    /// What it says of itself.
    pub state: State,
    /// Whether reports still come.
    pub alive: bool,
    /// Capacity, > 0.
    pub weight: f64,
    /// Where its last report came from; of several ways one that others can be told.
    pub source: IpAddr,
    /// The last report that came from there.
    source_seq: u64,
    /// When the last report was received, milliseconds of the host's clock.
    pub received_ms: u64,
    /// When it was captured, on the same clock.
    pub captured_ms: u64,
    /// The machine's metrics.
    pub metrics: Measured,
    /// What it offers; never empty.
    pub services: Vec<Offered>,
    /// It names no service: `services` has the one that is implied, which is always the same.
    is_implied: bool,
    /// Free words.
    pub labels: Labels,
    /// Which reports were lost.
    pub loss: Loss,
    /// Silence after which it is gone, in milliseconds.
    pub patience_ms: u64,
    /// When the last report was heard, in time that this host listened.
    pub(super) heard_ms: u64,
    /// When the last report was sent, milliseconds since 1970 by the agent's clock; 0: not said.
    pub(super) sent_ms: u64,
    /// Another agent that reports, or has just reported, under this name.
    pub(super) other: Option<Box<Namesake>>,
}

/// Reports for which a source is kept that only others come from, of one link.
const SOURCE_KEPT: u64 = 3;

/// Where and when a report was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    pub(super) from: IpAddr,
    /// On the host's clock.
    pub(super) received_ms: u64,
    /// In time that this host listened.
    pub(super) heard_ms: u64,
}

/// The names of recent reports, newest first: machines of one make share them, so that comparing with
/// them costs no look elsewhere.
#[derive(Debug, Default)]
pub(super) struct Names {
    sets: VecDeque<MetricNames>,
    services: VecDeque<Arc<str>>,
}

impl Machine {
    pub(super) fn new(
        report: &Report<'_>,
        heard: Heard,
        rule: DeadRule,
        names: &mut Names,
    ) -> Self {
        let mut machine = Self {
            name: report.machine.into(),
            boot: report.boot,
            seq: report.seq,
            interval_ms: report.interval_ms,
            state: report.state,
            alive: false,
            weight: report.weight,
            source: heard.from,
            source_seq: report.seq,
            received_ms: heard.received_ms,
            captured_ms: heard.received_ms,
            metrics: Measured::nothing(names),
            services: Vec::new(),
            is_implied: false,
            labels: Labels::default(),
            loss: Loss::default(),
            patience_ms: 0,
            heard_ms: heard.heard_ms,
            sent_ms: report.sent_ms,
            other: None,
        };
        machine.take(report, heard, rule, names);
        machine
    }

    /// Whether the agent, gone without a word, reports again with lower numbers, as that of a virtual
    /// machine does which was restored from a snapshot. What says when it was sent is not played back.
    pub(super) fn has_gone_back(&self, report: &Report<'_>) -> bool {
        let is_new = report.sent_ms > self.sent_ms || (report.sent_ms, self.sent_ms) == (0, 0);
        report.seq < self.seq && !self.alive && self.state != State::Leaving && is_new
    }

    /// Takes a report that is newer than this one, or of an agent that takes over.
    pub(super) fn replace(
        &mut self,
        report: &Report<'_>,
        heard: Heard,
        rule: DeadRule,
        names: &mut Names,
    ) {
        // A restarted agent counts from 1 again, and one that was restored from where it was: the gap
        // between two boots says nothing.
        let goes_on = report.boot == self.boot;
        let gap = if goes_on { report.seq.checked_sub(self.seq).unwrap_or(1) } else { 1 };
        self.loss.received(gap, rule.brief_max());
        self.take(report, heard, rule, names);
    }

    fn take(&mut self, report: &Report<'_>, heard: Heard, rule: DeadRule, names: &mut Names) {
        let has_moved = self.move_to(heard.from, report);
        self.boot = report.boot;
        self.seq = report.seq;
        self.interval_ms = report.interval_ms;
        self.state = report.state;
        self.alive = report.state != State::Leaving;
        self.weight = report.weight;
        self.received_ms = heard.received_ms;
        self.captured_ms = heard.received_ms.saturating_sub(report.delay_ms.into());
        self.heard_ms = heard.heard_ms;
        self.sent_ms = report.sent_ms;
        self.patience_ms = rule.silence_ms(&self.loss, report.interval_ms);
        self.metrics.take(&report.metrics, names);
        self.take_services(&report.services, has_moved, names);
        take_labels(&mut self.labels, &report.labels);
    }

    /// Notes where a newer report came from; whether that is its source now, and was not. An address of
    /// one link is the last choice: not while reports come by another way, too.
    fn move_to(&mut self, from: IpAddr, report: &Report<'_>) -> bool {
        let is_worse = address::is_of_link(from) && !address::is_of_link(self.source);
        let since = report.seq.checked_sub(self.source_seq);
        let is_fresh = since.is_some_and(|since| since <= SOURCE_KEPT);
        if is_worse && is_fresh && report.boot == self.boot {
            return false;
        }
        self.source_seq = report.seq;
        std::mem::replace(&mut self.source, from) != from
    }

    /// Its last report came once more; whether by a way that others can be told, unlike the one before.
    pub(super) fn hear_again(&mut self, from: IpAddr) -> bool {
        if address::is_of_link(from) {
            return false;
        }
        let is_better = address::is_of_link(self.source);
        if is_better {
            self.source = from;
            for service in &mut self.services {
                service.address = address::offered(&service.reported, from).into();
            }
        }
        if self.source == from {
            self.source_seq = self.seq;
        }
        is_better
    }

    /// The time listened after which it is gone or, where it is that already, forgotten.
    pub(super) fn ends_ms(&self) -> u64 {
        let silence_ms = if self.alive { self.patience_ms } else { FORGET_AFTER_MS };
        self.heard_ms.saturating_add(silence_ms)
    }

    /// The time listened after which it ends, or its namesake does.
    pub(super) fn due_ms(&self) -> u64 {
        let other_ms = self.other.as_deref().map_or(u64::MAX, Namesake::ends_ms);
        self.ends_ms().min(other_ms)
    }

    fn take_services(&mut self, services: &[Service<'_>], has_moved: bool, names: &mut Names) {
        let was_implied = std::mem::replace(&mut self.is_implied, services.is_empty());
        if was_implied && self.is_implied && !has_moved {
            return;
        }
        let implied = [Service::implied()];
        let services = if services.is_empty() { &implied } else { services };
        let same = self.services.len() == services.len()
            && self.services.iter().zip(services).all(|(a, b)| *a.name == *b.name);
        if !same {
            let offered = |service: &Service<'_>| Offered {
                name: names.service(service.name),
                reported: service.address.into(),
                address: address::offered(service.address, self.source).into(),
                weight: service.weight,
                metrics: Measured::nothing(names),
                accepted: 0,
                completed: 0,
                in_flight: 0,
                labels: Labels::default(),
            };
            self.services = services.iter().map(offered).collect();
        }
        for (offered, service) in self.services.iter_mut().zip(services) {
            if has_moved || *offered.reported != *service.address {
                offered.reported = service.address.into();
                offered.address = address::offered(service.address, self.source).into();
            }
            offered.weight = service.weight;
            offered.metrics.take(&service.metrics, names);
            offered.accepted = service.accepted;
            offered.completed = service.completed;
            offered.in_flight = service.in_flight;
            take_labels(&mut offered.labels, &service.labels);
        }
    }

    /// Whether the machine's targets may be picked.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        self.alive && self.state == State::Ready
    }

    /// Another agent that is certain to report under this name as well.
    #[must_use]
    pub fn namesake(&self) -> Option<&Namesake> {
        self.other.as_deref().filter(|other| other.is_certain())
    }
}

/// Replaces labels, where they are others.
fn take_labels(known: &mut Labels, reported: &[(&str, &str)]) {
    let same = known.len() == reported.len()
        && known.iter().zip(reported).all(|(a, b)| *a.0 == *b.0 && *a.1 == *b.1);
    if !same {
        *known = reported.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    }
}

impl Measured {
    /// The value of a metric, if it was reported as a finite number.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        let index = self.names.iter().position(|known| **known == *name)?;
        self.values.get(index).copied().filter(|value| value.is_finite())
    }

    fn nothing(names: &mut Names) -> Self {
        Self { names: names.set(&report::Names::default()), values: Vec::new() }
    }

    /// Replaces the values; the names are kept where they are the same.
    fn take(&mut self, metrics: &Metrics<'_>, names: &mut Names) {
        match metrics.names.known() {
            Some(known) if Arc::ptr_eq(known, &self.names) => {}
            Some(known) => self.names = Arc::clone(known),
            None if is_same(&self.names, &metrics.names) => {}
            None => self.names = names.set(&metrics.names),
        }
        self.values.clear();
        self.values.extend_from_slice(&metrics.values);
    }
}

impl Names {
    /// These metric names.
    fn set(&mut self, names: &report::Names<'_>) -> MetricNames {
        let is_known = |known: &MetricNames| is_same(known, names);
        shared(&mut self.sets, is_known, || names.iter().map(|name| (*name).into()).collect())
    }

    /// This service's name.
    fn service(&mut self, name: &str) -> Arc<str> {
        shared(&mut self.services, |known| **known == *name, || name.into())
    }
}

/// The one of these that is meant, or a new one.
fn shared<T: ?Sized>(
    recent: &mut VecDeque<Arc<T>>,
    is_meant: impl Fn(&Arc<T>) -> bool,
    new: impl FnOnce() -> Arc<T>,
) -> Arc<T> {
    if let Some(known) = recent.iter().find(|known| is_meant(known)) {
        return Arc::clone(known);
    }
    let new = new();
    recent.truncate(NAMES_MAX - 1);
    recent.push_front(Arc::clone(&new));
    new
}

fn is_same(known: &MetricNames, names: &report::Names<'_>) -> bool {
    known.len() == names.len() && known.iter().zip(names.iter()).all(|(a, b)| **a == *b)
}
