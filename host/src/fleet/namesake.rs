//! Who reports under a name: an agent that restarted, or two agents at once.
//!
//! The agent that reports keeps its name while it lives. Another boot takes over
//! - at once, if it is newer and comes from the same address: the agent was restarted;
//! - when the one before is gone, wherever it comes from and whatever its boot: it was restarted
//!   elsewhere, or with a wall clock that went back.
//!
//! Until then its reports are refused, so that the loads of two agents do not alternate. Where both go
//! on, this is certain after two reports of each and then said. If a restart turns out to be a second
//! agent at one address, because the first still reports, the first gets its name back; from then on
//! nobody takes over while it lives. A report that says when it was sent takes over only if it was
//! sent later than the last one, so that none is played back from before.

use std::net::IpAddr;

use super::machine::{Heard, Machine};
use crate::report::Report;

/// Reports of an agent that prove that it lives beside another one; a single one may have been late.
const PROOF: u32 = 2;
/// Its report intervals of silence after which an agent that was refused is forgotten.
const FORGET_INTERVALS: u64 = 10;

/// Another agent that reports under a machine's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namesake {
    /// When it started, milliseconds since 1970 by its own clock.
    pub boot: u64,
    /// Where its last report came from.
    pub source: IpAddr,
    seq: u64,
    interval_ms: u32,
    /// When its last report was heard, in time that this host listened.
    heard_ms: u64,
    /// When its first report beside the machine's was heard.
    first_ms: u64,
    /// Its reports since then.
    reports: u32,
    /// It had the name before the one that has it now.
    had_name: bool,
    is_certain: bool,
    is_said: bool,
}

/// What is to be done with a report of another boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the machine's now.
    Takes,
    /// It is of an agent that ran before.
    Old,
    /// It is of a second agent; whether that is certain since this report.
    Namesake { is_new: bool },
}

impl Namesake {
    /// Whether both are known to live.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// The time listened after which it is forgotten.
    pub(super) fn ends_ms(&self) -> u64 {
        let silence_ms = u64::from(self.interval_ms) * FORGET_INTERVALS;
        self.heard_ms.saturating_add(silence_ms)
    }

    /// An agent of which nothing has been heard yet.
    fn of(report: &Report<'_>, heard: Heard) -> Self {
        Self {
            boot: report.boot,
            source: heard.from,
            seq: 0,
            interval_ms: report.interval_ms,
            heard_ms: heard.heard_ms,
            first_ms: heard.heard_ms,
            reports: 0,
            had_name: false,
            is_certain: false,
            is_said: false,
        }
    }

    /// Counts a report that is newer than its last one; the machine's agent was heard at
    /// `machine_ms`.
    fn hear(&mut self, report: &Report<'_>, heard: Heard, machine_ms: u64) {
        if report.seq > self.seq {
            (self.seq, self.heard_ms, self.source) = (report.seq, heard.heard_ms, heard.from);
            self.reports = self.reports.saturating_add(1);
            self.is_certain |= self.reports >= PROOF && machine_ms > self.first_ms;
        }
    }

    /// Whether it is to be said now that there are two.
    fn say(&mut self) -> bool {
        let is_new = self.is_certain && !self.is_said;
        self.is_said |= is_new;
        is_new
    }
}

impl Machine {
    /// Judges a report whose boot is not this machine's.
    pub(super) fn hear_other_boot(&mut self, report: &Report<'_>, heard: Heard) -> Verdict {
        if report.sent_ms != 0 && report.sent_ms <= self.sent_ms {
            return Verdict::Old;
        }
        if !self.alive {
            self.other = None;
            return Verdict::Takes;
        }
        let is_newer = report.boot > self.boot;
        if is_newer && heard.from == self.source && self.namesake().is_none() {
            self.other = Some(Box::new(self.as_namesake()));
            return Verdict::Takes;
        }
        let is_known = |other: &Namesake| other.boot == report.boot || other.is_certain;
        if !self.other.as_deref().is_some_and(is_known) {
            self.other = Some(Box::new(Namesake::of(report, heard)));
        }
        let machine_ms = self.heard_ms;
        let Some(other) = self.other.as_deref_mut() else { return Verdict::Old };
        if other.boot == report.boot {
            other.hear(report, heard, machine_ms);
        }
        if other.had_name && other.reports >= PROOF {
            return self.give_back();
        }
        if other.is_certain || (is_newer && !other.had_name) {
            Verdict::Namesake { is_new: other.say() }
        } else {
            Verdict::Old
        }
    }

    /// Forgets another agent of this name that is not heard any more.
    pub(super) fn forget_namesake(&mut self, listened_ms: u64) {
        self.other.take_if(|other| other.ends_ms() < listened_ms);
    }

    /// The first agent of two at one address still reports: the name is its again.
    fn give_back(&mut self) -> Verdict {
        let second = Namesake { had_name: false, is_certain: true, ..self.as_namesake() };
        self.other = Some(Box::new(second));
        Verdict::Takes
    }

    /// The agent that has the name, as one that has lost it.
    fn as_namesake(&self) -> Namesake {
        Namesake {
            boot: self.boot,
            source: self.source,
            seq: self.seq,
            interval_ms: self.interval_ms,
            heard_ms: self.heard_ms,
            first_ms: self.heard_ms,
            reports: 0,
            had_name: true,
            is_certain: false,
            is_said: false,
        }
    }
}
