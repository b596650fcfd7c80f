//! The policies folder itself under a running host: it comes later, goes and comes again, and changes
//! faster than the host can follow.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::Process;
use crate::support::{Farm, PATIENCE, built_in, get, pool, relabelled, strategy};

/// A host without a policies folder, and where it would be.
struct Bare {
    process: Process,
    url: String,
    policies: PathBuf,
    folder: tempfile::TempDir,
}

impl Bare {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policies = folder.path().join("deep/policies");
        let config = format!(
            "[reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n[host]\n\
             listen = \"127.0.0.1:0\"\npolicies = {policies:?}\n"
        );
        let mut process = Process::start(&folder, &config, &[]);
        let line = process.until("try ");
        let url = line.split_whitespace().last().unwrap().replace("/v1/target", "");
        Self { process, url, policies, folder }
    }

    /// The folder with this formula in it, as by `cp`.
    fn make(&self, text: &str) {
        fs::create_dir_all(&self.policies).unwrap();
        fs::write(self.policies.join("weighted.formula"), text).unwrap();
    }

    fn policy(&self) -> Value {
        let (status, body) = get(&format!("{}/v1/policies/weighted", self.url), "*/*");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Waits until the process says that another generation of the formula serves.
    fn until_served(&mut self) -> String {
        let line = self.process.until("policy serves");
        line.split_once("generation=").unwrap().1.to_owned()
    }
}

/// O-D07, and a folder that was never there.
#[test]
fn folder_comes_later_goes_and_comes_again_at_once_and_later() {
    let mut host = Bare::start();
    host.make("1");
    let first = host.until_served();
    // At once: other content under the old name, in a folder of the old name.
    fs::remove_dir_all(&host.policies).unwrap();
    host.make("2");
    let second = host.until_served();
    assert_ne!(second, first);
    // Later: moved away, so that no file of it was removed; what was loaded serves on.
    let away = host.folder.path().join("away");
    fs::rename(&host.policies, &away).unwrap();
    host.process.until("cannot list the policies folder: its policies serve on");
    assert_eq!(host.policy()["generation"], second);
    fs::write(away.join("weighted.formula"), "3").unwrap();
    fs::rename(&away, &host.policies).unwrap();
    let third = host.until_served();
    assert_ne!(third, second);
    host.make("4");
    assert_ne!(host.until_served(), third, "it is watched again");
    assert_eq!(host.process.end("-TERM"), Some(0));
}

/// O-D08: the file that is saved while the one before it compiles is the one that serves.
#[tokio::test(flavor = "multi_thread")]
async fn file_saved_while_another_one_compiles_wins() {
    let old = built_in("round-robin");
    let pools = vec![pool("default", "weighted", "mine")];
    let mut farm = Farm::with_files(pools, &[("mine.wasm", &old)]).await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let first = farm.policy("strategy")["generation"].as_str().unwrap().to_owned();
    farm.drop_in("mine.wasm", &slow_to_compile());
    let state = |farm: &Farm| farm.get("/v1/policies/mine")["loading"].as_str().map(str::to_owned);
    let begin = Instant::now();
    let slow = loop {
        if let Some(slow) = state(&farm) {
            break slow;
        }
        assert!(begin.elapsed() < PATIENCE, "it is never loaded");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    farm.drop_in("mine.wasm", &relabelled(&built_in("p2c"), 2));
    assert_eq!(state(&farm), Some(slow.clone()), "it still compiles");
    let serving = |farm: &Farm| farm.policy("strategy")["generation"].as_str().map(str::to_owned);
    let is_last = |generation: &String| *generation != slow && *generation != first;
    let last = farm.until("the last one", |farm| serving(farm).filter(is_last)).await;
    assert_eq!(state(&farm), None);
    assert!(farm.get("/v1/target")["policy"]["strategy"].as_str().unwrap().contains(&last));
    farm.stop().await;
}

/// A strategy that takes the compiler about a second here.
fn slow_to_compile() -> Vec<u8> {
    let mut body = String::new();
    for number in 0..6_000 {
        let steps: String = (0..40)
            .map(|step| format!("(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const {step})) (i32.const {number})))"))
            .collect();
        body.push_str(&format!("(func (param i32) (result i32) {steps} (local.get 0))\n"));
    }
    strategy(&body)
}

/// O-D09: more changes than the kernel keeps for a process that does not run.
#[test]
fn change_among_more_events_than_the_kernel_keeps_is_seen() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    if limit > 50_000 {
        eprintln!("left out: {limit} events are kept here");
        return;
    }
    let mut host = Bare::start();
    host.make("1");
    let first = host.until_served();
    let signal = |signal: &str| {
        let pid = host.process.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    // Three events a file: made, opened, closed.
    for number in 0..limit / 2 {
        fs::File::create(host.policies.join(format!("{number}.txt"))).unwrap();
    }
    host.make("2");
    signal("-CONT");
    assert_ne!(host.until_served(), first);
    assert_eq!(host.process.end("-TERM"), Some(0));
}
