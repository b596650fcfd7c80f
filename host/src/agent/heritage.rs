//! From one agent to the next: what was pushed and counted so far in, by name; a successor that goes on
//! from there out.
//!
//! Applications say what changes ("one more"), so what they said lives as long as the process, whatever agent
//! keeps it. Invariant: each push counts once, for the agent before or for its successor.

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::meter::Meter;
use super::say::FAREWELLS;
use super::tally::Tally;
use super::{Agent, all_metrics};
use crate::config::{AgentConfig, MetricSource};

/// What an agent leaves to its successor.
#[derive(Debug, Default)]
pub struct Heritage {
    meters: BTreeMap<Name, Meter>,
    /// Each with its source.
    tallies: BTreeMap<Name, (MetricSource, Tally)>,
    /// Names under which it reported, and said that it leaves.
    machines: Vec<(String, u32)>,
}

/// Service (empty: the machine itself) and metric, or counter by its number.
type Name = (String, String);

/// The agent that reports until another one is ready.
#[derive(Debug)]
pub struct Succession {
    /// Told when it shall end.
    pub ready: oneshot::Sender<()>,
    /// What it leaves.
    pub heritage: oneshot::Receiver<Heritage>,
}

impl Succession {
    /// Ends it; `None`: it is not the time any more, its successor is to end, too.
    pub(super) async fn end(self) -> Option<Heritage> {
        self.ready.send(()).ok()?;
        self.heritage.await.ok()
    }
}

impl Agent {
    pub(super) fn into_heritage(self) -> Heritage {
        let Self { config, meters, tallies, farewells, .. } = self;
        let sources = counters(&config);
        let sourced = |((name, source), tally): (_, Option<Tally>)| Some((name, (source?, tally?)));
        let machines = config.machines().into_iter().map(|(_, machine)| (machine, FAREWELLS));
        Heritage {
            machines: machines.chain(farewells).collect(),
            meters: metric_names(&config).into_iter().zip(meters).collect(),
            tallies: sources.into_iter().zip(tallies).filter_map(sourced).collect(),
        }
    }

    /// Goes on from what the agent before left, with a report at once.
    pub(super) fn take_over(&mut self, heritage: &Heritage) {
        for (name, meter) in metric_names(&self.config).iter().zip(&mut self.meters) {
            if let Some(before) = heritage.meters.get(name) {
                meter.inherit(before);
            }
        }
        for ((name, source), tally) in counters(&self.config).iter().zip(&mut self.tallies) {
            // Another source counts something else.
            if let Some((before_source, before)) = heritage.tallies.get(name)
                && Some(before_source) == source.as_ref()
                && let Some(tally) = tally
            {
                tally.inherit(before);
            }
        }
        let own: Vec<_> = self.config.machines().into_iter().map(|(_, machine)| machine).collect();
        let gone = heritage.machines.iter().filter(|(machine, _)| !own.contains(machine));
        self.farewells = gone.cloned().collect();
        self.next_report = Instant::now();
    }
}

/// The name of every metric, in the order of the meters.
fn metric_names(config: &AgentConfig) -> Vec<Name> {
    let of_machine = config.metrics.iter().map(|_| String::new());
    let of_services = config
        .services
        .iter()
        .flat_map(|service| service.offer.metrics.iter().map(|_| service.id()));
    let services = of_machine.chain(of_services);
    let named = services.zip(all_metrics(config));
    named.map(|(service, metric)| (service, metric.name.clone())).collect()
}

/// Name and source of every counter, in the order of the tallies.
fn counters(config: &AgentConfig) -> Vec<(Name, Option<MetricSource>)> {
    let of_service = config.services.iter().flat_map(|service| {
        service
            .offer
            .counters()
            .into_iter()
            .enumerate()
            .map(|(number, source)| ((service.id(), number.to_string()), source.cloned()))
    });
    of_service.collect()
}
