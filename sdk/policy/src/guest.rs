//! The Wasm side of the contract: what the export macros expand to.
//!
//! A guest is single-threaded and the host never enters it twice at once, so its state is one
//! `RefCell` in a thread-local. After a trap the host drops the whole instance; no state survives.

/// Bindings of world `strategy-policy`.
#[allow(
    missing_docs,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the contract"
)]
pub mod strategy_world {
    wit_bindgen::generate!({
        path: "wit",
        world: "strategy-policy",
        pub_export_macro: true,
        export_macro_name: "export_strategy_world",
        default_bindings_module: "loadline_sdk::guest::strategy_world",
    });
}

/// Bindings of world `formula-policy`.
#[allow(
    missing_docs,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the contract"
)]
pub mod formula_world {
    wit_bindgen::generate!({
        path: "wit",
        world: "formula-policy",
        pub_export_macro: true,
        export_macro_name: "export_formula_world",
        default_bindings_module: "loadline_sdk::guest::formula_world",
    });
}

use formula_world::exports::loadline::policy::formula as formula_wit;
use strategy_world::exports::loadline::policy::strategy as strategy_wit;
use strategy_world::loadline::policy::log as log_wit;

use crate::log::Level;
use crate::{MetricUse, PolicyInfo, Relocation, Request, Slot, Target};

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Debug => log_wit::Level::Debug,
        Level::Info => log_wit::Level::Info,
        Level::Warn => log_wit::Level::Warn,
        Level::Error => log_wit::Level::Error,
    };
    log_wit::write(level, message);
}

impl From<strategy_wit::TargetView> for Target {
    fn from(view: strategy_wit::TargetView) -> Self {
        Self {
            slot: Slot(view.slot),
            load: view.load,
            weight: view.weight,
            in_flight: view.in_flight,
            picks: view.picks,
            age_ms: view.age_ms,
            latency_us: view.latency_us,
            error_rate: view.error_rate,
            eligible: view.eligible,
            warm: view.warm,
            accepted: view.accepted,
            completed: view.completed,
            identity: view.identity,
        }
    }
}

impl From<strategy_wit::Request> for Request {
    fn from(request: strategy_wit::Request) -> Self {
        let strategy_wit::Request { key, class, cost, now_ms, random } = request;
        Self { key, class, cost, now_ms, random }
    }
}

impl From<PolicyInfo> for strategy_wit::PolicyInfo {
    fn from(info: PolicyInfo) -> Self {
        let PolicyInfo { name, version, settings_schema } = info;
        Self { name, version, settings_schema }
    }
}

impl From<PolicyInfo> for formula_wit::PolicyInfo {
    fn from(info: PolicyInfo) -> Self {
        let PolicyInfo { name, version, settings_schema } = info;
        Self { name, version, settings_schema }
    }
}

impl From<MetricUse> for formula_wit::MetricUse {
    fn from(metric: MetricUse) -> Self {
        Self { name: metric.name.into_owned(), fallback: metric.fallback }
    }
}

impl From<Relocation> for strategy_wit::Relocation {
    fn from(relocation: Relocation) -> Self {
        let Relocation { source, target, sessions } = relocation;
        Self { source: source.0, target: target.0, sessions }
    }
}

/// Leaves the SDK's version in a custom section of the module, for `loadline policy inspect`.
#[doc(hidden)]
#[macro_export]
macro_rules! name_sdk {
    () => {
        #[used]
        #[unsafe(link_section = "loadline-sdk")]
        static SDK: [u8; $crate::guest::VERSION.len()] = *$crate::guest::VERSION;
    };
}

/// This SDK's version.
pub const VERSION: &[u8; env!("CARGO_PKG_VERSION").len()] = {
    let Some(version) = env!("CARGO_PKG_VERSION").as_bytes().first_chunk() else { panic!() };
    version
};

/// Slots from the wire's numbers.
#[must_use]
pub fn slots(numbers: Vec<u32>) -> Vec<Slot> {
    numbers.into_iter().map(Slot).collect()
}

/// Exports of a strategy; used by `export_strategy!`.
#[doc(hidden)]
#[macro_export]
macro_rules! export_strategy_guest {
    ($strategy:ty) => {
        #[allow(unsafe_code, missing_docs, reason = "the exports of the contract")]
        mod loadline_exports {
            use ::std::{cell::RefCell, string::String, vec::Vec};
            use $crate::guest::slots;
            use $crate::guest::strategy_world::exports::loadline::policy::strategy as wit;
            use $crate::{Slot, StrategyRunner};

            type Runner = StrategyRunner<super::Exported>;
            ::std::thread_local! { static GUEST: RefCell<Runner> = RefCell::default(); }
            fn with<T>(call: impl FnOnce(&mut Runner) -> T) -> T {
                GUEST.with_borrow_mut(call)
            }

            $crate::name_sdk!();

            struct Guest;
            impl wit::Guest for Guest {
                fn describe() -> wit::PolicyInfo {
                    Runner::describe(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).into()
                }
                fn configure(settings: String, seed: u64) -> Result<(), String> {
                    with(|guest| guest.configure(&settings, seed))
                }
                fn update(now_ms: u64, hosts: u32, targets: Vec<wit::TargetView>) {
                    with(|guest| guest.update(now_ms, hosts, targets.into_iter().map(Into::into)));
                }
                fn leave(numbers: Vec<u32>) {
                    with(|guest| guest.leave(&slots(numbers)));
                }
                fn pick(request: wit::Request) -> Option<u32> {
                    with(|guest| guest.pick(&request.into())).map(|slot| slot.0)
                }
                fn pick_among(request: wit::Request, candidates: Vec<u32>) -> Option<u32> {
                    with(|guest| guest.pick_among(&request.into(), slots(candidates)))
                        .map(|slot| slot.0)
                }
                fn admit(slot: u32) -> bool {
                    with(|guest| guest.admit(Slot(slot)))
                }
                fn rebalance(now_ms: u64) -> Vec<wit::Relocation> {
                    with(|guest| guest.rebalance(now_ms)).into_iter().map(Into::into).collect()
                }
                fn save() -> Vec<u8> {
                    with(|guest| guest.save())
                }
                fn restore(state: Vec<u8>) -> bool {
                    with(|guest| guest.restore(&state))
                }
            }
            $crate::guest::strategy_world::export_strategy_world!(Guest with_types_in $crate::guest::strategy_world);
        }
        type Exported = $strategy;
    };
}

/// Exports of a formula; used by `export_formula!`.
#[doc(hidden)]
#[macro_export]
macro_rules! export_formula_guest {
    ($formula:ty) => {
        #[allow(unsafe_code, missing_docs, reason = "the exports of the contract")]
        mod loadline_exports {
            use ::std::{cell::RefCell, string::String, vec::Vec};
            use $crate::guest::formula_world::exports::loadline::policy::formula as wit;
            use $crate::{FormulaRunner, Slot};

            type Runner = FormulaRunner<super::Exported>;
            ::std::thread_local! { static GUEST: RefCell<Runner> = RefCell::default(); }
            fn with<T>(call: impl FnOnce(&mut Runner) -> T) -> T {
                GUEST.with_borrow_mut(call)
            }

            $crate::name_sdk!();

            struct Guest;
            impl wit::Guest for Guest {
                fn describe() -> wit::PolicyInfo {
                    Runner::describe(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).into()
                }
                fn metrics() -> Vec<wit::MetricUse> {
                    with(|guest| guest.metrics()).into_iter().map(Into::into).collect()
                }
                fn configure(settings: String) -> Result<(), String> {
                    with(|guest| guest.configure(&settings))
                }
                fn evaluate(now_ms: u64, slots: Vec<u32>, values: Vec<f64>) -> Vec<f64> {
                    with(|guest| guest.evaluate(now_ms, slots.into_iter().map(Slot), &values))
                }
                fn leave(slots: Vec<u32>) {
                    with(|guest| guest.leave(slots.into_iter().map(Slot)));
                }
                fn save() -> Vec<u8> {
                    with(|guest| guest.save())
                }
                fn restore(state: Vec<u8>) -> bool {
                    with(|guest| guest.restore(&state))
                }
            }
            $crate::guest::formula_world::export_formula_world!(Guest with_types_in $crate::guest::formula_world);
        }
        type Exported = $formula;
    };
}
