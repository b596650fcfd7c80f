//! The program on a kernel that says what a test wants: mounts of its own over files of /proc, control
//! groups of its own, and processes whose use of it is known.
//!
//! Takes root, mounts and groups; where there are none, these tests say so and pass.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{Arrived, Ear};
use crate::support::net::left_out;
use crate::support::program;

/// An agent behind mounts, killed if the test ends early.
struct Agent(Child);

impl Agent {
    /// Runs it after `prepare`, in a mount namespace of its own; `None`, with a word, where that
    /// cannot be had.
    fn start(folder: &Path, prepare: &str, run_as: &str, config: &str) -> Option<Self> {
        let can = Command::new("unshare").args(["-m", "sh", "-c", prepare]).output();
        if !can.is_ok_and(|output| output.status.success()) {
            left_out(&format!("this test needs root and mounts ({prepare})"));
            return None;
        }
        let file = folder.join("loadline.toml");
        std::fs::write(&file, config).unwrap();
        // The program itself may be where an ordinary user may not look.
        let copy = folder.join("loadline");
        std::fs::copy(program(), &copy).unwrap();
        let [program, file] = [copy, file].map(|path| path.display().to_string());
        let script = format!("{prepare} && exec {run_as} {program} --config {file} agent");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).stderr(Stdio::piped());
        Some(Self(command.spawn().unwrap()))
    }

    /// Ends it; what it said.
    fn end(mut self) -> String {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both fail where it was ended already.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn config(ear: &Ear, metrics: &[(&str, &str)]) -> String {
    let metric = |(name, source): &(&str, &str)| {
        format!(
            "[[agent.metric]]\nname = \"{name}\"\nsource = \"{source}\"\nevery = \"50ms\"\nwindow = 1\n"
        )
    };
    let metrics: String = metrics.iter().map(metric).collect();
    format!("[agent]\ninterval = \"50ms\"\n{metrics}{}", ear.config())
}

#[test]
fn memory_and_swap_are_read_anew_each_time_and_nothing_of_nothing_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let meminfo = folder.path().join("meminfo");
    let write = |total: u64, free: u64| {
        let text = format!(
            "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\nBuffers: 0 kB\nCached: 790 kB\n\
             SwapTotal: {total} kB\nSwapFree: {free} kB\n"
        );
        std::fs::write(&meminfo, text).unwrap(); // in place: the mount is of this very file
    };
    write(0, 0);
    let ear = Ear::open();
    let config = config(&ear, &[("swap", "system:swap"), ("memory", "system:memory.machine")]);
    let prepare = format!("mount --bind {} /proc/meminfo", meminfo.display());
    let Some(agent) = Agent::start(folder.path(), &prepare, "", &config) else { return };
    let first = ear.until("no swap", |report| report.value("swap") == Some(0.0));
    let memory = first.value("memory").unwrap();
    assert!((memory - 0.2).abs() < 1e-9, "page cache is no used memory: {memory}");
    write(1_048_576, 524_288);
    ear.until("half of the swap", |report| report.value("swap") == Some(0.5));
    write(0, 0);
    ear.until("no swap again", |report| report.value("swap") == Some(0.0));
    agent.end();
}

#[test]
fn hidden_processes_are_unknown_with_one_warning_and_the_rest_goes_out() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let ear = Ear::open();
    let config = config(&ear, &[("cpu", "system:cpu"), ("shells", "system:process.count:sh")]);
    let prepare = "mount -t proc -o hidepid=2 proc /proc";
    let run_as = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let Some(agent) = Agent::start(folder.path(), prepare, run_as, &config) else { return };
    let mut reports = (0..10).map(|_| ear.until("cpu", |report| report.value("cpu").is_some()));
    assert!(reports.all(|report| report.value("shells").is_none()));
    let said = agent.end();
    assert_eq!(said.matches("hidepid").count(), 1, "{said}");
}

/// A control group below this process's own, gone at the end.
struct Group {
    folders: Vec<PathBuf>,
}

impl Group {
    /// A group of these controllers of version 1; `None`, with a word, where there are none. Version 2 is
    /// shown by the agent's own tests, with files as that kernel writes them.
    fn make(controllers: &[&str]) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut group = Self { folders: Vec::new() };
        for controller in controllers {
            let path = own.lines().find_map(|line| line.split_once(&format!(":{controller}:")));
            let path = path.map_or("/", |(_, path)| path).trim_start_matches('/');
            let top = Path::new("/sys/fs/cgroup").join(controller).join(path);
            // Trees apart have it by one path, as container engines make it.
            let folder = top.join(format!("loadline-test-{}", std::process::id()));
            if let Err(error) = fs::create_dir(&folder) {
                eprintln!("left out: no group of {controller} can be made: {error}");
                return None;
            }
            group.folders.push(folder);
        }
        Some(group)
    }

    fn set(&self, file: &str, value: &str) {
        let folder = self.folders.iter().find(|folder| folder.join(file).exists()).unwrap();
        fs::write(folder.join(file), value).unwrap();
    }

    /// What a shell says to become one of the group.
    fn enter(&self) -> String {
        let enter = |folder: &PathBuf| format!("echo $$ > {}/cgroup.procs", folder.display());
        self.folders.iter().map(enter).collect::<Vec<_>>().join(" && ")
    }

    /// Runs a shell's command in it.
    fn run(&self, script: &str) -> Killed {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{} && {script}", self.enter())]).stdin(Stdio::piped());
        Killed(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            // A group is busy until the kernel has done with its last process.
            let begin = Instant::now();
            while fs::remove_dir(folder).is_err() && begin.elapsed() < crate::support::PATIENCE {
                std::thread::yield_now();
            }
        }
    }
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// O-B04, with a real group: 200 of 256 MiB.
#[test]
fn memory_is_of_the_limit_of_a_real_group() {
    let Some(group) = Group::make(&["memory"]) else { return };
    group.set("memory.limit_in_bytes", "268435456");
    let folder = tempfile::tempdir().unwrap();
    let ear = Ear::open();
    let config = config(&ear, &[("memory", "system:memory"), ("all", "system:memory.machine")]);
    let Some(agent) = Agent::start(folder.path(), &group.enter(), "", &config) else { return };
    let share = |report: &Arrived| report.value("memory").unwrap_or(f64::NAN);
    let empty = ear.until("a group that is nearly empty", |report| share(report) < 0.3);
    // It keeps all that it reads, and waits for more.
    let mut filler = group.run("exec tail -c 250000000");
    let mebibyte = vec![b'x'; 1 << 20];
    let stdin = filler.0.stdin.as_mut().unwrap();
    (0..200).for_each(|_| stdin.write_all(&mebibyte).unwrap());
    let full = ear.until("200 MiB more", |report| share(report) > share(&empty) + 0.77);
    assert!(share(&full) < 1.0, "{}", share(&full));
    drop(filler);
    ear.until("it is given back", |report| share(report) < 0.3);
    agent.end();
    drop(group);
}

/// O-B05, with a real group: a fifth of a core, used up.
#[test]
fn cpu_is_of_the_quota_of_a_real_group() {
    let Some(group) = Group::make(&["cpu", "cpuacct"]) else { return };
    group.set("cpu.cfs_quota_us", "20000");
    let folder = tempfile::tempdir().unwrap();
    let ear = Ear::open();
    // Some periods of the quota in each sample.
    let config = config(&ear, &[("quota", "system:cpu.quota"), ("waits", "system:cpu.throttled")])
        .replace("every = \"50ms\"", "every = \"500ms\"");
    let Some(agent) = Agent::start(folder.path(), &group.enter(), "", &config) else { return };
    let value = |report: &Arrived, name| report.value(name).unwrap_or(f64::NAN);
    ear.until("an idle group", |report| value(report, "quota") < 0.6);
    let spinner = group.run("while :; do :; done");
    let busy = ear
        .until("a busy one", |report| value(report, "quota") > 0.8 && value(report, "waits") > 0.6);
    assert!(value(&busy, "quota") < 1.5, "{}", value(&busy, "quota"));
    drop(spinner);
    ear.until("idle again", |report| value(report, "quota") < 0.6);
    agent.end();
    drop(group);
}

/// O-B03: two busy threads in one process are what the unit says, a share of all cores.
#[test]
fn process_with_two_busy_threads_is_a_share_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    // A name that no other process has, and a program with threads.
    let name = format!("spin{}", std::process::id() % 1_000_000);
    let copy = folder.path().join(&name);
    fs::copy(program(), &copy).unwrap();
    let mut spin = Command::new(&copy);
    spin.current_dir(folder.path()).args(["sim", "stale"]).stdout(Stdio::null());
    let spin = Killed(spin.stderr(Stdio::null()).spawn().unwrap());
    let ear = Ear::open();
    let source = format!("system:process.cpu:{name}");
    let config = config(&ear, &[("spin", &source)]).replace("every = \"50ms\"", "every = \"1s\"");
    let Some(agent) = Agent::start(folder.path(), "true", "", &config) else { return };
    // CPU seconds of the process, as the kernel counts them.
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", spin.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        ticks / 100.0
    };
    let threads = || fs::read_dir(format!("/proc/{}/task", spin.0.id())).unwrap().count();
    ear.until("a first value", |report| report.value("spin").is_some());
    let (begin, before) = (Instant::now(), used());
    let (mut sum, mut count, mut last) = (0.0, 0.0, f64::NAN);
    // One value a second.
    while count < 5.0 {
        let report = ear.until("a value", |report| report.value("spin").is_some());
        let value = report.value("spin").unwrap();
        if value.to_bits() != last.to_bits() {
            (sum, count, last) = (sum + value, count + 1.0, value);
        }
    }
    let cores = fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor\t").count();
    let cores = f64::from(u32::try_from(cores).unwrap());
    let expected = (used() - before) / begin.elapsed().as_secs_f64() / cores;
    let told = sum / count;
    assert!((told - expected).abs() < 0.25 * expected, "told {told}, used {expected} of {cores}");
    assert!(threads() > 1 && told <= 1.05, "{} threads, {told}", threads());
    agent.end();
}
