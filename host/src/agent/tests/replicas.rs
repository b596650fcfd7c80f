//! Services of which a machine has several.

use super::*;
use crate::report::Report;

fn service(name: &str, replica: &str, port: u16) -> ServiceConfig {
    let replica = (!replica.is_empty()).then(|| replica.to_owned());
    ServiceConfig { replica, ..ServiceConfig::new(name, &format!("10.0.0.1:{port}")) }
}

fn with(services: Vec<ServiceConfig>, boot: u64, now: Instant) -> Agent {
    let config = AgentConfig {
        machine: "m".to_owned(),
        interval: Duration::from_secs(2),
        metrics: Vec::new(),
        services,
        ..AgentConfig::default()
    };
    Agent::new(config, "farm".to_owned(), Keyring::default(), boot, now)
}

/// Machine, state, and name and address of each service, of all reports in these frames.
fn said(frames: &[Vec<u8>]) -> Vec<(String, State, Vec<String>)> {
    let keyring = Keyring::default();
    let reports = frames.iter().flat_map(|frame| wire::decode(frame, &keyring).expect("a frame"));
    let services = |report: &Report<'_>| {
        report.services.iter().map(|one| format!("{} {}", one.name, one.address)).collect()
    };
    reports.map(|report| (report.machine.to_owned(), report.state, services(&report))).collect()
}

fn of(machine: &str, state: State, services: &[&str]) -> (String, State, Vec<String>) {
    (machine.to_owned(), state, services.iter().map(|one| (*one).to_owned()).collect())
}

#[tokio::test]
async fn each_replica_is_a_machine_of_its_own_in_one_datagram() {
    let now = Instant::now();
    let replicas = [service("llm", "0", 1), service("llm", "1", 2), service("embed", "1", 3)];
    let mut agent = with([service("web", "", 80)].into_iter().chain(replicas).collect(), 1, now);
    let frames = agent.step(now);
    assert_eq!(frames.len(), 1);
    let all = [
        of("m", State::Ready, &["web 10.0.0.1:80"]),
        of("m:0", State::Ready, &["llm 10.0.0.1:1"]),
        of("m:1", State::Ready, &["llm 10.0.0.1:2", "embed 10.0.0.1:3"]),
    ];
    assert_eq!(said(&frames), all);
    let keyring = Keyring::default();
    let reports = wire::decode(&frames[0], &keyring).expect("a frame");
    assert_eq!((&*reports[0].labels, &*reports[2].labels), (&[][..], &[("machine", "m")][..]));
    let left: Vec<_> = said(&agent.leave(now)).into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(left, [State::Leaving; 3]);
}

#[tokio::test]
async fn a_machine_of_replicas_alone_is_no_target_and_a_disabled_one_stops() {
    let now = Instant::now();
    let off = ServiceConfig { enabled: false, ..service("llm", "0", 1) };
    let mut agent = with(vec![off, service("llm", "1", 2)], 1, now);
    let all = [
        of("m:0", State::Stopped, &["llm 10.0.0.1:1"]),
        of("m:1", State::Ready, &["llm 10.0.0.1:2"]),
    ];
    assert_eq!(said(&agent.step(now)), all);
}

#[tokio::test]
async fn many_replicas_leave_in_as_few_datagrams_as_they_fit_in() {
    let now = Instant::now();
    let names: Vec<_> = (0..40).map(|number| number.to_string()).collect();
    let services = names.iter().map(|name| service("llm", name, 1)).collect();
    let frames = with(services, 1, now).step(now);
    assert!(frames.iter().all(|frame| frame.len() <= crate::report::DATAGRAM_BYTES_MAX));
    assert_eq!((said(&frames).len(), frames.len() < 5), (40, true), "{}", frames.len());
}

#[tokio::test]
async fn a_replica_that_is_taken_out_leaves() {
    let now = Instant::now();
    let mut before = with(vec![service("llm", "0", 1), service("llm", "1", 2)], 1, now);
    before.step(now);
    let mut agent = with(vec![service("llm", "0", 1)], 2, now);
    agent.take_over(&before.into_heritage());
    let all = [of("m:0", State::Ready, &["llm 10.0.0.1:1"]), of("m:1", State::Leaving, &[])];
    // Said again, because a report may get lost, but not for ever.
    let mut now = Instant::now();
    for _ in 0..3 {
        assert_eq!(said(&agent.step(now)), all);
        now += Duration::from_secs(2);
    }
    assert_eq!(said(&agent.step(now)).len(), 1);
}
