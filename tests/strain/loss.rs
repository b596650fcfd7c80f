//! Machines behind ways that lose reports: how often they are called gone, while nothing is known of
//! the way yet and from then on.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use loadline::config::Config;
use loadline::run::Loadline;

use super::strain;
use crate::support::Random;
use crate::support::host::HostProcess;

/// Seconds of a short run once the losses are learned: two minutes with LOADLINE_STRAIN=20.
const SECONDS: u64 = 6;
/// Of those who lose so many reports of a hundred, so many machines, and how often all of them may be
/// called gone before their losses are learned: six lost in a row are a death at first.
const WAYS: [(usize, usize, u64); 2] = [(10, 10, 0), (50, 2, 2)];
/// A machine's losses are learned when it has sent so many reports and some of them were lost.
const LEARNED: (u64, u64) = (40, 2);

/// Passes one machine's datagrams on to a port, but for so many in a hundred, each run the same ones;
/// where to send them.
fn lossy_way(to: u16, percent: usize, number: usize) -> u16 {
    let way = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = way.local_addr().unwrap().port();
    let mut random = Random::new((percent * 100 + number) as u64);
    std::thread::spawn(move || {
        let mut buffer = [0; 2_048];
        // Ends with the process of the test.
        while let Ok(len) = way.recv(&mut buffer) {
            if random.below(100) >= percent {
                way.send_to(&buffer[..len], (Ipv4Addr::LOCALHOST, to)).unwrap();
            }
        }
    });
    port
}

fn names(percent: usize, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("loss-{percent}-{number}"))
}

/// How often each machine was called gone.
fn deaths(host: &HostProcess) -> BTreeMap<String, u64> {
    let lines = host.lines();
    let count = |machine: String| {
        let name = format!("machine={machine}");
        let is_it = |line: &&String| {
            let mut words = line.split_whitespace();
            line.contains("machine is gone") && words.any(|word| word == name)
        };
        (machine, lines.iter().filter(is_it).count() as u64)
    };
    WAYS.iter().flat_map(|&(percent, machines, _)| names(percent, machines)).map(count).collect()
}

/// Behind a way that loses every tenth report a machine stays from the start; behind one that loses half of
/// them it may be called gone while that is news.
#[tokio::test(flavor = "multi_thread")]
async fn behind_loss_that_is_learned_machines_stay() {
    let host = HostProcess::start();
    let mut agents = Vec::new();
    for (percent, machines, _) in WAYS {
        for (number, machine) in names(percent, machines).enumerate() {
            let port = lossy_way(host.report_port, percent, number);
            // Nobody hears this group: reports arrive by the lossy way only.
            let config = format!(
                "[agent]\nmachine = {machine:?}\ninterval = \"200ms\"\nmetric = []\n\
                 [reports]\ngroup = \"239.255.76.77:{port}\"\ninterfaces = [\"lo\"]\n\
                 send_to = [\"udp://127.0.0.1:{port}\"]\n"
            );
            agents.push(Loadline::start(Config::parse(&config).unwrap()).await.unwrap());
        }
    }
    let learned = |host: &HostProcess| {
        let machines = host.get("/v1/machines");
        let (sent, lost) = LEARNED;
        let has = |machine: &serde_json::Value| {
            machine["seq"].as_u64() >= Some(sent) && machine["loss"]["lost"].as_u64() >= Some(lost)
        };
        machines.as_array().unwrap().iter().filter(|machine| has(machine)).count() == agents.len()
    };
    host.until("all losses learned", learned).await;
    let before = deaths(&host);
    for (percent, machines, gone_max) in WAYS {
        let gone: u64 = names(percent, machines).map(|machine| before[&machine]).sum();
        eprintln!("{percent} % lost, until that is learned: {gone} times gone");
        assert!(gone <= gone_max, "{percent} % lost: {before:?}");
    }
    let seconds = SECONDS * strain();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = deaths(&host);
    eprintln!("{} machines for {seconds} s more: called gone {after:?}", after.len());
    assert_eq!(after, before, "called gone though its losses are learned");
    let all: u64 = after.values().sum();
    assert_eq!(host.metric("loadline_machines_gone_total"), all, "each is told of: {after:?}");
    let alive = host.metrics().get("loadline_machines{state=\"alive\"}").copied();
    assert_eq!(alive, Some(agents.len() as u64));
    for agent in agents {
        agent.stop().await;
    }
}
