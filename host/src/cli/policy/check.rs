//! `loadline policy check`: a file through the host's own pipeline, step by step.

use std::fmt::Write;

use super::{Failure, Subject};
use crate::config::Origin;
use crate::policy::steps::{Step, Steps};
use crate::policy::trial::{try_formula, try_strategy};
use crate::policy::{FormulaGuest, Kind, Module, PolicyEngine, Start, StrategyGuest};

/// What to check.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
}

/// The steps and the verdict; a bad file is a failure with the same words.
pub(super) fn check(arguments: &Arguments, origin: &Origin) -> Result<String, Failure> {
    let (subject, steps) = (&arguments.subject, Steps::default());
    let engine = arguments.subject.engine(origin)?;
    let checked = subject
        .load(&engine, &steps)
        .and_then(|module| tried(&engine, subject, &module, &steps).map(|about| (module, about)));
    let mut text = format!("{}\n", subject.file.display());
    for step in steps.taken() {
        line(&mut text, &step);
    }
    match checked {
        Ok((module, about)) => {
            let (kind, generation) = (module.kind(), module.generation);
            write!(text, "good: {kind} {about}, generation {generation}")
                .map_err(super::super::other)?;
            Ok(text)
        }
        Err(reason) => Err(Failure::Other(format!("{text}not good: {reason}"))),
    }
}

fn line(text: &mut String, step: &Step) {
    let outcome = step.failed.as_deref().map_or("ok", |_| "FAILED");
    let milliseconds = step.took.as_secs_f64() * 1e3;
    // A string can always be written to.
    writeln!(text, "  {:<10}{milliseconds:>9.2} ms  {outcome}", step.name).unwrap_or_default();
}

/// Starts it and calls every function once; its own name and version.
fn tried(
    engine: &PolicyEngine,
    subject: &Subject,
    module: &Module,
    steps: &Steps,
) -> Result<String, String> {
    let (name, settings) = (&subject.name(), &*subject.settings);
    let start = Start { engine, name, module, settings, steps };
    let description = match module.kind() {
        Kind::Formula => {
            let started = FormulaGuest::start_in_steps(start);
            let mut guest = started.map_err(|error| error.to_string())?;
            steps.run("trial", || try_formula(&mut guest)).map_err(|error| error.to_string())?;
            guest.description
        }
        Kind::Strategy => {
            let started = StrategyGuest::start_in_steps(start, 1);
            let mut guest = started.map_err(|error| error.to_string())?;
            steps.run("trial", || try_strategy(&mut guest)).map_err(|error| error.to_string())?;
            guest.description
        }
    };
    let mut about = format!("{} {}", description.name, description.version);
    let not_checked: Vec<_> = description.schema().not_checked().into_iter().collect();
    if !not_checked.is_empty() {
        let keywords = not_checked.join(", ");
        about.push_str(&format!(
            " (of its settings schema {keywords} is left to the policy's own configure)"
        ));
    }
    Ok(about)
}
