//! `loadline sim`: strategies side by side, on a farm in virtual time.

mod chart;
mod csv;
mod entrants;
mod measures;
mod table;

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Failure;
use crate::policy::{Limits, PolicyEngine};
use crate::sim::compare::{Comparison, compare};
use crate::sim::scenario::Scenario;
use entrants::{Entrants, Others};

/// Time after which progress is told.
const QUIET: Duration = Duration::from_millis(1_500);
/// Seeds at most.
const SEEDS_MAX: u64 = 1_000;

const EXAMPLES: &str = "\
Examples:
  loadline sim                               who bears old reports? The main comparison
  loadline sim small                         the same on five servers: a second or two
  loadline sim --list                        all scenarios
  loadline sim unequal --strategy my.wasm    your strategy beside all others
  loadline sim --strategy my.wasm --only p2c,balanced
                                             or beside these
  loadline sim --set hosts=4 --set every=3   another farm; keys as in the scenario's [setup]
  loadline sim --set 'servers=[10, 100]'     vary another key
  loadline sim bursts --out results          also write bursts.csv and bursts.svg
  loadline sim my-farm.toml                  a scenario of your own, after config/scenarios/*.toml";

/// What to compare.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A scenario's name (see --list) or TOML file
    #[arg(default_value = "stale")]
    scenario: String,
    /// A strategy of yours, beside all that are built in: a .wasm file, or a name in the policies
    /// folder or built in; may be repeated
    #[arg(long, value_name = "NAME|FILE.wasm")]
    strategy: Vec<String>,
    /// Compare all strategies that are built in, not only those of the scenario
    #[arg(long)]
    all: bool,
    /// Compare these built-in strategies instead
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "all")]
    only: Vec<String>,
    /// Change a key of the scenario's setup; may be repeated. A list is varied: 'hosts=[1, 4]'
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Requests of a run, the first tenth to warm up [default: the scenario's, mostly 200000]
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Runs with different requests; from two on there is a 95 % interval (±)
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// The value of the sweep to look at closely [default: the scenario's]
    #[arg(long, value_name = "VALUE")]
    at: Option<String>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Also write SCENARIO.csv and SCENARIO.svg into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// List the scenarios
    #[arg(long)]
    list: bool,
}

/// Compares; what is to be printed.
pub(super) fn sim(arguments: &Arguments, policies: &Path) -> Result<String, Failure> {
    if arguments.list {
        return Ok(list());
    }
    let scenario = scenario(arguments).map_err(Failure::Usage)?;
    let engine = PolicyEngine::new(Limits::patient()).map_err(super::other)?;
    let others = match (&*arguments.only, arguments.all || !arguments.strategy.is_empty()) {
        ([], true) => Others::All,
        ([], false) => Others::Scenario,
        (names, _) => Others::Only(names),
    };
    let entrants = Entrants { engine: &engine, policies, scenario: &scenario }
        .all(&arguments.strategy, others)
        .map_err(Failure::Usage)?;
    if let Some(folder) = &arguments.out {
        make(folder).map_err(Failure::Other)?; // before a long run, not after it
    }
    let told = Told { begin: Instant::now(), terminal: std::io::stderr().is_terminal() };
    let progress = |done: usize, all: usize, name: &str| told.progress(done, all, name);
    let compared = compare(&engine, &scenario, &entrants, arguments.seeds, &progress);
    told.clear();
    let comparison = compared.map_err(Failure::Other)?;
    let mut text = match arguments.json {
        true => serde_json::to_string_pretty(&comparison).map_err(super::other)?,
        false => table::text(&scenario.about, &comparison),
    };
    if let Some(folder) = &arguments.out {
        let written = write(folder, &scenario, &comparison).map_err(Failure::Other)?;
        if !arguments.json {
            write!(text, "\n\n{written}").map_err(super::other)?;
        }
    }
    Ok(text)
}

fn list() -> String {
    let lines = Scenario::built_in().map(|(name, title)| format!("{name:<19}{title}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The scenario with what the command line changes.
fn scenario(arguments: &Arguments) -> Result<Scenario, String> {
    let mut scenario = Scenario::load(&arguments.scenario).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    })?;
    let (key, at) = (scenario.key.clone(), scenario.points[scenario.at].label.clone());
    for written in &arguments.set {
        scenario.set(written)?;
    }
    if let Some(requests) = arguments.requests {
        let problem = |problem: String| problem.replace("--set requests=", "--requests ");
        scenario.set(&format!("requests={requests}")).map_err(problem)?;
    }
    match &arguments.at {
        Some(value) => scenario.look_at(value).map_err(|problem| format!("--{problem}"))?,
        // Where the command line took that value away, the middle is looked at.
        None if scenario.key == key => drop(scenario.look_at(&at)),
        None => {}
    }
    Ok(scenario)
}

/// What is told on the way, to a terminal only.
struct Told {
    begin: Instant,
    terminal: bool,
}

impl Told {
    fn progress(&self, done: usize, all: usize, name: &str) {
        if self.terminal && self.begin.elapsed() > QUIET {
            // A closed terminal is nobody's loss.
            write!(std::io::stderr(), "\r\x1b[K{done} of {all} runs, {name}").ok();
        }
    }

    fn clear(&self) {
        if self.terminal && self.begin.elapsed() > QUIET {
            write!(std::io::stderr(), "\r\x1b[K").ok();
        }
    }
}

fn make(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("--out {}: cannot make the folder: {error}", folder.display()))
}

/// Writes the files; says which.
fn write(folder: &Path, scenario: &Scenario, comparison: &Comparison) -> Result<String, String> {
    let files = [("csv", csv::text(comparison)), ("svg", chart::svg(scenario, comparison)?)];
    let mut written = Vec::new();
    for (ending, text) in files {
        let path = folder.join(format!("{}.{ending}", scenario.name));
        std::fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        written.push(path.display().to_string());
    }
    Ok(format!("written: {}", written.join(", ")))
}
