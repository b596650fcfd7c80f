//! The program on a kernel that says what a test wants: mounts of its own over files of /proc.
//!
//! Takes root and mounts; where there are none, these tests say so and pass.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Ear;
use crate::support::program;

/// An agent behind mounts, killed if the test ends early.
struct Agent(Child);

impl Agent {
    /// Runs it after `prepare`, in a mount namespace of its own; `None`, with a word, where that
    /// cannot be had.
    fn start(folder: &Path, prepare: &str, run_as: &str, config: &str) -> Option<Self> {
        let can = Command::new("unshare").args(["-m", "sh", "-c", prepare]).output();
        if !can.is_ok_and(|output| output.status.success()) {
            eprintln!("left out: this test needs root and mounts ({prepare})");
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
