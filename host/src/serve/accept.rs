//! The task of a server: accepts connections until told otherwise, then waits for those that are open.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::places::{Places, Seat};
use super::stream::{Listener, Stream, Written};
use super::{Limits, Phase};
use crate::telemetry::Quiet;

/// Time before connections are accepted again, when the system has no room for one more.
const NO_ROOM_WAIT: Duration = Duration::from_millis(100);

/// What a server does with connections.
pub(super) struct Acceptor {
    router: Router,
    limits: Limits,
    places: Arc<Places>,
    open: GracefulShutdown,
    connections: JoinSet<()>,
    quiet: Quiet<&'static str>,
}

impl Acceptor {
    pub(super) fn new(router: Router, limits: Limits) -> Self {
        let (places, connections) = (Places::new(limits.connections), JoinSet::new());
        let (open, quiet) = (GracefulShutdown::new(), Quiet::default());
        Self { router, limits, places, open, connections, quiet }
    }

    pub(super) async fn run(
        mut self,
        listener: Arc<Listener>,
        mut phases: watch::Receiver<Phase>,
        is_last: Arc<AtomicBool>,
    ) {
        loop {
            // A server that is gone is the same as one that was told.
            let stream = tokio::select! {
                stream = self.accept(&listener) => stream,
                _ = phases.changed() => break,
            };
            let seat = match self.places.try_take() {
                Some(seat) => seat,
                None => tokio::select! {
                    seat = self.make_room() => seat,
                    _ = phases.changed() => break, // everybody is being answered: too late for one more
                },
            };
            self.serve(stream, seat);
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

    async fn accept(&mut self, listener: &Listener) -> Stream {
        loop {
            match listener.accept().await {
                Ok(stream) => return stream,
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    if self.quiet.may("accept") {
                        tracing::error!(%error, "cannot accept HTTP connections, still trying");
                    }
                    sleep(NO_ROOM_WAIT).await;
                }
            }
        }
    }

    async fn make_room(&mut self) -> Seat {
        if self.quiet.may("room") {
            let limit = self.limits.connections;
            tracing::warn!(
                limit,
                "all HTTP connections are taken: the most quiet one is closed for each new one"
            );
        }
        self.places.take().await
    }

    /// Takes those that are connected already: they would be reset.
    fn accept_rest(&mut self, listener: &Listener) {
        while let Some(seat) = self.places.try_take() {
            match listener.accept_now() {
                Ok(stream) => self.serve(stream, seat),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection that came last");
                    return;
                }
            }
        }
    }

    fn serve(&mut self, stream: Stream, seat: Seat) {
        let place = Arc::clone(&seat.place);
        let serving = serve(stream, self.router.clone(), self.limits, self.open.watcher(), seat);
        Seat::is_of(&place, self.connections.spawn(serving));
    }
}

async fn serve(stream: Stream, router: Router, limits: Limits, watcher: Watcher, seat: Seat) {
    let place = Arc::clone(&seat.place);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        let answering = place.answering();
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            drop(answering);
            answer
        }
    });
    let stream = Written::new(stream, limits.write, Arc::clone(&place));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended");
    }
    drop(seat);
}

fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
