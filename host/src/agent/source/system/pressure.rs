//! Pressure stall information: /proc/pressure in, the share of the time in which tasks stood still
//! for want of CPU, memory or disk out.
//!
//! Reckoned from the running totals, so that it is as fresh as the sampling; the kernel's own
//! averages lag by ten seconds.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::super::Reading;
use super::super::rate::Rate;
use super::{M, Roots, text};

/// The totals at the last sample.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    rates: BTreeMap<M, Rate>,
}

impl Pressure {
    /// The share since the sample before.
    pub(super) fn share(
        &mut self,
        roots: &Roots,
        what: M,
        now: Instant,
    ) -> Result<Reading, String> {
        let (resource, line) = match what {
            M::PressureMemory => ("memory", "some"),
            M::PressureMemoryFull => ("memory", "full"),
            M::PressureIo => ("io", "some"),
            M::PressureIoFull => ("io", "full"),
            M::PressureCpuFull => ("cpu", "full"),
            _ => ("cpu", "some"),
        };
        let file = roots.proc.join("pressure").join(resource);
        let text = text(&file).map_err(|why| why + " (it takes a kernel with CONFIG_PSI)")?;
        let total =
            total(&text, line).ok_or_else(|| format!("{} does not say {line}", file.display()))?;
        let rate = self.rates.entry(what).or_default();
        Ok(match rate.of(total / 1e6, now) {
            Reading::Value(share) => Reading::Value(share.min(1.0)),
            other => other,
        })
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds.
fn total(text: &str, line: &str) -> Option<f64> {
    let line = text.lines().find(|found| found.split(' ').next() == Some(line))?;
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}
