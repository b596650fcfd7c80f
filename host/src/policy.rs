//! Policies: files in, guests that compute loads and choose targets out.
//!
//! The only place that knows wasmtime. [`engine`] holds its settings, `ticker` is the clock that
//! stops a guest, [`module`] turns bytes into a checked module (of the `features` that guests may use), [`guest`] is one running instance in its `room`,
//! `description` what it says of itself, with the [`schema`] of its settings, [`text`] compiles a
//! `.formula` file to the same kind of module, [`trial`] are a guest's first calls, [`steps`] what all of
//! this took, [`inspect`] says what a file is without running it, [`signature`] who
//! vouches for it, [`builtin`] are the policies inside this program, [`library`] is the set of modules by name with the folder they come from.
//!
//! Invariants: every guest call has a deadline and every guest a memory limit; nothing a guest
//! returns is trusted; a guest that failed is never entered again; a module that fails any check
//! changes nothing but its own status.

mod builtin;
mod compiler;
mod description;
pub mod engine;
mod features;
pub mod guest;
pub mod inspect;
pub mod library;
pub mod module;
mod room;
pub mod schema;
pub mod signature;
pub mod steps;
pub mod text;
mod ticker;
pub mod trial;
mod wasi;

pub use builtin::{built_in, built_in_names};
pub use engine::{ByPolicy, Limits, PolicyEngine, Tolls};
pub use guest::{CallError, FormulaGuest, Start, StartError, StrategyGuest};
pub use library::{Entry, Kept, Library, Origin, Rules, WishError};
pub use module::{Decider, Form, Generation, Kind, Module, ModuleError};
pub use signature::{Trust, Vouch};
pub use steps::{Step, Steps};
pub use ticker::Ticker;
