//! A simulated server: requests in, completions out, at a speed that may change.
//!
//! Invariant: [`Server::next`] is when the next completion happens if nothing changes; whoever adds a
//! request or changes the speed asks for it again. Work is in nanoseconds at speed 1.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::setup::Discipline;

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) arrived: u64,
    pub(super) work: f64,
    /// Number of the host that sent it.
    pub(super) host: usize,
    /// Whether it will be served and not fail.
    pub(super) ok: bool,
}

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) speed: f64,
    pub(super) accepted: u64,
    pub(super) completed: u64,
    /// Nanoseconds with work in it.
    busy: u64,
    /// Tells a completion that still counts from one that was foreseen before a change.
    pub(super) version: u32,
    seen: u64,
    jobs: Jobs,
}

#[derive(Debug)]
enum Jobs {
    /// One at a time, in order of arrival; the first one's work is what remains of it.
    Fifo(VecDeque<Job>),
    /// All at once, each at an equal share of the speed. `attained` is the work that each request
    /// got that has been here from the start; a job's work is the attained at which it is complete.
    Shared { attained: f64, jobs: BinaryHeap<Shared> },
}

#[derive(Debug, Clone, Copy)]
struct Shared(Job);

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Shared {}
impl PartialOrd for Shared {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Shared {
    /// The heap's greatest is complete first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.work.total_cmp(&self.0.work)
    }
}

impl Server {
    pub(super) fn new(speed: f64, discipline: Discipline) -> Self {
        let jobs = match discipline {
            Discipline::Fifo => Jobs::Fifo(VecDeque::new()),
            Discipline::Shared => Jobs::Shared { attained: 0.0, jobs: BinaryHeap::new() },
        };
        Self { speed, accepted: 0, completed: 0, busy: 0, version: 0, seen: 0, jobs }
    }

    /// Requests inside.
    pub(super) fn len(&self) -> usize {
        match &self.jobs {
            Jobs::Fifo(jobs) => jobs.len(),
            Jobs::Shared { jobs, .. } => jobs.len(),
        }
    }

    pub(super) fn busy_until(&mut self, now: u64) -> u64 {
        self.advance(now);
        self.busy
    }

    pub(super) fn add(&mut self, now: u64, job: Job) {
        self.advance(now);
        self.accepted += 1;
        match &mut self.jobs {
            Jobs::Fifo(jobs) => jobs.push_back(job),
            Jobs::Shared { attained, jobs } => {
                jobs.push(Shared(Job { work: *attained + job.work, ..job }));
            }
        }
    }

    pub(super) fn set_speed(&mut self, now: u64, speed: f64) {
        self.advance(now);
        self.speed = speed;
    }

    /// When the next completion happens; `None` while there is nothing to do.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        let nanoseconds = match &self.jobs {
            Jobs::Fifo(jobs) => jobs.front()?.work / self.speed,
            Jobs::Shared { attained, jobs } => {
                (jobs.peek()?.0.work - attained) * jobs.len() as f64 / self.speed
            }
        };
        // Rounded up, so that the work is done then.
        Some(now + nanoseconds.max(0.0).ceil() as u64)
    }

    /// Takes out the request that is complete now.
    pub(super) fn complete(&mut self, now: u64) -> Option<Job> {
        self.advance(now);
        self.completed += 1;
        match &mut self.jobs {
            Jobs::Fifo(jobs) => jobs.pop_front(),
            Jobs::Shared { jobs, .. } => jobs.pop().map(|shared| shared.0),
        }
    }

    fn advance(&mut self, now: u64) {
        let passed = now - std::mem::replace(&mut self.seen, now);
        let inside = self.len();
        if inside == 0 {
            return;
        }
        self.busy += passed;
        let done = passed as f64 * self.speed;
        match &mut self.jobs {
            Jobs::Fifo(jobs) => {
                if let Some(first) = jobs.front_mut() {
                    first.work = (first.work - done).max(0.0);
                }
            }
            Jobs::Shared { attained, .. } => *attained += done / inside as f64,
        }
    }
}
