//! The agent: samples of this machine in, encoded report frames out.
//!
//! Every metric has its own interval and window; the report carries window averages. Invariants: no
//! report leaves before every window is full (a half-filled one would look idle); `seq` counts from
//! 1 without gaps; after a pause one report leaves, not a burst. [`Agent`] takes the time as an
//! argument (but for the stamp of signed reports) and knows no socket; [`run`] gives it a clock and sends what it makes.

mod source;
mod window;

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::clock::wall_ms;
use crate::config::{AgentConfig, MetricConfig, ServiceConfig};
use crate::report::{Keyring, Metrics, Report, Service, State, wire};
pub use source::{Sample, SystemSample};
use window::Window;

/// Times that the last report is sent: nothing follows it if it gets lost.
const LEAVE_COPIES: u32 = 3;
/// Time between them, longer than most bursts of losses.
const LEAVE_GAP: Duration = Duration::from_millis(20);

/// Samples one machine and makes its reports.
pub struct Agent {
    config: AgentConfig,
    farm: String,
    keyring: Keyring,
    boot: u64,
    seq: u64,
    meters: Vec<Meter>,
    next_report: Instant,
}

/// One metric: where it comes from and what was seen lately.
struct Meter {
    sample: Box<dyn Sample>,
    every: Duration,
    next: Instant,
    window: Window,
}

impl Agent {
    /// An agent that samples this machine. `boot` is in milliseconds since 1970.
    #[must_use]
    pub fn new(
        config: AgentConfig,
        farm: String,
        keyring: Keyring,
        boot: u64,
        now: Instant,
    ) -> Self {
        let sample = |metric: &MetricConfig| -> Box<dyn Sample> {
            Box::new(SystemSample::new(metric.source))
        };
        Self::with_samples(config, farm, keyring, boot, now, sample)
    }

    /// The same with other sources, for tests.
    pub fn with_samples(
        config: AgentConfig,
        farm: String,
        keyring: Keyring,
        boot: u64,
        now: Instant,
        sample: impl Fn(&MetricConfig) -> Box<dyn Sample>,
    ) -> Self {
        let meter = |metric: &MetricConfig| Meter {
            sample: sample(metric),
            every: metric.every,
            next: now + metric.every,
            window: Window::new(metric.window),
        };
        let meters = config.metrics.iter().map(meter).collect();
        Self { config, farm, keyring, boot, seq: 0, meters, next_report: now }
    }

    /// When there is something to do next.
    #[must_use]
    pub fn due(&self) -> Instant {
        let next_sample = self.meters.iter().map(|meter| meter.next).min();
        match next_sample {
            Some(sample) if !self.is_full() => sample,
            Some(sample) => sample.min(self.next_report),
            None => self.next_report,
        }
    }

    /// Takes the samples that are due and makes the report, if it is.
    pub fn step(&mut self, now: Instant) -> Option<Vec<u8>> {
        for meter in &mut self.meters {
            if meter.next <= now {
                if let Some(value) = meter.sample.sample() {
                    meter.window.push(value);
                }
                meter.next = following(meter.next, meter.every, now);
            }
        }
        if !self.is_full() || now < self.next_report {
            return None;
        }
        self.next_report = following(self.next_report, self.config.interval, now);
        self.frame(State::Ready)
    }

    /// The last report: hosts take the machine out at once. `None` when there was no report yet.
    pub fn leave(&mut self) -> Option<Vec<u8>> {
        if self.seq == 0 { None } else { self.frame(State::Leaving) }
    }

    fn is_full(&self) -> bool {
        self.meters.iter().all(|meter| meter.window.is_full())
    }

    fn frame(&mut self, state: State) -> Option<Vec<u8>> {
        self.seq += 1;
        let frame = wire::encode(&[self.report(state)], &self.keyring);
        frame.inspect_err(|error| tracing::error!(%error, "cannot encode this report")).ok()
    }

    fn report(&self, state: State) -> Report<'_> {
        Report {
            farm: &self.farm,
            machine: &self.config.machine,
            boot: self.boot,
            seq: self.seq,
            interval_ms: u32::try_from(self.config.interval.as_millis()).unwrap_or(u32::MAX),
            delay_ms: 0, // captured and sent in one step
            state,
            weight: self.config.weight,
            metrics: Metrics {
                names: self.config.metrics.iter().map(|metric| metric.name.as_str()).collect(),
                values: self.meters.iter().map(|meter| meter.window.average()).collect(),
            },
            services: self.config.services.iter().map(offered).collect(),
            labels: self.config.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect(),
            // Unsigned reports say nothing that nobody can trust.
            sent_ms: if self.keyring.signing_id() == 0 { 0 } else { wall_ms() },
        }
    }
}

fn offered(service: &ServiceConfig) -> Service<'_> {
    Service {
        name: &service.name,
        address: &service.address,
        weight: service.weight,
        metrics: Metrics::default(),
        accepted: 0,
        completed: 0,
        in_flight: 0,
    }
}

/// Samples and reports until told to stop; then sends the last report and returns, which closes
/// `frames`.
pub async fn run(mut agent: Agent, frames: mpsc::Sender<Vec<u8>>, mut stop: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(agent.due()) => {}
            // Either word means the same: the sender said so or is gone.
            _ = &mut stop => break,
        }
        if let Some(frame) = agent.step(Instant::now())
            && frames.send(frame).await.is_err()
        {
            return; // nobody sends any more: the process is stopping
        }
    }
    let Some(frame) = agent.leave() else { return };
    for copy in 0..LEAVE_COPIES {
        if copy > 0 {
            tokio::time::sleep(LEAVE_GAP).await;
        }
        // A closed channel means that the process is stopping without a network.
        frames.send(frame.clone()).await.ok();
    }
}

/// The next time of a fixed beat after `now`: what was missed is left out.
fn following(last: Instant, every: Duration, now: Instant) -> Instant {
    let next = last + every;
    if next > now { next } else { now + every }
}

#[cfg(test)]
mod tests;
