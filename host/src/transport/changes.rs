//! When to look at the interfaces again: soon after the kernel says that a link or an address came,
//! went or changed, and every [`REFRESH`] for what it did not say.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use tokio::net::UdpSocket;
use tokio::time::{Instant, Interval, interval, sleep_until};

/// Time between two looks when the kernel says nothing.
const REFRESH: Duration = Duration::from_secs(5);
/// Changes come in swarms: this long after the first one everything is looked at once.
const SETTLE: Duration = Duration::from_millis(50);
/// Kernel's groups of messages about links, IPv4 and IPv6 addresses (rtnetlink(7)).
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

#[derive(Debug)]
pub(super) struct Changes {
    messages: Option<UdpSocket>,
    /// Set from a change until it was looked at, so that a caller that stops waiting misses nothing.
    settled: Option<Instant>,
    beat: Interval,
}

impl Changes {
    pub(super) fn new() -> Self {
        let messages = open().inspect_err(|error| {
            tracing::debug!(%error, "the kernel does not tell of interfaces: looking every {REFRESH:?}");
        });
        let mut beat = interval(REFRESH);
        beat.reset();
        Self { messages: messages.ok(), settled: None, beat }
    }

    /// Asks for a look after this time.
    pub(super) fn again_in(&mut self, wait: Duration) {
        let at = Instant::now() + wait;
        self.settled = Some(self.settled.map_or(at, |known| known.min(at)));
    }

    /// Waits until it is time to look.
    pub(super) async fn next(&mut self) {
        loop {
            if let Some(at) = self.settled {
                sleep_until(at).await;
                self.settled = None;
                self.drain();
                self.beat.reset();
                return;
            }
            match &self.messages {
                Some(messages) => tokio::select! {
                    _ = messages.readable() => {}
                    _ = self.beat.tick() => return,
                },
                None => {
                    self.beat.tick().await;
                    return;
                }
            }
            self.again_in(SETTLE);
        }
    }

    /// Reads what was said; what it was does not matter.
    fn drain(&mut self) {
        let Some(messages) = &self.messages else { return };
        let mut buffer = [0; 8192];
        loop {
            let Err(error) = messages.try_recv(&mut buffer) else { continue };
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOBUFS | Errno::EINTR) => {} // messages were lost: also a change
                _ if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => {
                    tracing::warn!(%error, "the kernel tells no more of interfaces: looking every {REFRESH:?}");
                    self.messages = None;
                    return;
                }
            }
        }
    }
}

/// A netlink socket. The runtime knows sockets by type; this one is read like one of datagrams.
fn open() -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let route = SockProtocol::NetlinkRoute;
    let messages = socket(AddressFamily::Netlink, SockType::Raw, flags, route)?;
    bind(messages.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    UdpSocket::from_std(messages.into())
}
