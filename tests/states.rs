//! Machines and services that are taken out and put back by the configuration, while everything runs.

use std::fs;

use serde_json::Value;

use crate::process::Process;
use crate::support::get;

const CONFIG: &str = "[agent]\nmachine = \"a\"\ninterval = \"50ms\"\nstate = \"ready\"\n\
    [[agent.metric]]\nname = \"cpu\"\nsource = \"system:cpu\"\nevery = \"50ms\"\nwindow = 40\n\
    [[agent.service]]\nname = \"web\"\nenabled = true\n\
    [[agent.service]]\nname = \"mail\"\n\
    [reports]\ngroup = \"239.255.76.76:0\"\ninterfaces = [\"lo\"]\n\
    [host]\nlisten = \"127.0.0.1:0\"\n\
    [[pool]]\nname = \"web\"\nservice = \"web\"\nformula = \"load\"\n\
    [[pool]]\nname = \"mail\"\nservice = \"mail\"\nformula = \"load\"\n";

/// A host and an agent in one process, and its configuration.
struct Changing {
    process: Process,
    url: String,
    folder: tempfile::TempDir,
}

impl Changing {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("policies")).unwrap();
        fs::write(folder.path().join("policies/load.formula"), "1").unwrap();
        let mut process = Process::start(&folder, CONFIG, &["--config", "loadline.toml"]);
        let line = process.until("try ");
        let url = line.split_whitespace().last().unwrap().replace("/v1/target", "");
        Self { process, url, folder }
    }

    fn save(&self, text: &str) {
        let temporary = self.folder.path().join("new");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.folder.path().join("loadline.toml")).unwrap();
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = get(&format!("{}{path}", self.url), "application/json");
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    /// Asks until these pools, and no others, have a target.
    fn until_served(&self, wanted: &[&str]) {
        let begin = std::time::Instant::now();
        loop {
            let served = |pool: &&&str| self.get(&format!("/v1/target?pool={pool}")).0 == 200;
            let served: Vec<_> = ["web", "mail"].iter().filter(served).copied().collect();
            if served == wanted {
                return;
            }
            assert!(begin.elapsed() < crate::support::PATIENCE, "{served:?} and not {wanted:?}");
        }
    }

    fn machine(&self) -> Value {
        self.get("/v1/machines/a").1
    }
}

/// By its running agent, whose windows another one would have to fill first.
#[test]
fn machine_that_drains_or_stops_is_handed_out_no_more_until_it_is_ready() {
    let host = Changing::start();
    host.until_served(&["web", "mail"]);
    let boot = host.machine()["boot"].clone();
    for state in ["draining", "stopped"] {
        host.save(&CONFIG.replace("\"ready\"", &format!("\"{state}\"")));
        host.until_served(&[]);
        let machine = host.machine();
        assert_eq!(
            (&machine["state"], &machine["alive"]),
            (&state.into(), &true.into()),
            "{machine}"
        );
        host.save(CONFIG);
        host.until_served(&["web", "mail"]);
    }
    assert_eq!(host.machine()["boot"], boot, "the agent that ran goes on");
    let mut process = host.process;
    host_config_refused(&mut process, host.folder.path());
    assert_eq!(process.end("-TERM"), Some(0));
}

fn host_config_refused(process: &mut Process, folder: &std::path::Path) {
    fs::write(folder.join("loadline.toml"), CONFIG.replace("\"ready\"", "\"leaving\"")).unwrap();
    process.until("agent.state: \"leaving\" is not \"ready\", \"draining\" or \"stopped\"");
}

#[test]
fn service_that_is_disabled_leaves_its_pools_and_the_last_one_is_no_default_service() {
    let host = Changing::start();
    host.until_served(&["web", "mail"]);
    host.save(&CONFIG.replace("enabled = true", "enabled = false"));
    host.until_served(&["mail"]);
    let all = CONFIG.replace("enabled = true", "enabled = false");
    host.save(&all.replace("\"mail\"\n[reports]", "\"mail\"\nenabled = false\n[reports]"));
    host.until_served(&[]);
    assert_eq!(host.machine()["state"], "stopped", "{}", host.machine());
    host.save(CONFIG);
    host.until_served(&["web", "mail"]);
    assert_eq!(host.process.end("-TERM"), Some(0));
}

/// An agent alone has no API: its reports say it.
#[test]
fn configuration_that_is_refused_is_told_by_the_agents_reports() {
    let host = Changing::start();
    host.until_served(&["web", "mail"]);
    let until_label = |wanted: Value| {
        let begin = std::time::Instant::now();
        while host.machine()["labels"]["loadline.config"] != wanted {
            assert!(begin.elapsed() < crate::support::PATIENCE, "{:#}", host.machine());
        }
        let (_, metrics) = get(&format!("{}/metrics", host.url), "");
        let count = u32::from(!wanted.is_null());
        assert!(
            metrics.contains(&format!("loadline_machines_misconfigured {count}\n")),
            "{metrics}"
        );
    };
    host.save(&CONFIG.replace("\"50ms\"", "\"often\""));
    until_label("refused".into());
    host.save(CONFIG);
    until_label(Value::Null);
    assert_eq!(host.process.end("-TERM"), Some(0));
}
