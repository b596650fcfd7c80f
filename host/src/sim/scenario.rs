//! Scenario files: a farm, one of its settings to vary, and who is compared on it.
//!
//! TOML text in, a checked [`Scenario`] or every problem at once out. The built-in ones are the files
//! of `config/scenarios`, inside this program.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use super::chooser::Baseline;
use super::setup::Setup;
use crate::config::nearest;

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../config/scenarios/", $name, ".toml")))),*]
    };
}

/// Name and text of the scenarios inside this program.
const BUILT_IN: &[(&str, &str)] = scenarios![
    "stale",
    "small",
    "few-hosts",
    "many-hosts",
    "unequal",
    "slow-tenth",
    "load-only",
    "loss",
    "bursts",
    "step",
    "slow-down",
    "crash",
    "failing",
    "keys",
    "antagonist",
    "processor-sharing",
];
/// Values of a sweep at most: more columns than this no screen holds.
const VALUES_MAX: usize = 20;
/// Keys of a setup whose value is an array, which is therefore no list of values to vary.
const ARRAY_KEY: &str = "incident";

/// Why there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Neither a built-in name nor a file.
    #[error("no scenario {name}{hint}; loadline sim --list shows all, or name a .toml file")]
    Unknown {
        /// As written.
        name: String,
        /// The nearest name.
        hint: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// What is wrong, each with its key.
    #[error("scenario {name}:\n  {}", problems.join("\n  "))]
    Problems {
        /// The scenario.
        name: String,
        /// All of it.
        problems: Vec<String>,
    },
}

/// A scenario file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    title: String,
    about: String,
    #[serde(default)]
    setup: Table,
    sweep: Table,
    at: Option<Value>,
    strategies: Vec<String>,
    #[serde(default)]
    baselines: Vec<String>,
    #[serde(default)]
    strategy_settings: BTreeMap<String, Table>,
}

/// What is compared with what, on which farm.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name, or that of its file.
    pub name: String,
    /// In one line.
    pub title: String,
    /// What it shows.
    pub about: String,
    /// Names of strategies, without repetition.
    pub strategies: Vec<String>,
    /// What they are compared with.
    pub baselines: Vec<(&'static str, Baseline)>,
    /// The key of the setup that is varied.
    pub key: String,
    /// One farm a value, at least one.
    pub points: Vec<Point>,
    /// The point that is looked at closely.
    pub at: usize,
    settings: BTreeMap<String, Table>,
    /// The `[setup]` as written, without the key that is varied.
    setup: Table,
}

/// A farm with one value of what is varied.
#[derive(Debug, Clone)]
pub struct Point {
    /// The value, as it is shown.
    pub label: String,
    /// The value, if it is a number.
    pub number: Option<f64>,
    /// The farm.
    pub setup: Setup,
    value: Value,
}

impl Scenario {
    /// Name and title of the scenarios inside this program.
    pub fn built_in() -> impl Iterator<Item = (&'static str, String)> {
        let title = |(name, text): &(&'static str, &str)| {
            let scenario = Self::parse(name, text).expect("a test parses every built-in scenario");
            (*name, scenario.title)
        };
        BUILT_IN.iter().map(title)
    }

    /// A built-in scenario by its name, or a file.
    ///
    /// # Errors
    /// There is none, or what is wrong with it.
    pub fn load(written: &str) -> Result<Self, ScenarioError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == written) {
            return Self::parse(name, text);
        }
        let path = Path::new(written);
        let is_path = path.extension().is_some_and(|ending| ending == "toml");
        if !is_path && !path.is_file() {
            let near = nearest(written, BUILT_IN.iter().map(|(name, _)| *name));
            let hint = near.map(|near| format!(", did you mean {near}?")).unwrap_or_default();
            return Err(ScenarioError::Unknown { name: written.to_owned(), hint });
        }
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: written.to_owned(), source })?;
        let name = path.file_stem().map_or_else(|| written.into(), |stem| stem.to_string_lossy());
        Self::parse(&name, &text)
    }

    /// A scenario from a file's text.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScenarioError> {
        let wrong = |problems| ScenarioError::Problems { name: name.to_owned(), problems };
        let raw: Raw = toml::from_str(text).map_err(|error| {
            wrong(error.to_string().trim_end().lines().map(Into::into).collect())
        })?;
        let mut problems = Vec::new();
        let mut baselines = Vec::new();
        for written in &raw.baselines {
            match baseline(written) {
                Ok(known) => baselines.push(known),
                Err(problem) => problems.push(problem),
            }
        }
        for name in raw.strategy_settings.keys().filter(|name| !raw.strategies.contains(name)) {
            problems.push(format!("strategy_settings.{name}: strategies does not name it"));
        }
        if raw.strategies.is_empty() && raw.baselines.is_empty() {
            problems.push("strategies, baselines: name at least one".to_owned());
        }
        let (key, values) = sweep(&raw.sweep, &mut problems);
        let mut strategies: Vec<String> = Vec::new();
        for name in raw.strategies {
            if !strategies.contains(&name) {
                strategies.push(name);
            }
        }
        let mut scenario = Self {
            name: name.to_owned(),
            title: raw.title,
            about: raw.about.trim().to_owned(),
            strategies,
            baselines,
            key,
            points: Vec::new(),
            at: 0,
            settings: raw.strategy_settings,
            setup: raw.setup,
        };
        problems.extend(scenario.vary(&values).err().into_iter().flatten());
        if problems.is_empty()
            && let Some(at) = raw.at
            && let Err(problem) = scenario.look_at(&label(&at))
        {
            problems.push(problem);
        }
        if problems.is_empty() { Ok(scenario) } else { Err(wrong(problems)) }
    }

    /// Takes one key of the setup from the command line, `KEY=VALUE`; a list of values is varied.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set(&mut self, written: &str) -> Result<(), String> {
        let Some((key, value)) = written.split_once('=') else {
            return Err(format!("--set {written}: write KEY=VALUE, for example every=10"));
        };
        let key = key.trim();
        let parsed = toml::from_str::<Table>(&format!("value = {value}"));
        let value = match parsed.ok().and_then(|mut table| table.remove("value")) {
            Some(value) => value,
            None => Value::String(value.trim().to_owned()),
        };
        let values = match value {
            Value::Array(values) if key != ARRAY_KEY => {
                key.clone_into(&mut self.key);
                values
            }
            value if key == self.key => vec![value],
            value => {
                self.setup.insert(key.to_owned(), value);
                self.points.iter().map(|point| point.value.clone()).collect()
            }
        };
        let wrong = |problems: Vec<String>| format!("--set {written}: {}", problems.join("; "));
        self.vary(&values).map_err(wrong)
    }

    /// Looks closely at the point with this value.
    ///
    /// # Errors
    /// There is no such point.
    pub fn look_at(&mut self, value: &str) -> Result<(), String> {
        let number = value.parse::<f64>().ok();
        let is_it = |point: &Point| {
            let equal =
                |number: f64| point.number.is_some_and(|own| own.total_cmp(&number).is_eq());
            point.label == value || number.is_some_and(equal)
        };
        let found = self.points.iter().position(is_it);
        let labels = || self.points.iter().map(|point| &*point.label).collect::<Vec<_>>();
        self.at = found.ok_or_else(|| {
            format!("at: {value} is not among the values of {}: {}", self.key, labels().join(", "))
        })?;
        Ok(())
    }

    /// The settings of a strategy, a JSON object.
    #[must_use]
    pub fn settings(&self, strategy: &str) -> String {
        let settings = self.settings.get(strategy);
        let json = settings.and_then(|table| serde_json::to_string(table).ok());
        json.unwrap_or_else(|| "{}".to_owned())
    }

    /// Makes one point a value.
    fn vary(&mut self, values: &[Value]) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        if values.is_empty() || values.len() > VALUES_MAX {
            problems.push(format!("sweep.{}: name 1 to {VALUES_MAX} values", self.key));
        }
        let mut points = Vec::new();
        for value in values {
            let mut table = self.setup.clone();
            table.insert(self.key.clone(), value.clone());
            match Setup::read(&table) {
                Ok(setup) => points.push(Point {
                    label: label(value),
                    number: number(value),
                    value: value.clone(),
                    setup,
                }),
                Err(wrong) => problems.extend(wrong),
            }
        }
        if !problems.is_empty() {
            problems.dedup();
            return Err(problems);
        }
        self.at = points.len() / 2;
        self.points = points;
        Ok(())
    }
}

/// The one key of `[sweep]` and its values.
fn sweep(table: &Table, problems: &mut Vec<String>) -> (String, Vec<Value>) {
    let mut entries = table.iter();
    if let (Some((key, Value::Array(values))), None) = (entries.next(), entries.next()) {
        return (key.clone(), values.clone());
    }
    problems.push("sweep: name one key of the setup with a list, as in every = [1, 10]".to_owned());
    ("every".to_owned(), vec![Value::Float(1.0)])
}

fn baseline(written: &str) -> Result<(&'static str, Baseline), String> {
    let known = Baseline::NAMES.iter().find(|(name, _)| *name == written);
    known.copied().ok_or_else(|| {
        let names = Baseline::NAMES.map(|(name, _)| name);
        let hint = match nearest(written, names.into_iter()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", names.join(", ")),
        };
        format!("baselines: no baseline {written}, {hint}")
    })
}

fn number(value: &Value) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "no setting is above 2^53")]
    let from_integer = value.as_integer().map(|integer| integer as f64);
    value.as_float().or(from_integer)
}

/// A value as it is shown: `10` for 10.0, without quotes.
fn label(value: &Value) -> String {
    let text = |shown: &dyn Display| shown.to_string();
    match value {
        Value::String(string) => string.clone(),
        Value::Float(float) => text(float),
        other => text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::super::setup::Speeds;
    use super::*;

    const GOOD: &str = r#"
        title = "t"
        about = "a"
        strategies = ["p2c", "fuzzy", "p2c"]
        baselines = ["random"]
        [setup]
        servers = 5
        [sweep]
        every = [0.1, 1, 10.0]
        [strategy_settings.fuzzy]
        threshold = 0.5
    "#;

    fn good() -> Scenario {
        Scenario::parse("good", GOOD).expect("is good")
    }

    fn labels(scenario: &Scenario) -> Vec<&str> {
        scenario.points.iter().map(|point| &*point.label).collect()
    }

    #[track_caller]
    fn refuse(from: &str, to: &str, words: &[&str]) {
        let text = GOOD.replace(from, to);
        let said = Scenario::parse("bad", &text).expect_err("is bad").to_string();
        for word in words {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
    }

    #[test]
    fn every_built_in_scenario_parses_and_has_its_references() {
        for (name, _) in BUILT_IN {
            let scenario = Scenario::load(name).unwrap_or_else(|error| panic!("{error}"));
            let has = |wanted: &str| scenario.baselines.iter().any(|(name, _)| *name == wanted);
            let everywhere = ["random", "round-robin", "p2c-now", "jsq-now"];
            let of_unequal = ["speed-random", "sed-now", "never-queue-now"];
            let bounds = match scenario.points[0].setup.equal_speeds() {
                true => &["central"][..],
                false => &of_unequal[..],
            };
            assert!(everywhere.iter().chain(bounds).all(|wanted| has(wanted)), "{name}");
            assert!(!scenario.about.is_empty(), "{name}");
        }
        assert_eq!(Scenario::built_in().count(), BUILT_IN.len());
    }

    #[test]
    fn a_sweep_makes_one_farm_a_value() {
        let scenario = good();
        assert_eq!(labels(&scenario), ["0.1", "1", "10"]);
        assert_eq!(scenario.strategies, ["p2c", "fuzzy"]);
        assert_eq!(scenario.points[scenario.at].label, "1");
        assert!(scenario.points.iter().all(|point| point.setup.servers == 5));
        assert_eq!(scenario.settings("fuzzy"), r#"{"threshold":0.5}"#);
        assert_eq!(scenario.settings("p2c"), "{}");
    }

    #[test]
    fn the_command_line_changes_a_key_or_what_is_varied() {
        let mut scenario = good();
        scenario.set("utilisation=0.5").expect("is good");
        scenario.set("speeds=halves").expect("is good");
        scenario.set("incident=[10, 20]").expect("is good");
        assert_eq!(labels(&scenario), ["0.1", "1", "10"]);
        let setup = &scenario.points[0].setup;
        assert_eq!((setup.speeds, setup.incident), (Speeds::Halves, Some((10.0, 20.0))));
        scenario.set("every=3").expect("is good");
        assert_eq!(labels(&scenario), ["3"]);
        scenario.set("hosts=[1, 4]").expect("is good");
        assert_eq!((&*scenario.key, labels(&scenario)), ("hosts", vec!["1", "4"]));
        scenario.look_at("4.0").expect("is among them");
        assert_eq!(scenario.at, 1);
    }

    #[test]
    fn every_problem_is_told_with_its_key() {
        refuse(
            "servers = 5",
            "servrs = 5\nloss = 2\nhosts = \"x\"",
            &["setup.servrs: unknown key, did you mean servers?", "setup.hosts: invalid type"],
        );
        refuse(
            "servers = 5",
            "servers = 0\nloss = 2",
            &["setup.servers: 0 is", "setup.loss: 2 is"],
        );
        refuse("title", "tittle", &["unknown field `tittle`"]);
        refuse("\"random\"", "\"rondom\"", &["no baseline rondom, did you mean random?"]);
        refuse("[0.1, 1, 10.0]", "[]", &["sweep.every: name 1 to 20 values"]);
        refuse("[0.1, 1, 10.0]", "[-1]", &["setup.every: -1 is not between"]);
        refuse("[0.1, 1, 10.0]", "1", &["sweep: name one key of the setup with a list"]);
        refuse("settings.fuzzy", "settings.fizzy", &["strategy_settings.fizzy: "]);
        refuse("title", "at = 3\ntitle", &["at: 3 is not among the values of every: 0.1, 1, 10"]);
        let mut scenario = good();
        let said = scenario.set("evry=1").expect_err("is bad");
        assert!(
            said.contains("--set evry=1: setup.evry: unknown key, did you mean every?"),
            "{said}"
        );
        assert!(good().set("every").expect_err("is bad").contains("KEY=VALUE"));
        let said = Scenario::load("stael").expect_err("is bad").to_string();
        assert!(said.contains("did you mean stale?"), "{said}");
    }
}
