//! An agent beside many processes and threads: what it counts, and that they cost it nothing that stays.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use super::Ear;
use crate::process::{Process, command};
use crate::support::PATIENCE;

/// Shells that wait for nothing; they end with the test.
struct Crowd {
    first: Child,
    name: String,
}

impl Crowd {
    /// So many processes of a name that no other has.
    fn start(folder: &std::path::Path, size: usize) -> Self {
        let name = format!("crowd{}", std::process::id() % 1_000_000);
        let shell = folder.join(&name);
        fs::copy("/bin/sh", &shell).unwrap();
        // Each one waits for the end of the same pipe.
        let script = format!(
            "exec 3<&0; i=1; while [ $i -lt {size} ]; do (read x <&3) & i=$((i + 1)); done; read x <&3"
        );
        let mut first = Command::new(&shell);
        let first = first.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        Self { first, name }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.first.stdin.take());
        let _ = self.first.wait();
    }
}

/// O-B12: neither threads that come and go nor processes cost open files, and reports keep their beat.
#[test]
fn threads_and_processes_that_come_and_go_leave_nothing_open() {
    let folder = tempfile::tempdir().unwrap();
    let crowd = Crowd::start(folder.path(), 300);
    let ear = Ear::open();
    let metric = |name: &str, source: &str| {
        format!(
            "[[agent.metric]]\nname = \"{name}\"\nsource = \"{source}\"\nevery = \"50ms\"\nwindow = 1\n"
        )
    };
    let config = format!(
        "[agent]\ninterval = \"50ms\"\n{}{}{}",
        metric("crowd", &format!("system:process.count:{}", crowd.name)),
        metric("cpu", "system:cpu"),
        ear.config()
    );
    fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut agent = command(&folder);
    agent.arg("agent");
    let mut agent = Process::of(agent);
    agent.until("agent ");
    ear.until("all of the crowd", |report| report.value("crowd") == Some(300.0));

    // A scan has files open for a moment: what stays is what some look finds again.
    let open = || fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap().count();
    let (before, begin) = ((0..10).map(|_| (ear.next(), open()).1).min().unwrap(), Instant::now());
    for _ in 0..40 {
        let threads: Vec<_> = (0..100).map(|_| thread::spawn(|| {})).collect();
        let report = ear.next();
        assert_eq!(report.value("crowd"), Some(300.0), "no thread is a process");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    let took = begin.elapsed();
    assert!(took < PATIENCE / 4, "40 reports of every 50 ms took {took:?}");
    ear.until("as few open files as before", |_| open() <= before);
    drop(crowd);
    ear.until("the crowd is gone", |report| report.value("crowd") == Some(0.0));
    assert_eq!(agent.end("-TERM"), Some(0));
}

/// A rate takes two readings: that the first report goes without it is nothing to warn of.
#[test]
fn what_is_not_due_yet_is_not_complained_of() {
    let folder = tempfile::tempdir().unwrap();
    let ear = Ear::open();
    let config = format!(
        "[agent]\ninterval = \"50ms\"\n[[agent.metric]]\nname = \"init\"\n\
         source = \"system:process.cpu:nobody\"\nevery = \"1s\"\n[[agent.metric]]\nname = \"bad\"\n\
         source = \"system:disk.space:/no/where\"\n{}",
        ear.config()
    );
    fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut agent = command(&folder);
    agent.arg("agent");
    let mut agent = Process::of(agent);
    let first = ear.next();
    assert_eq!(first.value("init"), None);
    ear.until("a rate", |report| report.value("init") == Some(0.0));
    let pid = agent.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut said = Vec::new();
    agent.until_with("stopped", &mut said);
    let complaints: Vec<_> = said.iter().filter(|line| line.contains("is unknown")).collect();
    assert!(complaints.len() == 1 && complaints[0].contains("/no/where"), "{said:#?}");
}
