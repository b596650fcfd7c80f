//! Disks: /proc/diskstats in, busy time and rates out.
//!
//! Each disk counts once: a partition is part of its disk, and what is stacked on other devices
//! (device mapper, RAID) or kept in memory or files (loop, ram, zram) is not a disk of its own. By
//! its name any device can be asked for.

use std::collections::HashSet;

use tokio::time::Instant;

use super::super::Reading;
use super::device::Rates;
use super::{M, Roots};

/// What is no disk, by the beginning of its name.
const NOT_DISKS: [&str; 5] = ["loop", "ram", "zram", "fd", "sr"];
/// The kernel counts in these, whatever a disk's own sectors are.
const SECTOR_BYTES: f64 = 512.0;

/// The disks.
#[derive(Debug, Default)]
pub(super) struct Disks {
    read: Rates,
    written: Rates,
    busy: Rates,
    whole: HashSet<Box<str>>,
    trouble: Option<String>,
}

impl Disks {
    /// Takes /proc/diskstats, or why it cannot be read.
    pub(super) fn take(&mut self, roots: &Roots, stats: Result<String, String>, now: Instant) {
        let (stats, trouble) = match stats {
            Ok(stats) => (stats, None),
            Err(why) => (String::new(), Some(why)),
        };
        self.trouble = trouble;
        let lines: Vec<_> = stats.lines().filter_map(device).collect();
        self.read.take(lines.iter().map(|(name, counts)| (*name, counts[0] * SECTOR_BYTES)), now);
        self.written
            .take(lines.iter().map(|(name, counts)| (*name, counts[1] * SECTOR_BYTES)), now);
        self.busy.take(lines.iter().map(|(name, counts)| (*name, counts[2] / 1e3)), now);
        let whole = lines.iter().filter(|(name, _)| is_disk(roots, name));
        self.whole = whole.map(|(name, _)| Box::from(*name)).collect();
    }

    pub(super) fn reading(&self, what: M, of: Option<&str>) -> Reading {
        if let Some(why) = &self.trouble {
            return Reading::Useless(why.clone());
        }
        let rates = match what {
            M::DiskRead => &self.read,
            M::DiskWrite => &self.written,
            _ => &self.busy,
        };
        let is_whole = |name: &str| self.whole.contains(name);
        let reading = match of {
            Some(device) => rates.of(device),
            None if self.whole.is_empty() => {
                Reading::Useless("this machine has no disk".to_owned())
            }
            None if what == M::DiskBusy => rates.all(is_whole, f64::max),
            None => rates.all(is_whole, |total, rate| total + rate),
        };
        match reading {
            // The time of the counter and ours are not taken in the same instant.
            Reading::Value(share) if what == M::DiskBusy => Reading::Value(share.min(1.0)),
            other => other,
        }
    }
}

/// A device with its sectors read and written and its busy milliseconds.
fn device(line: &str) -> Option<(&str, [f64; 3])> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let name = words.next()?;
    let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    Some((name, [*numbers.get(2)?, *numbers.get(6)?, *numbers.get(9)?]))
}

fn is_disk(roots: &Roots, name: &str) -> bool {
    let folder = roots.sys.join("class/block").join(name);
    let stacked = std::fs::read_dir(folder.join("slaves"));
    let is_stacked = stacked.is_ok_and(|mut below| below.next().is_some());
    let in_memory = NOT_DISKS.iter().any(|kind| {
        name.strip_prefix(kind).is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    });
    !is_stacked && !in_memory && !folder.join("partition").exists()
}
