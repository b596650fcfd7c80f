//! Frames over TCP connections: the host's side.
//!
//! A connection that sends anything but frames is closed at once; one that is silent for longer than
//! its last frame promised ([`Verdict`]), or sends no frame soon after it was made, is closed too.
//! When all places are taken, or those of one address, the most silent connection makes room
//! ([`Connected`]). So neither half-open connections nor one peer can fill the host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::batch::{Batch, Datagram};
use super::connected::{Connected, Full};
use super::status::{Status, count};
use super::stream::keep_alive;
use crate::listen::{self, Families};
use crate::report::{FRAME_BYTES_MAX, MAGIC};
use crate::telemetry::Quiet;

/// Connections at most, and one in so many files that the process may open: the rest is for answers.
const CONNECTIONS_MAX: (u64, u64) = (8_192, 2);
/// Time for the first frame of a connection.
const FIRST_FRAME: Duration = Duration::from_secs(10);
/// Room for what has arrived that a connection keeps between two frames.
const IDLE_BYTES: usize = 4_096;
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

/// The TCP side of a report port: who listens, and who is connected.
///
/// It outlives the [`Inlet`](super::Inlet) that is replaced by another: a listener whose address stays
/// goes on, and so do the connections. What it holds ends with it.
#[derive(Debug)]
pub struct Connections {
    table: Arc<Table>,
    listeners: Mutex<Vec<Listener>>,
}

#[derive(Debug)]
struct Listener {
    at: SocketAddr,
    socket: Arc<TcpListener>,
    /// Dropped: it takes who is connected already, and ends.
    retire: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The connections that are open.
#[derive(Debug)]
struct Table {
    open: Mutex<Connected>,
    next: AtomicU64,
    status: Arc<Status>,
}

impl Connections {
    /// Nobody listens yet.
    #[must_use]
    pub fn new(status: Arc<Status>) -> Self {
        let (most, one_in) = CONNECTIONS_MAX;
        let open = Mutex::new(Connected::new(listen::room_for(most, one_in)));
        let table = Table { open, next: AtomicU64::new(0), status };
        Self { table: Arc::new(table), listeners: Mutex::default() }
    }

    /// Binds those of the addresses at which nobody listens yet, beside those at others; the first one
    /// must work, and the other family's may be missing.
    ///
    /// # Errors
    /// The first address cannot be bound.
    pub(super) fn bind(&self, addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
        let mut bound = Vec::new();
        let listeners = self.listeners();
        for (index, &at) in addresses.iter().enumerate() {
            if listeners.iter().any(|listener| listener.at == at) {
                continue;
            }
            let ours = listeners.iter().map(|listener| &*listener.socket);
            match listen::tcp(at, Families::Apart, ours) {
                Ok(listener) => bound.push(listener),
                Err(error) if index == 0 => return Err(error),
                Err(error) => tracing::debug!(%error, %at, "no TCP here"),
            }
        }
        Ok(bound)
    }

    /// Ends the listeners at other addresses, but takes who is connected to them; without any address
    /// the connections end, too. One at a part of what is wanted goes on: who connects there in the
    /// moment of its end would be reset.
    pub(super) async fn keep(&self, addresses: &[SocketAddr]) {
        let is_within = |at: SocketAddr, all: &SocketAddr| {
            let is_any = all.ip().is_unspecified() && all.is_ipv4() == at.is_ipv4();
            *all == at || (is_any && all.port() == at.port())
        };
        let is_other = |one: &mut Listener| !addresses.iter().any(|all| is_within(one.at, all));
        let others: Vec<_> = self.listeners().extract_if(.., is_other).collect();
        for Listener { socket, retire, task, .. } in others {
            drop((socket, retire));
            task.await.ok(); // the address is free when it has ended
        }
        if addresses.is_empty() {
            self.table.close();
        }
    }

    /// Takes connections from a listener until this is dropped or closed.
    pub(super) fn listen(&self, listener: TcpListener, take: impl Take, judge: impl Judge) {
        let Ok(at) = listener.local_addr() else { return };
        let socket = Arc::new(listener);
        let (retire, retired) = oneshot::channel();
        let all = Arc::clone(&self.table);
        let task = tokio::spawn(accept(Arc::clone(&socket), retired, all, take, judge));
        self.listeners().push(Listener { at, socket, retire, task });
    }

    /// Ends listeners and connections.
    pub fn close(&self) {
        for listener in self.listeners().drain(..) {
            listener.task.abort();
        }
        self.table.close();
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes connections until it is retired.
async fn accept(
    listener: Arc<TcpListener>,
    mut retired: oneshot::Receiver<()>,
    all: Arc<Table>,
    take: impl Take,
    judge: impl Judge,
) {
    let mut quiet = Quiet::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut retired => break,
        };
        match accepted {
            Ok((stream, from)) => all.serve(stream, from, &mut quiet, &take, &judge),
            Err(error) => {
                count(&all.status.receive_errors);
                if quiet.may("accept") {
                    tracing::warn!(%error, "cannot take a TCP connection");
                }
                sleep(PAUSE).await;
            }
        }
    }
    // Those that are connected already would be reset.
    while let Ok((stream, from)) = accept_now(&listener) {
        all.serve(stream, from, &mut quiet, &take, &judge);
    }
}

fn accept_now(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (socket, from) = SockRef::from(listener).accept()?;
    socket.set_nonblocking(true)?;
    let from = from.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((TcpStream::from_std(socket.into())?, from))
}

/// Takes the connection out of the table, however its task ended.
struct Entry {
    id: u64,
    all: Arc<Table>,
}

impl Entry {
    fn heard(&self, at: Instant) {
        self.all.lock().heard(self.id, at);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.all.lock().remove(self.id);
        self.all.status.connections_open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the most silent connection if there is no room for one more from there; says so.
    fn make_room(&self, from: IpAddr, quiet: &mut Quiet<&'static str>) {
        let mut open = self.lock();
        let Some(full) = open.make_room(from) else { return };
        let limit = open.limit(full);
        drop(open);
        count(&self.status.connections_closed);
        match full {
            Full::All if quiet.may("room") => tracing::warn!(
                limit,
                "all TCP connections are taken: the most silent is closed for each new one; raise the limit of open files (ulimit -n)"
            ),
            Full::Address if quiet.may("address") => tracing::warn!(
                %from, limit,
                "one address has as many TCP connections as it may: its most silent is closed for each new one; let a relay connect for those behind it"
            ),
            Full::All | Full::Address => {}
        }
    }

    /// Reads a connection's frames in a task of its own.
    fn serve(
        self: &Arc<Self>,
        mut stream: TcpStream,
        from: SocketAddr,
        quiet: &mut Quiet<&'static str>,
        take: &impl Take,
        judge: &impl Judge,
    ) {
        let from = from.ip().to_canonical();
        self.make_room(from, quiet);
        let (take, judge) = (take.clone(), judge.clone());
        self.add(from, |entry| async move {
            if let Err(why) = read(&mut stream, from, &entry, take, judge).await {
                count(&entry.all.status.connections_closed);
                tracing::debug!(%from, %why, "TCP connection closed");
            }
            drop(entry); // whoever sees the end finds it counted
            drop(stream);
        });
    }

    /// Starts a connection's task.
    fn add<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        from: IpAddr,
        serve: impl FnOnce(Entry) -> F,
    ) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        count(&self.status.connections);
        count(&self.status.connections_open);
        let serving = serve(Entry { id, all: Arc::clone(self) });
        // Its end waits for the lock: it is in the table before it is taken out.
        let mut open = self.lock();
        let task = tokio::spawn(serving).abort_handle();
        open.insert(id, from, task);
    }

    fn close(&self) {
        self.lock().close();
    }
}

/// Reads frames until the other side closes; `Err`: why we did.
async fn read(
    stream: &mut TcpStream,
    from: IpAddr,
    entry: &Entry,
    take: impl Take,
    judge: impl Judge,
) -> Result<(), String> {
    keep_alive(stream).map_err(|error| error.to_string())?;
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
        if pending.is_empty() && pending.capacity() > IDLE_BYTES {
            pending = Vec::new(); // a large frame is no reason to hold its room until the next one
        }
        if used > 0 {
            take(batch); // the bad one too: who reads it counts it
            entry.heard(now);
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
    let frame = rest.get(..len);
    // Nothing is waited for that cannot become a frame; a whole one is counted where it is read.
    if frame.is_none() && !rest.iter().zip(&MAGIC).all(|(byte, magic)| byte == magic) {
        return Err("not frames: the beginning of something else".to_owned());
    }
    Ok(frame)
}
