//! One run: requests arrive, hosts choose, servers work, reports travel; in virtual time.
//!
//! Events are taken in order of their time, then of their making, so that equal setups and seeds give
//! equal runs. Arrivals, clients, work and reports draw from streams of their own: every strategy meets
//! the same requests and the same losses. Time is in nanoseconds, one unit of service is [`UNIT`]. What a
//! strategy hears is what a host would tell it; ejections and slow starts are a host's own and not here.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use super::chooser::{Chooser, Servers};
use super::clients::{Client, Clients};
use super::host::{Host, Report};
use super::measure::Outcome;
use super::server::{Job, Server};
use super::setup::{Arrivals, Content, Setup, Timing, exponential, normal};
use super::tally::Tally;
use crate::policy::guest::{Request, TargetView};

/// Nanoseconds of one unit.
pub(super) const UNIT: f64 = 1e9;
/// Milliseconds between two times at which a host tells its strategy of outcomes, as `pick/intake.rs` has it.
const SWEEP_MS: u64 = 50;
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
    Sweep,
    Expire { host: usize, server: usize },
}

pub(super) struct World<'c> {
    setup: Setup,
    /// Nanoseconds of a strategy's millisecond.
    millisecond: u64,
    servers: Vec<Server>,
    nominal: Vec<f64>,
    hosts: Vec<Host<'c>>,
    /// Requests that wait for any server, and their luck.
    central: Option<VecDeque<(Job, f64)>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    /// Reports on their way: one server's, or everybody's.
    reports: Vec<Option<Vec<Report>>>,
    /// Reports of each server so far.
    sent: Vec<u64>,
    /// Picks since the last claims: time, server and host.
    unclaimed: Vec<(u64, usize, usize)>,
    free_reports: Vec<usize>,
    busy_before: Vec<(u64, u64)>,
    burst: bool,
    arrivals: fastrand::Rng,
    wires: fastrand::Rng,
    machines: fastrand::Rng,
    clients: Clients,
    measured: Tally,
}

/// The servers' speeds in a run with this seed.
pub(super) fn nominal(setup: &Setup, seed: u64) -> Vec<f64> {
    setup.speeds(&mut stream(seed, MACHINES))
}

/// Numbers of the random streams.
const MACHINES: u64 = 1;
const WIRES: u64 = 2;
const ARRIVALS: u64 = 3;
const CLIENTS: u64 = 4;

fn stream(seed: u64, number: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed.wrapping_mul(8).wrapping_add(number))
}

impl<'c> World<'c> {
    /// A farm with one chooser a host; `central`: one queue for all, the choosers are not asked.
    pub(super) fn new(
        setup: &Setup,
        choosers: &'c mut [Box<dyn Chooser>],
        central: bool,
        seed: u64,
    ) -> Self {
        let stream = |number| stream(seed, number);
        let (mut machines, wires, arrivals) = (stream(MACHINES), stream(WIRES), stream(ARRIVALS));
        let nominal = setup.speeds(&mut machines);
        let servers: Vec<_> =
            nominal.iter().map(|speed| Server::new(*speed, setup.discipline)).collect();
        let count = servers.len();
        let hosts = choosers.iter_mut().map(|chooser| Host::new(&mut **chooser, setup)).collect();
        Self {
            setup: setup.clone(),
            millisecond: setup.millisecond(),
            servers,
            nominal,
            hosts,
            central: central.then(VecDeque::new),
            events: BinaryHeap::new(),
            made: 0,
            reports: Vec::new(),
            sent: vec![0; count],
            unclaimed: Vec::new(),
            free_reports: Vec::new(),
            busy_before: vec![(0, 0); count],
            burst: false,
            arrivals,
            wires,
            machines,
            clients: Clients::new(setup, stream(CLIENTS)),
            measured: Tally::new(count),
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
                Event::Sweep => {
                    self.sweep(now)?;
                    self.at(now + SWEEP_MS * self.millisecond, event);
                }
                Event::Expire { host, server } => self.hosts[host].expire(now, server)?,
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
                    self.measured.incident();
                }
                Event::IncidentEnd => self.set_speed(now, 0, self.nominal[0]),
            }
        }
        Ok(self.measured.outcome(&self.setup, &self.nominal))
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
        if self.setup.outcomes {
            self.at(SWEEP_MS * self.millisecond, Event::Sweep);
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
        let work = self.setup.work(&mut self.arrivals);
        let number = self.arrivals.usize(..self.hosts.len().max(1));
        let random = self.arrivals.u64(..);
        let client = self.clients.next();
        self.next_arrival(now);
        self.measured.arrive(now, &self.setup);
        let job = Job { arrived: now, work: work * UNIT, host: number, ok: true };
        if let Some(queue) = &mut self.central {
            let speed = |server: &usize| self.servers[*server].speed;
            let idle = (0..self.servers.len()).filter(|server| self.servers[*server].len() == 0);
            match idle.max_by(|a, b| speed(a).total_cmp(&speed(b))) {
                Some(server) => self.put(now, server, job, client.luck),
                None => queue.push_back((job, client.luck)),
            }
            return Ok(());
        }
        let cost = if self.setup.costs_known { work } else { 1.0 };
        let request =
            Request { key: client.hash(), class: 0, cost, now_ms: now / self.millisecond, random };
        let chosen = self.hosts[number].choose(&request, &Servers(&self.servers))?;
        let server = chosen.unwrap_or_else(|| {
            self.measured.unanswered += 1;
            (random % self.servers.len() as u64) as usize
        });
        self.send(now, number, server, client);
        self.put(now, server, job, client.luck);
        Ok(())
    }

    /// Notes that this host's client goes to this server.
    fn send(&mut self, now: u64, number: usize, server: usize, client: Client) {
        let host = &mut self.hosts[number];
        host.send(now, server);
        self.measured.picks_of_dead += u64::from(host.misses(server));
        if self.setup.claims > 0.0 {
            self.unclaimed.push((now, server, number));
        }
        let moved = self.clients.place(client, server);
        self.measured.pick(now, server, moved, &self.setup);
    }

    /// A request begins to wait in this server; with too little luck it fails there.
    fn put(&mut self, now: u64, server: usize, mut job: Job, luck: f64) {
        if luck < self.failures(now, server) {
            job.work *= self.setup.failure_work;
            job.ok = false;
        }
        let before = self.servers[server].len();
        self.servers[server].add(now, job);
        self.measured.queue(server, before, before + 1);
        self.foresee(now, server);
    }

    /// The share of its requests that this server fails now.
    fn failures(&self, now: u64, server: usize) -> f64 {
        let is_now = self.setup.incident.is_none() || self.is_incident(now);
        if server == 0 && is_now { self.setup.failures } else { 0.0 }
    }

    fn complete(&mut self, now: u64, server: usize, version: u32) {
        if self.servers[server].version != version {
            return;
        }
        let before = self.servers[server].len();
        if let Some(job) = self.servers[server].complete(now) {
            self.measured.queue(server, before, before - 1);
            self.measured.leave(now, &job);
            if self.setup.outcomes && self.central.is_none() {
                self.hosts[job.host].learn(now, server, now - job.arrived, job.ok);
            }
        }
        match self.central.as_mut().and_then(VecDeque::pop_front) {
            Some((job, luck)) => self.put(now, server, job, luck),
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

    fn is_incident(&self, now: u64) -> bool {
        let during = |(start, end): (f64, f64)| (start..end).contains(&(now as f64 / UNIT));
        self.setup.incident.is_some_and(during)
    }

    fn is_down(&self, now: u64, server: usize) -> bool {
        server == 0 && self.setup.slowed_to <= 0.0 && self.is_incident(now)
    }

    fn capture(&mut self, now: u64, servers: std::ops::Range<usize>) -> Result<(), String> {
        let servers = servers.filter(|server| !self.is_down(now, *server)).collect::<Vec<_>>();
        let reports = Some(servers.iter().map(|server| self.report(now, *server)).collect());
        let index = match self.free_reports.pop() {
            Some(free) => free,
            None => {
                self.reports.push(None);
                self.reports.len() - 1
            }
        };
        self.reports[index] = reports;
        if self.setup.delay > 0.0 && now > 0 {
            self.after(now, self.setup.delay, Event::Deliver { report: index });
            return Ok(());
        }
        self.deliver(now, index)
    }

    fn report(&mut self, now: u64, server: usize) -> Report {
        self.sent[server] += 1;
        Report { number: self.sent[server], captured: now, view: self.view(now, server) }
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
        let Some(reports) = self.reports[index].take() else {
            return Ok(());
        };
        self.free_reports.push(index);
        let told = self.hosts_told();
        let may_be_gone = self.setup.loss > 0.0 || self.setup.incident.is_some();
        for number in 0..self.hosts.len() {
            let mut heard = Vec::with_capacity(reports.len());
            for report in &reports {
                if self.setup.loss > 0.0 && now > 0 && self.wires.f64() < self.setup.loss {
                    continue;
                }
                let silence = self.hosts[number].hear(now, *report);
                let server = report.view.slot as usize;
                heard.push(server);
                if may_be_gone {
                    self.at(now + silence, Event::Expire { host: number, server });
                }
            }
            self.hosts[number].tell(now, told, heard)?;
        }
        Ok(())
    }

    /// Every host tells the others what it has handed out since the last time.
    fn claim(&mut self, now: u64) -> Result<(), String> {
        let claims = std::mem::take(&mut self.unclaimed);
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let others = claims.iter().filter(|(_, _, by)| *by != number);
            let news = others.filter(|(time, server, _)| host.hear_of_pick(*time, *server));
            let servers: BTreeSet<_> = news.map(|(_, server, _)| *server).collect();
            host.tell(now, hosts, servers)?;
        }
        Ok(())
    }

    /// Every host tells its strategy what clients said since the last time.
    fn sweep(&mut self, now: u64) -> Result<(), String> {
        let hosts = self.hosts_told();
        self.hosts.iter_mut().try_for_each(|host| host.tell_news(now, hosts))
    }

    /// How many hosts there are, as a strategy is told.
    fn hosts_told(&self) -> u32 {
        let hosts = if self.setup.hosts_known { self.hosts.len() } else { 1 };
        u32::try_from(hosts).unwrap_or(u32::MAX)
    }
}
