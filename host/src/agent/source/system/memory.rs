//! Memory: /proc/meminfo in, bytes of memory and swap out. Totals are read anew each time: both may
//! change while a machine runs.

use super::super::Reading;
use super::{Roots, share, text};

/// Bytes of this machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) total: u64,
    /// What programs can still get, page cache included.
    pub(super) available: u64,
    swap: u64,
    swap_free: u64,
}

impl Memory {
    /// As it is now.
    pub(super) fn read(roots: &Roots) -> Result<Self, String> {
        let path = roots.proc.join("meminfo");
        let text = text(&path)?;
        Self::parse(&text).ok_or_else(|| format!("{} does not say MemTotal", path.display()))
    }

    fn parse(text: &str) -> Option<Self> {
        // Old kernels do not say what is available.
        let freed = || {
            let parts = ["MemFree", "Buffers", "Cached", "SReclaimable"];
            parts.iter().filter_map(|name| bytes(text, name)).sum()
        };
        Some(Self {
            total: bytes(text, "MemTotal")?,
            available: bytes(text, "MemAvailable").unwrap_or_else(freed),
            swap: bytes(text, "SwapTotal").unwrap_or(0),
            swap_free: bytes(text, "SwapFree").unwrap_or(0),
        })
    }

    /// The share of the machine's memory that is not available.
    pub(super) fn share_used(self) -> Reading {
        share(self.total.saturating_sub(self.available), self.total)
    }

    /// The share of the swap space that is used.
    pub(super) fn share_swapped(self) -> Reading {
        share(self.swap.saturating_sub(self.swap_free), self.swap)
    }
}

/// `MemTotal:       8054232 kB`
fn bytes(text: &str, name: &str) -> Option<u64> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.into_iter().find(|(found, _)| *found == name)?;
    value.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, used: f64, swapped: f64) {
        let memory = Memory::parse(text).expect("a total");
        assert_eq!(memory.share_used(), Reading::Value(used));
        assert_eq!(memory.share_swapped(), Reading::Value(swapped));
    }

    #[test]
    fn page_cache_is_available_and_nothing_of_nothing_is_nothing() {
        let old = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 50 kB\nCached: 500 kB\nSReclaimable: 100 kB\n";
        check(old, 0.25, 0.0);
        let new = format!("{old}MemAvailable: 600 kB\nSwapTotal: 200 kB\nSwapFree: 150 kB\n");
        check(&new, 0.4, 0.25);
        assert_eq!(Memory::parse("MemFree: 1 kB\nMemTotal: many kB\n"), None);
    }
}
