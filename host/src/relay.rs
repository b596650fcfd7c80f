//! A relay: reports heard here in, frames for there out, many reports in each.
//!
//! Whatever the relay lets through is as its agent made it, but for three things: the age grows by the
//! time in the relay, a service without an address of its own gets the one that the report came from
//! (there, that is the relay's), and the hops are counted. What becomes too long for a frame by that
//! leaves metrics out, as an agent's report does ([`fit`]). Frames are signed anew with this relay's
//! first key; the stamp is the agent's, so that replays are found there as they are here.
//!
//! Against loops: a report that went through as many relays as allowed goes no further, and none goes
//! through twice. No socket and no clock in here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::report::fit::{self, LeftOut};
use crate::report::gate::{Gate, Present, SKEW_MAX};
use crate::report::wire::{self, Packer};
use crate::report::{DATAGRAM_BYTES_MAX, Report, Service, WireError, address};
use crate::transport::Batch;

/// Machines remembered at most: bounds what forged names can cost.
const MACHINES_MAX: usize = 200_000;
/// How long a machine is remembered after its last report.
const FORGET_AFTER: Duration = Duration::from_secs(2 * SKEW_MAX.as_secs() + 60);
/// Report intervals without a report after which lower numbers are no late reports.
const SILENT_INTERVALS: u32 = 4;

/// What goes through, and what went.
#[derive(Debug)]
pub struct Relay {
    gate: Gate,
    farm: String,
    hops_max: u8,
    /// The last report of each machine that went through.
    last: HashMap<Box<str>, Last>,
    started: Instant,
    tidied: Instant,
}

#[derive(Debug)]
struct Last {
    boot: u64,
    seq: u64,
    sent_ms: u64,
    at: Instant,
}

/// What became of the reports of some batches.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// What to send.
    pub frames: Vec<Vec<u8>>,
    /// Reports in them.
    pub reports: usize,
    /// Who sent those of them that had become too long, and what was left out of each.
    pub shortened: Vec<(IpAddr, LeftOut)>,
    /// What did not go through: who sent it, and why.
    pub refused: Vec<(IpAddr, &'static str)>,
}

impl Relay {
    /// A relay of one farm's reports, for those that went through fewer than `hops_max` relays.
    #[must_use]
    pub fn new(gate: Gate, farm: String, hops_max: u8, now: Instant) -> Self {
        Self { gate, farm, hops_max, last: HashMap::new(), started: now, tidied: now }
    }

    /// Lets through by these rules from now on; what went through is remembered.
    pub fn configure(&mut self, gate: Gate, farm: String, hops_max: u8) {
        (self.gate, self.farm, self.hops_max) = (gate, farm, hops_max);
    }

    /// Packs what goes through; `wall_ms` is the wall clock, milliseconds since 1970.
    pub fn pack(&mut self, batches: &[Batch], now: Instant, wall_ms: u64) -> Relayed {
        self.tidy(now);
        let keyring = self.gate.keyring.clone();
        let mut packer = Packer::new(&keyring, DATAGRAM_BYTES_MAX);
        let mut relayed = Relayed::default();
        for datagram in batches.iter().flat_map(Batch::iter) {
            let from = datagram.from;
            let reports = match wire::decode(datagram.bytes, &keyring) {
                Ok(reports) => reports,
                Err(error) => {
                    relayed.refused.push((from, error.reason()));
                    continue;
                }
            };
            for report in reports {
                let waited = now.saturating_duration_since(datagram.received);
                let packed = self.admit(&report, from, now, wall_ms).and_then(|()| {
                    push(&mut packer, report, from, waited).map_err(|error| error.reason())
                });
                match packed {
                    Ok(left_out) => {
                        relayed.reports += 1;
                        if !left_out.is_nothing() {
                            relayed.shortened.push((from, left_out));
                        }
                    }
                    Err(reason) => relayed.refused.push((from, reason)),
                }
            }
        }
        relayed.frames = packer.finish();
        relayed
    }

    fn admit(
        &mut self,
        report: &Report<'_>,
        from: IpAddr,
        now: Instant,
        wall_ms: u64,
    ) -> Result<(), &'static str> {
        if report.farm != self.farm {
            return Err("other_farm");
        }
        if report.hops >= self.hops_max {
            return Err("hops");
        }
        let up = now.saturating_duration_since(self.started);
        let up_ms = u64::try_from(up.as_millis()).unwrap_or(u64::MAX);
        let is_known = || self.last.contains_key(report.machine);
        let admitted = self.gate.admit(report, from, Present { wall_ms, up_ms }, is_known);
        admitted.map_err(|barred| barred.reason())?;
        let Report { boot, seq, sent_ms, .. } = *report;
        let this = Last { boot, seq, sent_ms, at: now };
        if let Some(last) = self.last.get_mut(report.machine) {
            if last.boot == boot && last.seq >= seq && !last.has_gone_back(report, now) {
                return Err("duplicate");
            }
            *last = this;
        } else if self.last.len() < MACHINES_MAX {
            self.last.insert(report.machine.into(), this);
        } else {
            return Err("full");
        }
        Ok(())
    }

    fn tidy(&mut self, now: Instant) {
        if now.saturating_duration_since(self.tidied) >= FORGET_AFTER / 10 {
            self.tidied = now;
            self.last.retain(|_, last| now.saturating_duration_since(last.at) < FORGET_AFTER);
        }
    }
}

impl Last {
    /// Whether the agent was silent and goes on with lower numbers, as that of a virtual machine does
    /// which was restored from a snapshot; the host decides whether it had left.
    fn has_gone_back(&self, report: &Report<'_>, now: Instant) -> bool {
        let silence = SILENT_INTERVALS * Duration::from_millis(report.interval_ms.into());
        let is_new = report.sent_ms > self.sent_ms || (report.sent_ms, self.sent_ms) == (0, 0);
        report.seq < self.seq && now.saturating_duration_since(self.at) > silence && is_new
    }
}

/// Adds a report as it is to be read there, or what fits of it; what does not.
fn push(
    packer: &mut Packer<'_>,
    mut report: Report<'_>,
    from: IpAddr,
    waited: Duration,
) -> Result<LeftOut, WireError> {
    let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
    report.delay_ms = report.delay_ms.saturating_add(waited_ms);
    report.hops = report.hops.saturating_add(1);
    if report.services.is_empty() {
        report.services.push(Service::implied());
    }
    let offered = |service: &Service<'_>| address::offered(service.address, from);
    let addresses: Vec<_> = report.services.iter().map(offered).collect();
    let services = report.services.iter().zip(&addresses);
    let services =
        services.map(|(service, address)| Service { address, ..service.clone() }).collect();
    fit::push(packer, Report { services, ..report.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{DEFAULT_SERVICE, FRAME_BYTES_MAX, Metrics};
    use crate::report::{Keyring, State};
    use crate::transport::Datagram;

    fn report(machine: &str, seq: u64) -> Report<'_> {
        Report {
            farm: "default",
            machine,
            boot: 1,
            seq,
            interval_ms: 2_000,
            delay_ms: 5,
            state: State::Ready,
            weight: 1.0,
            metrics: Metrics { names: vec!["cpu"].into(), values: vec![0.5] },
            services: Vec::new(),
            labels: Vec::new(),
            sent_ms: 0,
            hops: 0,
        }
    }

    fn batch(reports: &[Report<'_>], from: &str, received: Instant) -> Batch {
        let frame = wire::encode(reports, &Keyring::default()).expect("good reports");
        let from = from.parse().expect("an address");
        [Datagram { bytes: &frame, received, from }].into_iter().collect()
    }

    #[test]
    fn report_goes_on_older_counted_and_with_its_own_address() {
        let start = Instant::now();
        let mut relay = Relay::new(Gate::default(), "default".to_owned(), 1, start);
        let batches = [batch(&[report("a", 1)], "10.0.0.7", start)];
        let relayed = relay.pack(&batches, start + Duration::from_millis(40), 0);
        assert_eq!((relayed.frames.len(), relayed.reports), (1, 1));
        let there = wire::decode(&relayed.frames[0], &Keyring::default()).expect("a good frame");
        assert_eq!((there[0].delay_ms, there[0].hops), (45, 1));
        assert_eq!(there[0].services[0].name, DEFAULT_SERVICE);
        assert_eq!(there[0].services[0].address, "10.0.0.7");
        assert_eq!(there[0].metrics, report("a", 1).metrics);
    }

    /// As long as an agent may send it, it grows by what the relay adds.
    #[test]
    fn report_that_grows_too_long_loses_metrics_and_no_other_report_is_lost() {
        let start = Instant::now();
        let names: Vec<_> = (0..256).map(|n| format!("{n:03}-{}", "x".repeat(228))).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let metrics = Metrics { values: vec![0.5; names.len()], names: names.into() };
        let services: Vec<_> = (0..64).map(|number| format!("service-{number}")).collect();
        let service = |name| Service { name, address: ":80", ..Service::implied() };
        let services = services.iter().map(|name| service(name.as_str())).collect();
        let long = Report { metrics, services, ..report("long", 1) };
        let keyring = Keyring::default();
        let mut packer = Packer::new(&keyring, DATAGRAM_BYTES_MAX);
        let left_out = fit::push(&mut packer, long.clone()).expect("a good report");
        let sent = packer.finish().remove(0);
        assert!(left_out.is_nothing() && sent.len() > FRAME_BYTES_MAX - 1_000, "{}", sent.len());
        let mut relay = Relay::new(Gate::default(), "default".to_owned(), 1, start);
        let from = "fd00:1234:5678:9abc:def0:1234:5678:9abc";
        let batches = [batch(&[report("a", 1)], from, start), batch(&[long], from, start)];
        let relayed = relay.pack(&batches, start, 0);
        assert_eq!((relayed.reports, relayed.refused), (2, Vec::new()));
        let [(by, left_out)] = relayed.shortened[..] else { panic!("{:?}", relayed.shortened) };
        assert_eq!((by.to_string().as_str(), left_out.metrics, left_out.services), (from, 64, 0));
        let there = relayed.frames.iter().map(|frame| {
            assert!(frame.len() <= FRAME_BYTES_MAX, "{}", frame.len());
            wire::decode(frame, &keyring).expect("a good frame")[0].machine
        });
        assert_eq!(there.collect::<Vec<_>>(), ["a", "long"]);
    }

    #[test]
    fn lower_numbers_go_through_after_a_silence() {
        let start = Instant::now();
        let mut relay = Relay::new(Gate::default(), "default".to_owned(), 1, start);
        let mut pack = |seq, seconds| {
            let now = start + Duration::from_secs(seconds);
            relay.pack(&[batch(&[report("a", seq)], "10.0.0.7", now)], now, 0).reports
        };
        assert_eq!((pack(9, 0), pack(4, 1), pack(4, 20), pack(4, 40)), (1, 0, 1, 0));
    }

    #[test]
    fn nothing_goes_round_in_circles() {
        let start = Instant::now();
        let mut relay = Relay::new(Gate::default(), "default".to_owned(), 2, start);
        let mut pack = |reports: &[Report<'_>]| {
            let relayed = relay.pack(&[batch(reports, "10.0.0.7", start)], start, 0);
            let why: Vec<_> = relayed.refused.into_iter().map(|(_, reason)| reason).collect();
            (relayed.reports, why)
        };
        assert_eq!(pack(&[report("a", 2), report("a", 1), report("b", 1)]), (2, vec!["duplicate"]));
        assert_eq!(pack(&[report("a", 2)]), (0, vec!["duplicate"]));
        assert_eq!(pack(&[Report { hops: 1, ..report("a", 3) }]), (1, vec![]));
        assert_eq!(pack(&[Report { hops: 2, ..report("a", 4) }]), (0, vec!["hops"]));
        assert_eq!(pack(&[Report { boot: 2, ..report("a", 1) }]), (1, vec![]), "a restart");
        assert_eq!(pack(&[Report { farm: "x", ..report("a", 9) }]), (0, vec!["other_farm"]));
    }
}
