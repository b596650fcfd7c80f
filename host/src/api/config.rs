//! `GET /v1/config`: which configuration is in force, and what is wrong with the newest.
//!
//! Nothing secret: keys with their values as the file writes them, and secrets are in files of their own.

use serde::Serialize;

use crate::config;

/// `GET /v1/config`
#[derive(Serialize)]
pub(super) struct Config {
    /// `in_force`, `refused` (the newest file: the one before is in force) or `partly` in force.
    state: &'static str,
    /// `null`: none, the defaults.
    file: Option<String>,
    /// Of the content that is in force.
    digest: Option<String>,
    /// Since it took effect; `null`: from the start.
    age_ms: Option<u64>,
    applied: u64,
    refused: u64,
    problems: Vec<Problem>,
    last_changes: Vec<config::Change>,
}

#[derive(Serialize)]
struct Problem {
    #[serde(skip_serializing_if = "String::is_empty")]
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    what: String,
}

impl Config {
    pub(super) fn of(in_force: config::InForce) -> Self {
        let state = in_force.word();
        let problems = in_force.trouble.map_or_else(Vec::new, |trouble| trouble.problems);
        let age = in_force.since.map(|since| since.elapsed().as_millis());
        Self {
            state,
            file: in_force.file.map(|file| file.display().to_string()),
            digest: in_force.digest,
            age_ms: age.map(|age| u64::try_from(age).unwrap_or(u64::MAX)),
            applied: in_force.applied,
            refused: in_force.refused,
            problems: problems.into_iter().map(Problem::of).collect(),
            last_changes: in_force.changes,
        }
    }
}

impl Problem {
    fn of(problem: config::Problem) -> Self {
        let (line, variable) = match problem.place {
            Some(config::Place::Line(line)) => (Some(line), None),
            Some(config::Place::Variable(name)) => (None, Some(name)),
            None => (None, None),
        };
        Self { key: problem.key, line, variable, what: problem.what }
    }
}
