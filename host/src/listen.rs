//! TCP listeners: an address in, a listener out, also beside one of this process that is in its way.
//!
//! Two listeners of one port, one of every address and one of some (`0.0.0.0` and `127.0.0.1`), exclude
//! each other unless both agree. They do for the moment of a change, so that the address is served at
//! every moment; otherwise two processes could share a port unnoticed. And [`room_for`]: how many
//! connections this process can afford.

use std::io;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1_024;

/// What an IPv6 address of all interfaces takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// IPv6 alone: IPv4 has a listener of its own.
    Apart,
    /// IPv4 too, as the system is set.
    Together,
}

/// Listens; `beside` those of this process that are at other addresses of the port.
///
/// # Errors
/// The system's reason.
pub fn tcp<'l>(
    address: SocketAddr,
    families: Families,
    beside: impl Iterator<Item = &'l TcpListener>,
) -> io::Result<TcpListener> {
    let refused = match bind(address, families, false) {
        Ok(listener) => return Ok(listener),
        Err(refused) => refused,
    };
    let is_in_the_way = |listener: &&TcpListener| {
        let known = listener.local_addr();
        known.is_ok_and(|known| known.port() == address.port() && known != address)
    };
    let ours: Vec<_> = beside.filter(is_in_the_way).collect();
    if ours.is_empty() || refused.kind() != io::ErrorKind::AddrInUse {
        return Err(refused);
    }
    let agree =
        |is_shared| ours.iter().try_for_each(|one| SockRef::from(*one).set_reuse_port(is_shared));
    let listener = agree(true).and_then(|()| bind(address, families, true));
    agree(false)?;
    let listener = listener?;
    SockRef::from(&listener).set_reuse_port(false)?;
    Ok(listener)
}

fn bind(address: SocketAddr, families: Families, is_shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // connections of a process before may still be closing
    socket.set_reuse_port(is_shared)?;
    if address.is_ipv6() && families == Families::Apart {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Connections that there may be of a kind which takes one in so many of the files that this process
/// may open, at most `most`.
#[must_use]
pub fn room_for(most: u64, one_in: u64) -> usize {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1_024, 1_024));
    usize::try_from((files / one_in).clamp(16, most)).unwrap_or(16)
}
