//! Frames over TCP connections: the host's side.
//!
//! A connection that sends anything but frames is closed at once; one that is silent for longer than
//! its last frame promised ([`Verdict`]), or sends no frame soon after it was made, is closed too.
//! When all places are taken, the connection that has been silent for longest makes room: first
//! those that have not sent a frame yet. So half-open connections cannot fill the host.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::batch::{Batch, Datagram};
use super::status::{Status, count};
use super::stream::keep_alive;
use crate::report::FRAME_BYTES_MAX;
use crate::telemetry::Quiet;

/// Connections at most, where the system allows as many descriptors.
const CONNECTIONS_MAX: u64 = 8_192;
/// Time for the first frame of a connection.
const FIRST_FRAME: Duration = Duration::from_secs(10);
/// Bytes of a frame's length.
const LENGTH_BYTES: usize = 4;
/// Pause after a connection that could not be taken: out of descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// What a frame of a connection is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another one comes within this time, or the connection is closed.
    Good(Duration),
    /// Whoever sends this has no business here.
    Bad,
}

/// Where received batches go, and who judges frames.
pub(super) trait Take: Fn(Batch) + Clone + Send + Sync + 'static {}
impl<T: Fn(Batch) + Clone + Send + Sync + 'static> Take for T {}
pub(super) trait Judge: Fn(&[u8]) -> Verdict + Clone + Send + Sync + 'static {}
impl<T: Fn(&[u8]) -> Verdict + Clone + Send + Sync + 'static> Judge for T {}

/// The connections that are open.
#[derive(Debug)]
struct Connections {
    open: Mutex<HashMap<u64, Connection>>,
    limit: usize,
    status: Arc<Status>,
}

#[derive(Debug)]
struct Connection {
    /// The last frame; `None`: none yet.
    heard: Option<Instant>,
    since: Instant,
    task: Option<AbortHandle>,
}

/// Takes connections until the task is dropped.
pub(super) async fn listen(
    listener: TcpListener,
    status: Arc<Status>,
    take: impl Take,
    judge: impl Judge,
) {
    let limit = connection_limit();
    let all = Arc::new(Connections { open: Mutex::default(), limit, status });
    let mut quiet = Quiet::default();
    for id in 0.. {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                count(&all.status.receive_errors);
                if quiet.may("accept") {
                    tracing::warn!(%error, "cannot take a TCP connection");
                }
                sleep(PAUSE).await;
                continue;
            }
        };
        if all.make_room() && quiet.may("room") {
            tracing::warn!(
                limit,
                "all TCP connections are taken: the most silent is closed for each new one; raise the limit of open files (ulimit -n)"
            );
        }
        let from = from.ip().to_canonical();
        let (take, judge, known) = (take.clone(), judge.clone(), Arc::clone(&all));
        all.add(id);
        let task = tokio::spawn(async move {
            let _end = Ended { id, all: Arc::clone(&known) };
            if let Err(end) = read(stream, from, id, &known, take, judge).await {
                count(&known.status.connections_closed);
                tracing::debug!(%from, %end, "TCP connection closed");
            }
        });
        all.started(id, task.abort_handle());
    }
}

/// Takes the connection out of the table, however its task ended.
struct Ended {
    id: u64,
    all: Arc<Connections>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
        self.all.status.connections_open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the most silent connection if there is no room for one more; whether it had to.
    fn make_room(&self) -> bool {
        let mut open = self.lock();
        if open.len() < self.limit {
            return false;
        }
        let silent = open.iter().min_by_key(|(_, one)| (one.heard, one.since)).map(|(id, _)| *id);
        if let Some(task) = silent.and_then(|id| open.remove(&id)).and_then(|one| one.task) {
            task.abort();
            count(&self.status.connections_closed);
        }
        true
    }

    fn add(&self, id: u64) {
        let connection = Connection { heard: None, since: Instant::now(), task: None };
        self.lock().insert(id, connection);
        count(&self.status.connections);
        count(&self.status.connections_open);
    }

    fn started(&self, id: u64, task: AbortHandle) {
        if let Some(connection) = self.lock().get_mut(&id) {
            connection.task = Some(task);
        }
    }

    fn heard(&self, id: u64, at: Instant) {
        if let Some(connection) = self.lock().get_mut(&id) {
            connection.heard = Some(at);
        }
    }
}

/// Reads frames until the other side closes; `Err`: why we did.
async fn read(
    mut stream: TcpStream,
    from: IpAddr,
    id: u64,
    all: &Connections,
    take: impl Take,
    judge: impl Judge,
) -> Result<(), String> {
    keep_alive(&stream).map_err(|error| error.to_string())?;
    let mut pending = Vec::new();
    let mut patience = FIRST_FRAME;
    let mut deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match timeout(left, stream.read_buf(&mut pending)).await {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no report for {patience:?}")),
        }
        let now = Instant::now();
        let mut batch = Batch::default();
        let mut rest = &*pending;
        let mut bad = None;
        while let Some(frame) = first(rest)? {
            batch.push(Datagram { bytes: frame, received: now.into_std(), from });
            rest = &rest[LENGTH_BYTES + frame.len()..];
            match judge(frame) {
                Verdict::Good(next) => patience = next,
                Verdict::Bad => {
                    bad = Some("a frame that is not a report for this host".to_owned());
                    break;
                }
            }
        }
        let used = pending.len() - rest.len();
        pending.drain(..used);
        if used > 0 {
            take(batch); // the bad one too: who reads it counts it
            all.heard(id, now);
            deadline = now + patience;
        }
        if let Some(bad) = bad {
            return Err(bad);
        }
    }
}

/// The first frame; `None`: not whole yet.
fn first(bytes: &[u8]) -> Result<Option<&[u8]>, String> {
    let Some((len, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let len = usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX);
    if !(1..=FRAME_BYTES_MAX).contains(&len) {
        return Err(format!("not frames: a length of {len} bytes"));
    }
    Ok(rest.get(..len))
}

/// Half of the descriptors that this process may have: the rest is for answers.
fn connection_limit() -> usize {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .unwrap_or((1_024, 1_024));
    usize::try_from((soft / 2).clamp(16, CONNECTIONS_MAX)).unwrap_or(16)
}

/// A listener on a port of one family.
pub(super) fn bind(is_v4: bool, port: u16) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};

    let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?; // not to wait for old connections to fade
    if !is_v4 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&std::net::SocketAddr::new(super::outlet::any(is_v4), port).into())?;
    socket.listen(1_024)?;
    TcpListener::from_std(socket.into())
}
