//! Connections in, requests to a router: what one client may take is bounded, so that none is slow at
//! the others' cost. A host serves its API so, and an agent what is pushed to it.
//!
//! A connection has [`Limits::head`] for each request's head (idle ones are closed by the same), a
//! request [`Limits::answer`] for its body and its answer, and a client that reads nothing
//! [`Limits::write`]. Of [`Limits::connections`] the one that has been quiet for longest makes room for
//! a new one; one whose request is being answered never does. Closing takes no new connection and lets
//! open requests finish, for so long as the caller waits.

mod accept;
mod name;
mod places;
mod stream;
#[cfg(test)]
mod tests;

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
use axum::response::Response;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::listen::{self, Families};
use accept::Acceptor;
pub use name::{Misled, Names};
pub use stream::Listener;

/// Connections of one server at most, and one in so many files that the process may open.
const CONNECTIONS_MAX: (u64, u64) = (10_000, 4);

/// Time for a request's body and its answer, where nothing else is wanted.
pub const ANSWER: Duration = Duration::from_secs(30);

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
        let (most, one_in) = CONNECTIONS_MAX;
        Self {
            connections: listen::room_for(most, one_in),
            head: Duration::from_secs(30),
            head_bytes: 64 << 10,
            answer: ANSWER,
            write: Duration::from_secs(10),
        }
    }
}

/// Binds an address; one that overlaps a server's of this process (`0.0.0.0` and `127.0.0.1`) too.
///
/// # Errors
/// The system's reason.
pub fn bind(address: SocketAddr, beside: Option<&Server>) -> io::Result<TcpListener> {
    let ours = beside.and_then(|server| server.listener.as_deref()).and_then(Listener::tcp);
    listen::tcp(address, Families::Together, ours.into_iter())
}

/// A listener at work; connections end with it.
#[derive(Debug)]
pub struct Server {
    /// `None`: it takes no connection any more.
    listener: Option<Arc<Listener>>,
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
    /// Serves what this listener accepts; `too_slow` is the answer where [`Limits::answer`] has passed.
    #[must_use]
    pub fn start(
        listener: impl Into<Listener>,
        router: Router,
        limits: Limits,
        too_slow: fn(Duration) -> Response,
    ) -> Self {
        let (phase, phases) = watch::channel(Phase::Open);
        let listener = Arc::new(listener.into());
        let accepting = Arc::clone(&listener);
        let is_last = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&is_last);
        let answer = move |request, next| {
            answer(request, next, (limits.answer, too_slow), Arc::clone(&known))
        };
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
    pub async fn close(mut self, wait: Duration) {
        self.listener = None;
        self.phase.send_replace(Phase::Closed);
        match timeout(wait, &mut self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the HTTP task failed"),
            Err(_) => tracing::warn!("some requests did not finish within {wait:?}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort(); // and with it its connections
    }
}

/// The answer to a request, within its time; the last one of its connection, if the server retires.
async fn answer(
    request: Request,
    next: Next,
    (limit, too_slow): (Duration, fn(Duration) -> Response),
    is_last: Arc<AtomicBool>,
) -> Response {
    let answered = timeout(limit, next.run(request)).await;
    let mut answer = answered.unwrap_or_else(|_| too_slow(limit));
    if is_last.load(Ordering::Relaxed) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}
