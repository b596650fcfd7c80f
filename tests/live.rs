//! Who is alive, and how work is spread while machines come, stop and return.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use loadline::config::Config;
use loadline::pick::{PickRequest, pick};
use loadline::report::{Keyring, Report, wire};
use loadline::run::Loadline;
use loadline_sdk::testing::StrategyHost;

use crate::support::net::{self, Net, quick_agent};
use crate::support::{Farm, get, program, report, reports};

const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

/// O-C07: the load that is shown does not alternate.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_machines_with_one_name_the_first_counts_and_the_second_is_shown() {
    let farm = Farm::new("weighted", "least-loaded").await;
    let send = |from, boot, seq, cpu| {
        let report = Report { boot, seq, ..report("web", &[("cpu", cpu), ("memory", cpu)]) };
        farm.deliver_from(from, wire::encode(&[report], &Keyring::default()).unwrap());
    };
    send(FIRST, 5, 1, 0.25);
    farm.eligible(1).await;
    for seq in 2..20 {
        send(SECOND, 6, seq, 0.75);
        send(FIRST, 5, seq, 0.25);
        let answer = farm.get("/v1/target");
        assert_eq!((&answer["address"], &answer["load"]), (&"10.0.0.2".into(), &0.25.into()));
    }
    let both = |farm: &Farm| (farm.metric("machine_namesakes") == 1).then_some(());
    farm.until("the second agent shown", both).await;
    let machine = farm.get("/v1/machines/web");
    assert_eq!(machine["namesake"]["source"], "10.0.0.3", "{machine:#}");
    assert_eq!((&machine["boot"], &machine["loss"]["lost"]), (&5.into(), &0.into()));
    farm.stop().await;
}

#[test]
fn of_two_in_two_namespaces_the_first_is_kept_until_it_leaves() {
    let Some(net) = Net::lan(&["h", "one", "two"]) else { return };
    let host = net.host("h", net::reports());
    let same = || Some(quick_agent("same"));
    let first = net.start("one", net::reports(), same());
    host.offers("same", "10.77.1.2");
    let second = net.start("two", net::reports(), same());
    host.until("the second agent shown", |machines| {
        (machines[0]["namesake"]["source"] == "10.77.1.3").then_some(())
    });
    let seq = host.json("/v1/machines/same")["seq"].as_u64().unwrap();
    host.until("ten more reports, all of the first", |machines| {
        assert_eq!(machines[0]["source"], "10.77.1.2");
        (machines[0]["seq"].as_u64()? > seq + 10).then_some(())
    });
    assert_eq!(host.metric("machine_namesakes"), 1);
    first.stop();
    host.offers("same", "10.77.1.3");
    assert_eq!(host.metric("machines_gone_total"), 0, "it said that it leaves");
    second.stop();
    host.lists(&[]);
}

/// The configuration of an agent that reports every tenth of a second to this port.
fn agent_file(port: u16) -> String {
    format!(
        "[agent]\nmachine = \"quick\"\ninterval = \"100ms\"\n\
         [[agent.metric]]\nname = \"cpu\"\nsource = \"system:cpu\"\nevery = \"20ms\"\nwindow = 1\n\
         [[agent.metric]]\nname = \"memory\"\nsource = \"system:memory\"\nevery = \"20ms\"\nwindow = 1\n\
         [reports]\ngroup = \"239.255.76.76:{port}\"\ninterfaces = [\"lo\"]\n"
    )
}

/// A process that is killed at the end.
struct Killed(Child);

impl Killed {
    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// O-C03: stopped for longer than the rule allows, then let go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_agent_is_gone_once_and_back_once() {
    let farm = Farm::new("weighted", "p2c").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, agent_file(farm.host().report_port())).unwrap();
    let mut command = Command::new(program());
    command.arg("--config").arg(&file).stderr(Stdio::null()).stdout(Stdio::null());
    let agent = Killed(command.spawn().unwrap());
    farm.eligible(1).await;
    let before = farm.get("/v1/machines/quick");
    agent.signal("-STOP");
    farm.eligible(0).await;
    assert_eq!(farm.metric("machines_gone_total"), 1);
    agent.signal("-CONT");
    farm.eligible(1).await;
    let after = farm.get("/v1/machines/quick");
    assert_eq!((&before["boot"], &after["loss"]["lost"]), (&after["boot"], &0.into()));
    assert_eq!(farm.metric("machine_flaps_total"), 0, "nothing was lost: it was stopped");
    assert_eq!(farm.metric("machines_gone_total"), 1);
    farm.stop().await;
}

/// O-C05: killed without a word and started again, an agent begins at 1 and counts with its first report, with
/// keys as without.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_that_starts_again_counts_at_once() {
    for keys in ["", "keys = [{ id = 1, secret_file = \"secret\" }]"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "0123456789abcdef").unwrap();
        let absolute = keys.replace("secret\"", &format!("{}/secret\"", folder.path().display()));
        let mut like_host = net::configured(&absolute);
        (like_host.interfaces, like_host.groups.port) = (vec!["lo".to_owned()], 0);
        let farm = Farm::with_reports(like_host).await;
        let file = folder.path().join("agent.toml");
        let config = format!("{}{absolute}\n", agent_file(farm.host().report_port()));
        std::fs::write(&file, config).unwrap();
        let start = || {
            let mut command = Command::new(program());
            command.arg("--config").arg(&file).stderr(Stdio::null()).stdout(Stdio::null());
            Killed(command.spawn().unwrap())
        };
        let first = start();
        let quick = |farm: &Farm| {
            let machines = farm.get("/v1/machines");
            machines.as_array()?.first().map(|machine| (machine["boot"].clone(), machine.clone()))
        };
        let (boot, _) = farm
            .until("twenty reports", |farm| {
                quick(farm).filter(|(_, m)| m["seq"].as_u64() > Some(20))
            })
            .await;
        drop(first); // killed
        let _second = start();
        let (_, machine) =
            farm.until("the new agent", |farm| quick(farm).filter(|(new, _)| *new != boot)).await;
        assert!(machine["seq"].as_u64() < Some(20), "{machine}");
        assert_eq!(machine["alive"], true, "{machine}");
        assert_eq!(machine["loss"]["lost"], 0, "a restart is no loss: {machine}");
        farm.stop().await;
    }
}

/// O-C10: every report stands alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_starts_again_knows_all_by_the_next_reports() {
    let first = Farm::new("weighted", "p2c").await;
    let port = first.host().report_port();
    let agent = Loadline::start(Config::parse(&agent_file(port)).unwrap()).await.unwrap();
    first.eligible(1).await;
    first.stop().await;
    let second = Farm::with_reports(reports(port)).await;
    second.eligible(1).await;
    let machine = second.get("/v1/machines/quick");
    assert!(machine["seq"].as_u64() > Some(1), "the agent was not started again: {machine}");
    assert!(machine["metrics"]["cpu"].is_number() && machine["metrics"]["memory"].is_number());
    assert_eq!(second.target(""), "quick");
    agent.stop().await;
    second.stop().await;
}

/// How often each machine is picked between two reports.
fn shares(farm: &Farm, picks: u32) -> Vec<u32> {
    let mut shares = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..picks {
        let request = PickRequest { n: 1, ..PickRequest::default() };
        let answer = pick(farm.host().pools(), &request).unwrap();
        *shares.entry(answer.target.machine.to_string()).or_default() += 1;
    }
    shares.into_values().collect()
}

/// O-C12: a thousand picks by the same reports.
#[tokio::test(flavor = "multi_thread")]
async fn between_two_reports_no_machine_gets_all() {
    let mut farm = Farm::new("weighted", "balanced").await;
    for (number, load) in (0..10).map(|number| (number, 0.3 + 0.02 * f64::from(number))) {
        farm.report(&[&format!("m{number}")], &[("cpu", load), ("memory", load)]);
    }
    farm.eligible(10).await;
    let shares = shares(&farm, 1_000);
    assert!(shares.len() == 10 && shares.iter().all(|share| *share <= 250), "{shares:?}");
    farm.stop().await;
}

/// O-C13: whoever is first does not get all.
#[tokio::test(flavor = "multi_thread")]
async fn equal_loads_are_shared_equally() {
    let spreading = [
        "balanced",
        "p2c",
        "least-loaded",
        "fuzzy",
        "fewest-clients",
        "peak-ewma",
        "prequal",
        "round-robin",
        "smooth-weighted",
        "weighted-random",
        "random",
        "no-such-strategy",
    ];
    for strategy in spreading {
        let mut farm = Farm::new("weighted", strategy).await;
        farm.report(&["a", "b", "c", "d", "e"], &[("cpu", 0.1), ("memory", 0.1)]);
        farm.eligible(5).await;
        let shares = shares(&farm, 3_000);
        let is_fair = |share: &u32| (450..=750).contains(share);
        assert!(shares.len() == 5 && shares.iter().all(is_fair), "{strategy}: {shares:?}");
        farm.stop().await;
    }
}

/// O-C14: a cold server without load is not flooded.
#[test]
fn a_newcomer_without_load_gets_what_its_slow_start_allows() {
    let mut host = StrategyHost::<policy_balanced::Balanced>::with_loads(&[0.6; 9]);
    host.add(0.0);
    for warm in [0.1, 0.3, 0.5, 0.8] {
        host.change(9, |target| target.warm = warm);
        host.now_ms += 1_000;
        let shares = host.shares(1_000);
        let fair = f64::from(u32::try_from(shares[0]).unwrap());
        let newcomer = f64::from(u32::try_from(shares[9]).unwrap());
        assert!(newcomer <= fair * f64::from(warm) * 2.5 + 5.0, "{warm}: {shares:?}");
        assert!(newcomer > 0.0, "it must show what it can: {warm}: {shares:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_that_are_no_numbers_are_shown_as_not_known() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    farm.report(&["good"], &[("cpu", 0.5), ("memory", -0.0)]);
    for (name, value) in [("nan", f64::NAN), ("high", f64::INFINITY), ("low", f64::NEG_INFINITY)] {
        farm.report(&[name], &[("cpu", value), ("memory", 0.0)]);
    }
    farm.report(&["huge"], &[("cpu", 1e308 * 1.7), ("memory", 1e308 * 1.7)]);
    farm.report(&["last"], &[("cpu", 0.9), ("memory", 0.9)]);
    let heard = |farm: &Farm| farm.get("/v1/machines").as_array().map(Vec::len) == Some(6);
    farm.until("all machines", |farm| heard(farm).then_some(())).await;
    for name in ["nan", "high", "low"] {
        let machine = farm.get(&format!("/v1/machines/{name}"));
        assert!(machine["metrics"]["cpu"].is_null(), "{machine:#}");
        assert!(machine["targets"][0]["load"].is_null(), "{machine:#}");
        assert_eq!(machine["targets"][0]["missing"][0]["metric"], "cpu");
    }
    assert_eq!(farm.target(""), "good");
    let (status, text) = get(&farm.url("/metrics"), "*/*");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let is_finite =
        |line: &str| line.rsplit(' ').next()?.parse().ok().filter(|x: &f64| x.is_finite());
    assert!(status == 200 && samples.map(is_finite).all(|value| value.is_some()), "{text}");
    farm.stop().await;
}
