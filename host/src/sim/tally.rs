//! What a run adds up on its way: events in, the [`Outcome`] at the end.
//!
//! Invariants: nothing is measured before a tenth of the requests has arrived, but for the incident;
//! time means are over what lies between two events. Times are in nanoseconds, one unit is [`UNIT`].

use super::measure::Outcome;
use super::server::Job;
use super::setup::Setup;
use super::world::UNIT;
use crate::quantiles::Quantiles;

/// Units after an incident in which it is watched how a server gets its share back.
const RECOVERY_MAX: usize = 200;

/// What is summed up.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) arrived: u64,
    begin: u64,
    seen: u64,
    responses: Quantiles,
    /// Time in the system of all requests that left, served or failed, and how many failed.
    stays: f64,
    left: u64,
    failed: u64,
    inside: u64,
    inside_time: f64,
    queues: Queues,
    /// Picks of the running report period, and of the whole run.
    picks: Vec<u64>,
    all_picks: Vec<u64>,
    period_end: u64,
    herd: (f64, u64),
    reaction: Vec<(u64, u64)>,
    recovery: Vec<(u64, u64)>,
    reaction_queue: usize,
    pub(super) picks_of_dead: u64,
    pub(super) unanswered: u64,
    /// Requests whose key went elsewhere the last time, and those with a key that was seen before.
    moved: (u64, u64),
}

/// The servers' queues.
#[derive(Default)]
struct Queues {
    /// Servers by queue length, and the longest.
    lengths: Vec<usize>,
    longest: usize,
    sum: u64,
    squares: u64,
    longest_time: f64,
    deviation_time: f64,
    peak: usize,
}

impl Queues {
    /// A queue's length has changed.
    fn change(&mut self, before: usize, after: usize) {
        if self.lengths.len() <= after {
            self.lengths.resize(after + 1, 0);
        }
        self.lengths[before] -= 1;
        self.lengths[after] += 1;
        self.longest = self.longest.max(after);
        while self.longest > 0 && self.lengths[self.longest] == 0 {
            self.longest -= 1;
        }
        let (before, after) = (before as u64, after as u64);
        self.sum = self.sum + after - before;
        self.squares = self.squares + after * after - before * before;
    }

    /// Time passes; `servers` of them.
    fn pass(&mut self, passed: f64, servers: f64) {
        let mean = self.sum as f64 / servers;
        let variance = self.squares as f64 / servers - mean * mean;
        self.longest_time += passed * self.longest as f64;
        self.deviation_time += passed * variance.max(0.0).sqrt();
        self.peak = self.peak.max(self.longest);
    }
}

impl Tally {
    pub(super) fn new(servers: usize) -> Self {
        let queues = Queues { lengths: vec![servers], ..Queues::default() };
        Self { queues, picks: vec![0; servers], all_picks: vec![0; servers], ..Self::default() }
    }

    /// Time passes with everything as it is.
    pub(super) fn pass(&mut self, now: u64) {
        let passed = (now - std::mem::replace(&mut self.seen, now)) as f64;
        if self.begin > 0 {
            self.inside_time += passed * self.inside as f64;
            self.queues.pass(passed, self.picks.len() as f64);
        }
    }

    pub(super) fn arrive(&mut self, now: u64, setup: &Setup) {
        self.arrived += 1;
        self.inside += 1;
        if self.begin == 0 && self.arrived > setup.requests / 10 {
            self.begin = now;
            // Periods are those of servers that report together.
            self.period_end = (now / period(setup) + 1) * period(setup);
            self.picks.fill(0);
        }
    }

    /// A request leaves.
    pub(super) fn leave(&mut self, now: u64, job: &Job) {
        self.inside -= 1;
        if self.begin == 0 || job.arrived < self.begin {
            return;
        }
        let stay = (now - job.arrived) as f64 / UNIT;
        self.stays += stay;
        self.left += 1;
        if job.ok {
            self.responses.add(stay);
        } else {
            self.failed += 1;
        }
    }

    /// A server's queue has changed its length.
    pub(super) fn queue(&mut self, server: usize, before: usize, after: usize) {
        self.queues.change(before, after);
        if server == 0 {
            self.reaction_queue = self.reaction_queue.max(after);
        }
    }

    /// The incident begins.
    pub(super) fn incident(&mut self) {
        self.reaction_queue = 0;
    }

    /// A request goes to this server; `moved`: its key was elsewhere the last time.
    pub(super) fn pick(&mut self, now: u64, server: usize, moved: Option<bool>, setup: &Setup) {
        if self.begin > 0 {
            if now >= self.period_end {
                self.end_period();
                self.period_end = (now / period(setup) + 1) * period(setup);
            }
            self.picks[server] += 1;
            self.all_picks[server] += 1;
            self.moved.0 += u64::from(moved == Some(true));
            self.moved.1 += u64::from(moved.is_some());
        }
        let Some((start, end)) = setup.incident else { return };
        let time = now as f64 / UNIT;
        if (start..end).contains(&time) {
            count(&mut self.reaction, time - start, server);
        } else if time >= end && time - end < RECOVERY_MAX as f64 {
            count(&mut self.recovery, time - end, server);
        }
    }

    fn end_period(&mut self) {
        let total: u64 = self.picks.iter().sum();
        if total > 0 {
            let most = self.picks.iter().copied().max().unwrap_or_default();
            self.herd.0 += most as f64 / total as f64;
            self.herd.1 += 1;
        }
        self.picks.fill(0);
    }

    pub(super) fn outcome(self, setup: &Setup, speeds: &[f64]) -> Outcome {
        let time = (self.seen - self.begin) as f64;
        let servers = setup.servers as f64;
        let inside = self.inside_time / time;
        let longest = self.queues.longest_time / time;
        let share = |(its, all): &(u64, u64)| *its as f64 / (*all).max(1) as f64 * servers;
        let due = |(its, all): &(u64, u64)| *its as f64 - *all as f64 / servers * setup.slowed_to;
        Outcome {
            inside,
            rate: (setup.requests - setup.requests / 10) as f64 / (time / UNIT),
            stay: self.stays / self.left as f64,
            failed: self.failed,
            imbalance: longest / (inside / servers),
            longest,
            deviation: self.queues.deviation_time / time,
            peak: self.queues.peak,
            evenness: evenness(&self.all_picks, speeds),
            moved: self.moved.0 as f64 / self.moved.1 as f64,
            herd_share: self.herd.0 / self.herd.1 as f64,
            excess: self.reaction.iter().map(due).sum(),
            reaction: self.reaction.iter().map(share).collect(),
            recovery: self.recovery.iter().map(share).collect(),
            reaction_queue: self.reaction_queue,
            picks_of_dead: self.picks_of_dead,
            unanswered: self.unanswered,
            responses: self.responses,
        }
    }
}

/// Counts a pick in its unit: of the first server, and of all.
fn count(units: &mut Vec<(u64, u64)>, since: f64, server: usize) {
    let unit = since as usize;
    if units.len() <= unit {
        units.resize(unit + 1, (0, 0));
    }
    units[unit].0 += u64::from(server == 0);
    units[unit].1 += 1;
}

/// Jain's index of picks per speed: 1 where all get alike, 1/n where one gets all.
fn evenness(picks: &[u64], speeds: &[f64]) -> f64 {
    let shares = || picks.iter().zip(speeds).map(|(picks, speed)| *picks as f64 / speed);
    let (sum, squares): (f64, f64) =
        shares().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    sum * sum / (picks.len() as f64 * squares)
}

/// A report period in nanoseconds.
fn period(setup: &Setup) -> u64 {
    ((setup.every * UNIT) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenness_is_jains_index() {
        assert!((evenness(&[5, 5, 5], &[1.0; 3]) - 1.0).abs() < 1e-12);
        assert!((evenness(&[1, 3], &[0.5, 1.5]) - 1.0).abs() < 1e-12, "by speed");
        assert!((evenness(&[9, 0, 0], &[1.0; 3]) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn deviation_and_peak_are_of_the_queues() {
        let mut queues = Queues { lengths: vec![2], ..Queues::default() };
        queues.pass(1.0, 2.0);
        queues.change(0, 1);
        queues.change(1, 2); // 2 and 0: mean 1, deviation 1
        queues.pass(3.0, 2.0);
        queues.change(2, 1);
        queues.pass(4.0, 2.0); // 1 and 0: deviation 0.5
        assert!((queues.deviation_time - 5.0).abs() < 1e-12);
        assert!((queues.longest_time - 10.0).abs() < 1e-12);
        assert_eq!(queues.peak, 2);
    }
}
