//! What Prometheus reads at `/metrics`: counters and gauges gathered at the moment of the question. For people they
//! stand in config/METRICS.md.

mod policies;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::View;
use crate::report::CONFIG_LABEL;
use crate::telemetry;

/// The exposition format's name.
pub(super) const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Label = (&'static str, String);

/// All metrics, in OpenMetrics text.
pub(super) fn text(view: &View) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("loadline");
    let families = families(view);
    registry.register_collector(Box::new(Gathered { families }));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

/// One metric with all its label sets.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    samples: Vec<(Vec<Label>, u64)>,
}

#[derive(Debug)]
struct Gathered {
    families: Vec<Family>,
}

impl Collector for Gathered {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { name, help, is_counter, samples } in &self.families {
            let unit: Option<&Unit> = None;
            let kind = if *is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
            let one = match &**samples {
                [(labels, value)] if labels.is_empty() => Some(*value),
                _ => None,
            };
            let gauge = |value| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            match (one, is_counter) {
                (Some(value), true) => ConstCounter::new(value).encode(family)?,
                (Some(value), false) => gauge(value).encode(family)?,
                (None, _) => {
                    for (labels, value) in samples {
                        let labels = labels.as_slice();
                        let sample = family.encode_family(&labels)?;
                        if *is_counter {
                            ConstCounter::new(*value).encode(sample)?;
                        } else {
                            gauge(*value).encode(sample)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn families(view: &View) -> Vec<Family> {
    let mut families = vec![
        counter("datagrams", "Datagrams received", &view.intake.datagrams),
        counter("reports", "Reports that changed the fleet", &view.intake.reports),
        counter("datagrams_dropped", "Datagrams that found the queue full", &view.intake.dropped),
        rejected(view),
    ];
    families.extend(machines(view));
    families.push(log());
    families.extend(transport(view));
    families.extend(config(view));
    families.extend(pools(view));
    families.extend(schedules(view));
    families.extend(feedback(view));
    families.extend(policies::in_pools(view));
    families.extend(policies::all(view));
    families.extend(policies::in_shadow(view));
    families
}

fn counter(name: &'static str, help: &'static str, count: &AtomicU64) -> Family {
    let samples = vec![(Vec::new(), count.load(Ordering::Relaxed))];
    Family { name, help, is_counter: true, samples }
}

fn log() -> Family {
    let samples = vec![(Vec::new(), telemetry::dropped())];
    let help = "Lines of the log that nobody read in time";
    Family { name: "log_lines_dropped", help, is_counter: true, samples }
}

/// What the sockets tell, and where the groups are heard.
fn transport(view: &View) -> Vec<Family> {
    let status = &*view.transport;
    let joined = status.joined().into_iter().map(|place| {
        let labels = vec![("interface", place.interface), ("group", place.group.to_string())];
        (labels, 1)
    });
    let receiving = vec![(Vec::new(), status.is_receiving.load(Ordering::Relaxed).into())];
    let open = vec![(Vec::new(), status.connections_open.load(Ordering::Relaxed))];
    let gauge = |name, help, samples| Family { name, help, is_counter: false, samples };
    vec![
        counter("kernel_drops", "Datagrams lost to a full receive buffer", &status.kernel_drops),
        counter("datagrams_truncated", "Datagrams longer than any report", &status.truncated),
        counter("datagrams_multicast", "Datagrams that came by a group", &status.multicast),
        counter("receive_errors", "Errors of receiving sockets", &status.receive_errors),
        counter("tcp_connections", "TCP connections taken", &status.connections),
        counter("tcp_closed", "TCP connections closed by the host", &status.connections_closed),
        gauge(
            "receiving",
            "1 where every socket for reports is open, 0 while one failed",
            receiving,
        ),
        gauge("tcp_open", "TCP connections open", open),
        gauge("multicast_joined", "1 where a group is heard", joined.collect()),
    ]
}

fn rejected(view: &View) -> Family {
    let rejected = view.intake.rejected.lock();
    let sample = |(reason, count): (&&str, &u64)| (vec![("reason", (*reason).to_owned())], *count);
    let help = "Datagrams and reports that were not used";
    let samples = rejected.iter().map(sample).collect();
    Family { name: "reports_rejected", help, is_counter: true, samples }
}

fn config(view: &View) -> Vec<Family> {
    let in_force = view.config.get();
    let result = |result: &str, count| (vec![("result", result.to_owned())], count);
    let samples = vec![result("applied", in_force.applied), result("refused", in_force.refused)];
    let help = "Configurations that came while this process ran";
    let loads = Family { name: "config_loads", help, is_counter: true, samples };
    let help = "Problems of the newest configuration; 0: it is in force";
    let count = in_force.trouble.map_or(0, |trouble| trouble.problems.len());
    let samples = vec![(Vec::new(), count as u64)];
    vec![loads, Family { name: "config_problems", help, is_counter: false, samples }]
}

fn machines(view: &View) -> Vec<Family> {
    let (mut alive, mut gone, mut namesakes, mut misconfigured) = (0, 0, 0, 0);
    let fleet = view.fleet.read();
    for (_, machine) in fleet.machines() {
        *(if machine.alive { &mut alive } else { &mut gone }) += 1;
        namesakes += u64::from(machine.namesake().is_some());
        let is_wrong = machine.labels.iter().any(|(name, _)| **name == *CONFIG_LABEL);
        misconfigured += u64::from(machine.alive && is_wrong);
    }
    let deaths = fleet.deaths();
    drop(fleet);
    let state = |name: &str| vec![("state", name.to_owned())];
    let family = |name, help, is_counter, samples| Family { name, help, is_counter, samples };
    let one = |value| vec![(Vec::new(), value)];
    let states = vec![(state("alive"), alive), (state("gone"), gone)];
    let flaps = "Machines called gone whose reports were only lost";
    let shared = "Machines whose name a second agent reports under";
    let refused = "Machines alive whose agent's newest configuration is not in force";
    let deaf = "Milliseconds in which this process was held up and did not listen";
    vec![
        family("machines", "Machines known", false, states),
        family("machines_gone", "Machines called gone by their silence", true, one(deaths.gone)),
        family("machine_flaps", flaps, true, one(deaths.flaps)),
        family("machine_namesakes", shared, false, one(namesakes)),
        family("machines_misconfigured", refused, false, one(misconfigured)),
        family("deaf_ms", deaf, true, one(view.pulse.deaf_ms())),
    ]
}

fn pools(view: &View) -> Vec<Family> {
    let family = |name, help, is_counter| Family { name, help, is_counter, samples: Vec::new() };
    let mut picks = family("picks", "Picks by who chose", true);
    let mut nobody = family("picks_unanswered", "Requests without an eligible target", true);
    let help = "Requests refused because the strategy does not serve (on_fault = \"refuse\")";
    let mut refused = family("picks_refused", help, true);
    let mut targets = family("targets", "Targets of a pool", false);
    let mut loads = family("loads", "Loads by whose they are", true);
    let mut bad_loads = family("bad_loads", "Loads that were NaN, infinite or negative", true);
    for pool in &*view.pools.all() {
        let of_pool = || ("pool", pool.name().to_owned());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let by = |by: &str| vec![of_pool(), ("by", by.to_owned())];
        picks.samples.push((by("strategy"), count(&pool.counts().by_guest)));
        picks.samples.push((by("native"), count(&pool.counts().by_native)));
        loads.samples.push((by("formula"), count(&pool.counts().by_formula)));
        loads.samples.push((by("last_good"), count(&pool.counts().last_good)));
        nobody.samples.push((vec![of_pool()], count(&pool.counts().nobody)));
        refused.samples.push((vec![of_pool()], count(&pool.counts().refused)));
        bad_loads.samples.push((vec![of_pool()], count(&pool.counts().bad_loads)));
        let (known, eligible) = (pool.targets(), pool.eligible());
        let state = |state: &str| vec![of_pool(), ("state", state.to_owned())];
        targets.samples.push((state("eligible"), eligible as u64));
        targets.samples.push((state("not_eligible"), known.saturating_sub(eligible) as u64));
    }
    vec![picks, nobody, refused, targets, loads, bad_loads]
}

/// Policies by the time of day.
fn schedules(view: &View) -> Vec<Family> {
    let help =
        "The schedule's entry in force, from 1 in the file's order; 0: the pool's own policies";
    let mut entry = Family { name: "schedule_entry", help, is_counter: false, samples: Vec::new() };
    let help = "Times that another entry of the schedule came into force";
    let mut switches =
        Family { name: "schedule_switches", help, is_counter: true, samples: Vec::new() };
    for pool in &*view.pools.all() {
        let Some(standing) = pool.schedule() else { continue };
        let labels = || vec![("pool", pool.name().to_owned())];
        let number = standing.place().map_or(0, |place| place as u64 + 1);
        entry.samples.push((labels(), number));
        switches.samples.push((labels(), pool.switches()));
    }
    vec![entry, switches]
}

/// What comes back after picks.
fn feedback(view: &View) -> Vec<Family> {
    let family = |name, help, is_counter| Family { name, help, is_counter, samples: Vec::new() };
    let mut outcomes = family("outcomes", "Outcomes that applications reported", true);
    let mut ejections = family("ejections", "Targets ejected for their outcomes", true);
    let mut ejected = family("targets_ejected", "Live targets that are ejected", false);
    let mut panic = family("pool_panic", "1 while ejections are ignored: too few are left", false);
    let mut leases = family("leases_open", "Leases open on targets that are there", false);
    for pool in &*view.pools.all() {
        let of_pool = || ("pool", pool.name().to_owned());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let result = |result: &str| vec![of_pool(), ("result", result.to_owned())];
        outcomes.samples.push((result("ok"), count(&pool.counts().served)));
        outcomes.samples.push((result("failed"), count(&pool.counts().failed)));
        for (why, count) in pool.ejections() {
            ejections.samples.push((vec![of_pool(), ("why", why.to_owned())], count));
        }
        let tally = pool.tally();
        ejected.samples.push((vec![of_pool()], tally.ejected as u64));
        leases.samples.push((vec![of_pool()], tally.leases as u64));
        panic.samples.push((vec![of_pool()], u64::from(pool.is_panic())));
    }
    vec![outcomes, ejections, ejected, panic, leases]
}
