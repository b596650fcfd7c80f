//! What it costs to remember why a target was picked, and to lease it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use loadline::config::{HostConfig, PoolConfig};
use loadline::pick::{PickRequest, pick};
use loadline::run::{Host, Loadline};
use nix::time::ClockId;

use crate::farm::{config, feed, picks, runtime};
use crate::turns::ratio;

/// Goal of `/v1/target` with its decision remembered, as a ratio.
const DECISION_RATIO: f64 = 1.05;

/// The same host with and without a memory for decisions: `pick` by itself, and `/v1/target` over a
/// kept connection, on the CPU time of all threads; and a pick whose lease is ended at once, which the
/// guest hears of before the next one.
pub(crate) fn bench_decision(targets: usize) -> bool {
    let runtime = runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let start = |decisions| {
        let mut config = config(folder.path(), PoolConfig::new("default"));
        config.host = config.host.map(|host| HostConfig { decisions, ..host });
        runtime.block_on(Loadline::start(config)).expect("a host")
    };
    let hosts = [start(1_024), start(0)];
    let [with, without] = hosts.each_ref().map(|loadline| loadline.host().expect("a host"));
    [with, without].iter().for_each(|host| feed(host, targets));
    let thread = ClockId::CLOCK_THREAD_CPUTIME_ID;
    ratio(&format!("pick, {targets} targets"), thread, f64::INFINITY, picks(with), picks(without));
    let leased = PickRequest { lease: Some(Duration::from_secs(30)), ..PickRequest::default() };
    let lease = || {
        let lease = pick(without.pools(), &leased).expect("a target").lease;
        assert!(without.pools().close_lease(&lease.expect("a lease")), "it is open");
    };
    let name = format!("lease or not, {targets}");
    ratio(&name, thread, f64::INFINITY, lease, picks(without));
    let http = |host: &Host| {
        let mut client = TcpStream::connect(host.http_address()).expect("a connection");
        client.set_nodelay(true).expect("a socket option");
        move || get_target(&mut client)
    };
    let process = ClockId::CLOCK_PROCESS_CPUTIME_ID;
    let name = format!("http, {targets} targets");
    // Of still larger pools each neighbour comes from far memory: shown, without a goal.
    let goal = if targets > 1_000 { f64::INFINITY } else { DECISION_RATIO };
    let good = ratio(&name, process, goal, http(with), http(without));
    hosts.into_iter().for_each(|loadline| runtime.block_on(loadline.stop()));
    good
}

/// One request and its whole answer.
fn get_target(client: &mut TcpStream) {
    client.write_all(b"GET /v1/target HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("a request");
    let (mut answer, mut len) = ([0; 4_096], 0);
    while !answer[..len].ends_with(b"}") {
        let read = client.read(&mut answer[len..]).expect("an answer");
        assert!(read > 0, "the connection was closed");
        len += read;
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "a target");
}
