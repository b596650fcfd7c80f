//! Bytes of a policy file to a checked, compiled module.
//!
//! A file is a component, or a core module that exports the contract's functions and is wrapped as one. The
//! file is untrusted, and so is every parser that it reaches. Every check has its own
//! message that says what to do. Precompiled code is never accepted, files are read into memory and
//! never mapped, and a compiler that panics or takes too long is a refused module.

mod core;
mod error;
mod front;
mod weight;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload, ValidPayload, Validator};
use wasmtime::component::Component;

use super::compiler::Work;
use super::engine::PolicyEngine;
use super::features;
use super::guest::{FormulaPre, StrategyPre};
use super::steps::Steps;
use super::wasi::is_wasi;
use crate::config::Wasi;
use crate::watch::{ReadError, read};
use error::LENGTH_HINT;
pub use error::ModuleError;
use weight::Weight;

/// The contract's package, without version.
const PACKAGE: &str = "loadline:policy/";
/// The contract's major version, which a component must have.
const CONTRACT: u64 = 1;
/// The content of a policy file of so many bytes at most.
///
/// # Errors
/// Why there is none, and what to do.
pub fn read_file(path: &Path, max: usize) -> Result<Vec<u8>, String> {
    read(path, max).map_err(|error| match error {
        ReadError::TooLong { .. } => format!("{error}: {LENGTH_HINT}"),
        other => other.to_string(),
    })
}

/// One loaded version of a policy: the SHA-256 of its file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation([u8; 32]);

impl Generation {
    /// The generation of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The generation of bytes with this SHA-256.
    pub(super) fn of_hash(hash: [u8; 32]) -> Self {
        Self(hash)
    }

    /// The SHA-256.
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Generation {
    /// The first 12 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version of a policy that decides, with the policy's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decider {
    /// The policy.
    pub policy: Arc<str>,
    /// Its version.
    pub generation: Generation,
}

impl fmt::Display for Decider {
    /// `name@generation`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.policy, self.generation)
    }
}

/// What a policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Metrics to load.
    Formula,
    /// Request to target.
    Strategy,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Formula => "formula",
            Self::Strategy => "strategy",
        })
    }
}

/// How a policy is written in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `NAME.wasm`
    Wasm,
    /// `NAME.formula`
    Text,
}

impl Form {
    /// By the file's ending; `None`: not a policy file.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "wasm" => Some(Self::Wasm),
            "formula" => Some(Self::Text),
            _ => None,
        }
    }

    /// The ending of its files.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Text => "formula",
        }
    }
}

/// A checked, compiled policy.
pub struct Module {
    /// Its version.
    pub generation: Generation,
    pub(super) pre: Pre,
}

/// The module, ready to be instantiated.
pub(super) enum Pre {
    Formula(FormulaPre),
    Strategy(StrategyPre),
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.generation)
    }
}

impl Module {
    /// Checks and compiles a file's bytes. Takes CPU time in proportion to the size: not for a thread
    /// that serves.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn load(
        engine: &PolicyEngine,
        form: Form,
        bytes: &[u8],
        steps: &Steps,
    ) -> Result<Self, ModuleError> {
        Self::start(engine, form, bytes, steps, || {})?.wait()
    }

    /// Begins the same; `wake` is called at its end.
    ///
    /// # Errors
    /// It is too long, or cannot be begun.
    pub(super) fn start(
        engine: &PolicyEngine,
        form: Form,
        bytes: &[u8],
        steps: &Steps,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Loading, ModuleError> {
        if bytes.len() > engine.limits.file_bytes {
            return Err(ModuleError::TooLong { max: engine.limits.file_bytes });
        }
        let generation = Generation::of(bytes);
        let (engine, bytes, steps) = (engine.clone(), bytes.to_owned(), steps.clone());
        let limits = engine.limits.clone();
        let build = move || match form {
            Form::Wasm => build(&engine, &bytes, &steps),
            Form::Text => build(&engine, &steps.run("parse", || from_text(&bytes))?, &steps),
        };
        Ok(Loading { generation, work: Work::start(&limits, build, wake)? })
    }

    /// The same for a `.wasm` file of which nobody wants to know the steps.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn from_wasm(engine: &PolicyEngine, bytes: &[u8]) -> Result<Self, ModuleError> {
        Self::load(engine, Form::Wasm, bytes, &Steps::default())
    }

    /// The same for a `.formula` file's text.
    ///
    /// # Errors
    /// Where the text is wrong.
    pub fn from_text(engine: &PolicyEngine, text: &str) -> Result<Self, ModuleError> {
        Self::load(engine, Form::Text, text.as_bytes(), &Steps::default())
    }

    /// What it decides.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.pre {
            Pre::Formula(_) => Kind::Formula,
            Pre::Strategy(_) => Kind::Strategy,
        }
    }
}

/// Names the features that are all that is wrong with these bytes.
fn with_features(error: ModuleError, bytes: &[u8]) -> ModuleError {
    match error {
        ModuleError::Invalid { reason } => match features::wanted(bytes) {
            Some(names) => ModuleError::Features { reason, names },
            None => ModuleError::Invalid { reason },
        },
        other => other,
    }
}

/// A module that is being checked and compiled.
pub(super) struct Loading {
    generation: Generation,
    work: Work<Pre, ModuleError>,
}

impl Loading {
    /// The module, or what is wrong with it; `None`: not yet.
    pub(super) fn poll(&mut self) -> Option<Result<Module, ModuleError>> {
        let generation = self.generation;
        Some(self.work.poll()?.map(|pre| Module { generation, pre }))
    }

    /// The same, when it is known; to be asked for once.
    pub(super) fn wait(&mut self) -> Result<Module, ModuleError> {
        let generation = self.generation;
        self.work.wait().map(|pre| Module { generation, pre })
    }

    /// A look before this is of no use, if nobody is woken.
    pub(super) fn looks_in(&self) -> Duration {
        self.work.looks_in()
    }
}

/// The core module of a formula's text.
fn from_text(bytes: &[u8]) -> Result<Vec<u8>, ModuleError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ModuleError::NotText)?;
    Ok(super::text::compile(text)?)
}

/// Checks and compiles.
fn build(engine: &PolicyEngine, bytes: &[u8], steps: &Steps) -> Result<Pre, ModuleError> {
    let (kind, component) = steps.run("check", || {
        let wasi = engine.limits.wasi;
        let checked = as_component(bytes, wasi)
            .and_then(|component| Ok((check_component(&component, wasi)?, component)));
        checked.map_err(|error| with_features(error, bytes))
    })?;
    let compile = |error: wasmtime::Error| ModuleError::Compile { reason: format!("{error:#}") };
    let component =
        steps.run("compile", || Component::new(&engine.engine, &component).map_err(compile))?;
    let shape = |error: wasmtime::Error| ModuleError::Shape { reason: format!("{error:#}") };
    steps.run("link", || {
        Ok(match kind {
            Kind::Formula => Pre::Formula(FormulaPre::new(engine, &component).map_err(shape)?),
            Kind::Strategy => Pre::Strategy(StrategyPre::new(engine, &component).map_err(shape)?),
        })
    })
}

fn as_component(bytes: &[u8], wasi: Wasi) -> Result<Vec<u8>, ModuleError> {
    if Parser::is_component(bytes) {
        return Ok(bytes.to_vec());
    }
    if !Parser::is_core_wasm(bytes) {
        return Err(ModuleError::NotWasm { found: looks_like(bytes) });
    }
    core::as_component(bytes, wasi)
}

fn looks_like(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "the file is empty",
        [0x7f, b'E', b'L', b'F', ..] => "precompiled or native code, which is never accepted",
        [0, b'a', b's', b'm', ..] => "an unknown version of the binary format",
        [b'(', ..] => "WebAssembly text, compile it first",
        _ => "no WebAssembly header",
    }
}

/// A component: valid, without foreign imports, exporting one kind of policy.
fn check_component(bytes: &[u8], wasi: Wasi) -> Result<Kind, ModuleError> {
    let invalid =
        |error: wasmparser::BinaryReaderError| ModuleError::Invalid { reason: error.to_string() };
    let mut imports = Vec::new();
    let mut exports = Vec::new();
    let mut depth = 0_usize;
    let (mut validator, mut weight) =
        (Validator::new_with_features(features::allowed()), Weight::default());
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(invalid)?;
        if let ValidPayload::Func(function, body) = validator.payload(&payload).map_err(invalid)? {
            function.into_validator(Default::default()).validate(&body).map_err(invalid)?;
        }
        weight.add(&payload)?;
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import.map_err(invalid)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exports.push(export.map_err(invalid)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    check_imports(imports.iter().map(String::as_str), wasi)?;
    kind_of(exports.iter().map(String::as_str))
}

fn check_imports<'a>(
    imports: impl Iterator<Item = &'a str>,
    wasi: Wasi,
) -> Result<(), ModuleError> {
    let allowed = |name: &&str| {
        let path = name.split('@').next().unwrap_or_default();
        path == "loadline:policy/log"
            || path == "loadline:policy/types"
            || (wasi == Wasi::Trap && is_wasi(name))
    };
    let mut foreign: Vec<_> = imports.filter(|name| !allowed(name)).collect();
    foreign.sort_unstable();
    foreign.dedup();
    if foreign.is_empty() {
        return Ok(());
    }
    let hint = if foreign.iter().any(|name| is_wasi(name)) {
        "; it was built for WASI, use wasm32-unknown-unknown instead (or, if it never calls them, \
         wasi = \"trap\" in its [[host.policy]])"
    } else {
        "; remove what calls it"
    };
    Err(ModuleError::Imports { names: foreign.join(", "), hint })
}

/// The one kind among these interfaces; several functions of an interface name it several times.
fn kind_of<'a>(interfaces: impl Iterator<Item = &'a str>) -> Result<Kind, ModuleError> {
    let mut kind = None;
    for export in interfaces {
        let Some(rest) = export.strip_prefix(PACKAGE) else { continue };
        let (interface, version) = rest.split_once('@').unwrap_or((rest, ""));
        let found = match interface {
            "formula" => Kind::Formula,
            "strategy" => Kind::Strategy,
            _ => continue,
        };
        let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
        if major != Some(CONTRACT) {
            return Err(ModuleError::Contract { found: export.to_owned() });
        }
        if kind.replace(found).is_some_and(|other| other != found) {
            return Err(ModuleError::TwoPolicies);
        }
    }
    kind.ok_or(ModuleError::NotAPolicy)
}

#[expect(clippy::needless_pass_by_value, reason = "fits map_err")]
fn invalid(error: wasmparser::BinaryReaderError) -> ModuleError {
    ModuleError::Invalid { reason: error.to_string() }
}
