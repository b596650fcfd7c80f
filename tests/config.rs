//! The configuration is changed while it runs: no request and no report is lost, what cannot be done
//! leaves that part as it was, and what is removed is gone.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use loadline::config::{AgentConfig, Config, HealthConfig, KeyConfig, PoolConfig, SecretSource};
use loadline::report::{Key, Keyring, Report, wire};

use crate::support::{Farm, Queries, get, pool, report, service, strategy};

const METRICS: &[(&str, f64)] = &[("cpu", 0.5), ("memory", 0.5)];

/// A farm whose default pool has these machines.
async fn farm_of(machines: &[&str]) -> Farm {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.report(machines, METRICS);
    farm.eligible(machines.len()).await;
    farm
}

/// A quick agent of this process.
fn agent(machine: &str) -> AgentConfig {
    let mut agent = AgentConfig { machine: machine.to_owned(), ..AgentConfig::default() };
    agent.interval = std::time::Duration::from_millis(20);
    for metric in &mut agent.metrics {
        (metric.every, metric.window) = (agent.interval, 2);
    }
    agent
}

fn default_pool(config: &mut Config) -> &mut PoolConfig {
    &mut config.pools[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_and_no_report_is_lost_while_everything_changes() {
    let mut farm = Farm::new("weighted", "p2c").await;
    assert!(farm.apply(|config| config.agent = Some(agent("here"))).await.is_empty());
    farm.eligible(1).await;
    let queries = Queries::start(farm.url("/v1/target"), 2);
    let seen = |farm: &Farm| farm.get("/v1/machines/here")["boot"].as_u64().unwrap();
    for round in 0..3_u32 {
        let boot = seen(&farm);
        let problems = farm.apply(|config| {
            let strategy = ["round-robin", "random", "balanced"][round as usize];
            default_pool(config).strategy = strategy.to_owned();
            default_pool(config).health =
                HealthConfig { consecutive_failures: round, ..HealthConfig::default() };
            default_pool(config).formula_settings =
                serde_json::json!({ "weights": { "cpu": 1 + round } });
            config.pools.truncate(1);
            config.pools.push(PoolConfig::new(&format!("pool-{round}")));
            config.reports.interfaces.push(format!("none-{round}"));
            let host = config.host.as_mut().unwrap();
            (host.miss_limit, host.decisions) = (10 + round, 16 << round);
            let agent = config.agent.as_mut().unwrap();
            agent.labels.insert("round".to_owned(), round.to_string());
            agent.weight = f64::from(1 + round);
        });
        assert_eq!(problems.await, [""; 0]);
        // The new agent has taken over, and some of its reports are there.
        let taken_over = |farm: &Farm| {
            let machine = farm.get("/v1/machines/here");
            (machine["boot"].as_u64() > Some(boot) && machine["seq"].as_u64() > Some(5))
                .then_some(machine)
        };
        let machine = farm.until("reports of the new agent", taken_over).await;
        assert_eq!(machine["labels"]["round"], round.to_string());
        assert_eq!(machine["weight"], f64::from(1 + round));
        assert_eq!(machine["loss"]["lost"], 0, "{machine}");
        let answer = farm.get("/v1/target");
        let strategy = answer["policy"]["strategy"].as_str().unwrap();
        assert!(strategy.starts_with(&*farm.config().pools[0].strategy), "{strategy}");
    }
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 100, "{answered:?}");
    let pools = farm.get("/v1/pools");
    assert_eq!(pools[0]["picks"]["nobody_eligible"], 0);
    assert_eq!(pools[1]["name"], "pool-2");
    assert_eq!(farm.get_error("/v1/target?pool=pool-1"), (404, "unknown_pool".to_owned()));
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_that_is_renamed_leaves_under_its_old_name() {
    let mut farm = Farm::new("weighted", "p2c").await;
    farm.apply(|config| config.agent = Some(agent("old"))).await;
    farm.eligible(1).await;
    farm.apply(|config| config.agent = Some(agent("new"))).await;
    let left = |farm: &Farm| (farm.get("/v1/machines/old")["state"] == "leaving").then_some(());
    farm.until("the old name's last report", left).await;
    farm.eligible(1).await;
    assert_eq!(farm.target(""), "new");
    // A role that is taken out ends: its machine leaves.
    farm.apply(|config| config.agent = None).await;
    farm.eligible(0).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_that_is_added_has_its_targets_and_guests_at_once() {
    let mut farm = farm_of(&["a"]).await;
    let web = Report { services: vec![service("web", "10.0.0.1:80")], ..report("b", METRICS) };
    farm.send(&web);
    let known = |farm: &Farm| (farm.get("/v1/machines").as_array()?.len() == 2).then_some(());
    farm.until("both machines", known).await;
    let problems = farm.apply(|config| config.pools.push(pool("web", "sessions", "random")));
    assert_eq!(problems.await, [""; 0]);
    let answer = farm.get("/v1/target?pool=web");
    assert_eq!(answer["address"], "10.0.0.1:80");
    assert!(answer["policy"]["strategy"].as_str().unwrap().starts_with("random@"), "{answer}");

    // Another service under the same name: other targets.
    farm.apply(|config| config.pools[1].service = "default".to_owned()).await;
    assert_eq!(farm.get("/v1/target?pool=web")["machine"], "a");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_ejections_outlive_a_change_of_the_pool() {
    let mut farm = farm_of(&["a", "b"]).await;
    let lease = farm.get("/v1/target?lease=30s")["lease"].as_str().unwrap().to_owned();
    let failed = r#"{"target":"a","latency_us":1,"ok":false}"#;
    let (status, _) =
        crate::support::post(&farm.url("/v1/outcomes"), &format!("[{}]", [failed; 5].join(",")));
    assert_eq!(status, 204);
    farm.eligible(1).await;
    farm.apply(|config| {
        default_pool(config).strategy = "round-robin".to_owned();
        default_pool(config).health.consecutive_failures = 0;
    })
    .await;
    let pools = farm.get("/v1/pools");
    assert_eq!((&pools[0]["leases"], &pools[0]["ejected"]), (&1.into(), &1.into()), "{pools}");
    assert_eq!(farm.target(""), "b");
    assert_eq!(crate::support::delete(&farm.url(&format!("/v1/leases/{lease}"))), 204);
    assert_eq!(farm.get("/v1/pools")[0]["leases"], 0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_of_a_pool_that_is_gone_can_be_ended() {
    let mut farm = farm_of(&["a"]).await;
    farm.apply(|config| {
        config.pools.push(PoolConfig { service: "default".to_owned(), ..PoolConfig::new("web") })
    })
    .await;
    let answer = farm.get("/v1/target?pool=web&lease=30s");
    let (lease, decision) =
        (answer["lease"].as_str().unwrap(), answer["decision"].as_str().unwrap());
    farm.apply(|config| config.pools.truncate(1)).await;
    assert_eq!(crate::support::delete(&farm.url(&format!("/v1/leases/{lease}"))), 204);
    let outcome = format!("{{\"decision\":\"{decision}\",\"latency_us\":1,\"ok\":true}}");
    assert_eq!(crate::support::post(&farm.url("/v1/outcomes"), &outcome).0, 404);
    assert_eq!(farm.get(&format!("/v1/decisions/{decision}"))["pool"], "web");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_that_cannot_start_leaves_the_old_one_at_work() {
    let mut farm = farm_of(&["a"]).await;
    let trap = strategy("(func $pick (param i64 i32 f64 i64 i64) (result i32) unreachable)");
    farm.drop_in("trap.wasm", &trap);
    let known = |farm: &Farm| {
        let policies = farm.get("/v1/policies");
        policies.as_array()?.iter().any(|policy| policy["name"] == "trap").then_some(())
    };
    farm.until("the policy", known).await;
    for (wanted, words) in [("trap", "pick trapped"), ("none", "there is no policy none")] {
        let problems = farm.apply(|config| default_pool(config).strategy = wanted.to_owned());
        assert_eq!(problems.await, [""; 0]);
        let policy = farm.policy("strategy");
        assert!(policy["serving"].as_str().unwrap().starts_with("p2c@"), "{policy}");
        assert_eq!(policy["policy"], wanted);
        assert!(policy["trouble"].as_str().unwrap().contains(words), "{policy}");
        let answer = farm.get("/v1/target");
        assert!(answer["policy"]["strategy"].as_str().unwrap().starts_with("p2c@"), "{answer}");
    }
    farm.apply(|config| {
        default_pool(config).strategy_settings = serde_json::json!({ "choices": "many" });
        default_pool(config).strategy = "p2c".to_owned();
    })
    .await;
    let policy = farm.policy("strategy");
    assert_eq!(policy["state"], "active", "{policy}");
    farm.apply(|config| default_pool(config).strategy_settings = serde_json::json!({})).await;
    assert!(farm.policy("strategy")["trouble"].is_null());
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_a_policy_goes_to_no_other() {
    let mut farm = Farm::new("weighted", "round-robin").await;
    farm.report(&["a", "b", "c"], METRICS);
    farm.eligible(3).await;
    assert_eq!([farm.target(""), farm.target("")], ["a", "b"]);
    farm.apply(|config| default_pool(config).strategy = "first-available".to_owned()).await;
    assert_eq!(farm.target(""), "a");
    assert_eq!(farm.policy("strategy")["faults"], 0);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_come_from_another_folder() {
    let mut farm = farm_of(&["a"]).await;
    farm.drop_in("weighted.formula", b"7");
    farm.until("the old folder's formula", |farm| {
        (farm.get("/v1/target")["load"] == 7.0).then_some(())
    })
    .await;
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("weighted.formula"), "8").unwrap();
    let folder = other.path().to_owned();
    farm.apply(|config| config.host.as_mut().unwrap().policies = folder).await;
    assert_eq!(farm.get("/v1/target")["load"], 8.0);
    // It is the one that is watched now.
    std::fs::write(other.path().join("weighted.formula"), "9").unwrap();
    farm.until("the new folder's change", |farm| {
        (farm.get("/v1/target")["load"] == 9.0).then_some(())
    })
    .await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_port_leaves_the_old_one_open_and_a_free_one_is_taken() {
    let mut farm = farm_of(&["a"]).await;
    let old = farm.url("/v1/target");
    let queries = Queries::start(old.clone(), 1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap();
    let problems = farm.apply(|config| config.host.as_mut().unwrap().listen = busy).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with(&format!("host.listen: cannot listen on {busy}:")));
    assert!(problems[0].ends_with("serves on"), "{problems:?}");
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 0, "{answered:?}");
    assert_eq!(farm.url("/v1/target"), old);

    // The same once more, when it is free.
    drop(taken);
    assert_eq!(farm.apply(|_| {}).await, [""; 0]);
    assert_eq!(farm.host().http_address(), busy);
    assert_eq!(farm.target(""), "a");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_that_holds_the_old_one_is_taken_without_a_gap() {
    let mut farm = farm_of(&["a"]).await;
    let port = farm.host().http_address().port();
    let queries = Queries::start(format!("http://127.0.0.1:{port}/v1/target"), 2);
    for address in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST] {
        let problems = farm.apply(|config| {
            let host = config.host.as_mut().unwrap();
            host.insecure = true;
            host.listen = SocketAddr::from((address, port));
        });
        assert_eq!(problems.await, [""; 0]);
        assert_eq!(farm.host().http_address(), SocketAddr::from((address, port)));
    }
    let answered = queries.stop();
    assert!(answered.bad.is_empty() && answered.good > 0, "{answered:?}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_heard_on_another_port_and_the_old_one_is_closed() {
    let mut farm = farm_of(&["a"]).await;
    let old = farm.host().report_port();
    let free = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    assert_eq!(farm.apply(|config| config.reports.groups.port = port).await, [""; 0]);
    assert!(farm.host().report_port() == port && port != old);
    farm.send_udp(&wire::encode(&[report("b", METRICS)], &Keyring::default()).unwrap());
    farm.eligible(2).await;
    farm.stop().await;
}

/// O-E02, of the report port.
#[tokio::test(flavor = "multi_thread")]
async fn busy_report_port_leaves_the_old_one_open() {
    let mut farm = farm_of(&["a"]).await;
    let old = farm.host().report_port();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let problems = farm.apply(|config| config.reports.groups.port = port).await;
    assert!(problems[0].starts_with("reports.group: cannot receive on"), "{problems:?}");
    assert_eq!(farm.host().report_port(), old);
    let frame = |machine| wire::encode(&[report(machine, METRICS)], &Keyring::default()).unwrap();
    farm.send_udp(&frame("b"));
    farm.eligible(2).await;
    drop(taken);
    assert_eq!(farm.apply(|_| {}).await, [""; 0], "it is tried again");
    assert_eq!(farm.host().report_port(), port);
    farm.send_udp(&frame("c"));
    farm.eligible(3).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_that_is_rotated_counts_from_the_next_report_on() {
    let mut farm = Farm::new("weighted", "p2c").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let signed = |machine, secret: &[u8]| {
        let keyring = Keyring::new(vec![Key::new(1, secret).unwrap()]);
        wire::encode(&[report(machine, METRICS)], &keyring).unwrap()
    };
    std::fs::write(&file, b"the first secret").unwrap();
    let secret = SecretSource::File(file.clone());
    let keys = vec![KeyConfig { id: 1, secret }];
    let unstamped = std::time::Duration::ZERO;
    assert_eq!(
        farm.apply(|config| (config.reports.keys, config.reports.max_skew) = (keys, unstamped))
            .await,
        [""; 0]
    );
    farm.deliver(signed("a", b"the first secret"));
    farm.eligible(1).await;
    std::fs::write(&file, b"the second secret\n").unwrap();
    assert_eq!(farm.apply(|_| {}).await, [""; 0]);
    farm.deliver(signed("b", b"the first secret"));
    farm.deliver(signed("c", b"the second secret"));
    farm.eligible(2).await;
    assert!(get(&farm.url("/v1/machines/b"), "").0 == 404, "the old secret counts no more");
    // One that cannot be used changes nothing.
    std::fs::write(&file, b"short").unwrap();
    let problems = farm.apply(|_| {}).await;
    assert!(problems[0].starts_with("reports.keys[0]: the secret of"), "{problems:?}");
    farm.deliver(signed("d", b"the second secret"));
    farm.eligible(3).await;
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_kept_when_more_or_fewer_are_remembered() {
    let mut farm = farm_of(&["a"]).await;
    let names: Vec<_> = (0..8).map(|_| farm.get("/v1/target")["decision"].clone()).collect();
    let listed = |farm: &Farm| farm.get("/v1/decisions").as_array().unwrap().len();
    for (decisions, expected) in [(4, 4), (64, 4), (0, 0), (8, 0)] {
        farm.apply(|config| config.host.as_mut().unwrap().decisions = decisions).await;
        assert_eq!(listed(&farm), expected, "{decisions}");
        if expected > 0 {
            farm.get(&format!("/v1/decisions/{}", names[7].as_str().unwrap()));
        }
    }
    farm.get("/v1/target");
    assert_eq!(listed(&farm), 1);
    farm.stop().await;
}
