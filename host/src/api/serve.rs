//! Connections in, requests to the router: what one client may take is bounded, so that none is slow at
//! the others' cost.
//!
//! A connection has [`Limits::head`] for each request's head (idle ones are closed by the same), a
//! request [`Limits::answer`] for its body and its answer, and a client that does not read
//! [`Limits::write`]. More than [`Limits::connections`] wait in the kernel's queue. Closing takes no new
//! connection and lets open requests finish, for so long as the caller waits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::error::ApiError;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1_024;
/// Time before connections are accepted again, when the system has no room for one more.
const NO_ROOM_WAIT: Duration = Duration::from_millis(100);

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Time for the head of a request, from the connection's start or the last answer.
    pub head: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Time for a request's body and its answer.
    pub answer: Duration,
    /// Time in which a client reads something.
    pub write: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            head: Duration::from_secs(30),
            head_bytes: 64 << 10,
            answer: Duration::from_secs(30),
            write: Duration::from_secs(10),
        }
    }
}

/// Binds an address; one that overlaps a server's of this process (`0.0.0.0` and `127.0.0.1`) too.
///
/// # Errors
/// The system's reason.
pub fn bind(address: SocketAddr, beside: Option<&Server>) -> io::Result<TcpListener> {
    let refused = match listen(address, false) {
        Ok(listener) => return Ok(listener),
        Err(refused) => refused,
    };
    let ours = beside.filter(|server| {
        let known = server.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        known.is_some_and(|known| known.port() == address.port() && known != address)
    });
    let ours = ours.and_then(|server| server.listener.as_ref());
    let Some(listener) = ours.filter(|_| refused.kind() == io::ErrorKind::AddrInUse) else {
        return Err(refused);
    };
    // For this moment only: otherwise two hosts could share a port unnoticed.
    let known = SockRef::from(&**listener);
    known.set_reuse_port(true)?;
    let listener = listen(address, true);
    known.set_reuse_port(false)?;
    if let Ok(listener) = &listener {
        SockRef::from(listener).set_reuse_port(false)?;
    }
    listener
}

fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // connections of a host before may still be closing
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A listener at work.
#[derive(Debug)]
pub struct Server {
    /// `None`: it takes no connection any more.
    listener: Option<Arc<TcpListener>>,
    phase: watch::Sender<Phase>,
    task: JoinHandle<()>,
}

/// How far a server has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Takes no new connection; the others end with their next answer.
    Retired,
    /// Idle connections are closed, too.
    Closed,
}

impl Server {
    /// Serves what this listener accepts.
    #[must_use]
    pub fn start(listener: TcpListener, router: Router, limits: Limits) -> Self {
        let (phase, phases) = watch::channel(Phase::Open);
        let listener = Arc::new(listener);
        let accepting = Arc::clone(&listener);
        let is_last = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&is_last);
        let answer = move |request, next| answer(request, next, limits, Arc::clone(&known));
        let router = router.layer(from_fn(answer));
        let acceptor = Acceptor::new(router, limits);
        let task = tokio::spawn(acceptor.run(accepting, phases, is_last));
        Self { listener: Some(listener), phase, task }
    }

    /// Takes no new connection. Clients that have one are answered once more and told to connect anew.
    pub fn retire(&mut self) {
        self.listener = None;
        self.phase.send_replace(Phase::Retired);
    }

    /// Whether its last connection has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Takes no new connection and lets open requests finish within `wait`; the others are cut off.
    pub async fn close(self, wait: Duration) {
        let Self { listener, phase, mut task } = self;
        drop(listener);
        phase.send_replace(Phase::Closed);
        match timeout(wait, &mut task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the HTTP task failed"),
            Err(_) => {
                tracing::warn!("some requests did not finish within {wait:?}");
                task.abort(); // and with it its connections
            }
        }
    }
}

/// What a server does with connections.
struct Acceptor {
    router: Router,
    limits: Limits,
    room: Arc<Semaphore>,
    open: GracefulShutdown,
    connections: JoinSet<()>,
}

impl Acceptor {
    fn new(router: Router, limits: Limits) -> Self {
        let room = Arc::new(Semaphore::new(limits.connections));
        Self { router, limits, room, open: GracefulShutdown::new(), connections: JoinSet::new() }
    }

    /// Accepts connections until told otherwise; then waits for those that are open.
    async fn run(
        mut self,
        listener: Arc<TcpListener>,
        mut phases: watch::Receiver<Phase>,
        is_last: Arc<AtomicBool>,
    ) {
        loop {
            tokio::select! {
                (stream, permit) = next_connection(&listener, &self.room) => {
                    self.serve(stream, permit);
                }
                // A server that is gone is the same as one that was told.
                _ = phases.changed() => break,
            }
            while self.connections.try_join_next().is_some() {} // ended
        }
        self.accept_rest(&listener);
        drop(listener);
        // Only now: whoever connects anew must not come here.
        is_last.store(true, Ordering::Relaxed);
        let closed = async { phases.wait_for(|phase| *phase == Phase::Closed).await.is_ok() };
        tokio::select! {
            _ = closed => {}
            () = async { while self.connections.join_next().await.is_some() {} } => {}
        }
        self.open.shutdown().await;
    }

    /// Takes those that are connected already: they would be reset.
    fn accept_rest(&mut self, listener: &TcpListener) {
        while let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
            && let Ok((socket, _)) = SockRef::from(listener).accept()
        {
            let stream = socket.set_nonblocking(true);
            match stream.and_then(|()| TcpStream::from_std(socket.into())) {
                Ok(stream) => self.serve(stream, permit),
                Err(error) => tracing::debug!(%error, "a connection that came last"),
            }
        }
    }

    fn serve(&mut self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let (router, limits) = (self.router.clone(), self.limits);
        self.connections.spawn(serve(stream, router, limits, self.open.watcher(), permit));
    }
}

/// The next connection, once there is room for it.
async fn next_connection(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    loop {
        let Ok(permit) = Arc::clone(room).acquire_owned().await else {
            return std::future::pending().await; // never closed
        };
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                if is_about_one_connection(&error) {
                    continue;
                }
                tracing::error!(%error, "cannot accept HTTP connections");
                sleep(NO_ROOM_WAIT).await;
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    watcher: Watcher,
    _permit: OwnedSemaphorePermit,
) {
    let socket = SockRef::from(&stream);
    let set = socket.set_tcp_nodelay(true);
    // The kernel gives the connection up when its client takes nothing for so long.
    if let Err(error) = set.and_then(|()| socket.set_tcp_user_timeout(Some(limits.write))) {
        tracing::debug!(%error, "a connection's options");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended");
    }
}

/// The answer to a request, within its time; the last one of its connection, if the server retires.
async fn answer(
    request: Request,
    next: Next,
    limits: Limits,
    is_last: Arc<AtomicBool>,
) -> Response {
    let answered = timeout(limits.answer, next.run(request)).await;
    let mut answer = answered.unwrap_or_else(|_| ApiError::too_slow(limits.answer).into_response());
    if is_last.load(Ordering::Relaxed) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests;
