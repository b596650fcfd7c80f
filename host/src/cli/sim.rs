//! `loadline sim`: strategies side by side, on a farm in virtual time.

mod chart;
mod csv;
mod table;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Failure;
use crate::config::nearest;
use crate::policy::{Kind, Limits, Module, PolicyEngine, built_in, built_in_names};
use crate::sim::compare::{Comparison, Contender, Entrant, compare};
use crate::sim::scenario::Scenario;
use crate::watch::read;

/// Time after which progress is told.
const QUIET: Duration = Duration::from_millis(1_500);
/// Seeds at most.
const SEEDS_MAX: u64 = 1_000;

const EXAMPLES: &str = "\
Examples:
  loadline sim                               who bears old reports? The main comparison
  loadline sim small                         the same on five servers: a second or two
  loadline sim --list                        all scenarios
  loadline sim unequal --strategy my.wasm    your strategy beside the others
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
    /// A strategy beside those of the scenario: a .wasm file, or a name in the policies folder or
    /// built in; may be repeated
    #[arg(long, value_name = "NAME|FILE.wasm")]
    strategy: Vec<String>,
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
    let entrants = Entrants { engine: &engine, policies, scenario: &scenario }
        .all(&arguments.strategy)
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

/// Finds modules.
struct Entrants<'a> {
    engine: &'a PolicyEngine,
    policies: &'a Path,
    scenario: &'a Scenario,
}

impl Entrants<'_> {
    /// The user's own, the scenario's, then the baselines; or all problems of the first that have any.
    fn all(&self, own: &[String]) -> Result<Vec<Entrant>, String> {
        let (mut entrants, mut problems) = (Vec::new(), Vec::new());
        let mut names = BTreeSet::new();
        for written in own {
            match self.own(written) {
                Ok(entrant) if names.insert(entrant.name.clone()) => entrants.push(entrant),
                Ok(entrant) => {
                    problems.push(format!("--strategy {written}: {} is there twice", entrant.name))
                }
                Err(problem) => problems.push(format!("--strategy {written}: {problem}")),
            }
        }
        if !problems.is_empty() {
            return Err(problems.join("\n")); // at once: the others take time to compile
        }
        for name in self.scenario.strategies.iter().filter(|name| !names.contains(*name)) {
            match self.named(name, false) {
                Ok(entrant) => entrants.push(entrant),
                Err(problem) => problems.push(format!("strategies: {problem}")),
            }
        }
        entrants.extend(self.scenario.baselines.iter().map(|(name, baseline)| Entrant {
            name: (*name).to_owned(),
            own: false,
            contender: Contender::Baseline(*baseline),
        }));
        match problems.is_empty() {
            true => Ok(entrants),
            false => Err(problems.join("\n")),
        }
    }

    /// A file, or a name.
    fn own(&self, written: &str) -> Result<Entrant, String> {
        let path = Path::new(written);
        if path.extension().is_none() && path.components().count() == 1 {
            return self.named(written, true);
        }
        let stem = path.file_stem().map_or_else(|| written.into(), |stem| stem.to_string_lossy());
        let settings = self.scenario.settings(&stem);
        // A file of a name that the scenario has stands beside it.
        let name = match self.scenario.strategies.iter().any(|known| **known == *stem) {
            true => format!("{stem}.wasm"),
            false => stem.into_owned(),
        };
        self.entrant(name, &self.file(path)?, settings, true)
    }

    /// A name of the policies folder or of this program. The scenario's own names mean the built-in
    /// first, so that its figures do not depend on what lies in a folder.
    fn named(&self, name: &str, own: bool) -> Result<Entrant, String> {
        let path = self.policies.join(format!("{name}.wasm"));
        let in_folder = || path.is_file().then(|| self.file(&path)).transpose();
        let built_in = built_in(name).map(<[u8]>::to_vec);
        let bytes = match (own, built_in) {
            (false, Some(bytes)) => Some(bytes),
            (_, built_in) => in_folder()?.or(built_in),
        };
        let bytes = bytes.ok_or_else(|| self.unknown(name))?;
        self.entrant(name.to_owned(), &bytes, self.scenario.settings(name), own)
    }

    fn unknown(&self, name: &str) -> String {
        let hint = match nearest(name, built_in_names()) {
            Some(near) => format!("did you mean {near}?"),
            None => "name a .wasm file".to_owned(),
        };
        format!("no strategy {name} is built in or in {}/, {hint}", self.policies.display())
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, String> {
        let bytes = read(path, self.engine.limits.file_bytes);
        bytes.map_err(|reason| format!("{}: {reason}", path.display()))
    }

    fn entrant(
        &self,
        name: String,
        bytes: &[u8],
        settings: String,
        own: bool,
    ) -> Result<Entrant, String> {
        let module =
            Module::from_wasm(self.engine, bytes).map_err(|error| format!("{name}: {error}"))?;
        if module.kind() == Kind::Formula {
            return Err(format!("{name} is a formula; what is compared here are strategies"));
        }
        let entrant =
            Entrant { name, own, contender: Contender::Strategy(Box::new(module), settings) };
        entrant.chooser(self.engine, 0)?; // what does not start is told before anything runs
        Ok(entrant)
    }
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
