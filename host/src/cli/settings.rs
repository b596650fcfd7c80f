//! `loadline config check`, as far as it takes policies: those that pools name are there and take their
//! settings.
//!
//! A policy is looked for as a host does: in the policies folder, then among the built-in ones. Only a
//! policy that is given settings is compiled and asked.

use std::path::Path;
use std::sync::Arc;

use super::policy::engine;
use crate::config::{Config, ConfigError, PoolConfig, Problem};
use crate::policy::{
    Form, FormulaGuest, Kind, Limits, Module, PolicyEngine, Rules, Steps, StrategyGuest, built_in,
};
use crate::watch::read;

/// What the policies say of the pools' settings; what is only odd is the answer.
pub(super) fn check(config: &Config) -> Result<Vec<String>, ConfigError> {
    let Some(host) = &config.host else { return Ok(Vec::new()) };
    let (mut odd, mut problems) = (Vec::new(), Vec::new());
    let (rules, mut running) = (Rules::of(host), None);
    for pool in &config.pools {
        for Named { kind, name, settings, key } in named(pool) {
            let limits = rules.limits(name);
            let Some((form, bytes)) = find(&host.policies, name, &limits) else {
                let folder = host.policies.display();
                let what =
                    format!("pool {:?}: there is no {kind} {name} in {folder} yet", pool.name);
                if !odd.contains(&what) {
                    odd.push(what);
                }
                continue;
            };
            if settings.as_object().is_some_and(serde_json::Map::is_empty) {
                continue;
            }
            let started = match &running {
                Some(engine) => Ok(engine),
                None => engine(Limits::default()).map(|engine| &*running.insert(engine)),
            };
            let tried = match started {
                Ok(engine) => bytes.and_then(|bytes| {
                    let engine = &engine.within(Limits { compile_last: false, ..limits });
                    tried(engine, &Arc::from(name), kind, (form, &bytes), &settings.to_string())
                }),
                Err(_) => Err("the policy engine does not start".to_owned()),
            };
            if let Err(reason) = tried {
                problems.push(Problem::new(format!("pool {:?}: {key}", pool.name), reason));
            }
        }
    }
    if problems.is_empty() { Ok(odd) } else { Err(problems.into()) }
}

/// A policy that a pool names.
struct Named<'c> {
    kind: Kind,
    name: &'c str,
    settings: &'c serde_json::Value,
    /// Of its settings.
    key: String,
}

/// A pool's policies and those of its schedule, each with its settings once.
fn named(pool: &PoolConfig) -> Vec<Named<'_>> {
    let own = (&pool.formula, &pool.formula_settings, &pool.strategy, &pool.strategy_settings);
    let entries = pool.schedule.iter().enumerate().map(|(place, entry)| {
        let of =
            (&entry.formula, &entry.formula_settings, &entry.strategy, &entry.strategy_settings);
        (format!("schedule[{place}]."), of)
    });
    let mut all: Vec<Named<'_>> = Vec::new();
    for (path, of) in std::iter::once((String::new(), own)).chain(entries) {
        let (formula, formula_settings, strategy, strategy_settings) = of;
        for (kind, name, settings) in [
            (Kind::Formula, formula, formula_settings),
            (Kind::Strategy, strategy, strategy_settings),
        ] {
            let same = |other: &Named<'_>| {
                (other.kind, other.name, other.settings) == (kind, &**name, settings)
            };
            if !all.iter().any(same) {
                all.push(Named { kind, name, settings, key: format!("{path}{kind}_settings") });
            }
        }
    }
    all
}

/// The file of a policy, or the built-in of its name.
fn find(folder: &Path, name: &str, limits: &Limits) -> Option<(Form, Result<Vec<u8>, String>)> {
    let file = |form: Form| {
        let path = folder.join(format!("{name}.{}", form.ending()));
        let bytes = || read(&path, limits.file_bytes);
        path.exists().then(|| (form, bytes().map_err(|what| format!("{}: {what}", path.display()))))
    };
    let inside = || built_in(name).map(|bytes| (Form::Wasm, Ok(bytes.to_vec())));
    file(Form::Wasm).or_else(|| file(Form::Text)).or_else(inside)
}

/// Starts it with these settings.
fn tried(
    engine: &PolicyEngine,
    name: &Arc<str>,
    kind: Kind,
    (form, bytes): (Form, &[u8]),
    settings: &str,
) -> Result<(), String> {
    let module = Module::load(engine, form, bytes, &Steps::default());
    let module = module.map_err(|error| format!("{name} is refused: {error}"))?;
    let started = match kind {
        Kind::Formula => FormulaGuest::start(engine, name, &module, settings).map(drop),
        Kind::Strategy => StrategyGuest::start(engine, name, &module, settings, 1).map(drop),
    };
    started.map_err(|error| error.to_string())
}
