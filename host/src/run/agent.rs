//! The agent's two tasks: one samples, one sends.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::RunError;
use crate::agent::{Agent, run};
use crate::clock::wall_ms;
use crate::config::{AgentConfig, ReportsConfig};
use crate::transport::Outlet;

/// Reports that wait to be sent: more would be stale.
const QUEUE_MAX: usize = 4;
/// Reports that wait for a destination that is slow or away: the newest says it all.
const BACKLOG: usize = 1;
/// Time for the last report to leave.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// A running agent.
pub(super) struct Running {
    stop: oneshot::Sender<()>,
    sender: JoinHandle<()>,
}

impl Running {
    pub(super) fn start(config: AgentConfig, reports: &ReportsConfig) -> Result<Self, RunError> {
        let keyring = reports.keyring()?;
        let boot = wall_ms();
        let agent = Agent::new(config, reports.farm.clone(), keyring, boot, Instant::now());
        let (frames, queue) = mpsc::channel(QUEUE_MAX);
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(run(agent, frames, stopped));
        let sender = tokio::spawn(Outlet::new(reports, BACKLOG).run(queue));
        Ok(Self { stop, sender })
    }

    pub(super) async fn stop(self) {
        // The sampling task ends by itself only with the runtime.
        self.stop.send(()).ok();
        match timeout(LEAVE_WAIT, self.sender).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the sending task failed"),
            Err(_) => tracing::warn!("the last report did not leave in time"),
        }
    }
}
