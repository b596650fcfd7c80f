//! What a schema allows, in an operator's words: "a number from 0 to 1 (default 0.5)".

use serde_json::{Map, Value};

use super::referred;
use crate::config::nearest;

/// Characters of a wrong value that are shown.
const VALUE_SHOWN: usize = 60;

/// What a schema allows, in words, with the default.
pub(super) fn wanted(root: &Value, schema: &Value, depth: u32) -> String {
    let Some(schema) = schema.as_object() else { return "anything".to_owned() };
    let default = schema.get("default").map(|value| format!(" (default {})", shown(value)));
    form(root, schema, depth) + &default.unwrap_or_default()
}

fn form(root: &Value, schema: &Map<String, Value>, depth: u32) -> String {
    let choices = ["anyOf", "oneOf"].iter().find_map(|keyword| schema.get(*keyword)?.as_array());
    if depth == 0 {
        return "what the policy's schema says".to_owned();
    }
    if let Some(value) = schema.get("const") {
        return shown(value);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return format!("one of {}", values.iter().map(shown).collect::<Vec<_>>().join(", "));
    }
    if let Some(Value::Object(other)) = referred(root, schema) {
        return form(root, other, depth - 1);
    }
    if let Some(choices) = choices {
        return any_of(root, choices, depth - 1);
    }
    let one = |name: &Value| of_type(root, name.as_str().unwrap_or_default(), schema, depth);
    match schema.get("type") {
        Some(Value::Array(names)) => names.iter().map(one).collect::<Vec<_>>().join(" or "),
        Some(name) => one(name),
        None => format!("a value{}", range(schema)),
    }
}

pub(super) fn any_of(root: &Value, choices: &[Value], depth: u32) -> String {
    let choices = choices.iter().filter_map(Value::as_object);
    choices.map(|schema| form(root, schema, depth)).collect::<Vec<_>>().join(" or ")
}

fn of_type(root: &Value, name: &str, schema: &Map<String, Value>, depth: u32) -> String {
    let count = |low: &str, high: &str, what: &str| match (
        schema.get(low).and_then(Value::as_u64),
        schema.get(high).and_then(Value::as_u64),
    ) {
        (None | Some(0), None) => String::new(),
        (Some(1), None) => " that is not empty".to_owned(),
        (Some(low), None) => format!(" of at least {low} {what}"),
        (None, Some(high)) => format!(" of at most {high} {what}"),
        (Some(low), Some(high)) => format!(" of {low} to {high} {what}"),
    };
    let each = |keyword: &str| match schema.get(keyword) {
        Some(Value::Object(inner)) => format!(", each {}", form(root, inner, depth - 1)),
        _ => String::new(),
    };
    match name {
        "number" => format!("a number{}", range(schema)),
        "integer" => format!("a whole number{}", range(schema)),
        "string" => format!("a string{}", count("minLength", "maxLength", "characters")),
        "boolean" => "true or false".to_owned(),
        "array" => format!("a list{}{}", count("minItems", "maxItems", "values"), each("items")),
        "object" => {
            let count = count("minProperties", "maxProperties", "entries");
            format!("a table{count}{}", each("additionalProperties"))
        }
        other => other.to_owned(),
    }
}

/// The bounds of a number.
fn range(schema: &Map<String, Value>) -> String {
    let bound = |keyword: &str| schema.get(keyword).filter(|bound| bound.is_number());
    match (
        (bound("minimum"), bound("exclusiveMinimum")),
        (bound("maximum"), bound("exclusiveMaximum")),
    ) {
        ((Some(low), _), (Some(high), _)) => format!(" from {low} to {high}"),
        (low, high) => {
            let low = match low {
                (Some(low), _) => Some(format!("of at least {low}")),
                (None, low) => low.map(|low| format!("above {low}")),
            };
            let high = match high {
                (Some(high), _) => Some(format!("of at most {high}")),
                (None, high) => high.map(|high| format!("below {high}")),
            };
            let both: Vec<_> = low.into_iter().chain(high).collect();
            if both.is_empty() { String::new() } else { format!(" {}", both.join(" and ")) }
        }
    }
}

pub(super) fn unknown(name: &str, known: Option<&Map<String, Value>>) -> String {
    let known = || known.into_iter().flat_map(Map::keys).map(String::as_str);
    match nearest(name, known()) {
        Some(near) => format!("unknown setting, did you mean {near}?"),
        None if known().next().is_none() => "unknown setting: there are none here".to_owned(),
        None => {
            format!("unknown setting (known here: {})", known().collect::<Vec<_>>().join(", "))
        }
    }
}

/// A value as it is written, the beginning of a long one.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
