//! The agent of this machine: its line, and the task that sends what that delivers.
//!
//! Another configuration starts another agent, which takes over when its windows are full ([`Line`]).
//! Where reports go, and whether the machine takes work, changes at once, for both.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::line::Line;
use crate::agent::{Agent, Ending};
use crate::clock::next_boot_ms;
use crate::config::{AgentConfig, ConfigError, ConfigState, ReportsConfig};
use crate::report::{Keyring, State};
use crate::transport::Outlet;

/// Reports that wait to be sent: more would be stale.
const QUEUE_MAX: usize = 4;
/// Time for the last report to leave.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// A running agent.
pub(super) struct Running {
    config: AgentConfig,
    known: ConfigState,
    /// What its agents say of the machine.
    state: watch::Sender<State>,
    reports: ReportsConfig,
    line: Line,
    /// Where reports are put to be sent.
    route: watch::Sender<Queue>,
    sender: JoinHandle<()>,
}

/// Reports that are to be sent.
type Queue = mpsc::Sender<Vec<u8>>;

impl Running {
    /// Starts to report, of its configuration what is `known`, too; `is_beside_host`: a host in this process
    /// hears it.
    pub(super) fn start(
        config: AgentConfig,
        reports: &ReportsConfig,
        known: ConfigState,
        is_beside_host: bool,
    ) -> Result<Self, ConfigError> {
        let keyring = reports.keyring()?;
        let (queue, frames) = mpsc::channel(QUEUE_MAX);
        let (state, wanted) = watch::channel(config.state);
        let agent = new_agent(config.clone(), wanted, reports, keyring).telling_of(known.clone());
        let (route, queue) = watch::channel(queue);
        let line = Line::start(agent, put_into(queue));
        let sender = send((reports, frames_of_a_report(&config)), is_beside_host, frames);
        Ok(Self { config, known, state, reports: reports.clone(), line, route, sender })
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
        is_beside_host: bool,
    ) -> Result<(), ConfigError> {
        if self.config == *config && self.reports == *reports && !secrets_changed {
            return Ok(());
        }
        let keyring = reports.keyring()?;
        // The agent that runs says so: nobody waits for another one's windows.
        self.config.state = config.state;
        self.state.send_replace(config.state);
        let backlog = frames_of_a_report(config);
        if !self.reports.is_sent_like(reports) || backlog != frames_of_a_report(&self.config) {
            let (queue, frames) = mpsc::channel(QUEUE_MAX);
            self.sender = send((reports, backlog), is_beside_host, frames);
            // The old sending task sends what it has and ends.
            self.route.send_replace(queue);
        }
        let is_same_agent = self.config == *config && !secrets_changed;
        let ReportsConfig { farm, keys, .. } = reports;
        if is_same_agent && self.reports.farm == *farm && self.reports.keys == *keys {
            self.reports = reports.clone();
            return Ok(());
        }
        let agent = new_agent(config.clone(), self.state.subscribe(), reports, keyring)
            .telling_of(self.known.clone());
        // Under another name the old machine is gone, and hosts are told so.
        let is_same = self.config.machine == config.machine && self.reports.farm == reports.farm;
        let ending = if is_same { Ending::Replaced } else { Ending::Leaving };
        let way = put_into(self.route.subscribe());
        self.line.succeed(ending, agent, way);
        (self.config, self.reports) = (config.clone(), reports.clone());
        Ok(())
    }

    /// Whether nothing it reports can be sent any more.
    pub(super) fn has_ended(&self) -> bool {
        self.sender.is_finished()
    }

    pub(super) async fn stop(self) {
        let Self { line, route, sender, .. } = self;
        let sent = async {
            line.end(Ending::Leaving).await;
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

/// Sends the reports of a queue.
fn send(
    (reports, backlog): (&ReportsConfig, usize),
    is_beside_host: bool,
    frames: mpsc::Receiver<Vec<u8>>,
) -> JoinHandle<()> {
    let outlet = Outlet::new(reports, backlog).beside_host(is_beside_host);
    tokio::spawn(outlet.run(frames))
}

/// Frames of one report at most. So many wait for a destination that is slow or away: the newest says it all.
fn frames_of_a_report(config: &AgentConfig) -> usize {
    config.machines().len()
}

/// Puts reports into the queue of the sending task that runs.
fn put_into(
    route: watch::Receiver<Queue>,
) -> impl FnMut(Vec<u8>) -> Pin<Box<dyn Future<Output = bool> + Send>> {
    move |frame| {
        let queue = route.borrow().clone();
        Box::pin(async move { queue.send(frame).await.is_ok() })
    }
}

fn new_agent(
    config: AgentConfig,
    state: watch::Receiver<State>,
    reports: &ReportsConfig,
    keyring: Keyring,
) -> Agent {
    let agent = Agent::new(config, reports.farm.clone(), keyring, next_boot_ms(), Instant::now());
    agent.in_state(state)
}
