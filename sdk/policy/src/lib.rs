//! Write Loadline policies: sandboxed code that decides which machine takes the work.
//!
//! A policy is one of two kinds. A **formula** turns the metrics a target reports into its *load*,
//! a finite number >= 0 where lower is better. A **strategy** turns a request into a target. Either
//! is a crate of type `cdylib`, built for `wasm32-unknown-unknown` and dropped into the host's
//! policies folder; it takes effect there without a restart.
//!
//! # A formula
//!
//! ```
//! use loadline_sdk::formula;
//! formula!(|cpu, sessions| cpu * 0.2 + if sessions < 10.0 { 0.2 } else { 0.5 } * sessions);
//! # fn main() {
//! # use loadline_sdk::testing::FormulaHost;
//! # let mut host = FormulaHost::<PolicyFormula>::new("{}").unwrap();
//! # assert!((host.load(&[("cpu", 0.5), ("sessions", 10.0)]) - 5.1).abs() < 1e-12);
//! # }
//! ```
//!
//! # A strategy
//!
//! ```
//! use loadline_sdk::prelude::*;
//! #[derive(Default)] struct LeastLoaded;
//! impl Strategy for LeastLoaded {
//!     fn pick(&mut self, fleet: &Fleet, _request: &Request) -> Option<Slot> { fleet.eligible().min_by_load() }
//! }
//! export_strategy!(LeastLoaded);
//! # fn main() {
//! # use loadline_sdk::testing::StrategyHost;
//! # let mut host = StrategyHost::<LeastLoaded>::with_loads(&[0.7, 0.2, 0.9]);
//! # assert_eq!(host.pick(), Some(Slot(1)));
//! # }
//! ```
//!
//! # What holds for both
//!
//! - Time and randomness come in as arguments; a policy has no clock, no network and no files, so
//!   the same calls always give the same answers.
//! - A guest that traps, loops past its budget or answers nonsense is dropped and rebuilt, and the
//!   host answers natively meanwhile: a policy can be wrong, but it cannot fail a request.
//! - Loads that are not known, that are old or whose targets fail count as [`belief`] says, in every strategy that
//!   goes by [`Candidate::load`], as the one above does.
//! - [`testing`] runs the same trait natively, against a fake fleet: `cargo test` needs no Wasm.
//! - [`index`] finds the best of many targets in O(log n), [`turns`] goes round; [`math`] has a logarithm, an exponential
//!   and a hash with the same bits in Wasm and natively.
//! - Settings are a JSON object from the host's configuration, see [`settings`].
//!
//! The contract behind the macros is `wit/policy.wit` of this crate, package `loadline:policy@1.0.0`.

mod fleet;
mod formula;
mod strategy;
mod target;

pub mod belief;
pub mod index;
pub mod log;
pub mod math;
pub mod settings;
pub mod testing;
pub mod turns;

#[doc(hidden)]
#[cfg(target_arch = "wasm32")]
pub mod guest;

pub use fleet::{Eligible, Fleet, GoesBy};
pub use formula::{Formula, FormulaRunner, MetricUse, Row};
pub use strategy::{Relocation, Strategy, StrategyRunner};
pub use target::{Candidate, Request, Slot, Target};

/// Everything a strategy needs, for one `use`.
pub mod prelude {
    pub use crate::{
        Candidate, Eligible, Fleet, GoesBy, Relocation, Request, Slot, Strategy, Target,
        export_strategy, log,
    };
}

/// What a policy says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyInfo {
    /// The crate's name without `policy-`.
    pub name: String,
    /// The crate's version.
    pub version: String,
    /// JSON Schema of the settings.
    pub settings_schema: String,
}

impl PolicyInfo {
    /// The description of the crate named `package`.
    #[must_use]
    pub fn of_package(package: &str, version: &str, settings_schema: &str) -> Self {
        Self {
            name: package.strip_prefix("policy-").unwrap_or(package).to_owned(),
            version: version.to_owned(),
            settings_schema: settings_schema.to_owned(),
        }
    }
}
