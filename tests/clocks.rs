//! Wall clocks that are set, forwards and backwards, on a host and on an agent, while everything runs: nobody
//! is called gone for it, and nothing ends.
//!
//! The clock of the machine stays as it is: the program is given one of its own (`clocks/step.c`), which steps
//! when the test says so. That is the harder case for a host, because the kernel's stamps of datagrams
//! stay true.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::process::{Process, command};
use crate::support::net::left_out;
use crate::support::{PATIENCE, get};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Steps that others see as one second to one day, either way.
const STEPS: [i64; 9] = [90, -1, DAY, -DAY, HOUR, -HOUR, 0, 400 * DAY, -400 * DAY];
/// Steps within what clocks of signed reports may differ by.
const SMALL_STEPS: [i64; 6] = [25, -25, 50, 20, -30, 0];
/// Reports of each machine at each of these times.
const REPORTS: u64 = 4;

/// A program with a wall clock of its own.
struct Clocked {
    process: Process,
    offset: File,
    _folder: tempfile::TempDir,
}

/// The library that gives a program such a clock; `None`, with a message, where none can be made.
fn library(folder: &tempfile::TempDir) -> Option<PathBuf> {
    let library = folder.path().join("step.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/clocks/step.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).args([source, "-ldl"]);
    let made = compiler.output();
    if made.as_ref().is_ok_and(|made| made.status.success()) {
        return Some(library);
    }
    left_out(&format!("a clock of its own needs a C compiler: {made:?}"));
    None
}

impl Clocked {
    fn start(library: &PathBuf, config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("offset");
        fs::write(&path, 0_i64.to_ne_bytes()).unwrap();
        fs::write(folder.path().join("secret"), "0123456789abcdef").unwrap();
        fs::write(folder.path().join("loadline.toml"), config).unwrap();
        let mut command = command(&folder);
        command.env("LD_PRELOAD", library).env("CLOCK_OFFSET", &path);
        let process = Process::of(command);
        let offset = File::options().write(true).open(&path).unwrap();
        Self { process, offset, _folder: folder }
    }

    fn step_to(&self, seconds: i64) {
        self.offset.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

struct Farm {
    host: Clocked,
    agents: [Clocked; 2],
    url: String,
}

impl Farm {
    /// A host and two agents, with this in `[reports]`.
    fn start(library: &PathBuf, keys: &str) -> Self {
        let reports = |port: &str| {
            format!(
                "[reports]\ngroup = \"239.255.76.76:{port}\"\ninterfaces = [\"lo\"]\nsilence = \"0s\"\n{keys}\n"
            )
        };
        let config = format!("{}[host]\nlisten = \"127.0.0.1:0\"\n", reports("0"));
        let mut host = Clocked::start(library, &config);
        let hears = host.process.until("hears ");
        let group = hears.split("hears ").nth(1).unwrap().split(' ').next().unwrap();
        let port = group.rsplit(':').next().unwrap();
        let says = host.process.until("try ");
        let url = says.split_whitespace().last().unwrap().replace("/v1/target", "");
        let agents = ["a", "b"].map(|machine| {
            let agent =
                format!("[agent]\nmachine = {machine:?}\ninterval = \"250ms\"\nmetric = []\n");
            Clocked::start(library, &format!("{agent}{}", reports(port)))
        });
        let farm = Self { host, agents, url };
        farm.until("both report", |machines| (machines.len() == 2).then_some(()));
        farm
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = get(&format!("{}{path}", self.url), "application/json");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Asks until the machines are so.
    fn until<T>(&self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            let machines = self.get("/v1/machines");
            if let Some(found) = look(machines.as_array().unwrap()) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what} did not happen: {machines:#}");
        }
    }

    /// Some reports of each machine are heard, each young, while clients ask and lease.
    fn goes_on(&self, when: &str) {
        let seqs = |machines: &[Value]| -> Vec<u64> {
            machines.iter().map(|machine| machine["seq"].as_u64().unwrap()).collect()
        };
        let before = seqs(self.get("/v1/machines").as_array().unwrap());
        self.until(&format!("more reports {when}"), |machines| {
            for machine in machines {
                assert_eq!(machine["alive"], true, "{when}: {machine:#}");
                let age_ms = machine["age_ms"].as_u64().unwrap();
                assert!(age_ms < 2_000, "{when}: {machine:#}");
            }
            let answer = self.get("/v1/target?lease=1s");
            assert!(answer["machine"] == "a" || answer["machine"] == "b", "{when}: {answer}");
            assert!(self.get("/v1/decisions?limit=1").is_array(), "{when}");
            let now = seqs(machines);
            now.iter().zip(&before).all(|(now, before)| *now >= before + REPORTS).then_some(())
        });
    }

    /// What of all machines was lost, called gone or refused.
    fn harm(&self) -> Vec<String> {
        let text = get(&format!("{}/metrics", self.url), "*/*").1;
        let kinds = ["machines_gone_total", "machine_flaps_total", "reports_rejected_total"];
        let is_harm = |line: &&str| {
            kinds.iter().any(|kind| line.starts_with(&format!("loadline_{kind}")))
                && !line.ends_with(" 0")
        };
        text.lines().filter(is_harm).map(str::to_owned).collect()
    }

    fn end(self) {
        for process in self.agents.into_iter().chain([self.host]) {
            assert_eq!(process.process.end("-TERM"), Some(0));
        }
    }
}

/// O-C01, O-C02: however far and in whichever order the clock of the host, of an agent, or of both is set.
#[test]
fn wall_clocks_that_are_set_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(&folder) else { return };
    let farm = Farm::start(&library, "");
    for step in STEPS {
        farm.host.step_to(step);
        farm.goes_on(&format!("when the host's clock is off by {step} s"));
    }
    for step in STEPS {
        farm.agents[0].step_to(step);
        farm.goes_on(&format!("when an agent's clock is off by {step} s, too"));
    }
    assert_eq!(farm.harm(), [""; 0]);
    farm.end();
}

/// Signed reports are compared with the host's clock: a step within `max_skew` is none to them either. A larger one
/// refuses all while it lasts, and says so; afterwards they count again.
#[test]
fn signed_reports_bear_small_steps_and_come_back_after_large_ones() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(&folder) else { return };
    let mut farm = Farm::start(&library, "keys = [{ id = 1, secret_file = \"secret\" }]");
    for step in SMALL_STEPS {
        farm.host.step_to(step);
        farm.goes_on(&format!("when the host's clock is off by {step} s"));
    }
    for step in SMALL_STEPS {
        farm.agents[0].step_to(step);
        farm.goes_on(&format!("when an agent's clock is off by {step} s"));
    }
    assert_eq!(farm.harm(), [""; 0]);
    farm.agents[0].step_to(0);
    for step in [90, -DAY] {
        farm.host.step_to(step);
        farm.until("both gone", |machines| {
            machines.iter().all(|machine| machine["alive"] == false).then_some(())
        });
        if step > 0 {
            let said = farm.host.process.until("report refused"); // once a minute
            assert!(said.contains("by its clock; reports.max_skew is 60 s"), "{said}");
        }
        farm.host.step_to(0);
        farm.until("both back", |machines| {
            machines.iter().all(|machine| machine["alive"] == true).then_some(())
        });
        farm.goes_on("when the host's clock is right again");
    }
    let refused = farm.harm().into_iter().find(|line| line.contains("reason=\"skew\""));
    assert!(refused.is_some(), "{:?}", farm.harm());
    farm.end();
}
