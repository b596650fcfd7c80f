//! What a machine that is told to stop says to hosts, and what becomes of what is open then.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use loadline::report::{Keyring, Report, wire};
use socket2::SockRef;

use crate::process::Process;
use crate::support::{Farm, get, report, reports};

/// Time for which a host finishes open requests.
const DRAIN: Duration = Duration::from_secs(4);

/// An agent and a host in one process; its reports go to the group at this port.
fn both(folder: &tempfile::TempDir, port: u16) -> (Process, String) {
    let config = format!(
        "[agent]\nmachine = \"here\"\ninterval = \"10s\"\nmetric = []\npush = \"unix:{}\"\n\
         [reports]\ngroup = \"239.255.76.76:{port}\"\ninterfaces = [\"lo\"]\n\
         [host]\nlisten = \"127.0.0.1:0\"\n",
        folder.path().join("push").display()
    );
    let mut process = Process::start(folder, &config, &[]);
    let mut seen = Vec::new();
    let line = process.until_with("try ", &mut seen);
    let url = line.split_whitespace().last().unwrap().to_owned();
    if !seen.iter().any(|line| line.contains("machine reports")) {
        process.until("machine reports");
    }
    (process, url)
}

/// A request whose head is still on its way; it has been accepted.
fn half_request(url: &str) -> TcpStream {
    let address = url.trim_start_matches("http://").split('/').next().unwrap();
    let mut open = TcpStream::connect(address).unwrap();
    open.write_all(b"GET /v1/target HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    get(url, "application/json"); // came later and is answered
    open
}

fn finish(mut open: TcpStream) -> String {
    open.write_all(b"\r\n").unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).unwrap();
    answer
}

fn terminate(process: &Process) {
    let pid = process.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

/// O-C15: hosts are told at once, however long a client of the process's own host or an application takes;
/// who is open there is answered, with a machine that stays.
#[tokio::test(flavor = "multi_thread")]
async fn machine_leaves_at_once_and_open_requests_get_another_one() {
    let farm = Farm::with_reports(reports(0)).await;
    let port = farm.host().report_port();
    let folder = tempfile::tempdir().unwrap();
    let (mut process, url) = both(&folder, port);
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SockRef::from(&sender).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let there = Report { interval_ms: 60_000, ..report("there", &[]) };
    let frame = wire::encode(&[there], &Keyring::default()).unwrap();
    sender.send_to(&frame, (Ipv4Addr::new(239, 255, 76, 76), port)).unwrap();
    process.until("machine reports");
    farm.eligible(2).await;
    let open = half_request(&url);
    let mut push = UnixStream::connect(folder.path().join("push")).unwrap();
    push.write_all(b"POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    let begin = Instant::now();
    terminate(&process);
    farm.eligible(1).await;
    let took = begin.elapsed();
    eprintln!("the machine is out {took:?} after the signal");
    assert!(took < DRAIN / 4, "{took:?}"); // a machine under test may be busy
    assert_eq!(farm.get("/v1/machines/here")["state"], "leaving");
    assert_eq!(farm.target(""), "there");
    process.until("machine leaves");
    let answer = finish(open);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("\"machine\":\"there\""), "{answer}");
    assert_eq!(process.end("-TERM"), Some(0));
    farm.stop().await;
}

/// With no other machine the answer is that there is none, and when to ask again; nobody is cut off.
#[test]
fn last_machine_that_leaves_is_handed_out_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, url) = both(&folder, 0);
    let open = half_request(&url);
    terminate(&process);
    process.until("machine leaves");
    let answer = finish(open);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.to_lowercase().contains("\r\nretry-after: "), "{answer}");
    assert_eq!(process.end("-TERM"), Some(0));
}

/// O-C15 by every way: what is last is not lost with the connection that carries it.
#[tokio::test(flavor = "multi_thread")]
async fn last_report_arrives_by_datagram_and_connection_too() {
    let farm = Farm::with_reports(reports(0)).await;
    let port = farm.host().report_port();
    for carrier in ["udp", "tcp"] {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[agent]\nmachine = \"{carrier}\"\ninterval = \"10s\"\nmetric = []\n\
             [reports]\ngroup = []\nsend_to = [\"{carrier}://127.0.0.1:{port}\"]\n"
        );
        let agent = Process::start(&folder, &config, &["agent"]);
        farm.eligible(1).await;
        let begin = Instant::now();
        terminate(&agent);
        farm.eligible(0).await;
        eprintln!("by {carrier} the machine is out {:?} after the signal", begin.elapsed());
        assert_eq!(farm.get(&format!("/v1/machines/{carrier}"))["state"], "leaving");
        assert_eq!(agent.end("-TERM"), Some(0));
    }
    farm.stop().await;
}
