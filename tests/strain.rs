//! Many agents, a host that is stopped for a while, and floods of junk, against the program as a process.
//!
//! Short in `cargo test`; LOADLINE_STRAIN makes it so many times as long. A minute, two of
//! loss, and a million:
//!
//!   LOADLINE_STRAIN=20 cargo test -p loadline-tests strain -- --nocapture --test-threads 1

mod compile;
mod endurance;
mod loss;
mod misbehaving;
mod reloads;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use loadline::config::Config;
use loadline::report::{Keyring, Report, wire};
use loadline::run::Loadline;

use crate::support::host::HostProcess;
use crate::support::{Random, report};

/// Agents in one process.
const AGENTS: usize = 300;
/// Datagrams of junk in a short run.
const JUNK: usize = 50_000;
/// Datagrams that fit into the smallest receive buffer.
const BURST: u64 = 100;
/// Bytes of a receive buffer that holds some hundred reports: a second of all agents, not four.
const SMALL_BUFFER: usize = 128 << 10;
/// Seconds of a short run.
const SECONDS: u64 = 3;

fn strain() -> u64 {
    let written = std::env::var("LOADLINE_STRAIN").ok();
    written.map_or(1, |factor| factor.parse().expect("LOADLINE_STRAIN is a whole number"))
}

async fn agent(number: usize, port: u16) -> Loadline {
    let config = format!(
        "[agent]\nmachine = \"m-{number}\"\ninterval = \"1s\"\n\
         [[agent.metric]]\nname = \"cpu\"\nsource = \"system:cpu\"\nevery = \"250ms\"\nwindow = 2\n\
         [[agent.metric]]\nname = \"memory\"\nsource = \"system:memory\"\nevery = \"250ms\"\nwindow = 2\n\
         [reports]\ngroup = \"239.255.76.76:{port}\"\ninterfaces = [\"lo\"]\n"
    );
    Loadline::start(Config::parse(&config).unwrap()).await.unwrap()
}

/// A busy minute, in which the host is stopped for longer than agents may be silent, and for longer than
/// its receive buffer lasts: what the kernel drops is seen, and nobody is called gone for it.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_hundred_agents_none_is_lost_though_the_host_is_stopped() {
    let host = HostProcess::with_reports(&format!("receive_buffer = {SMALL_BUFFER}"));
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        agents.push(agent(number, host.report_port).await);
    }
    let alive =
        |host: &HostProcess| host.metrics().get("loadline_machines{state=\"alive\"}").copied();
    host.until("all agents heard", |host| alive(host) == Some(AGENTS as u64)).await;
    let half = Duration::from_secs(SECONDS * strain()) / 2;
    tokio::time::sleep(half).await;
    assert_eq!(host.metric("loadline_machines_gone_total"), 0, "before the pause");
    let drops = host.metric("loadline_kernel_drops_total");
    host.signal("-STOP");
    tokio::time::sleep(Duration::from_secs(4)).await;
    host.signal("-CONT");
    tokio::time::sleep(half).await;
    let is_seen = |host: &HostProcess| host.metric("loadline_kernel_drops_total") > drops;
    host.until("the drops are seen", is_seen).await;
    assert_eq!(alive(&host), Some(AGENTS as u64));
    let metrics = host.metrics();
    assert_eq!(metrics["loadline_machines_gone_total"], 0);
    assert!(metrics["loadline_deaf_ms_total"] >= 3_500, "{metrics:#?}");
    let told = metrics.iter().filter(|(name, _)| {
        ["datagrams", "reports_total", "deaf", "gone", "flaps", "drop"]
            .iter()
            .any(|part| name.contains(part))
    });
    eprintln!(
        "{AGENTS} agents for {} s and a pause of 4 s: {:?}",
        SECONDS * strain(),
        told.collect::<Vec<_>>()
    );
    let stops: Vec<_> = agents.into_iter().map(|agent| tokio::spawn(agent.stop())).collect();
    for stop in stops {
        stop.await.unwrap();
    }
    host.until("all agents gone", |host| alive(host) == Some(0)).await;
    assert_eq!(host.metric("loadline_machines_gone_total"), 0, "they said that they leave");
}

/// Random bytes, frames with a few bytes changed, cut ones, other farms', other versions', signed ones.
#[tokio::test(flavor = "multi_thread")]
async fn junk_costs_a_host_nothing_but_the_time_to_refuse_it() {
    let host = HostProcess::start();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = (Ipv4Addr::LOCALHOST, host.report_port);
    let good = |seq| {
        wire::encode(
            &[Report { seq, ..report("good", &[("cpu", 0.5), ("memory", 0.5)]) }],
            &Keyring::default(),
        )
        .unwrap()
    };
    socket.send_to(&good(1), to).unwrap();
    host.until("the good report", |host| host.metric("loadline_reports_total") == 1).await;
    let total = JUNK * usize::try_from(strain()).unwrap();
    let mut random = Random::new(7);
    let (mut memory, mut sent) = (Vec::new(), 1);
    for _ in 0..10 {
        for _ in 0..total / 10 {
            let junk = junk(&mut random, &good(2));
            // A changed report may be a good one of another machine: that is no junk.
            if wire::decode(&junk, &Keyring::default()).is_ok() {
                continue;
            }
            socket.send_to(&junk, to).unwrap();
            sent += 1;
            if sent % BURST == 0 {
                let taken = |host: &HostProcess| host.metric("loadline_datagrams_total") == sent;
                host.until("all of it taken", taken).await;
            }
        }
        memory.push(host.holds().bytes);
    }
    socket.send_to(&good(3), to).unwrap();
    host.until("the last good report", |host| host.metric("loadline_reports_total") == 2).await;
    let (first, last) = (memory[1], memory[9]);
    assert!(last < first + (8 << 20), "memory grows: {memory:?}");
    let complaints = host.complaints();
    let minutes = 1 + usize::try_from(strain()).unwrap() / 5;
    assert!(
        complaints.len() <= 12 * minutes,
        "{} lines: {:#?}",
        complaints.len(),
        &complaints[..12]
    );
    let refused: BTreeMap<_, _> =
        host.metrics().into_iter().filter(|(name, _)| name.contains("rejected")).collect();
    eprintln!(
        "{total} datagrams of junk: {} log lines, {} to {} MB, {refused:?}",
        complaints.len(),
        first >> 20,
        last >> 20
    );
}

fn junk(random: &mut Random, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    match random.below(6) {
        0 => (0..random.below(1_400)).map(|_| random.byte()).collect(),
        1 => [&good[..8], &(0..random.below(200)).map(|_| random.byte()).collect::<Vec<_>>()]
            .concat(),
        2 => {
            bytes.truncate(random.below(bytes.len()));
            bytes
        }
        3 => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = random.byte();
            }
            bytes
        }
        4 => {
            let nested = [0x91, 0x81, 0xdd, 0xdf, 0xc7, 0xd9][random.below(6)];
            bytes.truncate(8);
            bytes.resize(8 + random.below(1_300), nested);
            bytes
        }
        _ => {
            bytes[2 + random.below(6)] ^= 1 << random.below(8); // version, flags, key
            bytes
        }
    }
}
