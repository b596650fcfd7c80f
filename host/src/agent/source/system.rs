//! `system:` sources: this machine's files in, one number each out.
//!
//! What one beat needs is read once, whatever number of metrics come from it, and nothing else is. The library
//! sysinfo reads memory, swap, load averages and processes; small parsers here read what it does not tell, or
//! not apart: cores, waiting and stolen time, control groups, devices, pressure. A value that this
//! machine does not have is told with the reason and stops no other. Shares are 0 to 1; units stand
//! in config/METRICS.md.

mod cgroup;
mod cpu;
mod device;
mod disk;
mod network;
mod pressure;
mod process;
mod space;

use std::path::{Path, PathBuf};

use sysinfo::MemoryRefreshKind;
use tokio::time::Instant;

use super::{Read, Reading};
use crate::config::{SystemMetric as M, SystemSource};
use cgroup::Groups;
use cpu::Cpu;
use disk::Disks;
use network::Network;
use pressure::Pressure;
use process::Processes;

/// Where the kernel's files are: a test has its own.
#[derive(Debug, Clone)]
pub(super) struct Roots {
    proc: PathBuf,
    sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys") }
    }
}

/// What is read on one beat.
pub(super) struct System {
    roots: Roots,
    sources: Vec<SystemSource>,
    cpu: Option<Cpu>,
    groups: Groups,
    disks: Option<Disks>,
    network: Option<Network>,
    pressure: Pressure,
    processes: Option<Processes>,
    machine: Result<sysinfo::System, String>,
}

impl System {
    pub(super) fn new(sources: impl Iterator<Item = SystemSource>) -> Self {
        Self::at(Roots::default(), sources.collect())
    }

    fn at(roots: Roots, sources: Vec<SystemSource>) -> Self {
        let any = |wanted: fn(M) -> bool| sources.iter().any(|source| wanted(source.what));
        let names = sources.iter().filter(|source| source.what.is_of_processes());
        let names: Vec<_> = names.filter_map(|source| source.of.clone()).collect();
        Self {
            cpu: any(is_of_cores).then(Cpu::default),
            groups: Groups::new(&roots),
            disks: any(|what| matches!(what, M::DiskBusy | M::DiskRead | M::DiskWrite))
                .then(Disks::default),
            network: any(|what| matches!(what, M::NetworkIn | M::NetworkOut))
                .then(Network::default),
            pressure: Pressure::default(),
            processes: (!names.is_empty()).then(|| Processes::new(names)),
            machine: sysinfo::System::new()
                .map_err(|error| format!("this operating system says nothing: {error}")),
            roots,
            sources,
        }
    }

    fn refresh(&mut self, now: Instant) {
        let Self { roots, cpu, disks, network, processes, .. } = self;
        if let Some(cpu) = cpu {
            cpu.take(text(&roots.proc.join("stat")));
        }
        if let Some(disks) = disks {
            disks.take(roots, text(&roots.proc.join("diskstats")), now);
        }
        if let Some(network) = network {
            network.take(roots, text(&roots.proc.join("net/dev")), now);
        }
        if let Some(processes) = processes {
            processes.scan(roots, now);
        }
        if let Ok(machine) = &mut self.machine
            && self.sources.iter().any(|source| is_of_memory(source.what))
        {
            machine.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram().with_swap());
        }
    }

    fn reading(&mut self, source: &SystemSource, now: Instant) -> Result<Reading, String> {
        let of = source.of.as_deref();
        let missing = || "it is not read here".to_owned(); // `at` makes what its sources need
        let per_core = |load: f64, cores: usize| {
            #[expect(clippy::cast_precision_loss, reason = "a machine has fewer than 2^53 cores")]
            let cores = cores.max(1) as f64;
            Reading::Value(load / cores)
        };
        let cores = self.cpu.as_ref().map_or(0, Cpu::cores);
        Ok(match source.what {
            M::Cpu | M::CpuMax | M::CpuIowait | M::CpuSteal => {
                self.cpu.as_ref().ok_or_else(missing)?.share(source.what)
            }
            M::CpuQuota => self.groups.cpu_share(cores, now)?,
            M::CpuThrottled => self.groups.throttled_share()?,
            M::Load1 => per_core(load_average()?.one, cores),
            M::Load5 => per_core(load_average()?.five, cores),
            M::Load15 => per_core(load_average()?.fifteen, cores),
            M::Memory | M::MemoryMachine | M::Swap => self.memory(source.what)?,
            M::DiskSpace => space::share_used(&self.roots, of)?,
            M::DiskBusy | M::DiskRead | M::DiskWrite => {
                self.disks.as_ref().ok_or_else(missing)?.reading(source.what, of)
            }
            M::NetworkIn | M::NetworkOut => {
                self.network.as_ref().ok_or_else(missing)?.reading(source.what, of)
            }
            M::ProcessCpu | M::ProcessMemory | M::ProcessCount => {
                let name = of.unwrap_or_default();
                self.processes.as_ref().ok_or_else(missing)?.reading(source.what, name)
            }
            M::OpenFiles => Reading::Value(open_files(&self.roots)?),
            M::PressureCpu
            | M::PressureCpuFull
            | M::PressureMemory
            | M::PressureMemoryFull
            | M::PressureIo
            | M::PressureIoFull => self.pressure.share(&self.roots, source.what, now)?,
        })
    }

    /// Shares of memory: what is not available, of the machine or of the nearest limit.
    fn memory(&self, what: M) -> Result<Reading, String> {
        let machine = self.machine.as_ref().map_err(String::clone)?;
        let total = machine.total_memory();
        if what == M::Swap {
            return Ok(share(machine.used_swap(), machine.total_swap()));
        }
        let limit = if what == M::Memory { self.groups.memory_limit(total) } else { None };
        Ok(limit.map_or_else(
            || share(total.saturating_sub(machine.available_memory()), total),
            |(used, limit)| share(used, limit),
        ))
    }
}

impl Read for System {
    fn read(&mut self) -> Vec<Reading> {
        let now = Instant::now();
        self.refresh(now);
        let sources = std::mem::take(&mut self.sources);
        let reading =
            |source: &SystemSource| self.reading(source, now).unwrap_or_else(Reading::Useless);
        let readings = sources.iter().map(reading).collect();
        self.sources = sources;
        readings
    }
}

fn is_of_cores(what: M) -> bool {
    matches!(
        what,
        M::Cpu
            | M::CpuMax
            | M::CpuIowait
            | M::CpuSteal
            | M::CpuQuota
            | M::Load1
            | M::Load5
            | M::Load15
    )
}

fn is_of_memory(what: M) -> bool {
    matches!(what, M::Memory | M::MemoryMachine | M::Swap)
}

fn load_average() -> Result<sysinfo::LoadAvg, String> {
    sysinfo::System::load_average().map_err(|error| format!("no load average: {error}"))
}

/// `allocated free max`
fn open_files(roots: &Roots) -> Result<f64, String> {
    let path = roots.proc.join("sys/fs/file-nr");
    let text = text(&path)?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(allocated)), Some(Ok(free))) => Ok(allocated - free),
        _ => Err(format!("{} is not understood: {text:?}", path.display())),
    }
}

/// A file's text, or why there is none.
fn text(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// A part of a whole, 0 to 1; of nothing, nothing is used.
fn share(part: u64, whole: u64) -> Reading {
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
    let ratio = if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) };
    Reading::Value(ratio)
}

#[cfg(test)]
mod tests;
