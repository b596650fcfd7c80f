//! The formula trait, the `formula!` macro, and what drives them: rows of metrics in, loads out.
//!
//! [`FormulaRunner`] is the same code inside a guest and in a native test or benchmark; the Wasm
//! exports only convert types around it.

use std::borrow::Cow;

use crate::{PolicyInfo, Slot};

/// A metric a formula wants.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricUse {
    /// The metric's name in reports.
    pub name: Cow<'static, str>,
    /// Used where a target does not report it. `None`: such a target has no load and is the
    /// last choice. `Some(NaN)`: the formula copes by itself.
    pub fallback: Option<f64>,
}

impl MetricUse {
    /// A metric without which there is no load.
    #[must_use]
    pub fn required(name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), fallback: None }
    }

    /// A metric that counts as `fallback` where it is missing.
    #[must_use]
    pub fn with_fallback(name: impl Into<Cow<'static, str>>, fallback: f64) -> Self {
        Self { name: name.into(), fallback: Some(fallback) }
    }
}

/// One target's metrics.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The host's monotonic clock in milliseconds.
    pub now_ms: u64,
    /// The target, for formulas that remember.
    pub slot: Slot,
    /// One value a metric, in the order of [`Formula::metrics`].
    pub values: &'a [f64],
}

/// Turns a target's metrics into its load. [`formula!`](crate::formula!) writes the simple ones.
pub trait Formula: Default + 'static {
    /// JSON Schema of the settings; the default allows none. The host checks settings by it before
    /// [`configure`](Self::configure), so that an operator is told every mistake at once (types, enums,
    /// bounds, known keys, items, choices and references inside it; not patterns and formats), and shows
    /// `description` and `default`. At most 64 KiB.
    const SETTINGS_SCHEMA: &'static str = crate::settings::NONE_SCHEMA;

    /// Takes the settings (a JSON object). Called once, before any other function.
    ///
    /// # Errors
    /// What is wrong with the settings, in words for the operator; the host keeps the old policy.
    fn configure(&mut self, settings: &str) -> Result<(), String> {
        crate::settings::none(settings)
    }

    /// The metrics wanted, in the order of [`Row::values`]. Asked once, after `configure`.
    fn metrics(&self) -> Vec<MetricUse>;

    /// The load: finite and >= 0, lower is better. Anything else is a fault that the host answers
    /// with the target's last good load.
    fn load(&mut self, row: Row<'_>) -> f64;

    /// The slot may be given to another target: forget what was remembered.
    fn leave(&mut self, slot: Slot) {
        let _ = slot; // most formulas remember nothing
    }

    /// State for the next generation of this policy. The default: nothing.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over what the last generation saved; false when it is not understood. The default
    /// accepts only "nothing".
    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

/// A formula and the batch loop around it: one guest's worth of state.
#[derive(Debug, Default)]
pub struct FormulaRunner<F> {
    formula: F,
    columns: usize,
}

impl<F: Formula> FormulaRunner<F> {
    /// What the formula of crate `package` says of itself.
    #[must_use]
    pub fn describe(package: &str, version: &str) -> PolicyInfo {
        PolicyInfo::of_package(package, version, F::SETTINGS_SCHEMA)
    }

    /// See [`Formula::configure`].
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn configure(&mut self, settings: &str) -> Result<(), String> {
        self.formula.configure(settings)?;
        self.columns = self.formula.metrics().len();
        Ok(())
    }

    /// See [`Formula::metrics`].
    #[must_use]
    pub fn metrics(&self) -> Vec<MetricUse> {
        self.formula.metrics()
    }

    /// One load a slot; `values` is row-major, one column a metric.
    pub fn evaluate(
        &mut self,
        now_ms: u64,
        slots: impl ExactSizeIterator<Item = Slot>,
        values: &[f64],
    ) -> Vec<f64> {
        let mut loads = Vec::with_capacity(slots.len());
        for (index, slot) in slots.enumerate() {
            let start = index * self.columns;
            let values = values.get(start..start + self.columns).unwrap_or_default();
            loads.push(self.formula.load(Row { now_ms, slot, values }));
        }
        loads
    }

    /// See [`Formula::leave`].
    pub fn leave(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.formula.leave(slot);
        }
    }

    /// See [`Formula::save`].
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        self.formula.save()
    }

    /// See [`Formula::restore`].
    pub fn restore(&mut self, state: &[u8]) -> bool {
        self.formula.restore(state)
    }
}

/// Exports a [`Formula`] as this crate's policy. Natively it expands to nothing.
#[macro_export]
macro_rules! export_formula {
    ($formula:ty) => {
        #[cfg(target_arch = "wasm32")]
        $crate::export_formula_guest!($formula);
    };
}

/// A whole formula policy in one line: the metrics by name, then the load.
///
/// Defines `pub struct PolicyFormula`, implements [`Formula`] for it and exports it. A metric is
/// named by its parameter, or by `parameter: "name.with.dots"`; `= value` gives a fallback for
/// targets that do not report it.
///
/// ```
/// loadline_sdk::formula!(|waiting: "vllm.waiting", cpu = 0.5| waiting + cpu);
/// # fn main() {
/// # let mut host = loadline_sdk::testing::FormulaHost::<PolicyFormula>::new("{}").unwrap();
/// # assert_eq!(host.load(&[("vllm.waiting", 3.0)]), 3.5);
/// # assert!(host.load(&[("cpu", 1.0)]).is_infinite(), "waiting has no fallback");
/// # }
/// ```
#[macro_export]
macro_rules! formula {
    (|$($metric:ident $(: $name:literal)? $(= $fallback:literal)?),+ $(,)?| $load:expr) => {
        /// The formula of this policy.
        #[derive(Debug, Default)]
        pub struct PolicyFormula;

        impl $crate::Formula for PolicyFormula {
            fn metrics(&self) -> ::std::vec::Vec<$crate::MetricUse> {
                ::std::vec![$($crate::formula!(@metric $metric $(: $name)? $(= $fallback)?)),+]
            }

            fn load(&mut self, row: $crate::Row<'_>) -> f64 {
                let mut values = row.values.iter().copied();
                $(let $metric: f64 = values.next().unwrap_or(f64::NAN);)+
                $load
            }
        }

        $crate::export_formula!(PolicyFormula);
    };
    (@metric $metric:ident) => { $crate::MetricUse::required(stringify!($metric)) };
    (@metric $metric:ident : $name:literal) => { $crate::MetricUse::required($name) };
    (@metric $metric:ident = $fallback:literal) => {
        $crate::MetricUse::with_fallback(stringify!($metric), $fallback)
    };
    (@metric $metric:ident : $name:literal = $fallback:literal) => {
        $crate::MetricUse::with_fallback($name, $fallback)
    };
}
