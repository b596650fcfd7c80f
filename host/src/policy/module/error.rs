//! What is wrong with a policy file, in words that say what to do.

use super::super::compiler::Unfinished;
use super::super::room::printable;
use super::{CONTRACT, PACKAGE};

/// How to build a module that exports the contract.
const BUILD_HINT: &str = "build it with loadline-sdk for the target wasm32-unknown-unknown";
/// What to do with a file that is too long.
pub(super) const LENGTH_HINT: &str = "raise host.limits.file, or file in its [[host.policy]]";

/// Why bytes are not a policy for this host. Names and words out of the file are shown cut and with control
/// characters escaped: they cannot forge a log line.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModuleError {
    /// Longer than the limit.
    #[error("the file has more than {max} bytes: {LENGTH_HINT}")]
    TooLong {
        /// The limit.
        max: usize,
    },
    /// Not WebAssembly.
    #[error("not WebAssembly: {found}; {BUILD_HINT}")]
    NotWasm {
        /// What it looks like.
        found: &'static str,
    },
    /// WebAssembly that is broken or uses a feature that is off.
    #[error("not valid WebAssembly for this host: {}", printable(.reason))]
    Invalid {
        /// The validator's words.
        reason: String,
    },
    /// WebAssembly that would be good if features were on that are off.
    #[error(
        "not valid WebAssembly for this host: {}; it uses {names}, which policies do not get: build it for \
         wasm32-unknown-unknown without that (in Rust leave it out of -C target-feature)",
        printable(.reason)
    )]
    Features {
        /// The validator's words.
        reason: String,
        /// What it uses.
        names: String,
    },
    /// Wants something from the host that a policy does not get.
    #[error(
        "imports {}, which a policy does not get: its only import is {PACKAGE}log@1{hint}",
        printable(.names)
    )]
    Imports {
        /// What it wants.
        names: String,
        /// A way out.
        hint: &'static str,
    },
    /// Exports neither kind of policy.
    #[error("exports neither {PACKAGE}formula@1 nor {PACKAGE}strategy@1; {BUILD_HINT}")]
    NotAPolicy,
    /// Exports both kinds.
    #[error(
        "exports a formula and a strategy, and a file holds one policy: build one file of each"
    )]
    TwoPolicies,
    /// Written against another version of the contract.
    #[error(
        "speaks {}, this host speaks {PACKAGE}*@{CONTRACT}; rebuild it with this host's SDK",
        printable(.found)
    )]
    Contract {
        /// The export with its version.
        found: String,
    },
    /// The contract's exports have other types.
    #[error("does not fit the contract: {}; {BUILD_HINT}", printable(.reason))]
    Shape {
        /// Wasmtime's words.
        reason: String,
    },
    /// A formula's text is no text.
    #[error("not UTF-8 text: save it as UTF-8, or name it NAME.wasm if it is WebAssembly")]
    NotText,
    /// A formula's text is wrong.
    #[error("{0}")]
    Text(#[from] super::super::text::TextError),
    /// The compiler gave up.
    #[error("cannot be compiled: {}", printable(.reason))]
    Compile {
        /// Wasmtime's words.
        reason: String,
    },
    /// The machine had no time to compile it.
    #[error("cannot be compiled now: {reason}")]
    Busy {
        /// In words.
        reason: String,
    },
    /// No engine at all.
    #[error("cannot start the policy engine: {reason}")]
    Engine {
        /// Wasmtime's words.
        reason: String,
    },
}

impl ModuleError {
    #[expect(clippy::needless_pass_by_value, reason = "fits map_err")]
    pub(in crate::policy) fn engine(error: wasmtime::Error) -> Self {
        Self::Engine { reason: format!("{error:#}") }
    }
}

impl From<Unfinished> for ModuleError {
    fn from(unfinished: Unfinished) -> Self {
        match unfinished {
            Unfinished::Failed(reason) => Self::Compile { reason },
            Unfinished::Busy(reason) => Self::Busy { reason },
        }
    }
}
