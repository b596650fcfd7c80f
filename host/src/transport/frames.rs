//! One frame to several destinations, each at its own pace: the newest frames wait, older ones are
//! dropped, and nobody waits for a destination.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;

/// The side that hands out; dropped when there will be no more.
#[derive(Debug)]
pub(super) struct Spread {
    queue: broadcast::Sender<Arc<[u8]>>,
    over: watch::Sender<()>,
}

/// What waits for one destination.
#[derive(Debug)]
pub(super) struct Frames {
    queue: broadcast::Receiver<Arc<[u8]>>,
    over: watch::Receiver<()>,
}

impl Spread {
    /// At most so many frames wait for one destination.
    pub(super) fn new(backlog: usize) -> Self {
        Self { queue: broadcast::channel(backlog).0, over: watch::channel(()).0 }
    }

    pub(super) fn send(&self, frame: &[u8]) {
        // Without destinations there is nobody to take it.
        self.queue.send(frame.into()).ok();
    }

    pub(super) fn subscribe(&self) -> Frames {
        Frames { queue: self.queue.subscribe(), over: self.over.subscribe() }
    }
}

impl Frames {
    /// The next frame; `None`: there are no more.
    pub(super) async fn next(&mut self) -> Option<Arc<[u8]>> {
        loop {
            match self.queue.recv().await {
                Ok(frame) => return Some(frame),
                Err(RecvError::Lagged(lost)) => tracing::debug!(lost, "newer reports took over"),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Waits; true, and at once, when there will be no more frames.
    pub(super) async fn is_over_within(&mut self, pause: Duration) -> bool {
        // Nothing is ever said there: it ends with the other side.
        timeout(pause, self.over.changed()).await.is_ok()
    }
}
