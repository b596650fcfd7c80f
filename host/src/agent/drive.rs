//! A running agent: its sources, pushes and a clock in, frames out, until it is told how to end.
//!
//! Invariants: what was taken from applications counts, whenever the end comes; a successor begins when
//! the agent before has ended; that the machine leaves is said at once, before anything is waited for.

use std::time::Duration;

use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::beat::Sources;
#[cfg(feature = "agent")]
use super::push::Pushes;
use super::{Agent, Ending, Heritage, Succession};

/// Times that the last report is sent: nothing follows it if it gets lost.
const LEAVE_COPIES: u32 = 3;
/// Time between them, longer than most bursts of losses.
const LEAVE_GAP: Duration = Duration::from_millis(20);
/// Events that wait for the agent at most: it takes them at once, so more means that it is held up,
/// and then the sources wait.
const EVENTS_MAX: usize = 256;

/// Reads the agent's sources and reports until told how to end; closes `frames` then and returns what
/// another agent goes on from. With an agent `before` it reports and takes pushes from when that one
/// has ended, which it asks for when its first report is ready. An agent that leaves says so by a last report.
pub async fn run(
    mut agent: Agent,
    frames: mpsc::Sender<Vec<u8>>,
    mut stop: oneshot::Receiver<Ending>,
    mut before: Option<Succession>,
) -> Heritage {
    let (told, mut events) = mpsc::channel(EVENTS_MAX);
    let mut sources = Sources::start(&agent.config, &told);
    #[cfg(feature = "agent")]
    let mut pushes = before.is_none().then(|| Pushes::start(&agent.config, &told)).flatten();
    let ending = loop {
        tokio::select! {
            () = tokio::time::sleep_until(agent.due()) => {}
            Some(event) = events.recv() => agent.hear(event, Instant::now()),
            // Whoever would say so is gone: the process ends.
            word = &mut stop => break word.unwrap_or(Ending::Leaving),
        }
        if agent.is_ready(Instant::now())
            && let Some(before) = before.take()
        {
            let Some(heritage) = before.end().await else {
                break (&mut stop).await.unwrap_or(Ending::Leaving);
            };
            agent.take_over(&heritage);
            #[cfg(feature = "agent")]
            {
                pushes = Pushes::start(&agent.config, &told);
            }
        }
        if send(agent.step(Instant::now()), &frames).await.is_err() {
            break Ending::Replaced; // nobody sends any more: the process is stopping
        }
    };
    if ending == Ending::Leaving {
        leave(&mut agent, &frames).await;
    }
    #[cfg(feature = "agent")]
    if let Some(pushes) = pushes {
        let mut ended = std::pin::pin!(pushes.end());
        loop {
            tokio::select! {
                () = &mut ended => break,
                Some(event) = events.recv() => agent.hear(event, Instant::now()),
            }
        }
    }
    sources.stop().await;
    // What was taken from applications counts, if it was not looked at yet.
    events.close();
    while let Some(event) = events.recv().await {
        agent.hear(event, Instant::now());
    }
    agent.into_heritage()
}

async fn leave(agent: &mut Agent, frames: &mpsc::Sender<Vec<u8>>) {
    let last = agent.leave(Instant::now());
    for copy in 0..LEAVE_COPIES {
        if copy > 0 {
            tokio::time::sleep(LEAVE_GAP).await;
        }
        // A closed channel means that the process is stopping without a network.
        send(last.clone(), frames).await.ok();
    }
}

async fn send(
    report: Vec<Vec<u8>>,
    frames: &mpsc::Sender<Vec<u8>>,
) -> Result<(), SendError<Vec<u8>>> {
    for frame in report {
        frames.send(frame).await?;
    }
    Ok(())
}
