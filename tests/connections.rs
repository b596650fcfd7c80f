//! What an agent's TCP connection does when its host is away or closes it, and when the network changes.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use loadline::transport::Outlet;

use crate::support::PATIENCE;
use crate::support::net::{Net, by, reports};

/// The longest pause before a second attempt; the shortest is half of it.
const PAUSE: Duration = Duration::from_millis(200);

/// A host that takes connections and closes them, as one that is full or has other keys, is not met by a
/// storm: though each connection carries a frame, it is tried ever less often.
#[tokio::test(flavor = "multi_thread")]
async fn host_that_closes_connections_is_tried_ever_less_often() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let (frames, queue) = tokio::sync::mpsc::channel(1);
    let outlet = tokio::spawn(Outlet::new(&by(&[&format!("tcp://{to}")]), 1).run(queue));
    let feed = tokio::spawn(async move {
        while frames.send(vec![7; 300]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await; // always one to write
        }
    });
    let attempts = tokio::task::spawn_blocking(move || {
        let mut attempts = Vec::new();
        for _ in 0..5 {
            drop(listener.accept().unwrap());
            attempts.push(Instant::now());
        }
        attempts
    });
    let attempts = tokio::time::timeout(PATIENCE, attempts).await.expect("five attempts").unwrap();
    // Four times the first pause, they would be 0.4 to 0.8 s apart; doubled each time, 1.5 to 3 s.
    let took = attempts[4] - attempts[0];
    assert!(took > 6 * PAUSE, "{took:?}: {attempts:?}");
    feed.abort();
    outlet.await.unwrap();
}

/// O-A13: a cable that is made anew, at either end, and another address: the machine comes back by a new
/// connection, as the same one.
#[test]
fn connection_is_made_anew_when_an_interface_or_an_address_is_another() {
    let Some(net) = Net::lan(&["h", "t"]) else { return };
    let host = net.host("h", reports());
    let _agent = net.agent("t", by(&["tcp://10.77.1.1:12000"]));
    host.offers("t", "10.77.1.2");
    for (machine, number) in [("t", 2), ("h", 1)] {
        net.ip(machine, "link del e1");
        host.lists(&[]);
        net.plug(machine, 1, number);
        net.address(machine, 1, number);
        host.lists(&["t"]);
    }
    net.ip("t", "address del 10.77.1.2/24 dev e1");
    net.ip("t", "address add 10.77.1.22/24 dev e1");
    let begin = Instant::now();
    host.offers("t", "10.77.1.22");
    // The connection says at once that its address is gone; nobody waits for what is not acknowledged.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(host.json("/v1/machines").as_array().unwrap().len(), 1);
}
