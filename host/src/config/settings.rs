//! Settings of policies: a table of the file in, the JSON that the policy gets out.
//!
//! TOML has values that JSON has not: dates, and numbers that are none. Each is a problem with its own
//! key, because what would be left out or written as something else is not what somebody wanted.

use serde_json::{Map, Number, Value as Json};
use toml::Value;

use super::read::{Section, kind};

/// Reads a table of settings; without one it is empty.
pub(super) fn settings(section: &mut Section<'_>, key: &'static str) -> Json {
    let mut problems = Vec::new();
    let settings = match section.take(key) {
        None => Json::Object(Map::new()),
        Some(Value::Table(table)) => json(Value::Table(table), key, &mut problems),
        Some(other) => {
            problems.push((key.to_owned(), format!("{} where a table belongs", kind(&other))));
            Json::Object(Map::new())
        }
    };
    for (key, what) in problems {
        section.wrong(&key, &what);
    }
    settings
}

/// The JSON form of a value, and what has none, by its path.
fn json(value: Value, path: &str, problems: &mut Vec<(String, String)>) -> Json {
    match value {
        Value::String(text) => Json::String(text),
        Value::Integer(number) => Json::Number(number.into()),
        Value::Boolean(flag) => Json::Bool(flag),
        Value::Float(number) => {
            let finite = Number::from_f64(number).map(Json::Number);
            finite.unwrap_or_else(|| {
                problems.push((path.to_owned(), format!("{number} is not a number that JSON has")));
                Json::Null
            })
        }
        Value::Datetime(date) => {
            let what = format!("{date} is a date, which JSON has not: write it in quotes");
            problems.push((path.to_owned(), what));
            Json::Null
        }
        Value::Array(values) => {
            let values = values.into_iter().enumerate();
            values
                .map(|(index, value)| json(value, &format!("{path}[{index}]"), problems))
                .collect()
        }
        Value::Table(table) => {
            let inner = |(key, value): (String, Value)| {
                let value = json(value, &format!("{path}.{key}"), problems);
                (key, value)
            };
            table.into_iter().map(inner).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn pool(settings: &str) -> String {
        format!("[host]\n[[pool]]\nname = \"n\"\nstrategy_settings = {settings}\n")
    }

    #[test]
    fn what_json_has_arrives_as_it_is() {
        let text = pool(r#"{ a = 1, b = [1.5, -0.0, "x"], c = { d = true } }"#);
        let config = Config::parse(&text).expect("good settings");
        let expected = serde_json::json!({ "a": 1, "b": [1.5, -0.0, "x"], "c": { "d": true } });
        assert_eq!(config.pools[1].strategy_settings, expected);
        assert_eq!(Config::parse(&config.to_toml()), Ok(config));
    }

    #[test]
    fn what_json_has_not_is_told_by_its_key() {
        let text = pool("{ a = nan, b = [1, -inf], c = { d = 1979-05-27 } }");
        let error = Config::parse(&text).expect_err("no JSON").to_string();
        for words in [
            "pool[0].strategy_settings.a: NaN is not a number that JSON has",
            "pool[0].strategy_settings.b[1]: -inf is not",
            "pool[0].strategy_settings.c.d: 1979-05-27 is a date, which JSON has not",
        ] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
