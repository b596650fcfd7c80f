use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tokio::task::yield_now;

use super::*;
use crate::config::Config;

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// O-A15: for a minute nothing can be sent, by the group or by datagram. Each way says a word when it
/// fails and one when it works again, however often it is tried, and then sends.
#[tokio::test]
async fn minute_in_which_nothing_can_be_sent_costs_four_words() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let group = Ipv4Addr::new(239, 76, 15, 1);
    let by_group = UdpSocket::bind((group, 0)).unwrap();
    by_group.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
    let direct = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ports = [&by_group, &direct].map(|ear| ear.local_addr().unwrap().port());
    let text = format!(
        "[agent]\n[reports]\ninterfaces = [\"lo\"]\ngroup = \"{group}:{}\"\nsend_to = [\"udp://127.0.0.1:{}\"]",
        ports[0], ports[1]
    );
    let mut outlet = Outlet::new(&Config::parse(&text).unwrap().reports, 1);
    let too_much = vec![0; 70_000]; // for a datagram: sending fails, as on a link that is down
    for _second in 0..60 {
        outlet.look();
        for _report in 0..10 {
            outlet.send(&too_much);
            yield_now().await;
        }
    }
    outlet.look();
    outlet.send(b"report");
    let (_, no_more) = mpsc::channel(1);
    outlet.run(no_more).await;
    for ear in [by_group, direct] {
        ear.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(ear.recv(&mut [0; 100]).unwrap(), b"report".len());
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let said = |words| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!((said("cannot send reports"), said("reports are sent again")), (2, 2), "{log}");
    assert_eq!(log.lines().count(), 4, "{log}");
}
