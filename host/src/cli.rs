//! The command line: arguments in, exit code out. The only place that reads the environment.
//!
//! Exit codes: 0 stopped as asked, 64 a wrong command line or configuration, 1 anything else.

mod ask;
mod banner;
mod service;
#[cfg(feature = "host")]
mod policy;
#[cfg(feature = "host")]
mod settings;
#[cfg(feature = "host")]
mod sim;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{ConfigError, DEFAULT_FILE, Destination, Origin, Problem, Role};
use crate::run::{Loadline, Reload, RunError};
use crate::telemetry::{self, LogFormat, tell};
use service::Manager;

/// A wrong command line or configuration (`EX_USAGE`).
const USAGE: u8 = 64;
/// Time for what still reads a file or a page when everything else has ended, and for the last lines of the
/// log.
const END_WAIT: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  loadline                                  agent and host in one process, no configuration
  curl -s localhost:14000/v1/target         which machine should take this work?
  loadline agent                            only report (on every machine of the farm)
  loadline host                             only receive and answer (on any number of machines)
  loadline relay tcp://far:12000            bring what is heard here to hosts on another network
  loadline pick --pool web                  ask a host, print the address
  loadline sim small                        compare strategies before you use them
  loadline policy new mine --kind strategy  write one of your own
  loadline config default > loadline.toml   start a configuration with every key explained

A policy takes effect when it is dropped into the policies folder:
  echo 'cpu * 0.7 + memory * 0.3' > policies/weighted.formula";

/// Which machine should take this work? Agents report load, a host computes each target's load with
/// a formula and chooses with a strategy; both are sandboxed WebAssembly policies that are swapped
/// while it runs.
#[derive(Parser)]
#[command(name = "loadline", version, after_help = EXAMPLES)]
struct Args {
    /// Configuration file [default: loadline.toml here, if there is one]
    #[arg(long, short, global = true, value_name = "FILE", env = "LOADLINE_CONFIG")]
    config: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace, or by module (loadline=debug)
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        default_value = "info",
        env = "LOADLINE_LOG"
    )]
    log: String,
    /// How logs look on standard error
    #[arg(long, global = true, value_enum, default_value = "text", env = "LOADLINE_LOG_FORMAT")]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the roles that the configuration names; without one, both. This is the default
    Run,
    /// Only sample this machine and report
    Agent,
    /// Only receive reports, run policies and answer
    Host,
    /// Send on what is heard here, many reports a datagram, to hosts on another network
    Relay(RelayArguments),
    /// Ask a host for a target and print its address
    Pick(ask::Question),
    /// Compare strategies on a simulated farm, before they are used
    #[cfg(feature = "host")]
    Sim(sim::Arguments),
    /// Make, check, try, measure and sign policies
    #[cfg(feature = "host")]
    Policy(policy::Arguments),
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(clap::Args)]
struct RelayArguments {
    /// Where to: udp://HOST:12000 or tcp://HOST:12000, besides what `[relay]` says
    #[arg(value_name = "DESTINATION")]
    to: Vec<String>,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Report every problem of the file at once
    Check,
    /// Print what is in force, defaults filled in
    Print,
    /// Print the annotated file with every key and its default
    Default,
}

/// Why the program ends with an error.
enum Failure {
    Config(ConfigError),
    /// A wrong command line; what is wrong and what to do.
    #[cfg(feature = "host")]
    Usage(String),
    Other(String),
}

/// Runs the program with this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are no mistakes. Nothing can be done about a closed terminal.
            let code = if error.use_stderr() { USAGE } else { 0 };
            error.print().ok();
            return code.into();
        }
    };
    let code = match perform(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Config(error)) => {
            tell(&format!("configuration:\n  {}", error.to_string().replace('\n', "\n  ")));
            USAGE.into()
        }
        #[cfg(feature = "host")]
        Err(Failure::Usage(message)) => {
            tell(&message);
            USAGE.into()
        }
        Err(Failure::Other(message)) => {
            tell(&message);
            ExitCode::FAILURE
        }
    };
    telemetry::flush(END_WAIT);
    code
}

fn perform(args: Args) -> Result<(), Failure> {
    let origin = |role| Origin::new(args.config.clone(), variables(), role);
    match args.command.unwrap_or(Command::Run) {
        Command::Config(command) => config_command(&command, &origin(Role::AsWritten)),
        Command::Pick(question) => ask::ask(&question).map(|answer| say(&answer)).map_err(other),
        #[cfg(feature = "host")]
        Command::Sim(arguments) => {
            let policies = origin(Role::Host).load()?.host.unwrap_or_default().policies;
            sim::sim(&arguments, &policies).map(|result| say(&result))
        }
        Command::Relay(arguments) => {
            let origin = origin(Role::Relay).sending_to(arguments.destinations()?);
            start_logs(&args.log, args.log_format)?;
            run(origin)
        }
        #[cfg(feature = "host")]
        Command::Policy(arguments) => {
            policy::policy(&arguments, &origin(Role::AsWritten)).map(|result| say(&result))
        }
        command => {
            let role = match command {
                Command::Agent => Role::Agent,
                Command::Host => Role::Host,
                _ => Role::AsWritten,
            };
            start_logs(&args.log, args.log_format)?;
            run(origin(role))
        }
    }
}

fn config_command(command: &ConfigCommand, origin: &Origin) -> Result<(), Failure> {
    match command {
        ConfigCommand::Default => say(DEFAULT_FILE.trim_end()),
        ConfigCommand::Print => {
            let config = origin.load()?;
            say(&format!("{}{}", origin.told()?, config.to_toml().trim_end()));
        }
        ConfigCommand::Check => {
            let config = origin.load()?;
            #[cfg(feature = "host")]
            let of_policies = settings::check(&config);
            #[cfg(not(feature = "host"))]
            let of_policies = Ok::<_, ConfigError>(Vec::<String>::new());
            let (of_secrets, of_policies) = match (config.secrets(), of_policies) {
                (Err(secrets), Err(policies)) => {
                    let problems = [secrets.problems, policies.problems].concat();
                    return Err(ConfigError::from(problems).into());
                }
                both => both,
            };
            of_secrets?;
            let of_policies = of_policies?;
            for warning in config.warnings().into_iter().chain(of_policies) {
                tell(&format!("warning: {warning}"));
            }
            say("the configuration is good");
        }
    }
    Ok(())
}

/// The environment.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    })
}

fn run(origin: Origin) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(other)?;
    let result = runtime.block_on(run_until_told(origin));
    // A source that hangs in the kernel must not keep the process from ending.
    runtime.shutdown_timeout(END_WAIT);
    result
}

async fn run_until_told(origin: Origin) -> Result<(), Failure> {
    let written = origin.read()?;
    let config = origin.check(&written)?;
    // Before anything runs: a signal that comes early must not be lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(other)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(other)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(other)?;
    let mut loadline = Loadline::start(config.clone()).await?;
    tell(&banner::text(&config, &loadline));
    let manager = Manager::from_environment();
    manager.ready();
    let mut reload = Reload::new(origin, written, &loadline);
    loop {
        let follow = async {
            let asked = tokio::select! {
                () = reload.due() => false,
                _ = hang_up.recv() => true,
            };
            reload.look(&mut loadline, asked).await;
        };
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = follow => {}
        }
        manager.note(loadline.ended());
    }
    tracing::info!("stopping");
    manager.stopping();
    loadline.stop().await;
    tracing::info!("stopped");
    Ok(())
}

impl RelayArguments {
    fn destinations(&self) -> Result<Vec<Destination>, Failure> {
        let parse = |text: &String| {
            Destination::parse(text).ok_or_else(|| {
                let what =
                    format!("{text:?} is not of the form udp://HOST:12000 or tcp://HOST:12000");
                Failure::Config(Problem::of_all(what).into())
            })
        };
        self.to.iter().map(parse).collect()
    }
}

fn start_logs(filter: &str, format: LogFormat) -> Result<(), Failure> {
    telemetry::start(format, filter)
        .map_err(|error| Failure::Other(format!("--log {filter}: {error}")))
}

/// Writes to standard output; a closed pipe is the reader's choice.
fn say(text: &str) {
    writeln!(std::io::stdout(), "{text}").ok();
}

fn other(error: impl std::fmt::Display) -> Failure {
    Failure::Other(error.to_string())
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Config(error) => Self::Config(error),
            error => Self::Other(error.to_string()),
        }
    }
}
