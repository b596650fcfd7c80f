//! One run: requests arrive, hosts choose, servers work, reports travel; in virtual time.
//!
//! Events are taken in order of their time, then of their making, so that equal setups and seeds give
//! equal runs. Arrivals, work and reports draw from streams of their own: every strategy meets the
//! same requests and the same losses. Time is in nanoseconds, one unit of service is a second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::chooser::{Chooser, Servers};
use super::measure::Outcome;
use super::server::{Job, Server};
use super::setup::{Arrivals, Content, Setup, Timing, exponential, normal};
use crate::policy::guest::{Request, TargetView};
use crate::quantiles::Quantiles;

/// Nanoseconds of one unit.
const UNIT: f64 = 1e9;
const MILLISECOND: u64 = 1_000_000;
/// Report periods of silence after which a server is gone, as the fleet has it.
const SILENT_PERIODS: f64 = 3.5;
/// Units that bursts and the time between them last on average, and the rates.
const MEAN_BURST: (f64, f64) = (10.0, 40.0);
const BURST_RATES: (f64, f64) = (2.0, 0.75);
/// Rate of the middle fifth of a step.
const STEP_RATE: f64 = 1.1 / 0.6;
/// Units that other work is on and off on average, and what it leaves.
const ANTAGONIST: (f64, f64, f64) = (10.0, 90.0, 0.3);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    Completion { server: usize, version: u32 },
    Capture { server: usize },
    CaptureAll,
    Burst,
    Antagonist { server: usize, on: bool },
    IncidentStart,
    IncidentEnd,
    Deliver { report: usize },
    Claims,
    Expire { server: usize },
}

/// What one host knows.
struct Host<'c> {
    chooser: &'c mut dyn Chooser,
    /// Times of picks since the last capture that arrived, by server.
    picks: Vec<VecDeque<u64>>,
    heard: Vec<u64>,
    gone: Vec<bool>,
    /// The last report of each server, as it was told.
    told: Vec<Option<(u64, TargetView)>>,
}

/// A report on its way: one server's, or everybody's.
struct Report {
    captured: u64,
    views: Vec<TargetView>,
}

pub(super) struct World<'c> {
    setup: Setup,
    servers: Vec<Server>,
    nominal: Vec<f64>,
    hosts: Vec<Host<'c>>,
    central: Option<VecDeque<Job>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    reports: Vec<Option<Report>>,
    /// Picks since the last claims: time, server and host.
    unclaimed: Vec<(u64, usize, usize)>,
    free_reports: Vec<usize>,
    busy_before: Vec<(u64, u64)>,
    burst: bool,
    arrivals: fastrand::Rng,
    wires: fastrand::Rng,
    machines: fastrand::Rng,
    measured: Measured,
}

/// What is summed up on the way.
#[derive(Default)]
struct Measured {
    arrived: u64,
    begin: u64,
    seen: u64,
    responses: Quantiles,
    inside: u64,
    inside_time: f64,
    longest_time: f64,
    /// Servers by queue length, and the longest.
    lengths: Vec<usize>,
    longest: usize,
    picks: Vec<u64>,
    period_end: u64,
    herd: (f64, u64),
    reaction: Vec<(u64, u64)>,
    reaction_queue: usize,
    picks_of_dead: u64,
    unanswered: u64,
}

impl<'c> World<'c> {
    /// A farm with one chooser a host; `central`: one queue for all, the choosers are not asked.
    pub(super) fn new(
        setup: &Setup,
        choosers: &'c mut [Box<dyn Chooser>],
        central: bool,
        seed: u64,
    ) -> Self {
        let stream =
            |number: u64| fastrand::Rng::with_seed(seed.wrapping_mul(8).wrapping_add(number));
        let (mut machines, wires, arrivals) = (stream(1), stream(2), stream(3));
        let nominal = setup.speeds(&mut machines);
        let servers: Vec<_> =
            nominal.iter().map(|speed| Server::new(*speed, setup.discipline)).collect();
        let count = servers.len();
        let host = |chooser: &'c mut Box<dyn Chooser>| Host {
            chooser: &mut **chooser,
            picks: vec![VecDeque::new(); count],
            heard: vec![0; count],
            gone: vec![false; count],
            told: vec![None; count],
        };
        let hosts = choosers.iter_mut().map(host).collect();
        Self {
            setup: setup.clone(),
            servers,
            nominal,
            hosts,
            central: central.then(VecDeque::new),
            events: BinaryHeap::new(),
            made: 0,
            reports: Vec::new(),
            unclaimed: Vec::new(),
            free_reports: Vec::new(),
            busy_before: vec![(0, 0); count],
            burst: false,
            arrivals,
            wires,
            machines,
            measured: Measured {
                lengths: vec![count],
                picks: vec![0; count],
                ..Measured::default()
            },
        }
    }

    /// Runs until all requests have arrived.
    ///
    /// # Errors
    /// A policy failed, in words.
    pub(super) fn run(mut self) -> Result<Outcome, String> {
        self.start()?;
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            self.measured.pass(now);
            match event {
                Event::Arrival => {
                    if self.measured.arrived == self.setup.requests {
                        break;
                    }
                    self.arrive(now)?;
                }
                Event::Completion { server, version } => self.complete(now, server, version),
                Event::Capture { server } => {
                    self.capture(now, server..server + 1)?;
                    let period = match self.setup.timing {
                        Timing::Jittered => self.setup.every * (0.8 + 0.4 * self.wires.f64()),
                        _ => self.setup.every,
                    };
                    self.after(now, period, event);
                }
                Event::CaptureAll => {
                    self.capture(now, 0..self.servers.len())?;
                    self.after(now, self.setup.every, event);
                }
                Event::Deliver { report } => self.deliver(now, report)?,
                Event::Claims => {
                    self.claim(now)?;
                    self.after(now, self.setup.claims, event);
                }
                Event::Expire { server } => self.expire(now, server)?,
                Event::Burst => {
                    self.burst = !self.burst;
                    let mean = if self.burst { MEAN_BURST.0 } else { MEAN_BURST.1 };
                    let length = mean * exponential(&mut self.machines);
                    self.after(now, length, event);
                }
                Event::Antagonist { server, on } => {
                    let (mean_on, mean_off, left) = ANTAGONIST;
                    let (mean, share) = if on { (mean_on, left) } else { (mean_off, 1.0) };
                    self.set_speed(now, server, self.nominal[server] * share);
                    let length = mean * exponential(&mut self.machines);
                    self.after(now, length, Event::Antagonist { server, on: !on });
                }
                Event::IncidentStart => {
                    self.set_speed(now, 0, (self.nominal[0] * self.setup.slowed_to).max(1e-9));
                    self.measured.reaction_queue = 0;
                }
                Event::IncidentEnd => self.set_speed(now, 0, self.nominal[0]),
            }
        }
        Ok(self.measured.outcome(&self.setup))
    }

    fn start(&mut self) -> Result<(), String> {
        let count = self.servers.len();
        self.capture(0, 0..count)?;
        match self.setup.timing {
            Timing::Together => self.after(0, self.setup.every, Event::CaptureAll),
            Timing::Spread | Timing::Jittered => {
                for server in 0..count {
                    let phase = self.setup.every * self.wires.f64();
                    self.after(0, phase, Event::Capture { server });
                }
            }
        }
        if self.setup.claims > 0.0 {
            self.after(0, self.setup.claims, Event::Claims);
        }
        if self.setup.arrivals == Arrivals::Bursts {
            self.after(0, 0.0, Event::Burst);
        }
        if self.setup.antagonist {
            for server in 0..count {
                let phase = ANTAGONIST.1 * exponential(&mut self.machines);
                self.after(0, phase, Event::Antagonist { server, on: true });
            }
        }
        if let Some((start, end)) = self.setup.incident {
            self.after(0, start, Event::IncidentStart);
            self.after(0, end, Event::IncidentEnd);
        }
        self.next_arrival(0);
        Ok(())
    }

    fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((time, self.made, event)));
    }

    fn after(&mut self, now: u64, units: f64, event: Event) {
        self.at(now + (units * UNIT) as u64, event);
    }

    fn next_arrival(&mut self, now: u64) {
        let capacity: f64 = self.nominal.iter().sum();
        let burst = match (self.setup.arrivals, self.burst) {
            (Arrivals::Poisson, _) => 1.0,
            (Arrivals::Step, _) => {
                let middle = self.setup.requests * 2 / 5..self.setup.requests * 3 / 5;
                if middle.contains(&self.measured.arrived) { STEP_RATE } else { 1.0 }
            }
            (Arrivals::Bursts, true) => BURST_RATES.0,
            (Arrivals::Bursts, false) => BURST_RATES.1,
        };
        let gap = exponential(&mut self.arrivals) / (capacity * self.setup.utilisation * burst);
        self.after(now, gap, Event::Arrival);
    }

    fn arrive(&mut self, now: u64) -> Result<(), String> {
        let work = self.setup.work(&mut self.arrivals) * UNIT;
        let number = self.arrivals.usize(..self.hosts.len().max(1));
        let random = self.arrivals.u64(..);
        self.next_arrival(now);
        self.measured.arrive(now, &self.setup);
        let job = Job { arrived: now, work };
        if let Some(queue) = &mut self.central {
            let speed = |server: &usize| self.servers[*server].speed;
            let idle = (0..self.servers.len()).filter(|server| self.servers[*server].len() == 0);
            match idle.max_by(|a, b| speed(a).total_cmp(&speed(b))) {
                Some(server) => self.put(now, server, job),
                None => queue.push_back(job),
            }
            return Ok(());
        }
        let request = Request { key: 0, class: 0, cost: 1.0, now_ms: now / MILLISECOND, random };
        let Self { hosts, servers, .. } = self;
        let host = &mut hosts[number];
        let chosen = host.chooser.pick(&request, &Servers(servers))?;
        let server = chosen.map(|slot| slot as usize).filter(|server| *server < servers.len());
        let server = server.unwrap_or_else(|| {
            self.measured.unanswered += 1;
            (random % servers.len() as u64) as usize
        });
        host.picks[server].push_back(now);
        if self.setup.claims > 0.0 {
            self.unclaimed.push((now, server, number));
        }
        if host.gone[server] {
            self.measured.picks_of_dead += 1;
        }
        self.measured.pick(now, server, &self.setup);
        self.put(now, server, job);
        Ok(())
    }

    fn put(&mut self, now: u64, server: usize, job: Job) {
        let before = self.servers[server].len();
        self.servers[server].add(now, job);
        self.measured.length(before, before + 1);
        if server == 0 {
            self.measured.reaction_queue = self.measured.reaction_queue.max(before + 1);
        }
        self.foresee(now, server);
    }

    fn complete(&mut self, now: u64, server: usize, version: u32) {
        if self.servers[server].version != version {
            return;
        }
        let before = self.servers[server].len();
        if let Some(job) = self.servers[server].complete(now) {
            self.measured.length(before, before - 1);
            self.measured.respond(now - job.arrived, job.arrived);
        }
        match self.central.as_mut().and_then(VecDeque::pop_front) {
            Some(job) => self.put(now, server, job),
            None => self.foresee(now, server),
        }
    }

    fn set_speed(&mut self, now: u64, server: usize, speed: f64) {
        self.servers[server].set_speed(now, speed);
        self.foresee(now, server);
    }

    fn foresee(&mut self, now: u64, server: usize) {
        self.servers[server].version += 1;
        let version = self.servers[server].version;
        if let Some(next) = self.servers[server].next(now) {
            self.at(next, Event::Completion { server, version });
        }
    }

    fn is_down(&self, now: u64, server: usize) -> bool {
        let during = |(start, end): (f64, f64)| (start..end).contains(&(now as f64 / UNIT));
        server == 0 && self.setup.slowed_to <= 0.0 && self.setup.incident.is_some_and(during)
    }

    fn capture(&mut self, now: u64, servers: std::ops::Range<usize>) -> Result<(), String> {
        let servers = servers.filter(|server| !self.is_down(now, *server)).collect::<Vec<_>>();
        let views: Vec<_> = servers.iter().map(|server| self.view(now, *server)).collect();
        let report = Some(Report { captured: now, views });
        let index = match self.free_reports.pop() {
            Some(free) => free,
            None => {
                self.reports.push(None);
                self.reports.len() - 1
            }
        };
        self.reports[index] = report;
        if self.setup.delay > 0.0 && now > 0 {
            self.after(now, self.setup.delay, Event::Deliver { report: index });
            return Ok(());
        }
        self.deliver(now, index)
    }

    fn view(&mut self, now: u64, server: usize) -> TargetView {
        let state = &mut self.servers[server];
        let busy = state.busy_until(now);
        let (then, busy_then) = std::mem::replace(&mut self.busy_before[server], (now, busy));
        let counts = self.setup.content == Content::Counts;
        let inside = u32::try_from(state.len()).unwrap_or(u32::MAX);
        let load = if counts {
            f64::from(inside)
        } else {
            let share = (busy - busy_then) as f64 / (now - then).max(1) as f64;
            (share * (1.0 + 0.05 * normal(&mut self.wires))).max(0.0)
        };
        TargetView {
            slot: u32::try_from(server).unwrap_or(u32::MAX),
            load,
            weight: if self.setup.speeds_known { self.nominal[server] } else { 1.0 },
            in_flight: if counts { inside } else { 0 },
            picks: 0,
            age_ms: 0,
            latency_us: 0,
            error_rate: 0.0,
            eligible: true,
            warm: 1.0,
            accepted: if counts { state.accepted } else { 0 },
            completed: if counts { state.completed } else { 0 },
            identity: server as u64,
        }
    }

    fn deliver(&mut self, now: u64, index: usize) -> Result<(), String> {
        let Some(Report { captured, mut views }) = self.reports[index].take() else {
            return Ok(());
        };
        self.free_reports.push(index);
        let hosts = if self.setup.hosts_known { self.hosts.len() } else { 1 };
        let hosts_told = u32::try_from(hosts).unwrap_or(u32::MAX);
        let age_ms = u32::try_from((now - captured) / MILLISECOND).unwrap_or(u32::MAX);
        for host in &mut self.hosts {
            let mut heard = Vec::with_capacity(views.len());
            for view in &mut views {
                if self.setup.loss > 0.0 && now > 0 && self.wires.f64() < self.setup.loss {
                    continue;
                }
                let server = view.slot as usize;
                let picks = &mut host.picks[server];
                while picks.front().is_some_and(|time| *time <= captured) {
                    picks.pop_front();
                }
                host.heard[server] = now;
                host.gone[server] = false;
                let picks = u32::try_from(picks.len()).unwrap_or(u32::MAX);
                heard.push(TargetView { picks, age_ms, ..*view });
                host.told[server] = Some((captured, *view));
            }
            host.chooser.update(now / MILLISECOND, hosts_told, &heard)?;
        }
        if self.setup.loss > 0.0 || self.setup.incident.is_some() {
            for view in views {
                let server = view.slot as usize;
                self.after(now, SILENT_PERIODS * self.setup.every, Event::Expire { server });
            }
        }
        Ok(())
    }

    /// Every host tells the others what it has handed out since the last time.
    fn claim(&mut self, now: u64) -> Result<(), String> {
        let claims = std::mem::take(&mut self.unclaimed);
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let mut views = BTreeMap::new();
            for (time, server, _) in claims.iter().filter(|(_, _, by)| *by != number) {
                let Some((captured, view)) = host.told[*server] else { continue };
                if *time <= captured || host.gone[*server] {
                    continue;
                }
                let picks = &mut host.picks[*server];
                let place = picks.partition_point(|earlier| earlier <= time);
                picks.insert(place, *time);
                let picks = u32::try_from(picks.len()).unwrap_or(u32::MAX);
                let age_ms = u32::try_from((now - captured) / MILLISECOND).unwrap_or(u32::MAX);
                views.insert(*server, TargetView { picks, age_ms, ..view });
            }
            let views: Vec<_> = views.into_values().collect();
            host.chooser.update(now / MILLISECOND, hosts, &views)?;
        }
        Ok(())
    }

    /// Hosts that have not heard of a server for the dead rule's time call it gone.
    fn expire(&mut self, now: u64, server: usize) -> Result<(), String> {
        let silence = (SILENT_PERIODS * self.setup.every * UNIT) as u64;
        for host in &mut self.hosts {
            if host.gone[server] || now - host.heard[server] < silence {
                continue;
            }
            host.gone[server] = true;
            host.chooser.leave(u32::try_from(server).unwrap_or(u32::MAX))?;
        }
        Ok(())
    }
}

/// A report period in nanoseconds.
fn period(setup: &Setup) -> u64 {
    ((setup.every * UNIT) as u64).max(1)
}

impl Measured {
    /// Time passes with everything as it is.
    fn pass(&mut self, now: u64) {
        let passed = (now - std::mem::replace(&mut self.seen, now)) as f64;
        if self.begin > 0 {
            self.inside_time += passed * self.inside as f64;
            self.longest_time += passed * self.longest as f64;
        }
    }

    fn arrive(&mut self, now: u64, setup: &Setup) {
        self.arrived += 1;
        self.inside += 1;
        if self.begin == 0 && self.arrived > setup.requests / 10 {
            self.begin = now;
            // Periods are those of servers that report together.
            self.period_end = (now / period(setup) + 1) * period(setup);
            self.picks.fill(0);
        }
    }

    fn respond(&mut self, response: u64, arrived: u64) {
        self.inside -= 1;
        if self.begin > 0 && arrived >= self.begin {
            self.responses.add(response as f64 / UNIT);
        }
    }

    /// A queue's length has changed.
    fn length(&mut self, before: usize, after: usize) {
        if self.lengths.len() <= after {
            self.lengths.resize(after + 1, 0);
        }
        self.lengths[before] -= 1;
        self.lengths[after] += 1;
        self.longest = self.longest.max(after);
        while self.longest > 0 && self.lengths[self.longest] == 0 {
            self.longest -= 1;
        }
    }

    fn pick(&mut self, now: u64, server: usize, setup: &Setup) {
        if self.begin > 0 {
            if now >= self.period_end {
                let total: u64 = self.picks.iter().sum();
                if total > 0 {
                    let most = self.picks.iter().copied().max().unwrap_or_default();
                    self.herd.0 += most as f64 / total as f64;
                    self.herd.1 += 1;
                }
                self.picks.fill(0);
                self.period_end = (now / period(setup) + 1) * period(setup);
            }
            self.picks[server] += 1;
        }
        let Some((start, end)) = setup.incident else { return };
        let since = now as f64 / UNIT - start;
        if (0.0..end - start).contains(&since) {
            let unit = since as usize;
            if self.reaction.len() <= unit {
                self.reaction.resize(unit + 1, (0, 0));
            }
            self.reaction[unit].0 += u64::from(server == 0);
            self.reaction[unit].1 += 1;
        }
    }

    fn outcome(self, setup: &Setup) -> Outcome {
        let time = (self.seen - self.begin) as f64;
        let servers = setup.servers as f64;
        let inside = self.inside_time / time;
        let longest = self.longest_time / time;
        let share = |(its, all): &(u64, u64)| *its as f64 / (*all).max(1) as f64 * servers;
        Outcome {
            inside,
            rate: (setup.requests - setup.requests / 10) as f64 / (time / UNIT),
            imbalance: longest / (inside / servers),
            longest,
            herd_share: self.herd.0 / self.herd.1 as f64,
            reaction: self.reaction.iter().map(share).collect(),
            reaction_queue: self.reaction_queue,
            picks_of_dead: self.picks_of_dead,
            unanswered: self.unanswered,
            responses: self.responses,
        }
    }
}
