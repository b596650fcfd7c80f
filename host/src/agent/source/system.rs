//! `system:` sources: this machine's files in, one number each out.
//!
//! What one beat needs is read once, whatever number of metrics come from it, and nothing else is. A
//! value that this machine does not have is told with the reason and stops no other. Shares are 0 to
//! 1; units stand in config/METRICS.md.

mod cgroup;
mod cpu;
mod device;
mod disk;
mod memory;
mod network;
mod pressure;
mod process;
mod space;

use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::{Read, Reading};
use crate::config::{SystemMetric as M, SystemSource};
use cgroup::Groups;
use cpu::Cpu;
use disk::Disks;
use memory::Memory;
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
    memory: Result<Memory, String>,
}

impl System {
    pub(super) fn new(sources: impl Iterator<Item = SystemSource>) -> Self {
        Self::at(Roots::default(), sources.collect())
    }

    fn at(roots: Roots, sources: Vec<SystemSource>) -> Self {
        let any = |wanted: fn(M) -> bool| sources.iter().any(|source| wanted(source.what));
        let names = sources.iter().filter(|source| source.what.is_of_processes());
        let mut names = names.filter_map(|source| source.of.as_deref()).peekable();
        Self {
            cpu: any(is_of_cores).then(Cpu::default),
            groups: Groups::new(&roots),
            disks: any(|what| matches!(what, M::DiskBusy | M::DiskRead | M::DiskWrite))
                .then(Disks::default),
            network: any(|what| matches!(what, M::NetworkIn | M::NetworkOut))
                .then(Network::default),
            pressure: Pressure::default(),
            processes: names.peek().is_some().then(|| Processes::new(names)),
            memory: Err("it is not read here".to_owned()),
            roots,
            sources,
        }
    }

    fn refresh(&mut self, now: Instant) {
        let Self { roots, cpu, disks, network, processes, memory, .. } = self;
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
        if self.sources.iter().any(|source| is_of_memory(source.what)) {
            *memory = Memory::read(roots);
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
            M::Load1 => per_core(load_average(&self.roots, 0)?, cores),
            M::Load5 => per_core(load_average(&self.roots, 1)?, cores),
            M::Load15 => per_core(load_average(&self.roots, 2)?, cores),
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
        let memory = self.memory.clone()?;
        if what == M::Swap {
            return Ok(memory.share_swapped());
        }
        let is_limited = what == M::Memory;
        let limit = is_limited.then(|| self.groups.memory_limit(memory.total)).flatten();
        Ok(limit.map_or_else(|| memory.share_used(), |(used, limit)| share(used, limit)))
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

/// `0.15 0.25 0.35 1/284 3121`: of one, five and fifteen minutes.
fn load_average(roots: &Roots, index: usize) -> Result<f64, String> {
    let path = roots.proc.join("loadavg");
    let text = text(&path)?;
    let word = text.split_ascii_whitespace().nth(index).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("{} is not understood: {text:?}", path.display()))
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
