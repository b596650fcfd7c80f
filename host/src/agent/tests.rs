//! The agent by virtual time, with counted samples.

use super::*;
use crate::config::MetricSource;

/// Counts 1, 2, 3 …
struct Counter(f64);

impl Sample for Counter {
    fn sample(&mut self) -> Option<f64> {
        self.0 += 1.0;
        Some(self.0)
    }
}

fn metric(name: &str, every_ms: u64, window: usize) -> MetricConfig {
    let every = Duration::from_millis(every_ms);
    MetricConfig { name: name.to_owned(), source: MetricSource::SystemCpu, every, window }
}

fn agent(metrics: Vec<MetricConfig>, start: Instant) -> Agent {
    let config = AgentConfig {
        machine: "m".to_owned(),
        interval: Duration::from_secs(2),
        metrics,
        ..AgentConfig::default()
    };
    let counter = |_: &MetricConfig| -> Box<dyn Sample> { Box::new(Counter(0.0)) };
    Agent::with_samples(config, "farm".to_owned(), Keyring::default(), 77, start, counter)
}

/// Runs for `millis` of virtual time; each report as (when, seq, values).
fn run_for(agent: &mut Agent, start: Instant, millis: u64) -> Vec<(u128, u64, Vec<f64>)> {
    let mut reports = Vec::new();
    while agent.due() <= start + Duration::from_millis(millis) {
        let now = agent.due();
        if let Some(frame) = agent.step(now) {
            let decoded = wire::decode(&frame, &Keyring::default()).expect("own frame");
            let report = &decoded[0];
            reports.push(((now - start).as_millis(), report.seq, report.metrics.values.clone()));
        }
    }
    reports
}

#[test]
fn silent_until_every_window_is_full_then_on_the_beat() {
    let start = Instant::now();
    let mut agent = agent(vec![metric("a", 500, 5), metric("b", 1_000, 3)], start);
    let reports = run_for(&mut agent, start, 7_000);
    assert_eq!(
        reports,
        [
            (3_000, 1, vec![4.0, 2.0]), // a: 2..=6, b: 1..=3
            (5_000, 2, vec![8.0, 4.0]),
            (7_000, 3, vec![12.0, 6.0]),
        ]
    );
}

#[test]
fn no_metrics_do_not_hold_the_report_back() {
    let start = Instant::now();
    let mut agent = agent(Vec::new(), start);
    assert_eq!(run_for(&mut agent, start, 2_000).len(), 2);
}

#[test]
fn a_paused_agent_does_not_burst() {
    let start = Instant::now();
    let mut agent = agent(vec![metric("a", 500, 1)], start);
    run_for(&mut agent, start, 1_000);
    let wake = start + Duration::from_secs(60);
    let sent = (0..10).filter(|_| agent.step(wake).is_some()).count();
    assert_eq!(sent, 1);
    assert!(agent.due() > wake);
}

#[test]
fn leaving_is_said_once_reports_were_heard() {
    let start = Instant::now();
    let mut agent = agent(vec![metric("a", 500, 1)], start);
    assert_eq!(agent.leave(), None, "nobody knows this machine yet");
    run_for(&mut agent, start, 500);
    let frame = agent.leave().expect("a last report");
    let decoded = wire::decode(&frame, &Keyring::default()).expect("own frame");
    assert_eq!((decoded[0].state, decoded[0].seq), (State::Leaving, 2));
}
