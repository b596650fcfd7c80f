//! Cores: the lines of /proc/stat in, shares of the time between two samples out.
//!
//! Time in which a core waits for a disk is idle time, and what the hypervisor took is neither busy
//! nor idle; both are told apart. Cores are known by their names: one that goes or comes, or whose
//! counters fall, is left out until it has two samples.

use std::collections::BTreeMap;

use super::super::Reading;
use super::M;

/// The cores at the last sample, and what they did until then.
#[derive(Debug)]
pub(super) struct Cpu {
    last: BTreeMap<String, Ticks>,
    spent: Result<Spent, String>,
}

/// Times of one core since the system's start, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Ticks {
    busy: u64,
    idle: u64,
    iowait: u64,
    steal: u64,
}

/// What was done between two samples.
#[derive(Debug, Default)]
struct Spent {
    /// All cores together.
    all: Ticks,
    /// The busiest core's share.
    most: f64,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { last: BTreeMap::new(), spent: Ok(Spent::default()) }
    }
}

impl Cpu {
    /// Takes /proc/stat, or why it cannot be read.
    pub(super) fn take(&mut self, stat: Result<String, String>) {
        self.spent = stat.map(|stat| self.spend(&cores(&stat)));
    }

    /// Cores that are there.
    pub(super) fn cores(&self) -> usize {
        self.last.len()
    }

    /// A share of the time since the sample before.
    pub(super) fn share(&self, what: M) -> Reading {
        let Spent { all, most } = match &self.spent {
            Ok(spent) => spent,
            Err(why) => return Reading::Useless(why.clone()),
        };
        if all.total() == 0 {
            return Reading::NotYet;
        }
        Reading::Value(match what {
            M::CpuMax => *most,
            M::CpuIowait => all.share_of(all.iowait),
            M::CpuSteal => all.share_of(all.steal),
            _ => all.share_of(all.busy),
        })
    }

    fn spend(&mut self, cores: &[(String, Ticks)]) -> Spent {
        let mut spent = Spent::default();
        self.last.retain(|name, _| cores.iter().any(|(core, _)| core == name));
        for (name, now) in cores {
            match self.last.get_mut(name) {
                None => {
                    self.last.insert(name.clone(), *now);
                }
                Some(last) => {
                    let since = now.since(*last);
                    if since.is_some_and(|since| since.total() == 0) {
                        continue; // no tick yet: the next sample covers this time too
                    }
                    *last = *now;
                    if let Some(since) = since {
                        spent.all.add(since);
                        spent.most = spent.most.max(since.share_of(since.busy));
                    }
                }
            }
        }
        spent
    }
}

impl Ticks {
    /// `None` where the counters began anew.
    fn since(self, last: Self) -> Option<Self> {
        Some(Self {
            busy: self.busy.checked_sub(last.busy)?,
            // The kernel may take a tick of these back.
            idle: self.idle.saturating_sub(last.idle),
            iowait: self.iowait.saturating_sub(last.iowait),
            steal: self.steal.saturating_sub(last.steal),
        })
    }

    fn add(&mut self, other: Self) {
        self.busy += other.busy;
        self.idle += other.idle;
        self.iowait += other.iowait;
        self.steal += other.steal;
    }

    fn total(self) -> u64 {
        self.busy + self.idle + self.iowait + self.steal
    }

    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
    fn share_of(self, part: u64) -> f64 {
        part as f64 / self.total().max(1) as f64
    }
}

/// The cores of /proc/stat by name; all together where it names none.
fn cores(stat: &str) -> Vec<(String, Ticks)> {
    let lines = stat.lines().take_while(|line| line.starts_with("cpu"));
    let mut cores: Vec<_> = lines.filter_map(core).collect();
    if cores.len() > 1 {
        cores.retain(|(name, _)| name != "cpu");
    }
    cores
}

/// `cpu0 user nice system idle iowait irq softirq steal guest guest_nice`; a guest's time is in
/// user's and nice's.
fn core(line: &str) -> Option<(String, Ticks)> {
    let mut words = line.split_ascii_whitespace();
    let name = words.next()?.to_owned();
    let mut ticks = words.map(|word| word.parse::<u64>().ok());
    let mut next = || ticks.next().flatten();
    let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
    // Old kernels have fewer.
    let [iowait, irq, softirq, steal] = std::array::from_fn(|_| next().unwrap_or(0));
    Some((name, Ticks { busy: user + nice + system + irq + softirq, idle, iowait, steal }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of each sample after the first.
    fn shares(what: M, samples: &[&str]) -> Vec<Reading> {
        let mut cpu = Cpu::default();
        let taken = samples.iter().map(|sample| {
            cpu.take(Ok((*sample).to_owned()));
            cpu.share(what)
        });
        taken.collect()
    }

    #[track_caller]
    fn check(what: M, samples: &[&str], expected: &[Option<f64>]) {
        let found = shares(what, samples);
        let close = |(found, expected): (&Reading, &Option<f64>)| match (found, expected) {
            (Reading::Value(found), Some(expected)) => (found - expected).abs() < 1e-9,
            (Reading::NotYet, None) => true,
            _ => false,
        };
        assert!(found.iter().zip(expected).all(close), "{found:?}");
    }

    #[test]
    fn the_first_sample_is_none() {
        let busy = "cpu  9 0 0 0\ncpu0 9 0 0 0 0 0 0 0 0 0\nintr 1";
        check(M::Cpu, &[busy, busy], &[None, None]);
    }

    #[test]
    fn waiting_for_a_disk_is_not_busy() {
        let at =
            |iowait: u64| format!("cpu  0 0 0 0 {iowait} 0\ncpu0 100 0 0 100 {iowait} 0 0 0 0 0\n");
        let samples = [at(0), at(50)];
        let samples = samples.each_ref().map(String::as_str);
        check(M::Cpu, &samples, &[None, Some(0.0)]);
        check(M::CpuIowait, &samples, &[None, Some(1.0)]);
    }

    #[test]
    fn stolen_time_is_told_apart_and_guests_are_not_counted_twice() {
        let samples = ["cpu0 0 0 0 0 0 0 0 0 0 0", "cpu0 40 0 10 25 0 0 0 25 40 0"];
        check(M::Cpu, &samples, &[None, Some(0.5)]);
        check(M::CpuSteal, &samples, &[None, Some(0.25)]);
    }

    #[test]
    fn cores_come_and_go_by_name() {
        let samples = [
            "cpu 0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\ncpu2 0 0 0 0\ncpu3 0 0 0 0",
            "cpu 0 0 0 0\ncpu0 0 0 0 100\ncpu1 0 0 0 100\ncpu2 100 0 0 0\ncpu3 0 0 0 100",
            "cpu 0 0 0 0\ncpu0 50 0 0 150\ncpu1 0 0 0 200\ncpu3 100 0 0 100",
            "cpu 0 0 0 0\ncpu0 50 0 0 250\ncpu1 0 0 0 300\ncpu2 9000 0 0 7\ncpu3 100 0 0 200",
            "cpu 0 0 0 0\ncpu0 50 0 0 350\ncpu1 0 0 0 400\ncpu2 9100 0 0 7\ncpu3 100 0 0 300",
        ];
        check(M::Cpu, &samples, &[None, Some(0.25), Some(0.5), Some(0.0), Some(0.25)]);
        check(M::CpuMax, &samples, &[None, Some(1.0), Some(1.0), Some(0.0), Some(1.0)]);
    }

    #[test]
    fn samples_within_one_tick_are_taken_together() {
        let samples =
            ["cpu0 0 0 0 0", "cpu0 0 0 0 0", "cpu0 1 0 0 1", "cpu0 0 0 0 0", "cpu0 3 0 0 1"];
        check(M::Cpu, &samples, &[None, None, Some(0.5), None, Some(0.75)]);
    }

    /// Of the kernel itself, far more often than it counts.
    #[test]
    fn a_thousand_looks_in_quick_succession_are_shares_or_none() {
        let mut cpu = Cpu::default();
        for _ in 0..1_000 {
            cpu.take(std::fs::read_to_string("/proc/stat").map_err(|error| error.to_string()));
            for what in [M::Cpu, M::CpuMax, M::CpuIowait, M::CpuSteal] {
                let reading = cpu.share(what);
                let is_share =
                    matches!(reading, Reading::Value(share) if (0.0..=1.0).contains(&share));
                assert!(is_share || reading == Reading::NotYet, "{reading:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let mut cpu = Cpu::default();
        cpu.take(Err("cannot read it".to_owned()));
        assert_eq!(cpu.share(M::Cpu), Reading::Useless("cannot read it".to_owned()));
    }
}
