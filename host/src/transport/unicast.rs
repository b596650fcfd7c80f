//! Frames to one unicast destination, by datagrams or over a connection.
//!
//! A name is looked up again every [`LOOK_UP`] and after errors, because hosts move; beside the
//! sending, because a look-up can hang. A datagram socket is not connected, so that "port
//! unreachable" from a host that is away is no error here.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::frames::Frames;
use super::outlet::{any, is_too_long};
use super::status::Troubles;
use super::stream;
use crate::config::{Carrier, Destination};

/// How long an answer of the name service is used.
const LOOK_UP: Duration = Duration::from_secs(10);
/// How long the name service may take.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(5);

/// Sends frames until there are no more.
pub(super) async fn send_to(to: Destination, frames: Frames) {
    match to.carrier {
        Carrier::Udp => send_datagrams(&to, frames).await,
        Carrier::Tcp => stream::send_stream(&to, frames).await,
    }
}

async fn send_datagrams(to: &Destination, mut frames: Frames) {
    let mut names = Names::new(&to.authority);
    let mut sockets = [None, None];
    let mut troubles = Troubles::default();
    while let Some(frame) = frames.next().await {
        let sent = match names.addresses().await {
            Ok(addresses) => send_to_first(&mut sockets, &frame, addresses),
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) if troubles.end("") => tracing::info!(%to, "reports are sent again"),
            Ok(()) => {}
            Err(error) if is_too_long(&error) => {
                if troubles.once("too long") {
                    tracing::warn!(%to, bytes = frame.len(), %error, "a frame is lost");
                }
            }
            Err(error) => {
                names.forget();
                if troubles.begin("") {
                    tracing::warn!(%to, %error, "cannot send reports");
                }
            }
        }
    }
}

/// A name may have an address of a family that does not work here: the first that works is used.
fn send_to_first(
    sockets: &mut [Option<UdpSocket>; 2],
    frame: &[u8],
    addresses: &[SocketAddr],
) -> io::Result<()> {
    let mut failure = io::Error::other("the name has no address");
    for address in addresses {
        let socket = &mut sockets[usize::from(address.is_ipv6())];
        let sent = match socket {
            Some(socket) => socket.send_to(frame, address),
            None => {
                open(address.is_ipv4()).and_then(|new| socket.insert(new).send_to(frame, address))
            }
        };
        match sent {
            Ok(_) => return Ok(()),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn open(is_v4: bool) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((any(is_v4), 0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The addresses of a name, kept fresh.
pub(super) struct Names {
    authority: String,
    known: Vec<SocketAddr>,
    asked: Instant,
    answer: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
}

impl Names {
    pub(super) fn new(authority: &str) -> Self {
        // An address needs no look-up, now or later.
        let known = authority.parse().ok().into_iter().collect();
        Self { authority: authority.to_owned(), known, asked: Instant::now(), answer: None }
    }

    /// The addresses to use now; waits for the name service only where none is known.
    pub(super) async fn addresses(&mut self) -> io::Result<&[SocketAddr]> {
        if self.authority.parse::<SocketAddr>().is_ok() {
            return Ok(&self.known);
        }
        if self.answer.as_ref().is_some_and(JoinHandle::is_finished) {
            self.take().await.ok(); // the old addresses are better than none
        }
        if self.known.is_empty() {
            self.ask();
            self.take().await?;
        } else if self.asked.elapsed() >= LOOK_UP {
            self.ask();
        }
        Ok(&self.known)
    }

    /// What is known did not work: the next call waits for the name service.
    pub(super) fn forget(&mut self) {
        if self.authority.parse::<SocketAddr>().is_err() {
            self.known.clear();
        }
    }

    fn ask(&mut self) {
        if self.answer.is_none() {
            self.asked = Instant::now();
            let authority = self.authority.clone();
            self.answer = Some(tokio::spawn(look_up(authority)));
        }
    }

    async fn take(&mut self) -> io::Result<()> {
        if let Some(answer) = self.answer.take() {
            self.known = answer.await.map_err(io::Error::other)??;
        }
        Ok(())
    }
}

async fn look_up(authority: String) -> io::Result<Vec<SocketAddr>> {
    match timeout(LOOK_UP_LIMIT, lookup_host(authority)).await {
        Ok(found) => Ok(found?.collect()),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the name service does not answer")),
    }
}
