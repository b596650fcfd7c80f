//! The names after `system:`, one row each: what it is and in which unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::nearest;

/// One number of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the table `ALL` says what each one is")]
pub enum SystemMetric {
    Cpu,
    CpuMax,
    CpuIowait,
    CpuSteal,
    CpuQuota,
    CpuThrottled,
    Load1,
    Load5,
    Load15,
    Memory,
    MemoryMachine,
    Swap,
    DiskSpace,
    DiskBusy,
    DiskRead,
    DiskWrite,
    NetworkIn,
    NetworkOut,
    ProcessCpu,
    ProcessMemory,
    ProcessCount,
    OpenFiles,
    PressureCpu,
    PressureCpuFull,
    PressureMemory,
    PressureMemoryFull,
    PressureIo,
    PressureIoFull,
}

/// What may stand after a second colon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Nothing.
    Nothing,
    /// One of several; without it all together.
    May(&'static str),
    /// It must be named.
    Must(&'static str),
}

/// A row: its name, what may follow it, and its unit.
type Row = (&'static str, SystemMetric, Of, &'static str);

impl SystemMetric {
    /// Every one of them. Shares are 0 to 1.
    pub const ALL: [Row; 28] = [
        ("cpu", Self::Cpu, Of::Nothing, "share of all cores"),
        ("cpu.max", Self::CpuMax, Of::Nothing, "share of the busiest core"),
        ("cpu.iowait", Self::CpuIowait, Of::Nothing, "share of all cores"),
        ("cpu.steal", Self::CpuSteal, Of::Nothing, "share of all cores"),
        ("cpu.quota", Self::CpuQuota, Of::Nothing, "share of the quota"),
        ("cpu.throttled", Self::CpuThrottled, Of::Nothing, "share of the periods"),
        ("load1", Self::Load1, Of::Nothing, "tasks per core"),
        ("load5", Self::Load5, Of::Nothing, "tasks per core"),
        ("load15", Self::Load15, Of::Nothing, "tasks per core"),
        ("memory", Self::Memory, Of::Nothing, "share of the memory or its limit"),
        ("memory.machine", Self::MemoryMachine, Of::Nothing, "share of the machine's memory"),
        ("swap", Self::Swap, Of::Nothing, "share of the swap space"),
        ("disk.space", Self::DiskSpace, Of::May("a path"), "share of the space"),
        ("disk.busy", Self::DiskBusy, Of::May("a device"), "share of the time"),
        ("disk.read", Self::DiskRead, Of::May("a device"), "bytes a second"),
        ("disk.write", Self::DiskWrite, Of::May("a device"), "bytes a second"),
        ("net.in", Self::NetworkIn, Of::May("an interface"), "bytes a second"),
        ("net.out", Self::NetworkOut, Of::May("an interface"), "bytes a second"),
        ("process.cpu", Self::ProcessCpu, Of::Must("a process"), "share of all cores"),
        ("process.memory", Self::ProcessMemory, Of::Must("a process"), "share of the memory"),
        ("process.count", Self::ProcessCount, Of::Must("a process"), "processes"),
        ("files", Self::OpenFiles, Of::Nothing, "open files"),
        ("pressure.cpu", Self::PressureCpu, Of::Nothing, "share of the time"),
        ("pressure.cpu.full", Self::PressureCpuFull, Of::Nothing, "share of the time"),
        ("pressure.memory", Self::PressureMemory, Of::Nothing, "share of the time"),
        ("pressure.memory.full", Self::PressureMemoryFull, Of::Nothing, "share of the time"),
        ("pressure.io", Self::PressureIo, Of::Nothing, "share of the time"),
        ("pressure.io.full", Self::PressureIoFull, Of::Nothing, "share of the time"),
    ];

    /// Whether it is looked up among all processes, which takes time on a machine with many.
    #[must_use]
    pub fn is_of_processes(self) -> bool {
        matches!(self, Self::ProcessCpu | Self::ProcessMemory | Self::ProcessCount)
    }

    /// Whether it asks file systems, which may hang.
    #[must_use]
    pub fn is_of_file_systems(self) -> bool {
        self == Self::DiskSpace
    }

    /// Time between two samples where none is written: what costs more or changes slowly is
    /// sampled less often.
    pub(super) fn usual_every(self) -> Duration {
        match self {
            _ if self.is_of_processes() => Duration::from_secs(5),
            Self::DiskSpace => Duration::from_secs(10),
            Self::Load1 | Self::Load5 | Self::Load15 | Self::OpenFiles => Duration::from_secs(2),
            _ => Duration::from_millis(500),
        }
    }

    fn row(self) -> Row {
        let same = |row: &&Row| row.1 == self;
        *Self::ALL.iter().find(same).unwrap_or(&Self::ALL[0]) // a test: each has a row
    }
}

/// A number of this machine, of one thing or of all of them together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SystemSource {
    /// Which number.
    pub what: SystemMetric,
    /// The device, interface, path or process; `None`: all together.
    pub of: Option<Box<str>>,
}

impl FromStr for SystemSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, of) = text.split_once(':').map_or((text, None), |(name, of)| (name, Some(of)));
        let Some((name, what, may, _)) = SystemMetric::ALL.iter().find(|row| row.0 == name) else {
            let names = SystemMetric::ALL.map(|row| row.0);
            let hint = match nearest(name, names.into_iter()) {
                Some(near) => format!("did you mean system:{near}?"),
                None => format!("it is one of {}", names.join(", ")),
            };
            return Err(format!("there is no system:{name}, {hint}"));
        };
        match (may, of) {
            (Of::Nothing, Some(of)) => Err(format!("nothing may follow system:{name}, not {of:?}")),
            (Of::Must(thing), None | Some("")) => Err(format!("name {thing}, system:{name}:NAME")),
            (Of::May(thing), Some("")) => {
                Err(format!("name {thing} after system:{name}: or leave out the colon"))
            }
            (Of::May("a path"), Some(path)) if !path.starts_with('/') => {
                Err(format!("{path:?} is not a path that begins with /"))
            }
            (_, of) => Ok(Self { what: *what, of: of.map(Box::from) }),
        }
    }
}

impl fmt::Display for SystemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what.row().0)?;
        self.of.as_ref().map_or(Ok(()), |of| write!(f, ":{of}"))
    }
}
