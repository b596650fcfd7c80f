//! What differs between two configurations: key by key, old and new, as it would be written.
//!
//! Elements of a list of tables are known by their name, id or time, so that an order that changes is no
//! difference. Secrets are in files and so are not shown.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use toml::Value;

use super::Config;

/// One key that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `pool[web].strategy`; of a table that is new or gone the table's own.
    pub key: String,
    /// As it was; `None`: it was not there.
    pub old: Option<String>,
    /// As it is; `None`: it is gone.
    pub new: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, old, new } = self;
        match (old, new) {
            (None, Some(new)) => write!(f, "{key}: new: {new}"),
            (Some(old), None) => write!(f, "{key}: gone, was {old}"),
            (old, new) => {
                let text = |value: &Option<String>| value.clone().unwrap_or_default();
                write!(f, "{key}: {} -> {}", text(old), text(new))
            }
        }
    }
}

/// Every key that differs.
#[must_use]
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    let [old, new] = [old, new].map(|config| Value::try_from(config).ok());
    compare("", old.as_ref(), new.as_ref(), &mut changes);
    changes
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, changes: &mut Vec<Change>) {
    match (old.and_then(children), new.and_then(children)) {
        _ if old == new => {}
        (Some(old), Some(new)) => {
            let mut keys: Vec<_> = old.keys().chain(new.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let inner = match (key.starts_with('['), path.is_empty()) {
                    (true, _) => format!("{path}{key}"),
                    (false, true) => key.clone(),
                    (false, false) => format!("{path}.{key}"),
                };
                compare(&inner, old.get(key).copied(), new.get(key).copied(), changes);
            }
        }
        _ => {
            let [old, new] = [old, new].map(|value| value.map(shown));
            changes.push(Change { key: path.to_owned(), old, new });
        }
    }
}

/// A table's values by key, and a list's by the names of its tables; `None`: it has no parts.
fn children(value: &Value) -> Option<BTreeMap<String, &Value>> {
    match value {
        Value::Table(table) => {
            Some(table.iter().map(|(key, value)| (key.clone(), value)).collect())
        }
        Value::Array(values) if !values.is_empty() => {
            let named = |value: &'_ Value| {
                let name = ["name", "id", "at"].iter().find_map(|key| value.get(*key))?;
                Some(format!("[{}]", name.as_str().map_or_else(|| name.to_string(), str::to_owned)))
            };
            values.iter().map(|value| Some((named(value)?, value))).collect()
        }
        _ => None,
    }
}

/// A value in one line.
fn shown(value: &Value) -> String {
    match value {
        Value::Table(table) => {
            let parts: Vec<_> =
                table.iter().map(|(key, value)| format!("{key} = {}", shown(value))).collect();
            format!("{{ {} }}", parts.join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(shown).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(old: &str, new: &str, expected: &[&str]) {
        let [old, new] = [old, new].map(|text| Config::parse(text).expect("a good file"));
        let found: Vec<_> = changes(&old, &new).iter().map(Change::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn changed_keys_are_named_with_both_values() {
        let old = "[agent]\nmachine = \"a\"\n[host]\nmiss_limit = 3\n[[pool]]\nname = \"web\"";
        check(old, old, &[]);
        check(
            old,
            "[agent]\nmachine = \"a\"\ninterval = \"5s\"\nlabels = { zone = \"a\" }\n[host]\n\
             miss_limit = 4\n[[pool]]\nname = \"web\"\nstrategy = \"p2c\"",
            &[
                "agent.interval: \"2s\" -> \"5s\"",
                "agent.labels.zone: new: \"a\"",
                "host.miss_limit: 3 -> 4",
                "pool[web].strategy: \"balanced\" -> \"p2c\"",
            ],
        );
    }

    #[test]
    fn tables_of_a_list_are_known_by_name_whatever_their_order() {
        let pool = |name: &str| format!("[[pool]]\nname = \"{name}\"\n");
        let file = |pools: &[&str]| {
            format!("[host]\n{}", pools.iter().map(|name| pool(name)).collect::<String>())
        };
        check(&file(&["default", "a", "b"]), &file(&["b", "default", "a"]), &[]);
        let changes = changes(
            &Config::parse(&file(&["a"])).expect("a good file"),
            &Config::parse(&file(&["b"])).expect("a good file"),
        );
        let keys: Vec<_> =
            changes.iter().map(|change| (&*change.key, change.old.is_none())).collect();
        assert_eq!(keys, [("pool[a]", false), ("pool[b]", true)]);
    }

    #[test]
    fn a_role_that_comes_or_goes_is_one_change() {
        let [both, host] = ["[agent]\nmachine = \"a\"\n[host]", "[host]"]
            .map(|text| Config::parse(text).expect("a good file"));
        let found = changes(&both, &host);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].key == "agent" && found[0].new.is_none());
    }
}
