//! A report of any size in, the frame of what fits out: a machine with too much to say stays alive.
//!
//! What is required always fits: names, state, weight and labels. Metrics go first, from the end of
//! the longest list, then services from the end.

use super::wire;
use super::{FRAME_BYTES_MAX, Keyring, METRICS_MAX, Metrics, Report, SERVICES_MAX, WireError};

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

/// The frame of one report, and what had to be left out of it.
///
/// # Errors
/// What is left does not pass [`Report::check`].
pub fn encode(mut report: Report<'_>, keyring: &Keyring) -> Result<(Vec<u8>, LeftOut), WireError> {
    let mut left_out = LeftOut::default();
    left_out.services += report.services.len().saturating_sub(SERVICES_MAX);
    report.services.truncate(SERVICES_MAX);
    for metrics in lists(&mut report) {
        left_out.metrics += shorten(metrics, METRICS_MAX);
    }
    loop {
        let frame = wire::encode(std::slice::from_ref(&report), keyring)?;
        if frame.len() <= FRAME_BYTES_MAX {
            return Ok((frame, left_out));
        }
        if !cut(&mut report, &mut left_out) {
            return Ok((frame, left_out)); // names and labels alone are far shorter
        }
    }
}

/// Leaves out something more; false where there is nothing that can be left out.
pub fn cut(report: &mut Report<'_>, left_out: &mut LeftOut) -> bool {
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
    use super::super::{Service, State};
    use super::*;

    fn metrics(names: &[String]) -> Metrics<'_> {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        Metrics { values: vec![0.5; names.len()], names }
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
        let (frame, left_out) = encode(report.clone(), &keyring).expect("what fits");
        assert!(frame.len() <= FRAME_BYTES_MAX && left_out.metrics >= 4_744, "{left_out:?}");
        let decoded = wire::decode(&frame, &keyring).expect("a good frame");
        assert!(!decoded[0].metrics.names.is_empty() && !decoded[0].services.is_empty());
        let small = Report { metrics: metrics(&names[..3]), services: Vec::new(), ..report };
        assert!(encode(small, &keyring).expect("all of it").1.is_nothing());
    }
}
