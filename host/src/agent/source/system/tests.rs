//! Files as kernels write them, in folders of a test's own.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

/// A machine made of files.
struct Fake {
    folder: TempDir,
    start: Instant,
}

impl Fake {
    fn new(files: &[(&str, &str)]) -> Self {
        let fake = Self { folder: tempfile::tempdir().expect("a folder"), start: Instant::now() };
        fake.write(&[("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n")]);
        fake.write(files);
        fake
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = self.folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder above")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
    }

    fn system(&self, sources: &[&str]) -> System {
        let roots =
            Roots { proc: self.folder.path().join("proc"), sys: self.folder.path().join("sys") };
        System::at(roots, sources.iter().map(|source| source.parse().expect("a source")).collect())
    }

    /// Readings of so many seconds after the start.
    fn read(&self, system: &mut System, second: u64) -> Vec<Reading> {
        let now = self.start + Duration::from_secs(second);
        system.refresh(now);
        let sources = system.sources.clone();
        let reading = |source| system.reading(source, now).unwrap_or_else(Reading::Useless);
        sources.iter().map(reading).collect()
    }
}

#[track_caller]
fn check(found: &[Reading], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let close = matches!(found, Reading::Value(found) if (found - expected).abs() < 1e-9);
        assert!(close, "number {index}: {found:?} instead of {expected}");
    }
}

#[track_caller]
fn check_why(reading: &Reading, words: &str) {
    let Reading::Useless(why) = reading else { panic!("{reading:?}") };
    assert!(why.contains(words), "{why}");
}

const MIB: u64 = 1 << 20;

#[test]
fn memory_is_of_the_nearest_limit_version_2() {
    let (max, current) = ((256 * MIB).to_string(), (220 * MIB).to_string());
    let stat = format!("anon 1\nactive_file {}\ninactive_file {}\n", 8 * MIB, 12 * MIB);
    let fake = Fake::new(&[
        ("proc/self/cgroup", "0::/outer/inner\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        ("sys/fs/cgroup/outer/memory.max", &max),
        ("sys/fs/cgroup/outer/memory.current", &current),
        ("sys/fs/cgroup/outer/memory.stat", &stat),
        ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
    ]);
    let mut system = fake.system(&["memory"]);
    check(&fake.read(&mut system, 0), &[200.0 / 256.0]);
    // A limit that comes later, nearer.
    fake.write(&[
        ("sys/fs/cgroup/outer/inner/memory.max", &(128 * MIB).to_string()),
        ("sys/fs/cgroup/outer/inner/memory.current", &(64 * MIB).to_string()),
    ]);
    check(&fake.read(&mut system, 1), &[0.5]);
}

#[test]
fn memory_is_of_the_nearest_limit_version_1() {
    let stat = format!(
        "cache 1\nactive_file 7\ntotal_active_file {}\ntotal_inactive_file {}\n",
        8 * MIB,
        12 * MIB
    );
    let fake = Fake::new(&[
        ("proc/self/cgroup", "9:memory:/box\n3:cpu,cpuacct:/\n0::/\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", &(256 * MIB).to_string()),
        ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", &(220 * MIB).to_string()),
        ("sys/fs/cgroup/memory/box/memory.stat", &stat),
    ]);
    check(&fake.read(&mut fake.system(&["memory"]), 0), &[200.0 / 256.0]);
}

#[test]
fn without_a_limit_memory_is_the_machines() {
    let fake = Fake::new(&[
        ("proc/self/cgroup", "9:memory:/box\n"),
        ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712"),
    ]);
    check(&fake.read(&mut fake.system(&["memory", "memory.machine"]), 0), &[0.25, 0.25]);
}

#[test]
fn cpu_is_told_as_a_share_of_the_quota() {
    let cases = [
        (
            "0::/a/b\n",
            &[
                ("sys/fs/cgroup/cgroup.controllers", ""),
                ("sys/fs/cgroup/a/cpu.max", "50000 100000"),
            ][..],
            "sys/fs/cgroup/a/cpu.stat",
            "usage_usec 1000000\nnr_periods 10\nnr_throttled 0\n",
            "usage_usec 1900000\nnr_periods 30\nnr_throttled 15\n",
        ),
        (
            "4:cpu,cpuacct:/a/b\n",
            &[
                ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/a/cpu.stat", "nr_periods 10\nnr_throttled 0\n"),
            ][..],
            "sys/fs/cgroup/cpu,cpuacct/a/cpuacct.usage",
            "1000000000\n",
            "1900000000\n",
        ),
    ];
    for (own, files, counter, first, second) in cases {
        let fake = Fake::new(&[("proc/self/cgroup", own), (counter, first)]);
        fake.write(files);
        let b = counter.replace("/a/", "/a/b/");
        fake.write(&[(&b, first)]);
        let mut system = fake.system(&["cpu.quota", "cpu.throttled"]);
        assert_eq!(fake.read(&mut system, 0), [Reading::NotYet, Reading::NotYet], "{own}");
        fake.write(&[(counter, second)]);
        if own.starts_with('4') {
            let stat = "sys/fs/cgroup/cpu,cpuacct/a/cpu.stat";
            fake.write(&[(stat, "nr_periods 30\nnr_throttled 15\n")]);
        }
        check(&fake.read(&mut system, 2), &[0.9, 0.75]);
    }
}

#[test]
fn looks_within_one_period_are_taken_together() {
    let stat = "sys/fs/cgroup/a/cpu.stat";
    let fake = Fake::new(&[
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/cgroup.controllers", ""),
        ("sys/fs/cgroup/a/cpu.max", "50000 100000"),
    ]);
    let mut system = fake.system(&["cpu.throttled"]);
    let mut at = |second, periods, waited| {
        fake.write(&[(stat, &format!("nr_periods {periods}\nnr_throttled {waited}\n"))]);
        fake.read(&mut system, second).remove(0)
    };
    assert_eq!(at(0, 10, 5), Reading::NotYet);
    // The kernel counts the wait at its beginning, and the period at its end.
    assert_eq!(at(1, 10, 6), Reading::NotYet);
    assert_eq!(at(2, 11, 6), Reading::Value(1.0));
    assert_eq!(at(3, 11, 6), Reading::NotYet);
    assert_eq!(at(4, 15, 7), Reading::Value(0.25));
    fake.write(&[("sys/fs/cgroup/a/cpu.max", "max 100000")]);
    assert_eq!(fake.read(&mut system, 5), [Reading::Value(0.0)], "without a quota nobody waits");
}

#[test]
fn cpu_time_may_be_told_in_a_tree_of_its_own() {
    let fake = Fake::new(&[
        ("proc/self/cgroup", "2:cpuacct:/a\n1:cpu:/a\n"),
        ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000"),
        ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000"),
        ("sys/fs/cgroup/cpuacct/a/cpuacct.usage", "0"),
    ]);
    let mut system = fake.system(&["cpu.quota"]);
    fake.read(&mut system, 0);
    fake.write(&[("sys/fs/cgroup/cpuacct/a/cpuacct.usage", "250000000")]);
    check(&fake.read(&mut system, 1), &[0.5]);
}

#[test]
fn without_a_quota_all_cores_may_be_used() {
    let fake = Fake::new(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/stat", "cpu0 1 0 0 1\ncpu1 1 0 0 1\n"),
        ("sys/fs/cgroup/cgroup.controllers", ""),
        ("sys/fs/cgroup/cpu.stat", "usage_usec 0\n"),
    ]);
    let mut system = fake.system(&["cpu.quota"]);
    fake.read(&mut system, 0);
    fake.write(&[("sys/fs/cgroup/cpu.stat", "usage_usec 1000000\n")]);
    check(&fake.read(&mut system, 1), &[0.5]);
}

fn disk(name: &str, sectors: u64, busy_ms: u64) -> String {
    format!("   8 0 {name} 5 0 {sectors} 7 5 0 {sectors} 7 0 {busy_ms} 9 0 0 0 0\n")
}

#[test]
fn each_disk_counts_once() {
    let stats = |sectors: u64, busy_ms: u64| {
        ["sda", "sda1", "loop0", "zram0", "ram1", "dm-0", "sdb"]
            .map(|name| disk(name, if name == "sdb" { 0 } else { sectors }, busy_ms))
            .concat()
    };
    let fake = Fake::new(&[
        ("proc/diskstats", &stats(0, 0)),
        ("sys/class/block/sda1/partition", "1"),
        ("sys/class/block/dm-0/slaves/sda1", ""),
    ]);
    let sources = ["disk.read", "disk.write", "disk.busy", "disk.busy:sda1", "disk.read:sdz"];
    let mut system = fake.system(&sources);
    fake.read(&mut system, 0);
    fake.write(&[("proc/diskstats", &stats(4_000, 500))]);
    let readings = fake.read(&mut system, 2);
    check(&readings[..4], &[1_024_000.0, 1_024_000.0, 0.25, 0.25]);
    check_why(&readings[4], "there is no sdz");
}

fn network(lines: &[(&str, u64)]) -> String {
    let line = |(name, bytes): &(&str, u64)| {
        format!("{name:>6}: {bytes} 3 0 0 0 0 0 0 {} 2 0 0 0 0 0 0\n", bytes * 2)
    };
    let head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n";
    head.to_owned() + &lines.iter().map(line).collect::<String>()
}

#[test]
fn network_rates_count_hardware_once_and_a_reset_is_no_burst() {
    let at = |eth0: u64| network(&[("lo", 9 * eth0), ("eth0", eth0), ("br0", eth0)]);
    let fake =
        Fake::new(&[("proc/net/dev", &at(10_000_000)), ("sys/class/net/eth0/device/vendor", "x")]);
    let mut system = fake.system(&["net.in", "net.out", "net.in:br0"]);
    assert_eq!(fake.read(&mut system, 0)[0], Reading::NotYet);
    fake.write(&[("proc/net/dev", &at(11_000_000))]);
    check(&fake.read(&mut system, 1), &[1e6, 2e6, 1e6]);
    fake.write(&[("proc/net/dev", &at(0))]);
    check_why(&fake.read(&mut system, 2)[0], "fell from");
    fake.write(&[("proc/net/dev", &at(12_000_000))]);
    check(&fake.read(&mut system, 3), &[0.5e6, 1e6, 0.5e6]);
}

#[test]
fn an_interface_that_is_made_anew_starts_a_new_base() {
    let fake = Fake::new(&[("proc/net/dev", &network(&[("veth0", 500), ("veth1", 0)]))]);
    let mut system = fake.system(&["net.in"]);
    fake.read(&mut system, 0);
    for (second, lines, expected) in [
        (1, vec![("veth0", 700), ("veth1", 100)], 300.0),
        (2, vec![("veth0", 900)], 200.0),
        (3, vec![("veth0", 1_000), ("veth1", 5_000_000)], 100.0),
        (4, vec![("veth0", 1_000), ("veth1", 5_000_050)], 50.0),
    ] {
        fake.write(&[("proc/net/dev", &network(&lines))]);
        check(&fake.read(&mut system, second), &[expected]);
    }
}

#[test]
fn pressure_is_the_share_of_the_time_since_the_last_sample() {
    let at = |some: u64, full: u64| {
        format!(
            "some avg10=9.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 total={full}\n"
        )
    };
    let fake = Fake::new(&[("proc/pressure/memory", &at(5_000_000, 0)), ("proc/stat", "")]);
    let mut system = fake.system(&["pressure.memory", "pressure.memory.full", "pressure.io"]);
    fake.read(&mut system, 0);
    fake.write(&[("proc/pressure/memory", &at(5_500_000, 100_000))]);
    let readings = fake.read(&mut system, 2);
    check(&readings[..2], &[0.25, 0.05]);
    check_why(&readings[2], "it takes a kernel with CONFIG_PSI");
}

#[test]
fn open_files_are_those_in_use() {
    let fake = Fake::new(&[("proc/sys/fs/file-nr", "1984\t32\t9223372036854775807\n")]);
    check(&fake.read(&mut fake.system(&["files"]), 0), &[1_952.0]);
}

#[test]
fn processes_that_are_hidden_are_unknown_and_not_absent() {
    let fake = Fake::new(&[("proc/stat", "cpu0 1 0 0 1\n")]);
    let sources = ["process.count:sh", "process.cpu:sh", "process.memory:sh"];
    for reading in fake.read(&mut fake.system(&sources), 0) {
        check_why(&reading, "hidepid");
    }
}

#[test]
fn processes_are_counted_by_their_short_names() {
    let fake = Fake::new(&[
        ("proc/stat", "cpu0 1 0 0 1\ncpu1 1 0 0 1\n"),
        ("proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: 512 kB\n"),
    ]);
    let process = |pid: u32, name: &str, used: u64, started: u64| {
        let stat =
            format!("{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {used} 0 0 0 20 0 1 0 {started} 0 32\n");
        let folder = format!("proc/{pid}");
        fake.write(&[
            (&format!("{folder}/stat"), &stat),
            (&format!("{folder}/comm"), &format!("{name}\n")),
        ]);
    };
    fake.write(&[("proc/uptime", "100.00 1.00\n"), ("proc/20/task/22/comm", "a-long-name-tha\n")]);
    process(1, "init", 5, 0);
    process(20, "a-long-name-tha", 1_000, 50);
    process(21, "a-long-name-tha", 1_000, 51);
    let what = "process.cpu:a-long-name-that-is-cut";
    let others = ["process.count:a-long-name-tha", "process.memory:init", "process.count:none"];
    let mut system = fake.system(&[&[what][..], &others].concat());
    let first = fake.read(&mut system, 0);
    assert_eq!(first[0], Reading::NotYet);
    check(&first[1..], &[2.0, 32.0 * 4_096.0 / f64::from(1 << 20), 0.0]);

    // Half a second more of one, a quarter of a new one; the third was in use under another name.
    fake.write(&[("proc/uptime", "102.00 1.00\n")]);
    process(20, "a-long-name-tha", 1_050, 50);
    process(30, "a-long-name-tha", 25, 10_100);
    process(1, "a-long-name-tha", 900, 0);
    let second = fake.read(&mut system, 2);
    check(&second, &[0.75 / 2.0 / 2.0, 4.0, 0.0, 0.0]);
    // A number that is given again is another process.
    fake.write(&[("proc/uptime", "104.00 1.00\n")]);
    process(20, "a-long-name-tha", 10, 10_300);
    check(&fake.read(&mut system, 4)[..1], &[0.1 / 2.0 / 2.0]);
}

#[test]
fn load_averages_are_told_per_core() {
    let fake = Fake::new(&[
        ("proc/stat", "cpu0 1 0 0 1\ncpu1 1 0 0 1\n"),
        ("proc/loadavg", "0.50 1.00 3.00 1/284 3121\n"),
    ]);
    let mut system = fake.system(&["load1", "load5", "load15"]);
    check(&fake.read(&mut system, 0), &[0.25, 0.5, 1.5]);
    fake.write(&[("proc/loadavg", "many\n")]);
    check_why(&fake.read(&mut system, 1)[0], "loadavg is not understood");
}

#[test]
fn a_busy_process_is_told_as_a_share_of_the_machine() {
    let mut busy = std::process::Command::new("/bin/sh");
    let mut busy = busy.args(["-c", "while :; do :; done"]).spawn().expect("a shell");
    let (roots, name) = (Roots::default(), "sh");
    let mut processes = Processes::new([name, "no such process"].into_iter());
    let start = Instant::now();
    processes.scan(&roots, start);
    assert_eq!(processes.reading(M::ProcessCpu, name), Reading::NotYet);
    // Until the kernel has counted some of its time, whoever else runs.
    let share = loop {
        processes.scan(&roots, Instant::now());
        match processes.reading(M::ProcessCpu, name) {
            Reading::Value(share) if share > 0.0 => break share,
            _ => assert!(start.elapsed() < Duration::from_secs(30), "it uses no CPU"),
        }
    };
    busy.kill().and_then(|()| busy.wait()).expect("an end");
    assert!(share <= 1.0, "{share}");
    assert!(
        matches!(processes.reading(M::ProcessCount, name), Reading::Value(count) if count >= 1.0)
    );
    assert!(
        matches!(processes.reading(M::ProcessMemory, name), Reading::Value(share) if share > 0.0)
    );
    for what in [M::ProcessCpu, M::ProcessCount, M::ProcessMemory] {
        check(&[processes.reading(what, "no such process")], &[0.0]);
    }
}

#[test]
fn this_machine_has_every_share_between_none_and_all() {
    let sources = ["cpu", "cpu.max", "memory", "memory.machine", "swap", "disk.space", "load1"];
    let mut system = System::new(sources.iter().map(|source| source.parse().expect("a source")));
    for reading in system.read().iter().chain(&system.read()) {
        match reading {
            Reading::Value(value) => assert!((0.0..1e3).contains(value), "{value}"),
            Reading::NotYet => {}
            other => panic!("{other:?}"),
        }
    }
}
