//! Sockets that fail and are opened again, and interfaces that come and go.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU32;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval};

use super::super::log::Log;
use super::*;
use crate::config::Config;

const PATIENCE: Duration = Duration::from_secs(60);

/// Whatever ends the task of a socket, reports are heard again, by datagram and by the group.
#[tokio::test(flavor = "multi_thread")]
async fn socket_whose_task_ends_is_opened_again_and_joins_again() {
    let (inlet, status) =
        bind("[host]\n[reports]\ngroup = \"239.76.15.3:0\"\ninterfaces = [\"lo\"]");
    let port = inlet.port();
    let is_receiving = || status.is_receiving.load(Ordering::Relaxed);
    assert!(is_receiving());
    let (told, mut batches) = mpsc::unbounded_channel();
    let bad = Arc::new(AtomicU32::new(0));
    let take = {
        let bad = Arc::clone(&bad);
        move |batch: Batch| {
            for datagram in batch.iter() {
                if datagram.bytes == b"bad" {
                    bad.fetch_add(1, Ordering::Relaxed);
                    panic!("a fault of whoever takes it, on purpose");
                }
                told.send(datagram.bytes.to_vec()).expect("the test waits");
            }
        }
    };
    let running = tokio::spawn(inlet.run(take, |_| Verdict::Bad));
    let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket2::SockRef::from(&sender).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    for (number, to) in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(239, 76, 15, 3)].iter().enumerate() {
        sender.send_to(b"bad", (*to, port)).unwrap();
        let good = number.to_string();
        let begin = Instant::now();
        let mut again = interval(Duration::from_millis(5));
        // What is sent to a socket that is just closed is lost.
        while batches.try_recv().ok().is_none_or(|bytes| bytes != good.as_bytes()) {
            again.tick().await;
            sender.send_to(good.as_bytes(), (*to, port)).unwrap();
            assert!(begin.elapsed() < PATIENCE, "deaf at {to}");
        }
        assert_eq!(bad.load(Ordering::Relaxed) as usize, number + 1);
    }
    let (begin, mut again) = (Instant::now(), interval(Duration::from_millis(5)));
    while !is_receiving() {
        again.tick().await;
        assert!(begin.elapsed() < PATIENCE, "all sockets are open");
    }
    running.abort();
}

/// A socket that fails whenever it is opened costs two words: that it is opened again, and that reports come.
#[tokio::test]
async fn socket_that_fails_again_and_again_is_told_of_once() {
    const TIMES: u32 = 10;
    let (log, _guard) = Log::here();
    let (inlet, status) = bind("[host]\n[reports]\ngroup = []\nport = 0\ninterfaces = [\"lo\"]");
    let port = inlet.port();
    let bad = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&bad);
    let take = move |_: Batch| {
        counted.fetch_add(1, Ordering::Relaxed);
        panic!("a fault of whoever takes it, on purpose");
    };
    let running = tokio::spawn(inlet.run(take, |_| Verdict::Bad));
    let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (begin, mut again) = (Instant::now(), interval(Duration::from_millis(5)));
    let is_receiving = || status.is_receiving.load(Ordering::Relaxed);
    while bad.load(Ordering::Relaxed) < TIMES || !is_receiving() {
        again.tick().await;
        if bad.load(Ordering::Relaxed) < TIMES {
            sender.send_to(b"bad", (Ipv4Addr::LOCALHOST, port)).unwrap();
        }
        assert!(begin.elapsed() < PATIENCE, "{}", log.text());
    }
    running.abort();
    let text = log.text();
    let said = |words| text.lines().filter(|line| line.contains(words)).count();
    assert_eq!(said("a socket for reports has failed"), 1, "{text}");
    assert_eq!(said("reports are received again"), 1, "{text}");
    assert_eq!(said("WARN"), 1, "{text}");
}

/// As long as a socket cannot be opened, that is to be seen.
#[tokio::test]
async fn host_that_hears_less_than_it_should_shows_it() {
    let (mut inlet, status) =
        bind("[host]\n[reports]\ngroup = []\nport = 0\ninterfaces = [\"lo\"]");
    let is_receiving = || status.is_receiving.load(Ordering::Relaxed);
    let nowhere = SocketAddr::from(([203, 0, 113, 1], 9)); // of no machine
    let mut ears = Ears::lacking(nowhere);
    let take = |_: Batch| {};
    for failed in [Some("a fault".to_owned()), None, None] {
        inlet.hear_again(failed, &mut ears, &take);
        assert!(!is_receiving());
    }
    inlet.hear_again(None, &mut Ears::default(), &take);
    assert!(is_receiving());
}

fn bind(text: &str) -> (Inlet, Arc<Status>) {
    let config = Config::parse(text).unwrap().reports;
    let status = Arc::new(Status::default());
    let connections = Arc::new(Connections::new(Arc::clone(&status)));
    (Inlet::bind(&config, Arc::clone(&status), connections).unwrap(), status)
}
