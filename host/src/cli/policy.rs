//! `loadline policy`: what an author of policies needs, from the first line to the folder.

mod bench;
mod check;
mod inspect;
mod new;
mod run;
mod sign;

use std::path::Path;
use std::sync::Arc;

use super::Failure;
use crate::config::{Origin, Wasi, is_policy_name};
use crate::policy::module::read_file;
use crate::policy::steps::Steps;
use crate::policy::{Form, Limits, Module, PolicyEngine, Rules};

const EXAMPLES: &str = "\
A policy from nothing to a host, in four commands:
  loadline policy new lightest --kind strategy
  cd lightest && cargo build --release --target wasm32-unknown-unknown
  loadline policy check target/wasm32-unknown-unknown/release/lightest.wasm
  cp target/wasm32-unknown-unknown/release/lightest.wasm ../policies/balanced.wasm

Where hosts want signatures, the file and its signature go into the folder, in any order:
  loadline policy keygen ops.key
  loadline policy sign balanced.wasm --key ops.key
  cp balanced.wasm balanced.wasm.sig policies/

What would it have done on the farm as it is now?
  curl -s localhost:14000/v1/machines > fleet.json
  loadline policy run lightest.wasm --fleet fleet.json";

/// Make, check, try, measure and sign policies.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Start a policy: a crate with tests that builds at once
    New(new::Arguments),
    /// Take a file through all that a host does before it uses it; each step is printed
    Check(check::Arguments),
    /// Say what a file is, without running it
    Inspect(inspect::Arguments),
    /// One decision of a strategy, or the loads of a formula, explained
    Run(run::Arguments),
    /// Measure what its calls cost
    Bench(bench::Arguments),
    /// Make a pair of keys to sign policies with
    Keygen(sign::Keygen),
    /// Sign policy files, so that hosts know whose they are
    Sign(sign::Sign),
    /// Say whose signature policy files have
    Verify(sign::Verify),
}

/// Does it; what is to be printed.
pub(super) fn policy(arguments: &Arguments, origin: &Origin) -> Result<String, Failure> {
    match &arguments.command {
        Command::New(arguments) => new::new(arguments),
        Command::Check(arguments) => check::check(arguments, origin),
        Command::Inspect(arguments) => inspect::inspect(arguments, origin),
        Command::Run(arguments) => run::run(arguments, origin),
        Command::Bench(arguments) => bench::bench(arguments, origin),
        Command::Keygen(arguments) => sign::keygen(arguments),
        Command::Sign(arguments) => sign::sign(arguments),
        Command::Verify(arguments) => sign::verify(arguments, origin),
    }
}

/// A policy file and the settings to try it with.
#[derive(clap::Args)]
struct Subject {
    /// A .wasm or .formula file
    file: std::path::PathBuf,
    /// Settings to try it with, a JSON object as the pool's configuration has it
    #[arg(long, value_name = "JSON", default_value = "{}")]
    settings: String,
    /// Take imports of WASI as a host does that has wasi = "trap" for it; other limits are those of
    /// the configuration, by the file's name
    #[arg(long)]
    wasi_trap: bool,
}

impl Subject {
    /// The file's name without its ending, as a host would name the policy.
    fn name(&self) -> Arc<str> {
        let stem = self.file.file_stem().unwrap_or_default();
        Arc::from(&*stem.to_string_lossy())
    }

    /// What a host of this configuration wants of policies.
    fn rules(origin: &Origin) -> Result<Rules, Failure> {
        Ok(origin.load()?.host.map(|host| Rules::of(&host)).unwrap_or_default())
    }

    /// An engine with the limits that a host of this configuration gives a policy of this name.
    fn engine(&self, origin: &Origin) -> Result<PolicyEngine, Failure> {
        let limits = Self::rules(origin)?.limits(&self.name());
        let wasi = if self.wasi_trap { Wasi::Trap } else { limits.wasi };
        engine(Limits { wasi, ..limits })
    }

    /// Reads, checks and compiles it; what went wrong is the last step.
    fn load(&self, engine: &PolicyEngine, steps: &Steps) -> Result<Module, String> {
        let (form, bytes) = self.read(engine, steps)?;
        Module::load(engine, form, &bytes, steps).map_err(|error| error.to_string())
    }

    fn read(&self, engine: &PolicyEngine, steps: &Steps) -> Result<(Form, Vec<u8>), String> {
        let form = form(&self.file)?;
        let bytes = steps.run("read", || content(&self.file, engine.limits.file_bytes))?;
        Ok((form, bytes))
    }

    /// A failure that says which file is meant.
    fn failed(&self, what: &str) -> Failure {
        Failure::Other(format!("{}: {what}", self.file.display()))
    }
}

/// An engine for a command that somebody waits for: nothing else needs the processor more.
pub(super) fn engine(limits: Limits) -> Result<PolicyEngine, Failure> {
    PolicyEngine::new(Limits { compile_last: false, ..limits }).map_err(super::other)
}

/// How a policy file is written, by a name that pools can say.
fn form(file: &Path) -> Result<Form, String> {
    let form = Form::of(file).ok_or("a policy file is named NAME.wasm or NAME.formula")?;
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    if stem.is_none_or(|stem| !is_policy_name(stem)) {
        let what = "pools cannot name it: rename it to NAME";
        let of = "NAME of ASCII letters, digits, '-', '_' and inner '.'";
        return Err(format!("{what}.{}, {of}", form.ending()));
    }
    Ok(form)
}

/// The content of a policy file; where there is none, what to do.
fn content(file: &Path, max: usize) -> Result<Vec<u8>, String> {
    read_file(file, max).map_err(|error| match missing(file) {
        Some(hint) => format!("there is no such file: {hint}"),
        None => error,
    })
}

/// What the author of a file that is not there may have meant.
fn missing(file: &Path) -> Option<String> {
    const BUILD: &str = "cargo build --release --target wasm32-unknown-unknown";
    if file.symlink_metadata().is_ok() {
        return None;
    }
    let built = file.with_file_name(file.file_name()?.to_string_lossy().replace('-', "_"));
    if built.is_file() {
        return Some(format!("cargo writes _ for -, did you mean {}?", built.display()));
    }
    Some(match Form::of(file)? {
        Form::Wasm => format!("{BUILD} writes target/wasm32-unknown-unknown/release/NAME.wasm"),
        Form::Text => "write an expression such as cpu * 0.7 + memory * 0.3 into it".to_owned(),
    })
}
