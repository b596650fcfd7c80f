//! Where samples come from: the operating system in, one number out.
//!
//! Each sample is a ratio, 0 to 1, and costs one or two small reads of /proc.

use sysinfo::{MemoryRefreshKind, System};

use crate::config::MetricSource;

/// Something that can be sampled.
pub trait Sample: Send {
    /// The value now; `None` when there is none (yet).
    fn sample(&mut self) -> Option<f64>;
}

/// A `system:` source.
#[derive(Debug)]
pub struct SystemSample {
    source: MetricSource,
    /// `None`: this operating system says nothing.
    system: Option<System>,
}

impl SystemSample {
    /// Starts to watch; CPU use is counted from here to the first sample.
    #[must_use]
    pub fn new(source: MetricSource) -> Self {
        let system = System::new().inspect_err(|error| {
            tracing::error!(?source, %error, "cannot sample this machine; the agent stays silent");
        });
        let mut system = system.ok();
        if let (MetricSource::SystemCpu, Some(system)) = (source, &mut system) {
            system.refresh_cpu_usage();
        }
        Self { source, system }
    }
}

impl Sample for SystemSample {
    fn sample(&mut self) -> Option<f64> {
        let system = self.system.as_mut()?;
        match self.source {
            MetricSource::SystemCpu => {
                system.refresh_cpu_usage();
                Some(f64::from(system.global_cpu_usage()) / 100.0)
            }
            MetricSource::SystemMemory => {
                system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
                let (total, free) = (system.total_memory(), system.available_memory());
                #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
                let ratio = total.saturating_sub(free) as f64 / total as f64;
                ratio.is_finite().then_some(ratio)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_ratios() {
        for source in [MetricSource::SystemCpu, MetricSource::SystemMemory] {
            let value = SystemSample::new(source).sample().expect("a number on this machine");
            assert!((0.0..=1.0).contains(&value), "{source:?}: {value}");
        }
    }
}
