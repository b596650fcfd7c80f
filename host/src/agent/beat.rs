//! The sources' tasks: each source is read on its own beat, by itself, and what it gave is handed to
//! the agent.
//!
//! A source that takes longer than its beat misses beats and makes nobody wait; one that never
//! comes back costs one task. The tasks end when [`Sources`] is dropped.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::source::{self, Planned, Reader};
use super::{Event, Place, following};
use crate::config::AgentConfig;

/// The running sources of one agent.
#[derive(Debug)]
pub(super) struct Sources {
    /// Aborted when dropped.
    tasks: JoinSet<()>,
}

impl Sources {
    /// Starts to read what the configuration names; must be called inside a runtime.
    #[must_use]
    pub(super) fn start(config: &AgentConfig, events: &mpsc::Sender<Event>) -> Self {
        let mut tasks = JoinSet::new();
        for Planned { every, reader, places } in source::plan(config) {
            tasks.spawn(read_on_beat(every, reader, places, events.clone()));
        }
        Self { tasks }
    }

    /// Ends them; what they have not handed on is lost.
    pub(super) async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }
}

async fn read_on_beat(
    every: Duration,
    mut reader: Reader,
    places: Vec<Place>,
    events: mpsc::Sender<Event>,
) {
    // At once: what needs two samples has its first one then.
    let mut next = Instant::now();
    loop {
        sleep_until(next).await;
        let readings = reader.read(places.len()).await;
        let readings = places.iter().copied().zip(readings).collect();
        if events.send(Event::Readings(readings)).await.is_err() {
            return; // the agent has ended
        }
        next = following(next, every, Instant::now());
    }
}
