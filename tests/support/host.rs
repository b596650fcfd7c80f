//! A host as a process of its own, and what the kernel knows of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline::report::{Keyring, Report, wire};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;

use super::{PATIENCE, get, program, report};

/// A host of its own, killed at the end.
pub(crate) struct HostProcess {
    child: Child,
    /// `http://…`, without a path.
    pub(crate) url: String,
    pub(crate) report_port: u16,
    lines: Arc<Mutex<Vec<String>>>,
    folder: tempfile::TempDir,
}

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holds {
    /// Resident memory.
    pub(crate) bytes: usize,
    pub(crate) threads: usize,
    /// File handles.
    pub(crate) handles: usize,
    /// Memory maps.
    pub(crate) maps: usize,
}

/// How much CPU time a process has had so far, in nanoseconds' grain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuClock(ClockId);

impl CpuClock {
    pub(crate) fn now(self) -> Duration {
        Duration::from(clock_gettime(self.0).unwrap())
    }
}

impl HostProcess {
    /// A host with one pool by default.
    pub(crate) fn start() -> Self {
        Self::launch("", "", &[])
    }

    /// With these keys in `[reports]`, too.
    pub(crate) fn with_reports(keys: &str) -> Self {
        Self::launch(keys, "", &[])
    }

    /// With this configuration behind `[host]`, and with files in its policies folder.
    pub(crate) fn with(config: &str, policies: &[(&str, &[u8])]) -> Self {
        Self::launch("", config, policies)
    }

    fn launch(reports: &str, config: &str, policies: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n{reports}\n\
             [host]\nlisten = \"127.0.0.1:0\"\n{config}"
        );
        std::fs::write(folder.path().join("loadline.toml"), config).unwrap();
        std::fs::create_dir(folder.path().join("policies")).unwrap();
        for (name, bytes) in policies {
            std::fs::write(folder.path().join("policies").join(name), bytes).unwrap();
        }
        let mut child = Command::new(program())
            .current_dir(folder.path())
            .env_remove("LOADLINE_CONFIG")
            .env_remove("LOADLINE_LOG")
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = |word: &str| {
            let line = stderr.by_ref().map(Result::unwrap).find(|line| line.contains(word));
            line.unwrap_or_else(|| panic!("{word:?} was not said"))
        };
        let hears = said("hears ");
        let group = hears.split("hears ").nth(1).unwrap().split(' ').next().unwrap();
        let report_port = group.rsplit(':').next().unwrap().parse().unwrap();
        let url = said("try ").split_whitespace().last().unwrap().replace("/v1/target", "");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in stderr.map_while(Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Self { child, url, report_port, lines, folder }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Writes a file of the policies folder at once, as by `mv`.
    pub(crate) fn drop_in(&self, name: &str, bytes: &[u8]) {
        let policies = self.folder.path().join("policies");
        let temporary = policies.join(format!(".{name}.tmp"));
        std::fs::write(&temporary, bytes).unwrap();
        std::fs::rename(temporary, policies.join(name)).unwrap();
    }

    /// Sends a report, and waits for nothing.
    pub(crate) fn send(&self, report: &Report<'_>) {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let bytes = wire::encode(std::slice::from_ref(report), &Keyring::default()).unwrap();
        socket.send_to(&bytes, ("127.0.0.1", self.report_port)).unwrap();
    }

    /// Sends a report of each machine with this CPU load, and waits until it is applied.
    pub(crate) async fn report(&self, seq: u64, machines: &[(&str, f64)]) {
        let before = self.metric("loadline_reports_total");
        for (machine, cpu) in machines {
            let metrics = [("cpu", *cpu), ("memory", 0.5)];
            self.send(&Report { seq, ..report(machine, &metrics) });
        }
        let all = before + machines.len() as u64;
        self.until("the reports", |host| host.metric("loadline_reports_total") == all).await;
    }

    /// The JSON of a call that must succeed.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = get(&format!("{}{path}", self.url), "application/json");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// All metrics by name with labels.
    pub(crate) fn metrics(&self) -> BTreeMap<String, u64> {
        let (status, text) = get(&format!("{}/metrics", self.url), "*/*");
        assert_eq!(status, 200, "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        samples.filter_map(sample).collect()
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        *self.metrics().get(name).unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// Looks again and again until it is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut looks = tokio::time::interval(Duration::from_millis(2));
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < PATIENCE, "{what} did not happen: {:#?}", self.metrics());
            looks.tick().await;
        }
    }

    /// What it holds now.
    pub(crate) fn holds(&self) -> Holds {
        let count = |what: &str| std::fs::read_dir(self.proc(what)).unwrap().count();
        let status = std::fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let kilobytes = line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap();
        let maps = std::fs::read_to_string(self.proc("maps")).unwrap().lines().count();
        Holds { bytes: kilobytes << 10, threads: count("task"), handles: count("fd"), maps }
    }

    /// The clock of the CPU time of all its threads.
    pub(crate) fn cpu_clock(&self) -> CpuClock {
        let id = Pid::from_raw(i32::try_from(self.id()).unwrap());
        CpuClock(clock_getcpuclockid(id).unwrap())
    }

    /// A file of its folder in `/proc`.
    pub(crate) fn proc(&self, what: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{what}", self.id()))
    }

    /// What it has said.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Of that, what somebody should know of.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.contains("WARN") || line.contains("ERROR"));
        lines
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
