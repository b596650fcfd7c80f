//! The walk, report to answer: over real sockets and over memory with the same suite, two agents and
//! one host, liveness, unknown loads.

use std::net::Ipv4Addr;
use std::time::Duration;

use loadline::config::{AgentConfig, Config, MetricConfig, MetricSource, PoolConfig, SystemMetric};
use loadline::report::{Keyring, Report, State, wire};
use loadline::run::Loadline;

use crate::support::{Farm, pool, report, reports, service};

/// How a report gets to the host.
#[derive(Clone, Copy)]
enum Way {
    Memory,
    Unicast,
    Multicast,
}

/// Sends one report that way.
fn send(farm: &mut Farm, way: Way, report: &Report<'_>) {
    let frame = wire::encode(std::slice::from_ref(report), &Keyring::default()).unwrap();
    match way {
        Way::Memory => farm.deliver(frame),
        Way::Unicast => farm.send_udp(&frame),
        Way::Multicast => {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let socket = socket2::Socket::from(socket);
            socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
            let groups = reports(farm.host().report_port()).groups;
            socket.send_to(&frame, &groups.addresses().next().unwrap().into()).unwrap();
        }
    }
}

/// The suite that every way of travelling must pass.
async fn check_walk(way: Way) {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    assert_eq!(farm.get_error("/v1/target"), (503, "nobody_eligible".to_owned()));

    let metrics = |cpu| [("cpu", cpu), ("memory", 0.2)];
    send(&mut farm, way, &report("busy", &metrics(0.8)));
    send(&mut farm, way, &report("idle", &metrics(0.1)));
    farm.eligible(2).await;
    let answer = farm.get("/v1/target");
    assert_eq!(answer["machine"], "idle");
    assert_eq!(answer["address"], "127.0.0.1");
    assert!((answer["load"].as_f64().unwrap() - 0.15).abs() < 1e-12, "{answer}");
    for (kind, name) in [("formula", "weighted@"), ("strategy", "least-loaded@")] {
        assert!(answer["policy"][kind].as_str().unwrap().starts_with(name), "{answer}");
    }

    // A newer report changes the choice, an older one does not.
    send(&mut farm, way, &Report { seq: 3, ..report("idle", &metrics(0.9)) });
    farm.until("the newer report", |farm| (farm.target("") == "busy").then_some(())).await;
    send(&mut farm, way, &Report { seq: 2, ..report("idle", &metrics(0.0)) });
    send(&mut farm, way, &Report { state: State::Leaving, seq: 2, ..report("busy", &[]) });
    farm.eligible(1).await;
    assert_eq!(farm.target(""), "idle");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn walk_over_memory() {
    check_walk(Way::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn walk_over_a_unicast_socket() {
    check_walk(Way::Unicast).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn walk_over_a_multicast_socket() {
    check_walk(Way::Multicast).await;
}

fn agent(machine: &str, host: &Farm) -> Config {
    let metric = |name: &str, what| MetricConfig {
        every: Duration::from_millis(20),
        window: 3,
        ..MetricConfig::new(name, MetricSource::system(what))
    };
    let agent = AgentConfig {
        machine: machine.to_owned(),
        interval: Duration::from_millis(50),
        metrics: vec![metric("cpu", SystemMetric::Cpu), metric("memory", SystemMetric::Memory)],
        ..AgentConfig::default()
    };
    let reports = reports(host.host().report_port());
    Config {
        agent: Some(agent),
        reports,
        relay: None,
        host: None,
        machines: Vec::new(),
        pools: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_report_to_one_host_and_leave() {
    let farm = Farm::new("weighted", "p2c").await;
    let first = Loadline::start(agent("first", &farm)).await.unwrap();
    let second = Loadline::start(agent("second", &farm)).await.unwrap();
    farm.eligible(2).await;
    for machine in farm.get("/v1/machines").as_array().unwrap() {
        for metric in ["cpu", "memory"] {
            let value = machine["metrics"][metric].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&value), "{machine}");
        }
        assert!(machine["targets"][0]["load"].is_number(), "{machine}");
    }
    first.stop().await; // says that it leaves
    farm.until("the leaving report", |farm| {
        let machine = farm.get("/v1/machines/first");
        (machine["state"] == "leaving" && machine["alive"] == false).then_some(())
    })
    .await;
    assert_eq!(farm.target(""), "second");
    second.stop().await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_whose_reports_stop_is_gone_and_returns() {
    let mut farm = Farm::new("weighted", "p2c").await;
    let quick = |machine| Report { interval_ms: 20, ..report(machine, &[]) };
    farm.send(&quick("a"));
    farm.until("the machine to be gone", |farm| {
        // 70 ms after its report, by the host's own clock
        (farm.get("/v1/machines")[0]["alive"] == false).then_some(())
    })
    .await;
    assert_eq!(farm.get_error("/v1/target"), (503, "nobody_eligible".to_owned()));
    farm.send(&report("a", &[]));
    farm.eligible(1).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_metric_makes_the_last_choice_and_is_named() {
    let mut farm = Farm::new("sessions", "least-loaded").await;
    farm.report(&["blind"], &[("cpu", 0.0)]);
    farm.report(&["heavy"], &[("cpu", 1.0), ("sessions", 500.0)]);
    farm.eligible(2).await;
    assert_eq!(farm.target(""), "heavy");
    assert_eq!(farm.target("exclude=heavy"), "blind");
    let target = &farm.get("/v1/machines/blind")["targets"][0];
    assert!(target["load"].is_null(), "{target}");
    assert_eq!(target["missing"][0]["metric"], "sessions");
    assert_eq!(target["missing"][0]["wanted_by"], "formula sessions of pool default");
    assert!(target["missing"][0].get("nearest").is_none());
    farm.report(&["blind"], &[("cpu", 0.0), ("session", 1.0)]);
    farm.until("the nearest name", |farm| {
        let target = &farm.get("/v1/machines/blind")["targets"][0];
        (target["missing"][0]["nearest"] == "session").then_some(())
    })
    .await;
    // Not a number is not reported either.
    farm.report(&["heavy"], &[("cpu", f64::NAN), ("sessions", 1.0)]);
    farm.until("the missing cpu", |farm| {
        let target = &farm.get("/v1/machines/heavy")["targets"][0];
        (target["missing"][0]["metric"] == "cpu").then_some(())
    })
    .await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_metric_makes_the_last_choice_of_every_strategy_by_load() {
    let strategies = ["balanced", "fuzzy", "least-loaded", "p2c", "nobody-has-it"];
    let of =
        |name: &str| PoolConfig { service: "default".to_owned(), ..pool(name, "sessions", name) };
    let mut farm = Farm::with_pools(strategies.map(of).to_vec()).await;
    farm.report(&["blind"], &[("cpu", 0.0)]);
    farm.report(&["heavy"], &[("cpu", 1.0), ("sessions", 500.0)]);
    for name in strategies {
        let query = format!("pool={name}");
        let both = |farm: &Farm| {
            let pools = farm.get("/v1/pools");
            let pool = pools.as_array().unwrap().iter().find(|pool| pool["name"] == name).unwrap();
            (pool["eligible"] == 2).then_some(())
        };
        farm.until("both targets", both).await;
        for _ in 0..20 {
            assert_eq!(farm.target(&query), "heavy", "{name}");
        }
        assert_eq!(farm.target(&format!("{query}&exclude=heavy")), "blind", "{name}");
    }
    farm.stop().await;
}

/// What cannot be scored yet joins as one of average load, what is not reported as the last choice, whoever
/// chooses.
#[tokio::test(flavor = "multi_thread")]
async fn load_that_is_not_known_yet_counts_as_the_median() {
    // The pool of no policy's name is served by native code.
    for strategy in ["least-loaded", "nobody-has-it"] {
        let pools = vec![pool("default", "root", strategy)];
        let mut farm = Farm::with_files(pools, &[("root.formula", b"sqrt(x)")]).await;
        farm.report(&["blind"], &[("cpu", 0.0)]);
        for (machine, x) in [("heavy", 9.0), ("new", -1.0), ("light", 1.0)] {
            farm.report(&[machine], &[("x", x)]);
        }
        farm.eligible(4).await;
        let answer = farm.get("/v1/target?n=4");
        let others = answer["others"].as_array().unwrap().iter();
        let order: Vec<_> = [&answer].into_iter().chain(others).map(|of| &of["machine"]).collect();
        assert_eq!(order, ["light", "new", "heavy", "blind"], "{answer}");
        for (machine, missing) in [("new", 0), ("blind", 1)] {
            let target = &farm.get(&format!("/v1/machines/{machine}"))["targets"][0];
            assert!(target["load"].is_null(), "{target}");
            let named = target["missing"].as_array().map_or(0, Vec::len);
            assert_eq!(named, missing, "{target}");
        }
        let decision = farm.get(&format!("/v1/decisions/{}", answer["decision"].as_str().unwrap()));
        assert_eq!(decision["filtered"]["unknown_load"], 2, "{decision}");
        farm.stop().await;
    }
}

/// The worked example of the first load balancer.
#[tokio::test(flavor = "multi_thread")]
async fn load_is_the_sum_of_weights_times_averages() {
    let weights = serde_json::json!({ "weights": { "a": 0.4, "b": 0.3, "c": 0.2, "d": 0.5 } });
    let pool = pool("default", "weighted", "least-loaded");
    let mut farm = Farm::with_pools(vec![PoolConfig { formula_settings: weights, ..pool }]).await;
    farm.report(&["m"], &[("a", 15.0), ("b", 32.0), ("c", 19.0), ("d", 10.0)]);
    farm.eligible(1).await;
    let load = farm.get("/v1/target")["load"].as_f64().unwrap();
    assert!((load - 24.4).abs() < 1e-9, "{load}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_targets_of_their_own_pools() {
    let web = PoolConfig { service: "web".to_owned(), ..pool("site", "sessions", "least-loaded") };
    let mut farm = Farm::with_pools(vec![pool("default", "weighted", "p2c"), web]).await;
    let mut own = service("web", "https://a.example:8443/app");
    own.metrics.names = vec!["sessions"].into();
    own.metrics.values = vec![3.0];
    let services = vec![own, service("api", "")];
    farm.send(&Report { services, ..report("a", &[("cpu", 0.5), ("sessions", 99.0)]) });
    farm.until("a target of the pool", |farm| {
        (farm.host().pools().get("site").unwrap().eligible() == 1).then_some(())
    })
    .await;
    let answer = farm.get("/v1/target?pool=site");
    assert_eq!(answer["service"], "web");
    assert_eq!(answer["address"], "a.example:8443");
    assert_eq!(answer["url"], "https://a.example:8443/app");
    let load = answer["load"].as_f64().unwrap();
    assert!((load - 0.7).abs() < 1e-12, "the service's own sessions count: {load}");
    assert_eq!(farm.get_error("/v1/target").0, 503, "a machine with services is not a default");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_picks_between_two_reports_spread_and_are_counted() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    farm.report(&["a", "b", "c", "d"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(4).await;
    let mut picked: Vec<_> = (0..8).map(|_| farm.target("")).collect();
    picked.sort();
    assert_eq!(picked, ["a", "a", "b", "b", "c", "c", "d", "d"]);
    assert_eq!(farm.get("/v1/machines/a")["targets"][0]["picks"], 2);
    farm.report(&["a"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.until("picks of before the report to be forgotten", |farm| {
        (farm.get("/v1/machines/a")["targets"][0]["picks"] == 0).then_some(())
    })
    .await;
    assert_eq!(farm.target(""), "a");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_machine_is_known_but_not_picked() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(&["a", "b"], &[("cpu", 0.5), ("memory", 0.5)]);
    farm.eligible(2).await;
    farm.send(&Report { state: State::Draining, ..report("a", &[]) });
    farm.eligible(1).await;
    for _ in 0..20 {
        assert_eq!(farm.target(""), "b");
    }
    assert_eq!(farm.get("/v1/machines/a")["alive"], true);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_datagrams_are_counted_and_change_nothing() {
    let mut farm = Farm::new("weighted", "p2c").await;
    let good = wire::encode(&[report("a", &[])], &Keyring::default()).unwrap();
    farm.send_udp(b"GET / HTTP/1.1");
    farm.send_udp(&good[..20]);
    farm.send_udp(&[b"LL\x09\x00".as_slice(), &[0; 40]].concat());
    farm.send(&Report { farm: "other", ..report("x", &[]) });
    farm.send_udp(&good);
    farm.send_udp(&good);
    farm.eligible(1).await;
    farm.report(&["b"], &[]); // comes after all of the above
    farm.eligible(2).await;
    let metrics = crate::support::get(&farm.url("/metrics"), "").1;
    for reason in ["foreign", "malformed", "version", "other_farm"] {
        let line = format!("loadline_reports_rejected_total{{reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    assert_eq!(farm.get("/v1/machines").as_array().unwrap().len(), 2);
    farm.stop().await;
}
