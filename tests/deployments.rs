//! Every set of agent, host and client on one machine, from the files of `config/deployments`; and what
//! a service manager sees of it.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Process, command};
use crate::support::{Farm, PATIENCE, get, program};

fn config(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config").join(file)
}

/// The program with a deployment's file, on loopback and with this port of reports.
fn start(folder: &tempfile::TempDir, file: &str, port: u16) -> Process {
    let mut started = command(folder);
    started.arg("--config").arg(config(&format!("deployments/{file}")));
    started.env("LOADLINE_AGENT__MACHINE", "this").env("LOADLINE_AGENT__INTERVAL", "100ms");
    started.env("LOADLINE_HOST__LISTEN", "127.0.0.1:0");
    started.env("LOADLINE_REPORTS__GROUP", format!("239.255.76.76:{port}"));
    started.env("LOADLINE_REPORTS__INTERFACES", "[\"lo\"]");
    Process::of(started)
}

/// What a client prints that has the variables of its file, with these hosts.
fn client(folder: &tempfile::TempDir, hosts: &str) -> String {
    let mut asked = command(folder);
    let file = std::fs::read_to_string(config("deployments/client.env")).unwrap();
    let variables = file.lines().filter(|line| !line.starts_with('#'));
    for (name, value) in variables.filter_map(|line| line.split_once('=')) {
        asked.env(name, value.replace(CLIENTS_HOSTS, hosts));
    }
    let output = asked.arg("pick").output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// The hosts of the client's file.
const CLIENTS_HOSTS: &str = "http://10.0.0.5:14000,http://10.0.0.6:14000";

/// The host's address, from what it says at its start.
fn url(process: &mut Process) -> String {
    let line = process.until("try ");
    line.split_whitespace().last().unwrap().trim_end_matches("/v1/target").to_owned()
}

/// Agent alone, and agent and client: the host is elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn agent_without_and_with_a_client() {
    let farm = Farm::new("weighted", "p2c").await;
    let folder = tempfile::tempdir().unwrap();
    let agent = start(&folder, "agent.toml", farm.host().report_port());
    farm.eligible(1).await;
    assert_eq!(farm.target(""), "this");
    // Of two hosts the first does not answer.
    let hosts = format!("http://127.0.0.1:1,{}", farm.url(""));
    assert_eq!(client(&folder, &hosts), "127.0.0.1\n");
    assert_eq!(agent.end("-TERM"), Some(0));
    farm.stop().await;
}

/// Client alone: nothing else runs here.
#[tokio::test(flavor = "multi_thread")]
async fn client_alone() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(1).await;
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(client(&folder, &farm.url("")), "127.0.0.1\n");
    farm.stop().await;
}

/// Host alone, and host and client: the agents are elsewhere.
#[test]
fn host_without_and_with_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = start(&folder, "host.toml", 0);
    let port = host.until("hears 239.255.76.76:");
    let port: u16 =
        port.split("239.255.76.76:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let url = url(&mut host);
    assert_eq!(get(&format!("{url}/healthz"), "").0, 200);
    assert_eq!(get(&format!("{url}/v1/target"), "").0, 503, "no agent yet");
    let elsewhere = tempfile::tempdir().unwrap();
    let agent = start(&elsewhere, "agent.toml", port);
    host.until("machine reports");
    assert_eq!(client(&folder, &url), "127.0.0.1\n");
    assert_eq!((agent.end("-TERM"), host.end("-TERM")), (Some(0), Some(0)));
}

/// Agent and host, without and with a client.
#[test]
fn agent_and_host_without_and_with_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let mut both = start(&folder, "agent-host.toml", 0);
    let url = url(&mut both);
    both.until("machine reports");
    assert!(
        get(&format!("{url}/v1/target"), "application/json").1.contains("\"machine\":\"this\"")
    );
    assert_eq!(client(&folder, &url), "127.0.0.1\n");
    assert_eq!(both.end("-TERM"), Some(0));
}

#[test]
fn each_example_is_a_good_configuration_of_its_roles() {
    for (file, agent, host) in
        [("agent.toml", true, false), ("host.toml", false, true), ("agent-host.toml", true, true)]
    {
        let read = loadline::config::Config::load(&config(&format!("deployments/{file}"))).unwrap();
        assert_eq!((read.agent.is_some(), read.host.is_some()), (agent, host), "{file}");
    }
}

#[test]
fn service_manager_is_told_when_it_is_ready_alive_and_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut message = [0; 64];
        let len = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    let mut started = command(&folder);
    started.arg("host").env("LOADLINE_HOST__LISTEN", "127.0.0.1:0");
    started.env("LOADLINE_REPORTS__GROUP", "239.255.76.76:0");
    started.env("LOADLINE_REPORTS__INTERFACES", "[\"lo\"]");
    started.env("NOTIFY_SOCKET", "notify").env("WATCHDOG_USEC", "100000");
    let process = Process::of(started);
    assert_eq!(heard(), "READY=1");
    assert_eq!([heard(), heard()], ["WATCHDOG=1", "WATCHDOG=1"]);
    assert_eq!(process.end("-TERM"), Some(0));
    let last = std::iter::repeat_with(heard).find(|message| message != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}

#[test]
fn unit_is_understood_by_systemd() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: no systemd-analyze here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(config("systemd/loadline.service")).unwrap();
    let here = unit.replace("/usr/bin/loadline", program().to_str().unwrap());
    let file = folder.path().join("loadline.service");
    std::fs::write(&file, here).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&file).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    assert_eq!(analyze(&["verify"]), "");
    // 0 is closed, 10 open.
    analyze(&["security", "--offline=true", "--threshold=25"]);
}
