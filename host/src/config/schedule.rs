//! `time_zone` and `[[pool.schedule]]`: other policies for times of day.
//!
//! What an entry leaves out is as the pool has it. Settings belong to a policy: an entry that names
//! another one starts without any.

use serde::Serialize;
use serde_json::Value;

use super::PoolConfig;
use super::read::{Section, nearest};
use super::settings::settings;
use crate::calendar::{Cron, Zone};

/// The policies from a time of day on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EntryConfig {
    /// When it begins, in the pool's time zone; it ends when another one begins.
    pub at: Cron,
    /// The policy that computes loads.
    pub formula: String,
    /// Its settings.
    pub formula_settings: Value,
    /// The policy that chooses.
    pub strategy: String,
    /// Its settings.
    pub strategy_settings: Value,
}

/// Reads both keys into a pool whose own policies are known.
pub(super) fn schedule(section: &mut Section<'_>, pool: &mut PoolConfig) {
    if let Some(name) = section.string("time_zone") {
        pool.time_zone = zone(section, &name);
    }
    let Some(entries) = section.sections("schedule") else { return };
    let entries: Vec<_> = entries.into_iter().map(|inner| entry(inner, pool)).collect();
    for (place, entry) in entries.iter().enumerate() {
        let Some(entry) = entry else { continue };
        let same = |other: &Option<EntryConfig>| other.as_ref().is_some_and(|o| o.at == entry.at);
        if let Some(first) = entries[..place].iter().position(same) {
            let what = format!("begins when schedule[{first}] does, which would never serve");
            section.wrong(&format!("schedule[{place}].at"), &what);
        }
    }
    pool.schedule = entries.into_iter().flatten().collect();
}

fn zone(section: &Section<'_>, name: &str) -> Zone {
    Zone::named(name).unwrap_or_else(|| {
        let names = Zone::names();
        let near = nearest(name, names.iter().map(String::as_str));
        let hint = near.map_or_else(
            || "write an IANA name like \"Europe/Berlin\", or \"UTC\"".to_owned(),
            |near| format!("did you mean {near:?}?"),
        );
        section.wrong("time_zone", &format!("there is no time zone {name:?}: {hint}"));
        Zone::default()
    })
}

/// `None`: nobody knows when it begins.
fn entry(mut section: Section<'_>, pool: &PoolConfig) -> Option<EntryConfig> {
    section.require("at");
    let at = section.checked("at");
    let formula = section.policy_name("formula", pool.formula.clone());
    let own = (formula == pool.formula).then_some(&pool.formula_settings);
    let formula_settings = settings_or(&mut section, "formula_settings", own);
    let strategy = section.policy_name("strategy", pool.strategy.clone());
    let own = (strategy == pool.strategy).then_some(&pool.strategy_settings);
    let strategy_settings = settings_or(&mut section, "strategy_settings", own);
    section.finish();
    Some(EntryConfig { at: at?, formula, formula_settings, strategy, strategy_settings })
}

/// A policy's settings; where nothing is written, these.
fn settings_or(section: &mut Section<'_>, key: &'static str, default: Option<&Value>) -> Value {
    let default = default.filter(|_| !section.has(key));
    let written = settings(section, key);
    default.cloned().unwrap_or(written)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::Config;

    const POOL: &str =
        "[host]\n[[pool]]\nname = \"web\"\nformula_settings = { weights = { cpu = 1.0 } }\n";

    #[track_caller]
    fn refused(rest: &str) -> String {
        Config::parse(&format!("{POOL}{rest}")).expect_err("a bad schedule").to_string()
    }

    #[test]
    fn what_an_entry_leaves_out_is_as_the_pool_has_it() {
        let text = format!(
            "{POOL}time_zone = \"europe/berlin\"\n[[pool.schedule]]\nat = \"0 8 * * *\"\n\
             [[pool.schedule]]\nat = \"0 9 * * *\"\nformula = \"weighted\"\nstrategy = \"p2c\"\n\
             [[pool.schedule]]\nat = \"0 10 * * *\"\nformula = \"sessions\"\n\
             [[pool.schedule]]\nat = \"0 11 * * *\"\nformula_settings = {{}}\n"
        );
        let config = Config::parse(&text).expect("a good file");
        let pool = &config.pools[1];
        assert_eq!(pool.time_zone.name(), "Europe/Berlin");
        let weights = json!({ "weights": { "cpu": 1.0 } });
        let found: Vec<_> = (pool.schedule.iter())
            .map(|entry| (&*entry.formula, &entry.formula_settings, &*entry.strategy))
            .collect();
        assert_eq!(
            found,
            [
                ("weighted", &weights, "balanced"),
                ("weighted", &weights, "p2c"),
                ("sessions", &json!({}), "balanced"),
                ("weighted", &json!({}), "balanced"),
            ]
        );
        // What is printed is what is in force.
        assert_eq!(Config::parse(&config.to_toml()).expect("what was printed"), config);
    }

    #[test]
    fn zone_without_a_like_name_and_entry_without_a_time_are_refused() {
        let said =
            refused("time_zone = \"nowhere-at-all\"\n[[pool.schedule]]\nstrategy = \"p2c\"\n");
        assert!(
            said.contains("there is no time zone \"nowhere-at-all\": write an IANA name"),
            "{said}"
        );
        assert!(said.contains("pool[0].schedule[0].at: is missing"), "{said}");
        let said = refused("schedule = \"0 8 * * *\"\n");
        assert!(said.contains("[[schedule]]"), "{said}");
    }
}
