//! What a service manager is told: ready, alive, stopping; by `sd_notify` of systemd, where
//! `NOTIFY_SOCKET` says so.
//!
//! A message that cannot be sent is logged and changes nothing: the manager draws its own conclusions.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager of this process, if there is one.
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// The one that the environment names.
    pub(super) fn from_environment() -> Self {
        let path = std::env::var_os("NOTIFY_SOCKET");
        let socket = path.and_then(|path| {
            let connected = connect(path.as_bytes());
            connected.inspect_err(|error| tracing::warn!(%error, "NOTIFY_SOCKET")).ok()
        });
        let watched_us = std::env::var("WATCHDOG_USEC").ok().and_then(|us| us.parse().ok());
        let of_this =
            std::env::var("WATCHDOG_PID").map_or(true, |pid| pid.parse() == Ok(std::process::id()));
        let watchdog = watched_us.filter(|_| of_this).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Everything has started; from now on, and while the runtime lives, it is told so in time.
    pub(super) fn ready(&self) {
        self.tell("READY=1");
        let Some((socket, address)) = &self.socket else { return };
        let (Some(limit), Ok(socket)) = (self.watchdog, socket.try_clone()) else { return };
        let address = address.clone();
        tokio::spawn(async move {
            let mut beat = tokio::time::interval(limit / 2);
            loop {
                beat.tick().await;
                send(&socket, &address, "WATCHDOG=1");
            }
        });
    }

    /// The end begins.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            send(socket, address, message);
        }
    }
}

/// A path, or with `@` a name without a file.
fn connect(path: &[u8]) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn send(socket: &UnixDatagram, address: &SocketAddr, message: &str) {
    if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
        tracing::warn!(%error, message, "cannot tell the service manager");
    }
}
