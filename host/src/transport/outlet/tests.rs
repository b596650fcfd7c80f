//! What is sent, lost and said of it, by sockets of this machine.

use tokio::task::yield_now;

use super::super::log::Log;
use super::*;
use crate::config::Config;

/// An outlet to a group and to a destination, and the ears of both.
fn outlet(group: Ipv4Addr) -> (Outlet, [UdpSocket; 2]) {
    let by_group = UdpSocket::bind((group, 0)).unwrap();
    by_group.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
    let ears = [by_group, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()];
    let [group_port, port] = [&ears[0], &ears[1]].map(|ear| ear.local_addr().unwrap().port());
    let text = format!(
        "[agent]\n[reports]\ninterfaces = [\"lo\"]\ngroup = \"{group}:{group_port}\"\n\
         send_to = [\"udp://127.0.0.1:{port}\"]"
    );
    (Outlet::new(&Config::parse(&text).unwrap().reports, 1), ears)
}

/// Sends a report by both ways; it must come.
async fn check_that_both_hear(mut outlet: Outlet, ears: [UdpSocket; 2]) {
    outlet.send(b"report");
    let (_, no_more) = mpsc::channel(1);
    outlet.run(no_more).await;
    for ear in ears {
        ear.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        while ear.recv(&mut [0; 100]).unwrap() != b"report".len() {}
    }
}

/// O-A15: for a minute nothing can be sent to the group. That takes a word when it begins and one when
/// it is over, however often it is tried.
#[tokio::test]
async fn minute_in_which_nothing_can_be_sent_costs_two_words() {
    let (log, _guard) = Log::here();
    let (mut outlet, ears) = outlet(Ipv4Addr::new(239, 76, 15, 1));
    ears[1].set_nonblocking(true).unwrap();
    for _second in 0..60 {
        outlet.look();
        for _report in 0..10 {
            for sender in &mut outlet.senders {
                sender.to.set_ip(Ipv4Addr::BROADCAST.into()); // which no socket may, unasked
            }
            outlet.send(b"lost");
            yield_now().await;
        }
        assert!(outlet.senders.is_empty(), "it is opened anew");
        while ears[1].recv(&mut [0; 100]).is_ok() {} // what came by the destination
    }
    ears[1].set_nonblocking(false).unwrap();
    outlet.look();
    check_that_both_hear(outlet, ears).await;
    let log = log.text();
    let said = |words| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        (said("no reports here: they cannot be sent"), said("reports are sent again")),
        (1, 1),
        "{log}"
    );
    assert_eq!(log.lines().count(), 2, "{log}");
}

/// It is said once a way, and the reports of others go on by the same socket.
#[tokio::test]
async fn frames_that_no_datagram_carries_are_lost_alone() {
    let (log, _guard) = Log::here();
    let (mut outlet, ears) = outlet(Ipv4Addr::new(239, 76, 15, 2));
    outlet.look();
    let port = |outlet: &Outlet| outlet.senders[0].socket.local_addr().unwrap().port();
    let before = port(&outlet);
    for _report in 0..10 {
        outlet.send(&vec![0; 70_000]);
        yield_now().await;
    }
    assert_eq!(port(&outlet), before);
    check_that_both_hear(outlet, ears).await;
    let log = log.text();
    assert_eq!(log.lines().filter(|line| line.contains("a frame is lost")).count(), 2, "{log}");
    assert_eq!(log.lines().count(), 2, "{log}");
}
