//! Which reader reads what, and who waits for whom.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc;

use super::*;
use crate::config::MetricConfig;

#[cfg(feature = "agent")]
#[test]
fn each_path_that_may_hang_has_a_reader_of_its_own() {
    let sources = ["disk.space", "disk.space:/", "disk.space:/far", "cpu", "memory"].map(|what| {
        let source = format!("system:{what}").parse().expect("a source");
        MetricConfig { every: Duration::from_secs(1), ..MetricConfig::new(what, source) }
    });
    let config = AgentConfig { metrics: sources.into(), ..AgentConfig::default() };
    let places: Vec<_> = plan(&config).into_iter().map(|planned| planned.places).collect();
    let meters = [vec![0], vec![1], vec![2], vec![3, 4]];
    assert_eq!(places, meters.map(|of| of.into_iter().map(Place::Meter).collect::<Vec<_>>()));
}

/// Hangs until it is told a value, and whether it ran out of time before.
struct Hanging(mpsc::Receiver<f64>, bool);

impl Read for Hanging {
    fn read(&mut self) -> Vec<Reading> {
        vec![self.0.recv().map_or(Reading::NotYet, Reading::Value)]
    }

    fn ran_out_of_time(&self) -> bool {
        self.1
    }
}

#[test]
fn pages_that_hang_leave_threads_for_what_answers() {
    static ONE: Semaphore = Semaphore::const_new(1);
    let turns = Turns { usual: &ONE, slow: &ONE };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(2).enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (tell, told): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
        let pages = told.into_iter().map(|told| {
            let mut page = Reader::Blocking(Some(Box::new(Hanging(told, false))), Some(turns));
            tokio::spawn(async move { page.read(1).await })
        });
        let pages: Vec<_> = pages.collect();
        while ONE.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let (answer, answered) = mpsc::channel();
        answer.send(3.0).expect("it listens");
        let mut other = Reader::Blocking(Some(Box::new(Hanging(answered, false))), None);
        let read = tokio::time::timeout(Duration::from_secs(10), other.read(1)).await;
        for (tell, value) in tell.iter().zip([1.0, 2.0]) {
            tell.send(value).expect("it listens");
        }
        assert_eq!(read, Ok(vec![Reading::Value(3.0)]));
        for (page, value) in pages.into_iter().zip([1.0, 2.0]) {
            assert_eq!(page.await.expect("read"), [Reading::Value(value)]);
        }
    });
}

#[tokio::test]
async fn pages_that_hang_again_and_again_keep_no_turn_from_those_that_answer() {
    static USUAL: Semaphore = Semaphore::const_new(1);
    static SLOW: Semaphore = Semaphore::const_new(1);
    let turns = Turns { usual: &USUAL, slow: &SLOW };
    let page = |told, slow| Reader::Blocking(Some(Box::new(Hanging(told, slow))), Some(turns));
    let (tell, told): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel()).unzip();
    let hanging = told.into_iter().map(|told| {
        let mut page = page(told, true);
        tokio::spawn(async move { page.read(1).await })
    });
    let hanging: Vec<_> = hanging.collect();
    while SLOW.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let (answer, answered) = mpsc::channel();
    answer.send(3.0).expect("it listens");
    let mut healthy = page(answered, false);
    let read = tokio::time::timeout(Duration::from_secs(10), healthy.read(1)).await;
    // Before anything is asserted: the runtime waits for its threads.
    for tell in &tell {
        tell.send(1.0).expect("it listens");
    }
    assert_eq!(read, Ok(vec![Reading::Value(3.0)]));
    for page in hanging {
        assert_eq!(page.await.expect("read"), [Reading::Value(1.0)]);
    }
}

/// By a page that says nothing, one that stops in the middle, one that is whole and none at all.
#[test]
fn what_ran_out_of_time_is_a_page_that_hangs() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n";
    let answers = [Some(""), Some("q"), Some("q 7\n"), None];
    let ran_out = answers.map(|body| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let parts = Parts::new(&[Part::Series("q".parse().expect("a query"))]);
        let limit = Duration::from_millis(if body == Some("q 7\n") { 60_000 } else { 300 });
        let mut page = Page::new(&format!("http://{address}/"), limit, parts);
        let serve = move || {
            let (mut client, _) = listener.accept().expect("a client");
            let asked = client.read(&mut [0; 4_096]).expect("a request");
            assert!(asked > 0);
            if let Some(body) = body.filter(|body| !body.is_empty()) {
                client.write_all(format!("{head}{body}").as_bytes()).expect("it is there");
            }
            std::io::copy(&mut client, &mut std::io::sink()).ok(); // until it has gone
        };
        let server = body.map(|_| std::thread::spawn(serve));
        page.read();
        let ran_out = page.ran_out_of_time();
        drop(page);
        if let Some(server) = server {
            server.join().expect("served");
        }
        ran_out
    });
    assert_eq!(ran_out, [true, true, false, false]);
}
