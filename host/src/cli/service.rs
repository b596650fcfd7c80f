//! What a service manager is told: ready, alive, stopping; by `sd_notify` of systemd, where
//! `NOTIFY_SOCKET` says so.
//!
//! A message that cannot be sent is logged and changes nothing: the manager draws its own conclusions.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The service manager of this process, if there is one.
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    /// Nothing has ended that should run.
    is_well: Arc<AtomicBool>,
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
        Self { socket, watchdog, is_well: Arc::new(AtomicBool::new(true)) }
    }

    /// Everything has started; from now on, and while the runtime lives and nothing has ended, it is told
    /// so in time.
    pub(super) fn ready(&self) {
        self.tell("READY=1");
        let Some((socket, address)) = &self.socket else { return };
        let (Some(limit), Ok(socket)) = (self.watchdog, socket.try_clone()) else { return };
        let (address, is_well) = (address.clone(), Arc::clone(&self.is_well));
        tokio::spawn(async move {
            let mut beat = tokio::time::interval(limit / 2);
            loop {
                beat.tick().await;
                feed(&socket, &address, &is_well);
            }
        });
    }

    /// Takes note of what has ended and should run: the manager is to start this process anew.
    pub(super) fn note(&self, ended: Option<String>) {
        if let Some(ended) = ended
            && self.is_well.swap(false, Ordering::Relaxed)
        {
            tracing::error!(%ended, "a part of this process has ended: it has to be started anew");
        }
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

/// Tells the watchdog that this process lives, if nothing of it has ended.
fn feed(socket: &UnixDatagram, address: &SocketAddr, is_well: &AtomicBool) {
    if is_well.load(Ordering::Relaxed) {
        send(socket, address, "WATCHDOG=1");
    }
}

fn send(socket: &UnixDatagram, address: &SocketAddr, message: &str) {
    if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
        tracing::warn!(%error, message, "cannot tell the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_until_something_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_nonblocking(true).expect("set");
        let is_fed = |of: &Manager| {
            let (socket, address) = of.socket.as_ref().expect("a manager");
            feed(socket, address, &of.is_well);
            manager.recv(&mut [0; 64]).is_ok()
        };
        let of_this = Manager {
            socket: Some(connect(path.as_os_str().as_bytes()).expect("a way there")),
            watchdog: Some(Duration::from_secs(2)),
            is_well: Arc::new(AtomicBool::new(true)),
        };
        assert!(is_fed(&of_this));
        of_this.note(None);
        assert!(is_fed(&of_this));
        of_this.note(Some("loadline-intake".to_owned()));
        assert!(!is_fed(&of_this));
        of_this.note(None);
        assert!(!is_fed(&of_this), "what has ended does not come back");
    }
}
