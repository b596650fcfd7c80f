//! Starts what a configuration asks for and stops it cleanly.
//!
//! The agent is one task that samples and one that sends; the host is a task that receives, one that
//! serves HTTP, a thread for the walk of reports and one for policies; a relay runs where no host does.
//! [`Loadline::stop`] says at once that the machine leaves, finishes open requests and joins the threads.
//! [`Loadline::apply`] changes the configuration while it runs, [`Reload`] says when. Ports may be 0: the
//! ones in use are told by the running [`Loadline`], and an agent in the same process uses them.

#[cfg(feature = "agent")]
mod agent;
#[cfg(feature = "host")]
mod host;
#[cfg(feature = "host")]
mod machines;
mod judge;
#[cfg(any(feature = "agent", feature = "host"))]
mod line;
mod relay;
mod reload;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::clock::WallClock;
#[cfg(feature = "agent")]
use crate::config::ReportsConfig;
use crate::config::{Config, ConfigError, ConfigState, Problem, Secrets};
#[cfg(feature = "host")]
use host::Surroundings;

#[cfg(feature = "host")]
pub use host::Host;
pub use relay::RunningRelay;
pub use reload::Reload;

/// Time for which the old and the new way in are both open: what waits in the old one is read by then,
/// and what comes by both counts once.
const HANDOVER: Duration = Duration::from_secs(1);

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
    config: Config,
    /// What its secret files held when they were read.
    secrets: Secrets,
    warnings: Warnings,
    state: ConfigState,
    #[cfg(feature = "host")]
    wall: WallClock,
    #[cfg(feature = "host")]
    host: Option<Host>,
    #[cfg(feature = "host")]
    machines: machines::Machines,
    #[cfg(feature = "agent")]
    agent: Option<agent::Running>,
    relay: Option<RunningRelay>,
}

impl Loadline {
    /// Starts the configured roles.
    ///
    /// # Errors
    /// What could not be started; nothing runs then.
    pub async fn start(config: Config) -> Result<Self, RunError> {
        Self::start_by(config, WallClock::default()).await
    }

    /// The same, with schedules that go by this clock.
    ///
    /// # Errors
    /// What could not be started; nothing runs then.
    #[cfg_attr(not(feature = "host"), expect(unused_variables, reason = "a schedule is a host's"))]
    pub async fn start_by(config: Config, wall: WallClock) -> Result<Self, RunError> {
        is_built(&config)?;
        let warnings = Warnings::default().say(&config);
        let state = ConfigState::default();
        let secrets = config.secrets()?;
        #[cfg(feature = "host")]
        let host = match &config.host {
            Some(host) => {
                let (reports, pools) = (&config.reports, &config.pools);
                let around = Surroundings { state: state.clone(), wall: wall.clone() };
                Some(Host::start(host, reports, pools, around).await?)
            }
            None => None,
        };
        #[cfg(feature = "host")]
        let mut machines = machines::Machines::default();
        #[cfg(feature = "host")]
        if let Some(host) = &host {
            machines.apply(&config.machines, &config.reports.farm, host.ear());
        }
        let relay = config.is_relay().then(|| RunningRelay::start(&config)).transpose()?;
        #[cfg_attr(not(feature = "agent"), expect(unused_mut, reason = "the agent comes last"))]
        let mut loadline = Self {
            secrets,
            warnings,
            state,
            #[cfg(feature = "host")]
            wall,
            #[cfg(feature = "host")]
            host,
            #[cfg(feature = "host")]
            machines,
            #[cfg(feature = "agent")]
            agent: None,
            relay,
            config,
        };
        #[cfg(feature = "agent")]
        if let Some(agent) = loadline.config.agent.clone() {
            let reports = loadline.agents_reports(&loadline.config);
            loadline.agent = Some(agent::Running::start(
                agent,
                &reports,
                loadline.state.clone(),
                loadline.is_host(),
            )?);
        }
        Ok(loadline)
    }

    /// Becomes what another configuration asks for, while it runs: no report and no request is lost.
    /// Applying the same one again does only what could not be done before.
    ///
    /// What could not be done is returned; that part stays as it was.
    pub async fn apply(&mut self, config: &Config) -> Vec<Problem> {
        if let Err(error) = is_built(config) {
            return vec![Problem::of_all(error.to_string())];
        }
        let secrets = match config.secrets() {
            Ok(secrets) => secrets,
            Err(error) => return error.problems,
        };
        let mut problems = Vec::new();
        // A relay and a host want the same port: the one that goes, goes first.
        if !config.is_relay() {
            problems.extend(self.apply_relay(config).await);
        }
        #[cfg(feature = "host")]
        problems.extend(self.apply_host(config).await);
        #[cfg(feature = "host")]
        self.apply_machines(config).await;
        if config.is_relay() {
            problems.extend(self.apply_relay(config).await);
        }
        // Last: it sends to the port that the others have.
        #[cfg(feature = "agent")]
        problems.extend(self.apply_agent(config, secrets.reports != self.secrets.reports).await);
        self.warnings = std::mem::take(&mut self.warnings).say(config);
        self.secrets = secrets;
        self.config = config.clone();
        problems
    }

    #[cfg(feature = "host")]
    async fn apply_host(&mut self, config: &Config) -> Vec<Problem> {
        let (reports, pools) = (&config.reports, &config.pools);
        match (&config.host, &mut self.host) {
            (Some(wanted), Some(host)) => host.apply(wanted, reports, pools).await,
            (Some(wanted), None) => {
                let around = Surroundings { state: self.state.clone(), wall: self.wall.clone() };
                match Host::start(wanted, reports, pools, around).await {
                    Ok(host) => self.host = Some(host),
                    Err(RunError::Config(error)) => return error.problems,
                    Err(error) => return vec![Problem::new("host", error.to_string())],
                }
                Vec::new()
            }
            (None, _) => {
                if let Some(host) = self.host.take() {
                    host.close().await.end().await;
                }
                Vec::new()
            }
        }
    }

    /// The machines that the host reads by itself.
    #[cfg(feature = "host")]
    async fn apply_machines(&mut self, config: &Config) {
        match &self.host {
            Some(host) => {
                self.machines.apply(&config.machines, &config.reports.farm, host.ear());
            }
            None => std::mem::take(&mut self.machines).stop().await,
        }
    }

    #[cfg(feature = "agent")]
    async fn apply_agent(&mut self, config: &Config, secrets_changed: bool) -> Vec<Problem> {
        let (reports, is_host) = (self.agents_reports(config), self.is_host());
        let applied = match (&config.agent, &mut self.agent) {
            (Some(wanted), Some(agent)) => agent.apply(wanted, &reports, secrets_changed, is_host),
            (Some(wanted), None) => {
                agent::Running::start(wanted.clone(), &reports, self.state.clone(), is_host)
                    .map(|agent| self.agent = Some(agent))
            }
            (None, _) => {
                if let Some(agent) = self.agent.take() {
                    agent.stop().await;
                }
                Ok(())
            }
        };
        applied.err().map_or_else(Vec::new, |error| error.problems)
    }

    async fn apply_relay(&mut self, config: &Config) -> Vec<Problem> {
        match (config.is_relay(), &mut self.relay) {
            (true, Some(relay)) => relay.apply(config).await,
            (true, None) => match RunningRelay::start(config) {
                Ok(relay) => {
                    self.relay = Some(relay);
                    Vec::new()
                }
                Err(RunError::Config(error)) => error.problems,
                Err(error) => vec![Problem::new("relay", error.to_string())],
            },
            (false, _) => {
                if let Some(relay) = self.relay.take() {
                    relay.stop().await;
                }
                Vec::new()
            }
        }
    }

    /// How the agent of this process sends: to the port that its host or its relay has.
    #[cfg(feature = "agent")]
    fn agents_reports(&self, config: &Config) -> ReportsConfig {
        let mut reports = config.reports.clone();
        if let Some(relay) = &self.relay {
            reports.groups.port = relay.port();
        }
        #[cfg(feature = "host")]
        if let Some(host) = &self.host {
            reports.groups.port = host.report_port();
        }
        reports
    }

    #[cfg(feature = "agent")]
    fn is_host(&self) -> bool {
        #[cfg(feature = "host")]
        let is_host = self.host.is_some();
        #[cfg(not(feature = "host"))]
        let is_host = false;
        is_host
    }

    /// The configuration that was started or applied last.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What is shown of the configuration.
    #[must_use]
    pub fn state(&self) -> &ConfigState {
        &self.state
    }

    /// The host, if this process is one.
    #[cfg(feature = "host")]
    #[must_use]
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// The relay, if this process is one.
    #[must_use]
    pub fn relay(&self) -> Option<&RunningRelay> {
        self.relay.as_ref()
    }

    /// What has ended of all that should run; only a fault of this program does that.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        #[cfg(feature = "host")]
        if let Some(ended) = self.host.as_ref().and_then(Host::ended) {
            return Some(ended);
        }
        #[cfg(feature = "agent")]
        if self.agent.as_ref().is_some_and(agent::Running::has_ended) {
            return Some("sending".to_owned());
        }
        None
    }

    /// Leaves the farm at once, finishes open requests meanwhile, and ends. Those are answered by what
    /// this host hears, as any other's: that its own machine leaves, too.
    pub async fn stop(self) {
        let leave = async {
            #[cfg(feature = "agent")]
            if let Some(agent) = self.agent {
                agent.stop().await;
            }
            // After it: its last report goes through.
            if let Some(relay) = self.relay {
                relay.stop().await;
            }
        };
        #[cfg(feature = "host")]
        {
            let close = async {
                match self.host {
                    Some(host) => Some(host.close().await),
                    None => None,
                }
            };
            let ((), closed) = tokio::join!(leave, close);
            self.machines.stop().await;
            if let Some(host) = closed {
                host.end().await;
            }
        }
        #[cfg(not(feature = "host"))]
        leave.await;
    }
}

/// What was said of a configuration that works and is dangerous.
#[derive(Debug, Default)]
struct Warnings(Vec<String>);

impl Warnings {
    /// Says what is new of this configuration; what holds of it.
    fn say(self, config: &Config) -> Self {
        let now = config.warnings();
        for warning in now.iter().filter(|warning| !self.0.contains(warning)) {
            tracing::warn!("{warning}");
        }
        Self(now)
    }
}

/// Whether this program has the roles that a configuration asks for.
fn is_built(config: &Config) -> Result<(), RunError> {
    match config {
        Config { host: Some(_), .. } if cfg!(not(feature = "host")) => {
            Err(RunError::NotBuilt("host"))
        }
        Config { agent: Some(_), .. } if cfg!(not(feature = "agent")) => {
            Err(RunError::NotBuilt("agent"))
        }
        _ => Ok(()),
    }
}
