//! `loadline policy check`: a file through the host's own pipeline, step by step.

use std::fmt::Write;

use super::{Failure, Subject};
use crate::config::{Origin, SignatureMode};
use crate::policy::steps::{Step, Steps};
use crate::policy::trial::{try_formula, try_strategy};
use crate::policy::{
    FormulaGuest, Generation, Kind, Module, PolicyEngine, Start, StrategyGuest, Vouch,
};

/// What to check.
#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    subject: Subject,
}

/// The steps and the verdict; a bad file is a failure with the same words.
pub(super) fn check(arguments: &Arguments, origin: &Origin) -> Result<String, Failure> {
    let (subject, steps) = (&arguments.subject, Steps::default());
    let engine = subject.engine(origin)?;
    let trust = Subject::rules(origin)?.trust;
    let mut vouch = Vouch::Unchecked;
    let checked = subject.read(&engine, &steps).and_then(|(form, bytes)| {
        (_, vouch) = trust.judge_beside(&subject.file, Generation::of(&bytes), &steps);
        let module = Module::load(&engine, form, &bytes, &steps);
        let module = module.map_err(|error| error.to_string())?;
        let about = tried(&engine, subject, &module, &steps)?;
        // Last: who is to sign it wants to know that it is good for the rest.
        match vouch.trouble().filter(|_| trust.mode() == SignatureMode::Require) {
            Some(why) => Err(format!("{why} (host.signatures.mode = \"require\")")),
            None => Ok((module, about)),
        }
    });
    let mut text = format!("{}\n", subject.file.display());
    for step in steps.taken() {
        let outcome = match step.failed {
            None => "ok",
            Some(_) if step.name == "signature" && trust.mode() == SignatureMode::Warn => "warning",
            Some(_) => "FAILED",
        };
        line(&mut text, &step, outcome);
    }
    match checked {
        Ok((module, about)) => {
            let (kind, generation) = (module.kind(), module.generation);
            text.push_str(&format!("good: {kind} {about}, generation {generation}"));
            match &vouch {
                Vouch::By(_) => text.push_str(&format!(", {vouch}")),
                Vouch::Missing(why) | Vouch::Wrong(why) => text.push_str(&format!(
                    "\nwarning: nobody vouches for it, and hosts use it all the same \
                     (host.signatures.mode = \"warn\"): {why}"
                )),
                Vouch::Unchecked | Vouch::BuiltIn => {}
            }
            Ok(text)
        }
        Err(reason) => Err(Failure::Other(format!("{text}not good: {reason}"))),
    }
}

fn line(text: &mut String, step: &Step, outcome: &str) {
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
