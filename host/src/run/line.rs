//! A line of agents for one machine: each is replaced by the next one when that is ready.
//!
//! Invariants: the agent before reports until its successor's first report is ready, and then no more,
//! so that no host misses a report or hears both; what was pushed to it goes to the successor. To hosts
//! it is the same machine, restarted: `boot` only grows, however the wall clock is set.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::agent::{Agent, Ending, Heritage, Succession, run};

/// One agent, and the task that hands its reports on.
pub(super) struct Line {
    stop: oneshot::Sender<Ending>,
    /// Ends when its last report is handed on.
    task: JoinHandle<Heritage>,
}

/// The agent that reports until its successor is ready, and how it ends then.
struct Before {
    line: Line,
    ending: Ending,
}

impl Line {
    /// Runs an agent; `deliver` takes its reports and says whether anybody wants more.
    pub(super) fn start<F>(agent: Agent, deliver: impl FnMut(Vec<u8>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self::after(None, agent, deliver)
    }

    /// Runs another agent instead; this one ends so when that is ready.
    pub(super) fn succeed<F>(
        &mut self,
        ending: Ending,
        agent: Agent,
        deliver: impl FnMut(Vec<u8>) -> F + Send + 'static,
    ) where
        F: Future<Output = bool> + Send + 'static,
    {
        let (hand_over, before) = oneshot::channel();
        let line = std::mem::replace(self, Self::after(Some(before), agent, deliver));
        hand_over.send(Before { line, ending }).ok(); // it has ended with the runtime
    }

    fn after<F>(
        before: Option<oneshot::Receiver<Before>>,
        agent: Agent,
        deliver: impl FnMut(Vec<u8>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(hand_on(agent, before, deliver, stopped)) }
    }

    /// Ends it, and those before it.
    pub(super) async fn end(self, ending: Ending) -> Heritage {
        // A task that has ended has nothing to stop.
        self.stop.send(ending).ok();
        self.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "an agent's task failed");
            Heritage::default()
        })
    }
}

/// Ends the agents before as decided when they were replaced, unless the machine leaves.
async fn end_before(before: oneshot::Receiver<Before>, now: Ending) -> Heritage {
    let Ok(Before { line, ending }) = before.await else { return Heritage::default() };
    let ending = if now == Ending::Leaving { now } else { ending };
    Box::pin(line.end(ending)).await
}

/// Runs an agent and delivers its reports.
async fn hand_on<F: Future<Output = bool>>(
    agent: Agent,
    mut before: Option<oneshot::Receiver<Before>>,
    mut deliver: impl FnMut(Vec<u8>) -> F,
    mut stop: oneshot::Receiver<Ending>,
) -> Heritage {
    let (frames, mut made) = mpsc::channel(1);
    let (end, ended) = oneshot::channel();
    let (ready, mut is_ready) = oneshot::channel();
    let (bequeath, heritage) = oneshot::channel();
    let (mut end, mut bequeath) = (Some(end), Some(bequeath));
    let succession = before.is_some().then_some(Succession { ready, heritage });
    let running = tokio::spawn(run(agent, frames, ended, succession));
    let mut word = None;
    loop {
        tokio::select! {
            frame = made.recv() => {
                let Some(frame) = frame else { break };
                if !deliver(frame).await {
                    break; // nobody sends any more: the process is stopping
                }
            }
            Ok(()) = &mut is_ready, if before.is_some() && word.is_none() => {
                let Some(before) = before.take() else { continue };
                let left = end_before(before, Ending::Replaced).await;
                // One that has failed wants nothing.
                bequeath.take().and_then(|bequeath| bequeath.send(left).ok());
            }
            said = &mut stop, if word.is_none() => {
                // Whoever would say so is gone: the process ends.
                let said = said.unwrap_or(Ending::Leaving);
                word = Some(said);
                drop(bequeath.take());
                end.take().and_then(|end| end.send(said).ok());
            }
        }
    }
    drop(made);
    let left = running.await.unwrap_or_else(|error| {
        tracing::error!(%error, "an agent failed");
        Heritage::default()
    });
    match before {
        // It never reported: those before it still do, and know more.
        Some(before) => end_before(before, word.unwrap_or(Ending::Replaced)).await,
        None => left,
    }
}
