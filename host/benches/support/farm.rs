//! A host on free ports with a fleet of hand-made reports.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use loadline::config::{Config, HostConfig, PoolConfig, ReportsConfig};
use loadline::pick::{PickRequest, key_hash, pick};
use loadline::report::{Keyring, Metrics, Report, State, wire};
use loadline::run::Host;
use loadline::transport::Datagram;
use tokio::runtime::Runtime;

/// What a host runs on.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A host on free ports with this pool.
pub(crate) fn config(folder: &Path, pool: PoolConfig) -> Config {
    let mut reports = ReportsConfig { interfaces: vec!["lo".to_owned()], ..Default::default() };
    reports.groups.port = 0;
    Config {
        agent: None,
        reports,
        relay: None,
        host: Some(HostConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            policies: folder.to_owned(),
            ..HostConfig::default()
        }),
        machines: Vec::new(),
        pools: vec![pool],
    }
}

pub(crate) fn feed(host: &Host, machines: usize) {
    let (received, from) = (Instant::now(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let names: Vec<_> = (0..machines).map(|number| format!("machine-{number}")).collect();
    for names in names.chunks(64) {
        let frame = |name: &String| {
            let mut report = report(name);
            // Neighbours by load are nowhere near each other in memory.
            let load = f64::from(u8::try_from(key_hash(name) % 256).expect("a byte")) / 512.0;
            report.metrics.values = vec![0.25 + load, 0.25];
            wire::encode(&[report], &Keyring::default()).expect("a good report")
        };
        let frames: Vec<_> = names.iter().map(frame).collect();
        let datagram = |bytes| Datagram { bytes, received, from };
        host.deliver(frames.iter().map(Vec::as_slice).map(datagram).collect());
    }
    while host.pools().all()[0].eligible() < machines {
        std::thread::yield_now();
    }
}

fn report(machine: &str) -> Report<'_> {
    Report {
        farm: "default",
        machine,
        boot: 1,
        seq: 1,
        interval_ms: 3_600_000,
        delay_ms: 0,
        state: State::Ready,
        weight: 1.0,
        metrics: Metrics { names: vec!["cpu", "memory"].into(), values: vec![0.5, 0.25] },
        services: Vec::new(),
        labels: Vec::new(),
        sent_ms: 0,
        hops: 0,
    }
}

/// A pick of the default pool, again and again.
pub(crate) fn picks(host: &Host) -> impl FnMut() {
    let request = PickRequest::default();
    move || _ = black_box(pick(host.pools(), &request).expect("a target"))
}
