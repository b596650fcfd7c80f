//! Machines without an agent: the host reads their pages as an agent there would, and hears the
//! reports of that without a network.
//!
//! A machine whose pages do not all answer sends no report, so that it is gone by the same rule as
//! one whose agent is silent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::agent::{Agent, run};
use crate::clock::wall_ms;
use crate::config::{ConfigError, MachineConfig, ReportsConfig};
use crate::report::Keyring;
use crate::transport::{Batch, Datagram};

/// Reports that wait to be heard: the host takes them at once.
const QUEUE_MAX: usize = 4;
/// Time for the last reports to be heard.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// The machines that are read.
#[derive(Default)]
pub(super) struct Machines {
    running: Vec<Running>,
}

/// One of them.
struct Running {
    config: MachineConfig,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Machines {
    /// Reads these machines instead of those so far; those that are in both go on as they are, unless
    /// `anew`: how reports are signed, or the farm, has changed.
    ///
    /// # Errors
    /// The secrets of signed reports cannot be read; nothing changes then.
    pub(super) fn apply(
        &mut self,
        machines: &[MachineConfig],
        reports: &ReportsConfig,
        anew: bool,
        deliver: impl Fn(Batch) + Clone + Send + Sync + 'static,
    ) -> Result<(), ConfigError> {
        let keyring = reports.keyring()?;
        let (kept, ended): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|running| !anew && machines.contains(&running.config));
        for running in ended {
            let renewed = machines.iter().any(|machine| machine.name == running.config.name);
            running.end(renewed);
        }
        self.running = kept;
        for machine in machines {
            if !self.running.iter().any(|running| running.config == *machine) {
                let running =
                    Running::start(machine, &reports.farm, keyring.clone(), deliver.clone());
                self.running.push(running);
            }
        }
        Ok(())
    }

    /// Lets all of them leave.
    pub(super) async fn stop(self) {
        for Running { stop, task, .. } in self.running {
            stop.send(()).ok(); // a task that has ended has nothing to stop
            if timeout(LEAVE_WAIT, task).await.is_err() {
                tracing::warn!("a machine's last report was not heard in time");
            }
        }
    }
}

impl Running {
    fn start(
        machine: &MachineConfig,
        farm: &str,
        keyring: Keyring,
        deliver: impl Fn(Batch) + Send + Sync + 'static,
    ) -> Self {
        let now = tokio::time::Instant::now();
        let agent = Agent::new(machine.as_agent(), farm.to_owned(), keyring, wall_ms(), now);
        let (frames, mut made) = mpsc::channel(QUEUE_MAX);
        let (stop, stopped) = oneshot::channel();
        let from = source(&machine.address);
        let task = tokio::spawn(async move {
            let reading = run(agent.needing_answers(), frames, stopped);
            let hearing = async {
                while let Some(bytes) = made.recv().await {
                    let datagram = Datagram { bytes: &bytes, received: Instant::now(), from };
                    deliver([datagram].into_iter().collect());
                }
            };
            tokio::join!(reading, hearing);
        });
        Self { config: machine.clone(), stop, task }
    }

    /// Ends; `renewed`: another one reports on under its name.
    fn end(self, renewed: bool) {
        if renewed {
            self.task.abort();
        } else {
            self.stop.send(()).ok(); // its last report says that it leaves
        }
    }
}

/// Where its reports come from: the machine's own address, where that is not a name.
fn source(address: &str) -> IpAddr {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let socket = authority.parse::<SocketAddr>().map(|socket| socket.ip());
    socket.or_else(|_| authority.parse()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
