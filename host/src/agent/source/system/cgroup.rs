//! Control groups, versions 1 and 2: the agent's group and those above it in, what they may use and
//! use out.
//!
//! The nearest group with a limit counts, looked for anew each time: limits change while a program
//! runs. Page cache is not counted as used memory, because the kernel gives it back when asked.

use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::super::Reading;
use super::super::rate::Rate;
use super::{Roots, share, text};

/// The groups of this process.
#[derive(Debug)]
pub(super) struct Groups {
    /// From the process's own group upwards.
    memory: Vec<PathBuf>,
    cpu: Vec<PathBuf>,
    mounts: PathBuf,
    /// The group whose time was looked at the last time.
    used: Option<(PathBuf, Rate)>,
    throttled: Option<(PathBuf, u64, u64)>,
}

impl Groups {
    pub(super) fn new(roots: &Roots) -> Self {
        let own = text(&roots.proc.join("self/cgroup")).unwrap_or_default(); // a kernel without groups
        let mounts = roots.sys.join("fs/cgroup");
        let chain = |controller| chain(&mounts, &own, controller);
        let (memory, cpu) = (chain("memory"), chain("cpu"));
        Self { memory, cpu, mounts, used: None, throttled: None }
    }

    /// Memory used and allowed in the nearest group with a limit, if it is below the machine's.
    pub(super) fn memory_limit(&self, machine: u64) -> Option<(u64, u64)> {
        let allowed = |group: &PathBuf| {
            let limit =
                number(group, "memory.max").or_else(|| number(group, "memory.limit_in_bytes"));
            limit.filter(|limit| *limit < machine).map(|limit| (group.clone(), limit))
        };
        let (group, limit) = self.memory.iter().find_map(allowed)?;
        let used =
            number(&group, "memory.current").or_else(|| number(&group, "memory.usage_in_bytes"))?;
        let stat = text(&group.join("memory.stat")).unwrap_or_default();
        let (whole, v2) = if stat.contains("\ntotal_") { ("total_", 0) } else { ("", 1) };
        let of = |name: &str| field(&stat, &format!("{whole}{name}")).unwrap_or(0);
        let slabs = v2 * of("slab_reclaimable");
        let cache = of("active_file") + of("inactive_file") + slabs;
        Some((used.saturating_sub(cache), limit))
    }

    /// Share of the quota that was used since the last look; without any quota the group may use
    /// all `cores`.
    pub(super) fn cpu_share(&mut self, cores: usize, now: Instant) -> Result<Reading, String> {
        let limited = self.cpu.iter().find_map(|group| Some((group.clone(), quota(group)?)));
        #[expect(clippy::cast_precision_loss, reason = "a machine has fewer than 2^53 cores")]
        let unlimited = || Some((self.cpu.first()?.clone(), cores.max(1) as f64));
        let (group, allowed) = limited.or_else(unlimited).ok_or_else(no_group)?;
        let used_s = self
            .used_seconds(&group)
            .ok_or_else(|| format!("the group {} does not say its CPU time", group.display()))?;
        let known = self.used.take().filter(|(known, _)| *known == group);
        let (_, mut rate) = known.unwrap_or_default();
        let reading = rate.of(used_s, now);
        self.used = Some((group, rate));
        Ok(match reading {
            Reading::Value(used) => Reading::Value(used / allowed),
            other => other,
        })
    }

    /// CPU time of a group since it was made.
    fn used_seconds(&self, group: &Path) -> Option<f64> {
        let stat = text(&group.join("cpu.stat")).unwrap_or_default();
        if let Some(usec) = field(&stat, "usage_usec") {
            #[expect(clippy::cast_precision_loss, reason = "microseconds of some centuries fit")]
            return Some(usec as f64 / 1e6);
        }
        // Version 1 says it in nanoseconds, beside the quota or in a tree of its own.
        let below = group.strip_prefix(self.mounts.join("cpu")).ok();
        let apart = || float(&self.mounts.join("cpuacct").join(below?), "cpuacct.usage");
        Some(float(group, "cpuacct.usage").or_else(apart)? / 1e9)
    }

    /// Share of the periods since the last value in which the group had to wait for its next quota;
    /// none before a period is over.
    pub(super) fn throttled_share(&mut self) -> Result<Reading, String> {
        let nearest = self.cpu.iter().find(|group| quota(group).is_some());
        let group = nearest.or(self.cpu.first()).ok_or_else(no_group)?;
        let stat = text(&group.join("cpu.stat"))?;
        let (Some(periods), Some(waited)) =
            (field(&stat, "nr_periods"), field(&stat, "nr_throttled"))
        else {
            return Ok(Reading::Value(0.0)); // without a quota nobody waits
        };
        let last = self.throttled.as_ref().filter(|(known, ..)| known == group);
        let since = last.and_then(|(_, last_periods, last_waited)| {
            Some((periods.checked_sub(*last_periods)?, waited.checked_sub(*last_waited)?))
        });
        if matches!(since, Some((0, _))) && nearest.is_some() {
            return Ok(Reading::NotYet); // the next look covers this time too
        }
        self.throttled = Some((group.clone(), periods, waited));
        Ok(since.map_or(Reading::NotYet, |(periods, waited)| share(waited, periods)))
    }
}

fn no_group() -> String {
    "this process is in no control group for CPU time".to_owned()
}

/// The folders of a controller's groups, from the process's own upwards. Inside a container the
/// mount may begin at the container's own group: then what the process's path says is not there.
fn chain(mounts: &Path, own: &str, controller: &str) -> Vec<PathBuf> {
    let lines = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let mut found = Vec::new();
    for (controllers, path) in lines {
        let listed = controllers.split(',').any(|name| name == controller);
        let top = match controllers {
            "" => unified(mounts),
            _ if listed => of_controller(mounts, controller),
            _ => continue,
        };
        let Some(top) = top else { continue };
        let own = top.join(path.trim_start_matches('/'));
        let start = if own.is_dir() { own } else { top.clone() };
        let groups = start.ancestors().take_while(|group| group.starts_with(&top));
        found.extend(groups.map(Path::to_owned));
    }
    found
}

/// Where version 2 is mounted: alone, or beside version 1.
fn unified(mounts: &Path) -> Option<PathBuf> {
    let folders = [mounts.to_owned(), mounts.join("unified")];
    folders.into_iter().find(|folder| folder.join("cgroup.controllers").exists())
}

/// Where a controller of version 1 is mounted: `cpu`, or `cpu,cpuacct`.
fn of_controller(mounts: &Path, controller: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir(mounts).ok()?.filter_map(Result::ok);
    let mut named = folders.filter(|folder| {
        let name = folder.file_name();
        name.to_string_lossy().split(',').any(|name| name == controller)
    });
    named.next().map(|folder| folder.path())
}

/// Cores that a group may use.
fn quota(group: &Path) -> Option<f64> {
    let text = text(&group.join("cpu.max")).ok();
    let (quota, period) = match &text {
        Some(text) => {
            let mut words = text.split_ascii_whitespace().map(str::parse::<f64>);
            (words.next()?.ok()?, words.next()?.ok()?) // "max" is no number: no quota
        }
        None => (float(group, "cpu.cfs_quota_us")?, float(group, "cpu.cfs_period_us")?),
    };
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn number(group: &Path, name: &str) -> Option<u64> {
    text(&group.join(name)).ok()?.trim().parse().ok()
}

fn float(group: &Path, name: &str) -> Option<f64> {
    text(&group.join(name)).ok()?.trim().parse().ok()
}

/// `name value` on a line of its own.
fn field(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(known, _)| *known == name)?.1.trim().parse().ok()
}
