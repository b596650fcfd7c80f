//! Starts what a configuration asks for and stops it cleanly.
//!
//! The agent is one task that samples and one that sends; the host is a task that receives, one that
//! serves HTTP, a thread for the walk of reports and one for policies. [`Loadline::stop`] says that
//! the machine leaves, finishes open requests and joins the threads. Ports may be 0: the ones in use
//! are told by the running [`Loadline`], and an agent in the same process uses them.

#[cfg(feature = "agent")]
mod agent;
#[cfg(feature = "host")]
mod host;
#[cfg(feature = "host")]
mod machines;
mod judge;
mod relay;

use std::io;
use std::net::SocketAddr;

use crate::config::{Config, ConfigError};

#[cfg(feature = "host")]
pub use host::Host;
pub use relay::RunningRelay;

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The HTTP address cannot be bound.
    #[error(
        "cannot listen on {address} for HTTP: {source}; is another host running? set host.listen"
    )]
    Listen {
        /// `host.listen`
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The report port cannot be bound.
    #[error("cannot receive reports on UDP port {port}: {source}; set the port in reports.group")]
    Reports {
        /// The port of `reports.group`.
        port: u16,
        /// The system's reason.
        source: io::Error,
    },
    /// No policy engine.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Policies(#[from] crate::policy::ModuleError),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The role is not in this program.
    #[error("this program was built without the {0} role")]
    NotBuilt(&'static str),
}

/// A running process.
pub struct Loadline {
    #[cfg(feature = "host")]
    host: Option<Host>,
    #[cfg(feature = "host")]
    machines: machines::Machines,
    #[cfg(feature = "agent")]
    agent: Option<agent::Running>,
}

impl Loadline {
    /// Starts the configured roles.
    ///
    /// # Errors
    /// What could not be started; nothing runs then.
    pub async fn start(config: Config) -> Result<Self, RunError> {
        #[cfg(not(feature = "host"))]
        if config.host.is_some() {
            return Err(RunError::NotBuilt("host"));
        }
        #[cfg(not(feature = "agent"))]
        if config.agent.is_some() {
            return Err(RunError::NotBuilt("agent"));
        }
        for warning in config.reports.warnings(config.host.is_some()) {
            tracing::warn!("{warning}");
        }
        #[cfg(feature = "host")]
        let host = match &config.host {
            Some(host) => Some(Host::start(host, &config.reports, &config.pools).await?),
            None => None,
        };
        #[cfg(feature = "host")]
        let mut machines = machines::Machines::default();
        #[cfg(feature = "host")]
        if let Some(host) = &host {
            machines.apply(&config.machines, &config.reports, false, host.ear())?;
        }
        #[cfg(feature = "agent")]
        let agent = config
            .agent
            .map(|agent| {
                #[cfg_attr(not(feature = "host"), expect(unused_mut, reason = "the host's port"))]
                let mut reports = config.reports.clone();
                #[cfg(feature = "host")]
                if let Some(host) = &host {
                    reports.groups.port = host.report_port();
                }
                agent::Running::start(agent, &reports)
            })
            .transpose()?;
        Ok(Self {
            #[cfg(feature = "host")]
            host,
            #[cfg(feature = "host")]
            machines,
            #[cfg(feature = "agent")]
            agent,
        })
    }

    /// The host, if this process is one.
    #[cfg(feature = "host")]
    #[must_use]
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Finishes open requests, leaves the farm and ends.
    pub async fn stop(self) {
        // Requests first: the last report takes this machine out, and they may want it.
        #[cfg(feature = "host")]
        let stopping = match self.host {
            Some(host) => Some(host.close().await),
            None => None,
        };
        #[cfg(feature = "agent")]
        if let Some(agent) = self.agent {
            agent.stop().await;
        }
        #[cfg(feature = "host")]
        self.machines.stop().await;
        #[cfg(feature = "host")]
        if let Some(host) = stopping {
            host.end().await;
        }
    }
}
