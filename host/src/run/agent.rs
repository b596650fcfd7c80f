//! The agent's tasks: one samples, one hands on, one sends; and their successors.
//!
//! Another configuration starts another agent beside the one that runs. It takes over with its first
//! report, when its windows are full: until then the old one reports, so that no host misses a report.
//! To hosts it is the same machine, restarted. Where reports go changes at once, for both.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::agent::{Agent, run};
use crate::clock::wall_ms;
use crate::config::{AgentConfig, ConfigError, ReportsConfig};
use crate::report::Keyring;
use crate::transport::Outlet;

/// Reports that wait to be sent: more would be stale.
const QUEUE_MAX: usize = 4;
/// Reports that wait for a destination that is slow or away: the newest says it all.
const BACKLOG: usize = 1;
/// Time for the last report to leave.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// A running agent.
pub(super) struct Running {
    config: AgentConfig,
    reports: ReportsConfig,
    line: Line,
    /// Where reports are put to be sent.
    route: watch::Sender<Queue>,
    sender: JoinHandle<()>,
}

/// Reports that are to be sent.
type Queue = mpsc::Sender<Vec<u8>>;

/// One agent, and the task that hands its reports on.
struct Line {
    stop: oneshot::Sender<How>,
    /// Ends when its last report is in the queue.
    task: JoinHandle<()>,
}

/// How an agent ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Its machine leaves.
    Leaving,
    /// Another one reports on for it.
    Replaced,
}

/// The agent that reports until its successor is ready, and how it ends then.
type Before = oneshot::Receiver<(Line, How)>;

impl Running {
    pub(super) fn start(config: AgentConfig, reports: &ReportsConfig) -> Result<Self, ConfigError> {
        let keyring = reports.keyring()?;
        let (queue, frames) = mpsc::channel(QUEUE_MAX);
        let agent = new_agent(config.clone(), reports, keyring);
        let (route, queue) = watch::channel(queue);
        let line = Line::start(agent, queue, None);
        let sender = tokio::spawn(Outlet::new(reports, BACKLOG).run(frames));
        Ok(Self { config, reports: reports.clone(), line, route, sender })
    }

    /// Reports by another configuration as soon as its windows are full; `secrets_changed`: the files
    /// that it names hold something else.
    ///
    /// # Errors
    /// Its secrets cannot be read; nothing changes then.
    pub(super) fn apply(
        &mut self,
        config: &AgentConfig,
        reports: &ReportsConfig,
        secrets_changed: bool,
    ) -> Result<(), ConfigError> {
        if self.config == *config && self.reports == *reports && !secrets_changed {
            return Ok(());
        }
        let keyring = reports.keyring()?;
        if !self.reports.is_sent_like(reports) {
            let (queue, frames) = mpsc::channel(QUEUE_MAX);
            self.sender = tokio::spawn(Outlet::new(reports, BACKLOG).run(frames));
            // The old sending task sends what it has and ends.
            self.route.send_replace(queue);
        }
        let is_same_agent = self.config == *config && !secrets_changed;
        let ReportsConfig { farm, keys, .. } = reports;
        if is_same_agent && self.reports.farm == *farm && self.reports.keys == *keys {
            self.reports = reports.clone();
            return Ok(());
        }
        let (hand_over, before) = oneshot::channel();
        let agent = new_agent(config.clone(), reports, keyring);
        let line = Line::start(agent, self.route.subscribe(), Some(before));
        let old = std::mem::replace(&mut self.line, line);
        // Under another name the old machine is gone, and hosts are told so.
        let is_same = self.config.machine == config.machine && self.reports.farm == reports.farm;
        let how = if is_same { How::Replaced } else { How::Leaving };
        hand_over.send((old, how)).ok(); // it has ended with the runtime
        (self.config, self.reports) = (config.clone(), reports.clone());
        Ok(())
    }

    pub(super) async fn stop(self) {
        let Self { line, route, sender, .. } = self;
        let sent = async {
            line.end(How::Leaving).await;
            drop(route); // and with it the queue: the sending task ends
            sender.await
        };
        match timeout(LEAVE_WAIT, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the sending task failed"),
            Err(_) => tracing::warn!("the last report did not leave in time"),
        }
    }
}

impl Line {
    fn start(agent: Agent, queue: watch::Receiver<Queue>, before: Option<Before>) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(hand_on(agent, queue, before, stopped)) }
    }

    async fn end(self, how: How) {
        // A task that has ended has nothing to stop.
        self.stop.send(how).ok();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "an agent's task failed");
        }
    }
}

/// Puts an agent's reports into the queue, from its first one on instead of those before it.
async fn hand_on(
    agent: Agent,
    queue: watch::Receiver<Queue>,
    mut before: Option<Before>,
    mut stop: oneshot::Receiver<How>,
) {
    let (frames, mut made) = mpsc::channel(1);
    let (leave, left) = oneshot::channel();
    let sampling = tokio::spawn(run(agent, frames, left));
    let mut how = None;
    let (mut leave, abort) = (Some(leave), sampling.abort_handle());
    loop {
        let frame = tokio::select! {
            frame = made.recv() => frame,
            word = &mut stop, if how.is_none() => {
                // Whoever would say so is gone: the process ends.
                let word = word.unwrap_or(How::Leaving);
                how = Some(word);
                match word {
                    How::Replaced => abort.abort(),
                    // Its last report comes, if there was a first one.
                    How::Leaving => drop(leave.take()),
                }
                continue;
            }
        };
        let Some(frame) = frame else { break };
        if let Some(before) = before.take() {
            end_before(before, None).await;
        }
        let queue = queue.borrow().clone();
        if queue.send(frame).await.is_err() {
            break; // nobody sends any more: the process is stopping
        }
    }
    // It never reported: those before it still do.
    if let Some(before) = before {
        end_before(before, how).await;
    }
}

/// Ends the agents before: as decided when they were replaced, unless the machine leaves.
async fn end_before(before: Before, now: Option<How>) {
    if let Ok((line, how)) = before.await {
        let how = if now == Some(How::Leaving) { How::Leaving } else { how };
        Box::pin(line.end(how)).await;
    }
}

fn new_agent(config: AgentConfig, reports: &ReportsConfig, keyring: Keyring) -> Agent {
    Agent::new(config, reports.farm.clone(), keyring, wall_ms(), Instant::now())
}
