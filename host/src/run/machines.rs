//! Machines without an agent: the host reads their pages as an agent there would, and hears the
//! reports of that without a network. So they are not signed, and no rule of networks is for them.
//!
//! A machine whose pages do not all answer sends no report, so that it is gone by the same rule as
//! one whose agent is silent. One that is configured otherwise is read by the old configuration until
//! the new one's pages answer ([`Line`]).

use std::future::ready;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::line::Line;
use crate::agent::{Agent, Ending};
use crate::clock::next_boot_ms;
use crate::config::MachineConfig;
use crate::report::Keyring;
use crate::transport::{Batch, Datagram};

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
    farm: String,
    line: Line,
}

impl Machines {
    /// Reads these machines instead of those so far; those that are in both go on as they are, unless
    /// the farm is another one.
    pub(super) fn apply(
        &mut self,
        machines: &[MachineConfig],
        farm: &str,
        deliver: impl Fn(Batch) + Clone + Send + Sync + 'static,
    ) {
        for machine in machines {
            let known = self.running.iter_mut().find(|known| known.config.name == machine.name);
            match known {
                Some(known) => known.follow(machine, farm, deliver.clone()),
                None => self.running.push(Running::start(machine, farm, deliver.clone())),
            }
        }
        let is_wanted = |running: &mut Running| {
            machines.iter().any(|machine| machine.name == running.config.name)
        };
        for running in self.running.extract_if(.., |running| !is_wanted(running)) {
            tokio::spawn(running.line.end(Ending::Leaving));
        }
    }

    /// Lets all of them leave.
    pub(super) async fn stop(self) {
        let lines = self.running.into_iter().map(|running| running.line.end(Ending::Leaving));
        let leaving: JoinSet<_> = lines.collect();
        if timeout(LEAVE_WAIT, leaving.join_all()).await.is_err() {
            tracing::warn!("the last reports of some machines were not heard in time");
        }
    }
}

impl Running {
    fn start(
        machine: &MachineConfig,
        farm: &str,
        deliver: impl Fn(Batch) + Send + Sync + 'static,
    ) -> Self {
        let line = Line::start(agent(machine, farm), hear(machine, deliver));
        Self { config: machine.clone(), farm: farm.to_owned(), line }
    }

    /// Is read by another configuration as soon as that gives a report.
    fn follow(
        &mut self,
        machine: &MachineConfig,
        farm: &str,
        deliver: impl Fn(Batch) + Send + Sync + 'static,
    ) {
        if self.config == *machine && self.farm == farm {
            return;
        }
        self.line.succeed(Ending::Replaced, agent(machine, farm), hear(machine, deliver));
        (self.config, self.farm) = (machine.clone(), farm.to_owned());
    }
}

fn agent(machine: &MachineConfig, farm: &str) -> Agent {
    let now = tokio::time::Instant::now();
    let agent =
        Agent::new(machine.as_agent(), farm.to_owned(), Keyring::default(), next_boot_ms(), now);
    agent.needing_answers()
}

/// Takes a machine's reports to the host.
fn hear(
    machine: &MachineConfig,
    deliver: impl Fn(Batch) + Send + Sync + 'static,
) -> impl FnMut(Vec<u8>) -> std::future::Ready<bool> + Send + 'static {
    let from = source(&machine.offer.address);
    move |bytes| {
        deliver([Datagram { bytes: &bytes, received: Instant::now(), from }].into_iter().collect());
        ready(true)
    }
}

/// Where its reports come from: the machine's own address, where that is not a name.
fn source(address: &str) -> IpAddr {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let socket = authority.parse::<SocketAddr>().map(|socket| socket.ip());
    socket.or_else(|_| authority.parse()).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
