//! What an agent says: values and counts in, packed frames out.
//!
//! One report of the machine, and one for each replica of its services under a machine's name of its own,
//! so that hosts tell replicas apart in everything. All have one number and leave together, in as few
//! datagrams as they fit in.

use tokio::time::Instant;

use super::Agent;
use super::tally::Counts;
use crate::clock::wall_ms;
use crate::config::{MetricConfig, ServiceConfig};
use crate::report::wire::Packer;
use crate::report::{
    CONFIG_LABEL, DATAGRAM_BYTES_MAX, FRAME_BYTES_MAX, LABELS_MAX, METRICS_MAX, Metrics, Report,
    SERVICES_MAX, Service, State, fit,
};

/// Reports in which a machine that is none any more leaves: one of them may get lost.
pub(super) const FAREWELLS: u32 = 3;

impl Agent {
    /// All reports as of now, with the next number.
    pub(super) fn frames(&mut self, state: State, now: Instant) -> Vec<Vec<u8>> {
        self.seq += 1;
        let values: Vec<_> = self.meters.iter_mut().map(|meter| meter.value(now)).collect();
        let counts = Counts::of(&mut self.tallies, now);
        let keyring = self.keyring.clone();
        let mut packer = Packer::new(&keyring, DATAGRAM_BYTES_MAX);
        let services = self.offered(&values, counts);
        let mut left_out = fit::LeftOut::default();
        for (replica, machine) in self.config.machines() {
            let report = self.report(&machine, replica, state, &values, &services);
            match fit::push(&mut packer, report) {
                Ok(out) => left_out += out,
                Err(error) => tracing::error!(%error, machine, "cannot encode this report"),
            }
        }
        for (machine, _) in &self.farewells {
            let report = self.report(machine, None, State::Leaving, &values, &[]);
            if let Err(error) = fit::push(&mut packer, report) {
                tracing::error!(%error, machine, "cannot encode that it leaves");
            }
        }
        self.farewells.retain_mut(|(_, left)| {
            *left -= 1;
            *left > 0
        });
        if !left_out.is_nothing() && self.quiet.may("too large") {
            let (metrics, services) = (left_out.metrics, left_out.services);
            tracing::warn!(
                metrics,
                services,
                "the report is too large, these were left out: it holds {METRICS_MAX} metrics of the \
                 machine and of each service, {SERVICES_MAX} services, {FRAME_BYTES_MAX} bytes"
            );
        }
        packer.finish()
    }

    /// Every service as it is reported, with what its configuration says of it.
    fn offered<'a>(
        &'a self,
        values: &[f64],
        counts: Vec<Counts>,
    ) -> Vec<(&'a ServiceConfig, Service<'a>)> {
        let mut rest = &values[self.config.metrics.len()..];
        let services = self.config.services.iter().zip(counts);
        let offered = services.map(|(service, counts)| {
            let (own, others) = rest.split_at(service.offer.metrics.len());
            rest = others;
            (service, counts.put(reported(service, own)))
        });
        offered.collect()
    }

    /// The report of the machine, or of one of its replicas.
    fn report<'a>(
        &'a self,
        machine: &'a str,
        replica: Option<&str>,
        state: State,
        values: &[f64],
        services: &[(&ServiceConfig, Service<'a>)],
    ) -> Report<'a> {
        let of_it = || services.iter().filter(|(of, _)| of.replica.as_deref() == replica);
        // A report that names none offers the default one.
        let is_nothing = of_it().next().is_some() && !of_it().any(|(of, _)| of.enabled);
        let state = match state {
            State::Ready | State::Draining if is_nothing => State::Stopped,
            state => state,
        };
        let offered = of_it().filter(|(of, _)| of.enabled || is_nothing);
        let labels = self.config.labels.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        // Replicas of one machine fail together, and labels say so.
        let has_own = self.config.labels.contains_key(MACHINE);
        let of_machine =
            (replica.is_some() && !has_own).then_some((MACHINE, &*self.config.machine));
        let of_config = self.known.trouble().map(|word| (CONFIG_LABEL, word));
        Report {
            farm: &self.farm,
            machine,
            boot: self.boot,
            seq: self.seq,
            interval_ms: u32::try_from(self.config.interval.as_millis()).unwrap_or(u32::MAX),
            delay_ms: 0, // captured and sent in one step
            state,
            weight: self.config.weight,
            metrics: named(&self.config.metrics, &values[..self.config.metrics.len()]),
            services: offered.map(|(_, service)| service.clone()).collect(),
            labels: labels.chain(of_machine).chain(of_config).take(LABELS_MAX).collect(),
            // Unsigned reports say nothing that nobody can trust.
            sent_ms: if self.keyring.signing_id() == 0 { 0 } else { wall_ms() },
            hops: 0,
        }
    }
}

/// The label of a replica that names its machine.
const MACHINE: &str = "machine";

fn named<'a>(metrics: &'a [MetricConfig], values: &[f64]) -> Metrics<'a> {
    metrics.iter().map(|metric| metric.name.as_str()).zip(values.iter().copied()).collect()
}

fn reported<'a>(service: &'a ServiceConfig, values: &[f64]) -> Service<'a> {
    let ServiceConfig { name, offer, .. } = service;
    Service {
        name,
        address: &offer.address,
        weight: offer.weight,
        metrics: named(&offer.metrics, values),
        labels: offer.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect(),
        ..Service::implied()
    }
}
