//! Processes by name: a scan of all of them in, CPU, memory and count of the named ones out.
//!
//! A process is known by its short name, as `ps -o comm` shows it: 15 bytes at most. Threads are not
//! looked at by themselves. The list is made anew each time: one that is kept would remember the
//! name that a process had before it called exec. Where other users' processes are hidden from this
//! one, everything is unknown: a part must not look like the whole.

use std::collections::HashMap;

use sysinfo::{
    MemoryRefreshKind, Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System as Machine,
};
use tokio::time::Instant;

use super::super::Reading;
use super::{M, Roots, share, text};

/// Bytes of a process's short name; the kernel keeps no more.
const NAME_BYTES_MAX: usize = 15;

/// The wanted processes.
#[derive(Debug)]
pub(super) struct Processes {
    found: HashMap<Box<str>, Found>,
    scanned: Option<Instant>,
    trouble: Option<String>,
}

/// All processes of one name at the last scan.
#[derive(Debug, Default)]
struct Found {
    count: usize,
    memory: u64,
    memory_of: u64,
    /// CPU time of each since its start, in milliseconds.
    used_ms: HashMap<Pid, u64>,
    /// Share of all cores since the scan before.
    cpu: Option<f64>,
}

impl Processes {
    pub(super) fn new(names: Vec<Box<str>>) -> Self {
        let found = names.into_iter().map(|name| (name, Found::default())).collect();
        Self { found, scanned: None, trouble: None }
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
        let mut machine =
            Machine::new().map_err(|error| format!("no processes can be listed: {error}"))?;
        let wanted = ProcessRefreshKind::nothing().with_cpu().with_memory().without_tasks();
        machine.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        machine.refresh_processes_specifics(ProcessesToUpdate::All, true, wanted);
        let seconds = self.scanned.map(|then| now.saturating_duration_since(then).as_secs_f64());
        let cores = cores(roots)?;
        for (name, found) in &mut self.found {
            let of_name = machine.processes().values().filter(|process| is_named(process, name));
            *found = found.next(of_name, machine.total_memory(), seconds, cores);
        }
        self.scanned = Some(now);
        Ok(())
    }

    pub(super) fn reading(&self, what: M, name: &str) -> Reading {
        if let Some(why) = &self.trouble {
            return Reading::Useless(why.clone());
        }
        let Some(found) = self.found.get(name) else { return Reading::NotYet };
        match what {
            M::ProcessMemory => share(found.memory, found.memory_of),
            #[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^53 processes")]
            M::ProcessCount => Reading::Value(found.count as f64),
            _ => found.cpu.map_or(Reading::NotYet, Reading::Value),
        }
    }
}

impl Found {
    /// The state after one more scan.
    fn next<'p>(
        &self,
        processes: impl Iterator<Item = &'p Process>,
        memory_of: u64,
        seconds: Option<f64>,
        cores: f64,
    ) -> Self {
        let mut next = Self { memory_of, ..Self::default() };
        let mut spent_ms = 0;
        for process in processes {
            next.count += 1;
            next.memory += process.memory();
            let used_ms = process.accumulated_cpu_time();
            next.used_ms.insert(process.pid(), used_ms);
            #[expect(clippy::cast_precision_loss, reason = "some centuries of seconds fit")]
            let is_new = seconds.is_some_and(|seconds| process.run_time() as f64 <= seconds);
            spent_ms += match self.used_ms.get(&process.pid()) {
                Some(before) if *before <= used_ms => used_ms - before,
                // It started after the scan before: all its time is of since then.
                _ if is_new => used_ms,
                _ => 0,
            };
        }
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
        let share = |seconds: f64| (spent_ms as f64 / 1e3 / seconds / cores).min(1.0);
        next.cpu = seconds.filter(|seconds| *seconds > 0.0).map(share);
        next
    }
}

fn is_named(process: &Process, name: &str) -> bool {
    let short = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
    process.name().as_encoded_bytes() == short
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
