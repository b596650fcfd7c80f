//! Who may report: keys, stamps and networks on every way in, and what refusals say.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use loadline::clock::wall_ms;
use loadline::config::{AllowConfig, KeyConfig, ReportsConfig, SecretSource};
use loadline::report::{Key, Keyring, Report, State, wire};
use serde_json::Value;

use crate::support::{Farm, get, report, reports};

const SECRET: &str = "a secret of the farm";
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn ring(id: u32, secret: &str) -> Keyring {
    Keyring::new(vec![Key::new(id, secret.as_bytes()).unwrap()])
}

/// A farm whose reports are signed with key 7; the folder holds the secret.
async fn signed_farm(with: impl FnOnce(&mut ReportsConfig)) -> (Farm, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let mut config = reports(0);
    config.keys = vec![KeyConfig { id: 7, secret: SecretSource::File(file) }];
    with(&mut config);
    (Farm::with_reports(config).await, folder)
}

/// A report sent now, a second after its agent started.
fn now(machine: &'static str, seq: u64) -> Report<'static> {
    let metrics = [("cpu", 0.5), ("memory", 0.5)];
    let sent_ms = wall_ms();
    Report { boot: sent_ms - 1_000, seq, sent_ms, ..report(machine, &metrics) }
}

/// Sends a report by every way in, which it may be named for: memory, unicast, multicast and TCP.
fn send_every_way(
    farm: &Farm,
    report: impl Fn(&'static str) -> Report<'static>,
    keyring: &Keyring,
) {
    let frame = |way| wire::encode(&[report(way)], keyring).unwrap();
    farm.deliver_from(THERE, frame("memory"));
    farm.send_udp(&frame("unicast"));
    farm.send_multicast(&frame("multicast"));
    let frame = frame("tcp");
    let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
    // A connection of its own: one that brings a bad frame is closed.
    let to = (Ipv4Addr::LOCALHOST, farm.host().report_port());
    TcpStream::connect(to).unwrap().write_all(&[&length, &*frame].concat()).unwrap();
}

/// How many reports were refused.
fn refusals(farm: &Farm) -> u64 {
    let all = farm.get("/v1/refused");
    all.as_array().unwrap().iter().filter_map(|kind| kind["count"].as_u64()).sum()
}

/// Every kind of refusal so far: reason and machine.
fn refused(farm: &Farm) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = farm.get("/v1/refused");
    let kinds = all.as_array().unwrap().iter();
    let mut kinds: Vec<_> =
        kinds.map(|kind| (text(&kind["reason"]), text(&kind["machine"]))).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn names(farm: &Farm) -> Vec<String> {
    let machines = farm.get("/v1/machines");
    let name = |machine: &Value| machine["name"].as_str().unwrap().to_owned();
    machines.as_array().unwrap().iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_key_nothing_comes_in_or_is_taken_out() {
    let (farm, _folder) = signed_farm(|_| {}).await;
    let good = ring(7, SECRET);
    let known = now("known", 1);
    farm.deliver(wire::encode(std::slice::from_ref(&known), &good).unwrap());
    farm.eligible(1).await;
    let forged = [Keyring::default(), ring(7, "another secret, long"), ring(8, SECRET)];
    for keyring in &forged {
        send_every_way(&farm, |_| now("intruder", 1), keyring);
        let leaves = Report { state: State::Leaving, seq: 9, ..known.clone() };
        send_every_way(&farm, |_| leaves.clone(), keyring);
    }
    // A frame of a good key with another id on it.
    let mut relabelled = wire::encode(&[now("intruder", 1)], &good).unwrap();
    relabelled[7] = 9;
    farm.deliver(relabelled);
    // Each way is open to good ones, and the last one was refused when all are counted.
    send_every_way(&farm, |way| now(way, 1), &good);
    let seq = AtomicU64::new(1);
    farm.until("all refused", |farm| {
        let next = Report { seq: seq.fetch_add(1, Ordering::Relaxed) + 1, ..known.clone() };
        farm.deliver(wire::encode(&[next], &good).unwrap()); // a change, after which to look again
        (refusals(farm) == 2 * 3 * 4 + 1).then_some(())
    })
    .await;
    farm.eligible(5).await;
    assert_eq!(names(&farm), ["known", "memory", "multicast", "tcp", "unicast"]);
    assert_eq!(farm.get("/v1/machines/known")["state"], "ready");
    let kind = |reason: &str| (reason.to_owned(), String::new());
    assert_eq!(refused(&farm), ["bad_tag", "unknown_key", "unsigned"].map(kind));
    for path in ["/v1/refused", "/v1/machines", "/v1/pools", "/metrics"] {
        let (_, body) = get(&farm.url(path), "*/*");
        assert!(!body.contains(SECRET) && !body.contains("another secret"), "{path}: {body}");
    }
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_agent_restarts_and_leaves_as_an_unsigned_one() {
    let (farm, _folder) = signed_farm(|_| {}).await;
    let good = ring(7, SECRET);
    let send = |report: &Report<'_>| {
        farm.deliver(wire::encode(std::slice::from_ref(report), &good).unwrap());
    };
    let before = now("web", 10_000);
    send(&before);
    farm.eligible(1).await;
    let after =
        Report { boot: before.boot + 500, sent_ms: before.sent_ms + 600, seq: 1, ..before.clone() };
    send(&after);
    let is_new = |farm: &Farm| (farm.get("/v1/machines/web")["seq"] == 1).then_some(());
    farm.until("the restarted agent's report", is_new).await;
    send(&Report { state: State::Leaving, seq: 2, ..after.clone() });
    farm.eligible(0).await;
    // What was captured before does not bring it back.
    send(&before);
    send(&Report { seq: 1, ..after.clone() });
    send(&now("last", 1));
    farm.eligible(1).await;
    assert_eq!(farm.get("/v1/machines/web")["alive"], false);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_is_shown_with_machine_skew_and_limit() {
    let (farm, _folder) = signed_farm(|reports| reports.max_skew = Duration::from_secs(30)).await;
    let good = ring(7, SECRET);
    for (machine, skew_s) in [("slow", -400), ("fast", 400), ("nearly", 25)] {
        let report = now(machine, 1);
        let sent_ms = report.sent_ms.saturating_add_signed(skew_s * 1_000);
        farm.deliver(wire::encode(&[Report { sent_ms, ..report }], &good).unwrap());
    }
    farm.deliver(wire::encode(&[Report { sent_ms: 0, ..now("unstamped", 1) }], &good).unwrap());
    let captured = Report { sent_ms: wall_ms() - 20_000, ..now("captured", 1) };
    farm.deliver(wire::encode(&[captured], &good).unwrap());
    farm.deliver(wire::encode(&[now("last", 1)], &good).unwrap());
    farm.eligible(2).await;
    assert_eq!(names(&farm), ["last", "nearly"]);
    let expected = [
        ("before_start", "captured"),
        ("skew", "fast"),
        ("skew", "slow"),
        ("unstamped", "unstamped"),
    ];
    let expected = expected.map(|(reason, machine)| (reason.to_owned(), machine.to_owned()));
    assert_eq!(refused(&farm), expected);
    let (_, shown) = get(&farm.url("/v1/refused"), "*/*");
    assert!(shown.contains("sent 400 s ago by its clock; reports.max_skew is 30 s"), "{shown}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_reports_from_its_networks_only() {
    let allow = AllowConfig {
        machines: "web-*".to_owned(),
        networks: vec!["10.0.0.0/24".parse().unwrap()],
    };
    let mut config = reports(0);
    config.allow = vec![allow];
    let farm = Farm::with_reports(config).await;
    let none = Keyring::default();
    let frame = |machine| wire::encode(&[report(machine, &[("cpu", 0.5)])], &none).unwrap();
    farm.send_udp(&frame("web-1")); // from loopback
    farm.deliver_from(IpAddr::from([10, 0, 1, 2]), frame("web-2"));
    farm.deliver_from(THERE, frame("web-3"));
    farm.send_udp(&frame("db"));
    let listed = |farm: &Farm| (names(farm).len() == 2 && refused(farm).len() == 2).then_some(());
    farm.until("two in, two out", listed).await;
    assert_eq!(names(&farm), ["db", "web-3"]);
    let kinds = ["web-1", "web-2"].map(|machine| ("network".to_owned(), machine.to_owned()));
    assert_eq!(refused(&farm), kinds);
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_cannot_be_shown_spoil_nothing() {
    let mut farm = Farm::new("weighted", "least-loaded").await;
    farm.report(&["good"], &[("cpu", 0.5), ("memory", 0.5)]);
    let quoted = "<b>\"it's\"</b> \\ ${x} ä";
    let good =
        wire::encode(&[report(quoted, &[("cpu", 0.25), ("memory", 0.25)])], &Keyring::default());
    farm.deliver(good.unwrap());
    farm.eligible(2).await;
    // The encoder refuses such names: written into good bytes instead.
    let template = wire::encode(&[report("0123456789", &[("cpu", 0.0)])], &Keyring::default());
    let template = template.unwrap();
    let at = template.windows(10).position(|bytes| bytes == b"0123456789").unwrap();
    for name in [
        b"a\0b\nc\rd\x1bef",
        b"\xff\xfe456789xx",
        b"\xc3\x28\xa0\xa1...xyz",
        b"web\xe2\x80\xae1-ev", // a mark that turns the direction of writing
    ] {
        let mut frame = template.clone();
        frame[at..at + 10].copy_from_slice(&name[..10]);
        farm.deliver(frame);
    }
    let mut long = template[..at - 1].to_vec();
    long.extend_from_slice(&[0xda, 0x27, 0x10]); // 10,000 characters
    long.extend(std::iter::repeat_n(b'x', 10_000));
    long.extend_from_slice(&template[at + 10..]);
    farm.deliver(long);
    let mut empty = template[..at - 1].to_vec();
    empty.push(0xa0);
    empty.extend_from_slice(&template[at + 10..]);
    farm.deliver(empty);
    farm.report(&["last"], &[("cpu", 0.75), ("memory", 0.75)]);
    farm.eligible(3).await;
    let mut expected = ["good", quoted, "last"];
    expected.sort_unstable();
    assert_eq!(names(&farm), expected);
    assert_eq!(farm.target(""), quoted);
    let (status, metrics) = get(&farm.url("/metrics"), "*/*");
    assert_eq!((status, metrics.lines().next_back()), (200, Some("# EOF")));
    for (reason, count) in [("name", 4), ("malformed", 2)] {
        let line = format!("loadline_reports_rejected_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    let (_, shown) = get(&farm.url("/v1/refused"), "*/*");
    assert!(shown.contains("field machine is not a name: 1 to 253 bytes without"), "{shown}");
    farm.stop().await;
}
