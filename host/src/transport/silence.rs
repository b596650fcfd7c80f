//! What came by multicast lately in, a word about its silence out: said once, and once when it ends.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::batch::Batch;
use super::status::{Status, count};

/// What came by multicast lately.
#[derive(Debug, Default)]
pub(super) struct Heard {
    own: Mutex<Vec<IpAddr>>,
    from_others: AtomicU64,
}

impl Heard {
    /// These are this machine's addresses.
    pub(super) fn set_own(&self, addresses: Vec<IpAddr>) {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    pub(super) fn note(&self, batch: &Batch, status: &Status) {
        status.multicast.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if batch.iter().any(|datagram| !own.contains(&datagram.from)) {
            count(&self.from_others);
        }
    }
}

/// Says once when no multicast comes, and once when it does again.
pub(super) struct Silence {
    limit: watch::Receiver<Duration>,
    since: Instant,
    before: (u64, u64),
    said: bool,
}

impl Silence {
    /// The limit may change; zero: nothing is said.
    pub(super) fn new(limit: watch::Receiver<Duration>) -> Self {
        Self { limit, since: Instant::now(), before: (0, 0), said: false }
    }

    /// Waits until it has been so long.
    pub(super) async fn next(&mut self) {
        loop {
            let limit = *self.limit.borrow_and_update();
            let due = async {
                if limit.is_zero() {
                    std::future::pending::<()>().await;
                }
                sleep_until(self.since + limit).await;
            };
            tokio::select! {
                () = due => return,
                Ok(()) = self.limit.changed() => {}
            }
        }
    }

    pub(super) fn look(&mut self, heard: &Heard, status: &Status) {
        let now =
            [&status.multicast, &heard.from_others].map(|count| count.load(Ordering::Relaxed));
        let [any, others] = now;
        let (any_before, others_before) = self.before;
        self.before = (any, others);
        self.since = Instant::now();
        let is_silent = others == others_before && !status.joined().is_empty();
        if is_silent == self.said {
            return;
        }
        self.said = is_silent;
        let limit = humantime::format_duration(*self.limit.borrow());
        if !is_silent {
            tracing::info!("multicast is heard");
        } else if any == any_before {
            tracing::warn!(
                "no multicast was heard for {limit}: if machines report, this network may not carry \
                 it; let them send_to = [\"udp://THIS-HOST:PORT\"] or tcp://"
            );
        } else {
            tracing::info!("for {limit} multicast came from this machine alone");
        }
    }
}
