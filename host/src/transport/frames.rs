//! One frame to several destinations, each at its own pace: the newest frames wait, older ones are
//! dropped, and nobody waits for a destination.
//!
//! Invariant: for one destination at most so many frames wait, and no more than [`WAITING_BYTES`] of
//! them (but always the newest), however long it is away.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Bytes that wait for one destination: a relay's frames of a large farm, or a hundred of the longest.
const WAITING_BYTES: usize = 8 << 20;

/// The side that hands out; dropped when there will be no more.
#[derive(Debug)]
pub(super) struct Spread {
    backlog: usize,
    destinations: Vec<Arc<Waiting>>,
    over: watch::Sender<()>,
}

/// What waits for one destination.
#[derive(Debug)]
pub(super) struct Frames {
    waiting: Arc<Waiting>,
    over: watch::Receiver<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    queue: Mutex<Queue>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Arc<[u8]>>,
    bytes: usize,
}

impl Spread {
    /// At most so many frames wait for one destination.
    pub(super) fn new(backlog: usize) -> Self {
        Self { backlog, destinations: Vec::new(), over: watch::channel(()).0 }
    }

    pub(super) fn send(&self, frame: &[u8]) {
        if self.destinations.is_empty() {
            return;
        }
        let frame: Arc<[u8]> = frame.into();
        for waiting in &self.destinations {
            let dropped = waiting.queue().push(Arc::clone(&frame), self.backlog);
            if dropped > 0 {
                tracing::debug!(dropped, "newer reports took over");
            }
            waiting.filled.notify_one();
        }
    }

    pub(super) fn subscribe(&mut self) -> Frames {
        let waiting = Arc::<Waiting>::default();
        self.destinations.push(Arc::clone(&waiting));
        Frames { waiting, over: self.over.subscribe() }
    }
}

impl Frames {
    /// The next frame; `None`: there are no more.
    pub(super) async fn next(&mut self) -> Option<Arc<[u8]>> {
        loop {
            // Before the look: what was sent before the end is in the queue by then.
            let is_over = self.over.has_changed().is_err();
            if let Some(frame) = self.waiting.queue().pop() {
                return Some(frame);
            }
            if is_over {
                return None;
            }
            tokio::select! {
                () = self.waiting.filled.notified() => {}
                // Nothing is ever said there: it ends with the other side.
                _ = self.over.changed() => {}
            }
        }
    }

    /// Waits; true, and at once, when there will be no more frames.
    pub(super) async fn is_over_within(&mut self, pause: Duration) -> bool {
        timeout(pause, self.over.changed()).await.is_ok()
    }
}

impl Waiting {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Adds the newest frame; how many older ones had to go.
    fn push(&mut self, frame: Arc<[u8]>, backlog: usize) -> usize {
        self.bytes += frame.len();
        self.frames.push_back(frame);
        let before = self.frames.len();
        while self.frames.len() > 1 && (self.frames.len() > backlog || self.bytes > WAITING_BYTES) {
            self.pop();
        }
        before - self.frames.len()
    }

    fn pop(&mut self) -> Option<Arc<[u8]>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out when the destination is back and there are no more.
    async fn rest(spread: Spread, mut frames: Frames) -> Vec<Arc<[u8]>> {
        drop(spread);
        let mut rest = Vec::new();
        while let Some(frame) = frames.next().await {
            rest.push(frame);
        }
        assert!(frames.is_over_within(Duration::from_secs(60)).await, "and at once");
        rest
    }

    /// The destination is away for long, and the frames are as long as they can be.
    #[tokio::test]
    async fn what_waits_is_bounded_in_number_and_bytes_and_is_the_newest() {
        for (backlog, length, kept) in
            [(1, 300, 1), (4_096, 300, 4_096), (4_096, 65_000, 129), (4_096, 9 << 20, 1)]
        {
            let mut spread = Spread::new(backlog);
            let frames = spread.subscribe();
            let sent = kept + 100;
            for number in 0_usize..sent {
                let mut frame = vec![0; length];
                frame[..8].copy_from_slice(&number.to_be_bytes());
                spread.send(&frame);
            }
            let rest = rest(spread, frames).await;
            assert_eq!(rest.len(), kept, "{backlog} of {length} bytes");
            let number = |frame: &Arc<[u8]>| frame[..8].try_into().map(usize::from_be_bytes);
            let numbers = rest.iter().map(|frame| number(frame).unwrap());
            assert!(numbers.eq(100..sent), "the newest, in order");
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_another_destination() {
        let mut spread = Spread::new(2);
        let [mut quick, away] = [(); 2].map(|()| spread.subscribe());
        for number in 0..5 {
            spread.send(&[number]);
            assert_eq!(quick.next().await.as_deref(), Some(&[number][..]));
        }
        let (waits, sent) = tokio::join!(quick.next(), async { spread.send(&[5]) });
        assert_eq!((waits.as_deref(), sent), (Some(&[5][..]), ()), "told while it waited");
        let rest = rest(spread, away).await;
        assert_eq!(rest.iter().map(|frame| frame[0]).collect::<Vec<_>>(), [4, 5]);
        assert!(quick.next().await.is_none());
    }
}
