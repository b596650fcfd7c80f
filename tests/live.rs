//! Who is alive: names that two agents use, agents that leave, hosts that are stopped.

use std::net::{IpAddr, Ipv4Addr};

use loadline::report::{Keyring, Report, wire};

use crate::support::{Farm, get, report};

const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

/// The value of a metric without labels.
#[track_caller]
fn metric(farm: &Farm, name: &str) -> u64 {
    let (_, text) = get(&farm.url("/metrics"), "*/*");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

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
    let both = |farm: &Farm| (metric(farm, "loadline_machine_namesakes") == 1).then_some(());
    farm.until("the second agent shown", both).await;
    let machine = farm.get("/v1/machines/web");
    assert_eq!(machine["namesake"]["source"], "10.0.0.3", "{machine:#}");
    assert_eq!((&machine["boot"], &machine["loss"]["lost"]), (&5.into(), &0.into()));
    farm.stop().await;
}
