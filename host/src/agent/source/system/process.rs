//! Processes by name: a scan of all of them in, CPU, memory and count of the named ones out.
//!
//! A process is known by its short name, as `ps -o comm` shows it: 15 bytes at most. Of each one its name
//! is read, of the wanted ones the rest: on a machine with thousands of processes the scan is most of
//! what an agent costs. Threads are not looked at by themselves, and no file is kept open. Names are
//! read anew each time: a process has another one after exec. Where other users' processes are hidden
//! from this one, everything is unknown: a part must not look like the whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nix::unistd::{SysconfVar, sysconf};
use tokio::time::Instant;

use super::super::Reading;
use super::memory::Memory;
use super::{M, Roots, share, text};

/// Bytes of a process's short name; the kernel keeps no more.
const NAME_BYTES_MAX: usize = 15;
/// Bytes of what is read of a process: its line has some fifty numbers.
const LINE_BYTES_MAX: usize = 2_048;

/// The wanted processes.
#[derive(Debug)]
pub(super) struct Processes {
    /// By short name.
    found: HashMap<Box<[u8]>, Found>,
    scanned: Option<Scanned>,
    trouble: Option<String>,
    machine: Machine,
}

/// When all processes were looked at.
#[derive(Debug, Clone, Copy)]
struct Scanned {
    at: Instant,
    /// The same as ticks since the system's start.
    ticks: u64,
}

/// What shares are of, and in what the kernel counts.
#[derive(Debug, Clone, Copy)]
struct Machine {
    ticks_a_second: f64,
    page_bytes: u64,
    cores: f64,
    memory: u64,
}

/// All processes of one name at the last scan.
#[derive(Debug, Default)]
struct Found {
    count: usize,
    /// Bytes that are resident.
    memory: u64,
    /// CPU time of each since its start, in ticks.
    used: HashMap<Identity, u64>,
    /// The same at the scan before.
    before: HashMap<Identity, u64>,
    /// CPU time of all since the scan before, in ticks.
    spent: u64,
    /// Share of all cores since the scan before.
    cpu: Option<f64>,
}

/// Tells a process from every other one, those that have its number later too: number and start.
type Identity = (u32, u64);

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    /// CPU time since its start, in ticks.
    used: u64,
    /// Ticks from the system's start to its own.
    started: u64,
    resident_pages: u64,
}

impl Processes {
    pub(super) fn new<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let found = names.map(|name| (short(name).into(), Found::default())).collect();
        Self { found, scanned: None, trouble: None, machine: Machine::of_system() }
    }

    /// Looks at every process.
    pub(super) fn scan(&mut self, roots: &Roots, now: Instant) {
        self.trouble = self.try_scan(roots, now).err();
        if self.trouble.is_some() {
            self.scanned = None;
        }
    }

    fn try_scan(&mut self, roots: &Roots, now: Instant) -> Result<(), String> {
        // Every machine and container has a process 1.
        text(&roots.proc.join("1/stat")).map_err(|why| {
            format!(
                "{why}: processes of other users are hidden from this one (/proc is mounted with \
                 hidepid); run the agent as root or in the group that gid= of that mount names"
            )
        })?;
        self.machine.look(roots)?;
        // Before the list is read: what starts from now on is new at the next scan.
        let this = Scanned { at: now, ticks: self.machine.ticks_up(roots)? };
        let last = self.scanned.replace(this);
        for found in self.found.values_mut() {
            *found = Found { before: std::mem::take(&mut found.used), ..Found::default() };
        }
        let page_bytes = self.machine.page_bytes;
        each_process(&roots.proc, |pid, name, stat| {
            let Some(found) = self.found.get_mut(name) else { return };
            // One that has ended meanwhile is no process any more.
            if let Some(stat) = stat() {
                found.add(pid, stat, last.map(|last| last.ticks));
                found.memory += stat.resident_pages.saturating_mul(page_bytes);
            }
        })?;
        let seconds = last.map(|last| now.saturating_duration_since(last.at).as_secs_f64());
        for found in self.found.values_mut() {
            let spent = self.machine.seconds(found.spent);
            let seconds = seconds.filter(|seconds| *seconds > 0.0);
            found.cpu = seconds.map(|seconds| (spent / seconds / self.machine.cores).min(1.0));
        }
        Ok(())
    }

    pub(super) fn reading(&self, what: M, name: &str) -> Reading {
        if let Some(why) = &self.trouble {
            return Reading::Useless(why.clone());
        }
        let Some(found) = self.found.get(short(name)) else { return Reading::NotYet };
        match what {
            M::ProcessMemory => share(found.memory, self.machine.memory),
            #[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^53 processes")]
            M::ProcessCount => Reading::Value(found.count as f64),
            _ => found.cpu.map_or(Reading::NotYet, Reading::Value),
        }
    }
}

impl Found {
    /// Counts one process more; `last` is when the scan before was.
    fn add(&mut self, pid: u32, stat: Stat, last: Option<u64>) {
        self.count += 1;
        let identity = (pid, stat.started);
        self.spent += match (self.before.get(&identity), last) {
            (Some(before), _) => stat.used.saturating_sub(*before),
            // It started after the scan before: all its time is of since then.
            (None, Some(last)) if stat.started >= last => stat.used,
            (None, _) => 0,
        };
        self.used.insert(identity, stat.used);
    }
}

impl Machine {
    /// Nothing is looked at yet.
    fn of_system() -> Self {
        let of = |variable, usual: u32| {
            let known = sysconf(variable).ok().flatten().and_then(|value| value.try_into().ok());
            known.filter(|value| *value > 0).unwrap_or(usual)
        };
        Self {
            ticks_a_second: of(SysconfVar::CLK_TCK, 100).into(),
            page_bytes: of(SysconfVar::PAGE_SIZE, 4_096).into(),
            cores: 1.0,
            memory: 0,
        }
    }

    /// What may change while it runs.
    fn look(&mut self, roots: &Roots) -> Result<(), String> {
        self.cores = cores(roots)?;
        self.memory = Memory::read(roots)?.total;
        Ok(())
    }

    /// Ticks since the system's start.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "centuries of ticks fit, and what is below 0 is 0"
    )]
    fn ticks_up(self, roots: &Roots) -> Result<u64, String> {
        let path = roots.proc.join("uptime");
        let text = text(&path)?;
        let seconds =
            text.split_ascii_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        let seconds = seconds.ok_or_else(|| format!("{} is not understood", path.display()))?;
        Ok((seconds * self.ticks_a_second) as u64)
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
    fn seconds(self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_a_second
    }
}

impl Stat {
    /// `PID (NAME) state ppid …`: a name may hold anything, brackets and spaces too.
    fn parse(line: &[u8]) -> Option<Self> {
        let end = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&line[end + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        // The state is the third field of the line, user and system time the 14th and 15th.
        let (user, system) = (fields.nth(11)?, fields.next()?);
        let (started, resident) = (fields.nth(6)?, fields.nth(1)?);
        Some(Self {
            used: user.parse::<u64>().ok()? + system.parse::<u64>().ok()?,
            started: started.parse().ok()?,
            resident_pages: resident.parse().unwrap_or(0),
        })
    }
}

/// Calls for each process with its number, its short name, and what tells the rest of it.
fn each_process(
    proc: &Path,
    mut look: impl FnMut(u32, &[u8], &mut dyn FnMut() -> Option<Stat>),
) -> Result<(), String> {
    let cannot = |error: io::Error| format!("cannot list {}: {error}", proc.display());
    let mut path = proc.to_owned();
    let (mut name, mut line) = ([0; LINE_BYTES_MAX], [0; LINE_BYTES_MAX]);
    for entry in std::fs::read_dir(proc).map_err(cannot)? {
        let entry = entry.map_err(cannot)?.file_name();
        let Some(pid) = entry.to_str().and_then(|entry| entry.parse().ok()) else { continue };
        path.extend([entry.as_os_str(), "comm".as_ref()]);
        if let Ok(name) = read(&path, &mut name) {
            let mut stat = || {
                path.set_file_name("stat");
                read(&path, &mut line).ok().and_then(Stat::parse)
            };
            look(pid, name.strip_suffix(b"\n").unwrap_or(name), &mut stat);
        }
        path.pop();
        path.pop();
    }
    Ok(())
}

/// What one read gives of a file: the kernel writes these at once.
fn read<'b>(path: &Path, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let len = File::open(path)?.read(buffer)?;
    Ok(&buffer[..len])
}

fn short(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)]
}

/// Cores of the machine, whatever this process may use of them.
fn cores(roots: &Roots) -> Result<f64, String> {
    let stat = text(&roots.proc.join("stat"))?;
    let is_core = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    #[expect(clippy::cast_precision_loss, reason = "a machine has fewer than 2^53 cores")]
    Ok(stat.lines().filter(is_core).count().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as the kernel writes it.
    fn line(name: &str, used: u64, started: u64, pages: u64) -> String {
        format!(
            "7 ({name}) S 1 7 7 0 -1 4194560 1 0 0 0 {used} 1 9 9 20 0 3 0 {started} 99 {pages} \
             18446744073709551615 0 0\n"
        )
    }

    #[test]
    fn names_may_hold_anything() {
        let expected = Stat { used: 41, started: 500, resident_pages: 12 };
        for name in ["sh", "a b", "(sd-pam)", "x) R 1 (y", ""] {
            assert_eq!(Stat::parse(line(name, 40, 500, 12).as_bytes()), Some(expected), "{name}");
        }
        for bad in ["", "7 sh S 1", "7 (sh) S 1 2 3", "7 (sh"] {
            assert_eq!(Stat::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn time_counts_from_a_process_start_or_the_scan_before() {
        let mut found = Found::default();
        let at = |used, started| Stat { used, started, resident_pages: 0 };
        found.add(1, at(100, 5), None);
        assert_eq!(found.spent, 0, "nothing is known of the time before");
        let mut next = Found { before: found.used, ..Found::default() };
        next.add(1, at(130, 5), Some(50)); // 30 more
        next.add(2, at(7, 60), Some(50)); // new
        next.add(3, at(400, 20), Some(50)); // an old one that has the name only now
        next.add(1, at(2, 70), Some(50)); // another one with the number of the first
        assert_eq!((next.spent, next.count), (30 + 7 + 2, 4));
    }
}
