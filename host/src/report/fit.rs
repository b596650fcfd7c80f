//! A report of any size in, what fits of it in a frame out: a machine with too much to say stays alive.
//!
//! What is required always fits: names, state, weight and labels. Metrics go first, from the end of
//! the longest list, then services from the end.

use super::wire::Packer;
use super::{METRICS_MAX, Metrics, Report, SERVICES_MAX, WireError};

/// What was left out of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Metrics of the machine and its services.
    pub metrics: usize,
    /// Services, with what they had.
    pub services: usize,
}

impl LeftOut {
    /// Whether everything fitted.
    #[must_use]
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

impl std::ops::AddAssign for LeftOut {
    fn add_assign(&mut self, more: Self) {
        self.metrics += more.metrics;
        self.services += more.services;
    }
}

/// Packs a report, or what fits of it; what had to be left out.
///
/// # Errors
/// What is left does not pass [`Report::check`], or is still too long.
pub fn push(packer: &mut Packer<'_>, mut report: Report<'_>) -> Result<LeftOut, WireError> {
    let mut left_out = LeftOut::default();
    left_out.services += report.services.len().saturating_sub(SERVICES_MAX);
    report.services.truncate(SERVICES_MAX);
    for metrics in lists(&mut report) {
        left_out.metrics += shorten(metrics, METRICS_MAX);
    }
    loop {
        match packer.push(&report) {
            Err(WireError::TooLong) if cut(&mut report, &mut left_out) => {}
            pushed => return pushed.map(|()| left_out),
        }
    }
}

/// Leaves out something more; false where there is nothing that can be left out.
fn cut(report: &mut Report<'_>, left_out: &mut LeftOut) -> bool {
    let longest = lists(report).max_by_key(|metrics| metrics.names.len());
    if let Some(metrics) = longest.filter(|metrics| !metrics.names.is_empty()) {
        left_out.metrics += shorten(metrics, metrics.names.len() * 3 / 4);
        return true;
    }
    let has_service = report.services.pop().is_some();
    left_out.services += usize::from(has_service);
    has_service
}

fn lists<'r, 'a>(report: &'r mut Report<'a>) -> impl Iterator<Item = &'r mut Metrics<'a>> {
    let of_services = report.services.iter_mut().map(|service| &mut service.metrics);
    std::iter::once(&mut report.metrics).chain(of_services)
}

/// Cuts a list; how much.
fn shorten(metrics: &mut Metrics<'_>, len: usize) -> usize {
    let more = metrics.names.len().saturating_sub(len);
    metrics.names.truncate(len);
    metrics.values.truncate(len);
    more
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::super::{FRAME_BYTES_MAX, Keyring, Service, State};
    use super::*;

    fn metrics(names: &[String]) -> Metrics<'_> {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        Metrics { values: vec![0.5; names.len()], names: names.into() }
    }

    #[test]
    fn machine_with_too_much_to_say_says_what_fits() {
        let long = "x".repeat(240);
        let names: Vec<_> = (0..5_000).map(|number| format!("{number}-{long}")).collect();
        let services: Vec<_> = (0..300).map(|number| format!("service-{number}")).collect();
        let service = |name| Service {
            name,
            address: "",
            weight: 1.0,
            metrics: metrics(&names[..2]),
            accepted: 0,
            completed: 0,
            in_flight: 0,
            labels: Vec::new(),
        };
        let report = Report {
            farm: "default",
            machine: "a",
            boot: 1,
            seq: 1,
            interval_ms: 1_000,
            delay_ms: 0,
            state: State::Ready,
            weight: 1.0,
            metrics: metrics(&names),
            services: services.iter().map(|name| service(name.as_str())).collect(),
            labels: Vec::new(),
            sent_ms: 0,
            hops: 0,
        };
        let keyring = Keyring::default();
        let encode = |report: &Report<'_>| {
            let mut packer = Packer::new(&keyring, FRAME_BYTES_MAX);
            let left_out = push(&mut packer, report.clone()).expect("what fits");
            (packer.finish().remove(0), left_out)
        };
        let (frame, left_out) = encode(&report);
        assert!(frame.len() <= FRAME_BYTES_MAX && left_out.metrics >= 4_744, "{left_out:?}");
        let decoded = wire::decode(&frame, &keyring).expect("a good frame");
        assert!(!decoded[0].metrics.names.is_empty() && !decoded[0].services.is_empty());
        let small = Report { metrics: metrics(&names[..3]), services: Vec::new(), ..report };
        assert!(encode(&small).1.is_nothing());
    }
}
