//! The agent by virtual time, with counted samples.

mod counters;
mod replicas;

use super::*;
use crate::config::{MetricSource, ServiceConfig, SystemMetric};
use crate::report::wire;

fn metric(name: &str, every_ms: u64, window: usize) -> MetricConfig {
    let every = Duration::from_millis(every_ms);
    MetricConfig {
        every,
        window,
        ..MetricConfig::new(name, MetricSource::system(SystemMetric::Cpu))
    }
}

fn agent(metrics: Vec<MetricConfig>, start: Instant) -> Agent {
    let config = AgentConfig {
        machine: "m".to_owned(),
        interval: Duration::from_secs(2),
        metrics,
        ..AgentConfig::default()
    };
    Agent::new(config, "farm".to_owned(), Keyring::default(), 77, start)
}

/// An agent whose sources give what a function of metric and sample number says.
struct Bench<F> {
    agent: Agent,
    start: Instant,
    now: Instant,
    /// When each metric is sampled next, and how often it was.
    beats: Vec<(Instant, u64)>,
    give: F,
}

/// A report as (when, seq, values).
type Sent = (u128, u64, Vec<f64>);

impl<F: FnMut(usize, u64) -> Option<Reading>> Bench<F> {
    fn new(metrics: Vec<MetricConfig>, give: F) -> Self {
        let start = Instant::now();
        let beats = metrics.iter().map(|metric| (start + metric.every, 0)).collect();
        Self { agent: agent(metrics, start), start, now: start, beats, give }
    }

    /// Runs until so many milliseconds after the start.
    fn run_to(&mut self, millis: u64) -> Vec<Sent> {
        let end = self.start + Duration::from_millis(millis);
        let mut reports = Vec::new();
        loop {
            let beat = self.beats.iter().map(|(next, _)| *next).min();
            let due = beat.map_or(self.agent.due(), |beat| beat.min(self.agent.due()));
            if due.max(self.now) > end {
                self.now = end;
                return reports;
            }
            self.now = due.max(self.now);
            for index in 0..self.beats.len() {
                let (next, samples) = &mut self.beats[index];
                if *next > self.now {
                    continue;
                }
                *samples += 1;
                *next = following(*next, self.agent.config.metrics[index].every, self.now);
                if let Some(reading) = (self.give)(index, *samples) {
                    let event = Event::Readings(vec![(Place::Meter(index), reading)]);
                    self.agent.hear(event, self.now);
                }
            }
            let Some(frame) = self.agent.step(self.now).pop() else { continue };
            reports.push(self.decode(&frame));
        }
    }

    fn decode(&self, frame: &[u8]) -> Sent {
        let decoded = wire::decode(frame, &Keyring::default()).expect("own frame");
        let report = &decoded[0];
        ((self.now - self.start).as_millis(), report.seq, report.metrics.values.clone())
    }
}

/// 1, 2, 3 … of every metric.
#[expect(clippy::cast_precision_loss, reason = "a test takes few samples")]
fn count(_: usize, sample: u64) -> Option<Reading> {
    Some(Reading::Value(sample as f64))
}

/// Times and first values.
fn firsts(reports: &[Sent]) -> Vec<(u128, Option<f64>)> {
    let first = |values: &[f64]| values.first().copied().filter(|value| value.is_finite());
    reports.iter().map(|(when, _, values)| (*when, first(values))).collect()
}

#[test]
fn silent_until_every_window_is_full_then_on_the_beat() {
    let mut bench = Bench::new(vec![metric("a", 500, 5), metric("b", 1_000, 3)], count);
    assert_eq!(
        bench.run_to(7_000),
        [
            (3_000, 1, vec![4.0, 2.0]), // a: 2..=6, b: 1..=3
            (5_000, 2, vec![8.0, 4.0]),
            (7_000, 3, vec![12.0, 6.0]),
        ]
    );
}

#[test]
fn no_metrics_do_not_hold_the_report_back() {
    assert_eq!(Bench::new(Vec::new(), count).run_to(2_000).len(), 2);
}

#[test]
fn a_window_of_the_first_load_balancer_is_reported_exactly() {
    let mut bench = Bench::new(vec![metric("a", 1_000, 5)], count);
    let averages = firsts(&bench.run_to(7_000));
    assert_eq!(averages, [(5_000, Some(3.0)), (7_000, Some(5.0))]); // sums 15 and 25
}

#[test]
fn capacity_divides_and_decay_prefers_the_newest() {
    let history = MetricConfig { decay: 2.0, capacity: 10.0, ..metric("a", 1_000, 3) };
    let mut bench = Bench::new(vec![history], count);
    let sent = firsts(&bench.run_to(3_000));
    let expected = (3.0 + 2.0 / 2.0 + 1.0 / 4.0) / 1.75 / 10.0;
    assert!(matches!(sent[..], [(3_000, Some(value))] if (value - expected).abs() < 1e-12));
}

#[test]
fn a_metric_without_a_window_holds_the_first_report_back_for_one_interval_at_most() {
    let quick = metric("a", 500, 1);
    let mut bench = Bench::new(vec![quick.clone()], count);
    assert_eq!(firsts(&bench.run_to(1_000)), [(500, Some(1.0))]);
    let mut hanging = Bench::new(vec![quick.clone()], |_, _| None);
    assert_eq!(firsts(&hanging.run_to(3_000)), [(2_000, None)]);
    let failing = |_, _| Some(Reading::Silent("refused".to_owned()));
    assert_eq!(firsts(&Bench::new(vec![quick], failing).run_to(1_000)), [(500, None)]);
}

#[test]
fn what_this_machine_never_has_does_not_keep_the_agent_silent() {
    // One source never answers, one answers that it has nothing: the report leaves without them.
    let metrics = || vec![metric("cpu", 500, 5), metric("b", 500, 5)];
    let without = |reading: Option<Reading>| {
        let give =
            move |index, sample| if index == 0 { count(index, sample) } else { reading.clone() };
        firsts(&Bench::new(metrics(), give).run_to(12_000))
    };
    let silent = without(None);
    assert_eq!(silent[0], (10_000, Some(18.0)), "after ten seconds");
    let useless = without(Some(Reading::Useless("no such file".to_owned())));
    assert_eq!(useless[0], (2_500, Some(3.0)), "as soon as its window could have been full");
}

#[test]
fn a_source_that_hangs_goes_stale_and_delays_nothing() {
    let metrics = vec![metric("a", 500, 2), metric("b", 500, 2)];
    let give = |index: usize, sample: u64| {
        let hangs = index == 0 && (5..=40).contains(&sample);
        if hangs { None } else { count(index, sample) }
    };
    let reports = Bench::new(metrics, give).run_to(25_000);
    let times: Vec<_> = reports.iter().map(|(when, ..)| *when).collect();
    let beat = (2_000..=24_000).step_by(2_000);
    assert_eq!(times, std::iter::once(1_000).chain(beat).collect::<Vec<_>>());
    let known = |(when, _, values): &Sent| {
        // The last sample is of 2 s and counts for 10; two new ones come at 20.5 and 21 s.
        assert_eq!(values[0].is_finite(), *when <= 12_000 || *when >= 22_000, "at {when}");
        assert!(values[1].is_finite());
    };
    reports.iter().for_each(known);
}

#[test]
fn numbers_that_are_none_never_leave() {
    let give = |_, sample: u64| {
        Some(match sample % 3 {
            0 => Reading::Value(f64::NAN),
            1 => Reading::Value(f64::INFINITY),
            _ => Reading::Value(0.25),
        })
    };
    let reports = firsts(&Bench::new(vec![metric("a", 500, 2)], give).run_to(9_000));
    assert!(reports.len() > 2 && reports.iter().all(|(_, value)| *value == Some(0.25)));
}

#[test]
fn a_paused_agent_does_not_burst() {
    let mut bench = Bench::new(vec![metric("a", 500, 1)], count);
    bench.run_to(1_000);
    let wake = bench.start + Duration::from_secs(60);
    let sent = (0..10).filter(|_| !bench.agent.step(wake).is_empty()).count();
    assert!(sent <= 1);
    assert!(bench.agent.due() > wake);
}

#[test]
fn after_a_pause_the_first_report_is_of_new_samples() {
    let mut bench = Bench::new(vec![metric("a", 500, 2)], count);
    let before = bench.run_to(5_000);
    assert_eq!(before.last().map(|(when, seq, _)| (*when, *seq)), Some((4_000, 3)));
    // A minute later the beats go on from there.
    bench.now = bench.start + Duration::from_mins(1);
    let after = bench.run_to(64_000);
    let expected = [(60_500, 4, vec![11.5]), (62_500, 5, vec![15.5])];
    assert_eq!(after, expected, "one report, when the window is full of new samples");
}

#[test]
fn pushes_set_and_add_and_are_forgotten_in_time() {
    let push = |name: &str| MetricConfig::new(name, "push".parse().expect("a source"));
    let start = Instant::now();
    let mut agent = agent(vec![push("a")], start);
    let value = |agent: &mut Agent, after_s: u64| {
        let now = start + Duration::from_secs(after_s);
        let frame = agent.step(now).pop().expect("a report");
        let decoded = wire::decode(&frame, &Keyring::default()).expect("own frame");
        Some(decoded[0].metrics.values[0]).filter(|value| value.is_finite())
    };
    let change = |agent: &mut Agent, change, after_s| {
        let event = Event::Pushed(vec![(Place::Meter(0), change)]);
        agent.hear(event, start + Duration::from_secs(after_s));
    };
    assert_eq!(value(&mut agent, 0), None, "nothing was pushed, and nothing is waited for");
    change(&mut agent, Change::Set(5.0), 1);
    change(&mut agent, Change::Add(-2.0), 1);
    assert_eq!(value(&mut agent, 2), Some(3.0));
    assert_eq!(value(&mut agent, 31), Some(3.0));
    assert_eq!(value(&mut agent, 33), None, "32 s old");
    change(&mut agent, Change::Add(1.0), 34);
    assert_eq!(value(&mut agent, 35), Some(4.0), "what was open is open still");
}

#[test]
fn what_died_long_ago_does_not_silence_the_machine_after_a_pause() {
    let give = |index: usize, sample: u64| match (index, sample) {
        (0, 5..) => Some(Reading::Silent("refused".to_owned())),
        _ => count(index, sample),
    };
    let mut bench = Bench::new(vec![metric("a", 500, 2), metric("b", 500, 2)], give);
    let before = bench.run_to(20_000);
    let (_, _, values) = before.last().expect("reports");
    assert!(values[0].is_nan() && values[1].is_finite());
    // Held up, but for so short a time that nothing has expired meanwhile.
    bench.now = bench.start + Duration::from_millis(23_500);
    let after = bench.run_to(24_000);
    assert_eq!(after.first().map(|(when, ..)| *when), Some(23_500), "it reports on");
}

#[test]
fn samples_of_before_an_outage_are_not_averaged_with_new_ones() {
    // Reports are rarer than samples expire.
    let metric = MetricConfig { expires: Duration::from_secs(3), ..metric("a", 1_000, 3) };
    let give = |_, sample: u64| match sample {
        1..=12 => Some(Reading::Value(100.0)),
        13..=20 => None,
        _ => Some(Reading::Value(1.0)),
    };
    let mut bench = Bench::new(vec![metric], give);
    bench.agent.config.interval = Duration::from_secs(11);
    let reports = firsts(&bench.run_to(33_000));
    let after = [(22_000, None), (33_000, Some(1.0))];
    assert_eq!(reports[..2], [(3_000, Some(100.0)), (11_000, Some(100.0))]);
    assert_eq!(reports[2..], after, "two new samples are no full window");
}

#[test]
fn a_successor_goes_on_from_what_was_pushed() {
    let start = Instant::now();
    let push: MetricSource = "push".parse().expect("a source");
    let service = |counted: &str| {
        let mut service = ServiceConfig::new("web", "10.0.0.1:80");
        service.offer.accepted = Some(push.clone());
        service.offer.in_flight = Some(counted.parse().expect("a source"));
        service
    };
    let make = |names: &[&str], counted: &str| {
        let metrics = names.iter().map(|name| MetricConfig::new(name, push.clone()));
        let config = AgentConfig {
            metrics: metrics.collect(),
            services: vec![service(counted)],
            ..AgentConfig::default()
        };
        Agent::new(config, "farm".to_owned(), Keyring::default(), 77, start)
    };
    let said = |agent: &mut Agent, after_s: u64| {
        let frame = agent.step(start + Duration::from_secs(after_s)).pop().expect("a report");
        let decoded = wire::decode(&frame, &Keyring::default()).expect("own frame");
        let web = &decoded[0].services[0];
        (decoded[0].metrics.values.clone(), web.accepted, web.in_flight)
    };
    let mut old = make(&["gone", "kept"], "push");
    let changes = [(Place::Meter(1), 3.0), (Place::Tally(0), 9.0), (Place::Tally(2), 2.0)];
    let changes = changes.map(|(place, amount)| (place, Change::Add(amount)));
    old.hear(Event::Pushed(changes.to_vec()), start);
    let mut new = make(&["kept"], "push");
    new.take_over(&old.into_heritage());
    assert_eq!(said(&mut new, 1), (vec![3.0], 9, 2));
    let one_less = vec![(Place::Meter(0), Change::Add(-1.0)), (Place::Tally(2), Change::Add(-1.0))];
    new.hear(Event::Pushed(one_less), start + Duration::from_secs(40));
    assert_eq!(said(&mut new, 41), (vec![2.0], 9, 1), "long after they expired");
    let mut other = make(&["kept"], "http-json:http://127.0.0.1:1/#/open");
    other.take_over(&new.into_heritage());
    assert_eq!(said(&mut other, 42), (vec![2.0], 0, 0), "another source has said nothing yet");
    other.hear(Event::Readings(vec![(Place::Tally(2), Reading::Value(5.0))]), start);
    assert_eq!(said(&mut other, 44), (vec![2.0], 9, 5), "and counts for itself");
}

#[test]
fn a_machine_that_needs_answers_is_silent_without_them() {
    let mut up = true;
    let start = Instant::now();
    let mut agent = agent(vec![metric("a", 500, 1)], start).needing_answers();
    let reports = (0..10).filter(|second| {
        let now = start + Duration::from_secs(*second);
        let reading = match up {
            true => Reading::Value(1.0),
            false => Reading::Silent("connection refused".to_owned()),
        };
        up = !(3..=6).contains(second);
        agent.hear(Event::Readings(vec![(Place::Meter(0), reading)]), now);
        !agent.step(now).is_empty()
    });
    assert_eq!(reports.collect::<Vec<_>>(), [0, 2, 8]);
}

#[test]
fn leaving_is_said_once_reports_were_heard() {
    let mut bench = Bench::new(vec![metric("a", 500, 1)], count);
    assert!(bench.agent.leave(bench.now).is_empty(), "nobody knows this machine yet");
    bench.run_to(500);
    let frame = bench.agent.leave(bench.now).pop().expect("a last report");
    let decoded = wire::decode(&frame, &Keyring::default()).expect("own frame");
    assert_eq!((decoded[0].state, decoded[0].seq), (State::Leaving, 2));
}
