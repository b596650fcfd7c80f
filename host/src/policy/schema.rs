//! A policy's settings against the JSON Schema that it gives of them: every mistake at once, each with
//! its key, its value and what would be right.
//!
//! The schema is a guest's words, so it is checked by what is written here and cannot do harm: no regular
//! expressions, no references to elsewhere, and so many steps at most. Known are `type`, `enum`, `const`,
//! the bounds of numbers, strings, lists and tables, `properties`, `required`, `additionalProperties`,
//! `items`, `anyOf`, `oneOf` (as `anyOf`), `allOf` and `$ref` within the schema. Other keywords are not
//! looked at ([`Schema::not_checked`] names them): the policy's own `configure` has the last word.

mod words;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::room::printable;
use words::{any_of, shown, unknown, wanted};

/// Comparisons that one check may take: far more than any real schema needs.
const STEPS_MAX: u32 = 100_000;
/// Levels of a schema, references followed: settings are a few deep.
const DEPTH_MAX: u32 = 64;
/// Mistakes that are told; more are counted.
const MISTAKES_MAX: usize = 20;
/// Keywords that are checked, or that only describe.
const KNOWN: &[&str] = &[
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "definitions",
    "deprecated",
    "description",
    "enum",
    "examples",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "oneOf",
    "properties",
    "required",
    "title",
    "type",
];

/// What a policy says of its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema(Value);

/// One thing wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where, `weights.cpu`; empty: the settings as a whole.
    pub key: String,
    /// What is wrong and what would be right.
    pub what: String,
}

/// One setting, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// What it may be, with its default.
    pub form: String,
    /// The policy's own words; empty: none.
    pub about: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.key.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.key, self.what)
    }
}

impl Schema {
    /// Reads a schema's text; an empty one allows everything.
    ///
    /// # Errors
    /// It is no JSON Schema.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Value::Bool(true)));
        }
        match serde_json::from_str(text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Self(schema)),
            Ok(other) => Err(format!("{} is not a JSON Schema, an object is", shown(&other))),
            Err(error) => Err(format!("not JSON: {error}")),
        }
    }

    /// What is wrong with these settings, in the order in which they are written.
    #[must_use]
    pub fn check(&self, settings: &Value) -> Vec<Mistake> {
        let check = Check { root: &self.0, steps: Cell::new(STEPS_MAX) };
        let mut mistakes = Vec::new();
        check.value(At { schema: &self.0, key: "", depth: 0 }, settings, &mut mistakes);
        if check.steps.get() == 0 {
            let what = "the policy's settings schema is too entangled to be checked by";
            mistakes = vec![Mistake { key: String::new(), what: what.to_owned() }];
        }
        mistakes
    }

    /// Its settings, by name.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let properties = self.0.get("properties").and_then(Value::as_object);
        let setting = |(name, schema): (&String, &Value)| Setting {
            name: printable(name),
            form: printable(&wanted(&self.0, schema, DEPTH_MAX)),
            about: printable(schema["description"].as_str().unwrap_or_default()),
        };
        properties.into_iter().flatten().map(setting).collect()
    }

    /// Keywords in it that are not looked at.
    #[must_use]
    pub fn not_checked(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        keywords(&self.0, &mut found);
        found
    }
}

/// All of them in one line.
#[must_use]
pub fn in_one_line(mistakes: &[Mistake]) -> String {
    let told = mistakes.iter().take(MISTAKES_MAX).map(ToString::to_string);
    let mut line = told.collect::<Vec<_>>().join("; ");
    if let Some(more) = mistakes.len().checked_sub(MISTAKES_MAX).filter(|more| *more > 0) {
        line.push_str(&format!("; and {more} more"));
    }
    line
}

/// One check of settings.
struct Check<'s> {
    root: &'s Value,
    /// That are left.
    steps: Cell<u32>,
}

/// Where a check is.
#[derive(Clone, Copy)]
struct At<'s, 'k> {
    schema: &'s Value,
    key: &'k str,
    depth: u32,
}

impl At<'_, '_> {
    fn wrong(self, what: impl fmt::Display, mistakes: &mut Vec<Mistake>) {
        let (key, what) = (printable(self.key), printable(&what.to_string()));
        mistakes.push(Mistake { key, what });
    }

    /// The path of something inside.
    fn inner(self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }
}

impl<'s> Check<'s> {
    fn value(&self, at: At<'s, '_>, value: &Value, mistakes: &mut Vec<Mistake>) {
        let left = self.steps.get().saturating_sub(1);
        self.steps.set(if at.depth > DEPTH_MAX { 0 } else { left });
        if self.steps.get() == 0 {
            return;
        }
        let Value::Object(schema) = at.schema else {
            if *at.schema == Value::Bool(false) {
                at.wrong("nothing belongs here", mistakes);
            }
            return;
        };
        let deeper = |schema| At { schema, depth: at.depth + 1, ..at };
        if let Some(other) = referred(self.root, schema) {
            self.value(deeper(other), value, mistakes);
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.value(deeper(part), value, mistakes);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(choices) = schema.get(keyword).and_then(Value::as_array) {
                self.one_of(at, choices, value, mistakes);
            }
        }
        if !fits(schema, value) {
            let wanted = wanted(self.root, at.schema, DEPTH_MAX);
            at.wrong(format_args!("{} is not {wanted}", shown(value)), mistakes);
            return;
        }
        match value {
            Value::Object(table) => self.table(at, schema, table, mistakes),
            Value::Array(list) => self.list(at, schema, list, mistakes),
            _ => {}
        }
    }

    /// What is wrong with the choice that comes nearest, or, of plain values, what may be.
    fn one_of(
        &self,
        at: At<'s, '_>,
        choices: &'s [Value],
        value: &Value,
        mistakes: &mut Vec<Mistake>,
    ) {
        let wrong_with = |schema| {
            let mut wrong = Vec::new();
            self.value(At { schema, depth: at.depth + 1, ..at }, value, &mut wrong);
            wrong
        };
        let tried = choices.iter().map(wrong_with);
        let inside = |wrong: &Vec<Mistake>| wrong.iter().any(|mistake| mistake.key != at.key);
        match tried.min_by_key(|wrong| (!wrong.is_empty(), !inside(wrong), wrong.len())) {
            Some(wrong) if wrong.is_empty() => {}
            Some(wrong) if inside(&wrong) => mistakes.extend(wrong),
            _ => {
                let wanted = any_of(self.root, choices, DEPTH_MAX);
                at.wrong(format_args!("{} is not {wanted}", shown(value)), mistakes);
            }
        }
    }

    fn table(
        &self,
        at: At<'s, '_>,
        schema: &'s Map<String, Value>,
        table: &Map<String, Value>,
        mistakes: &mut Vec<Mistake>,
    ) {
        let known = schema.get("properties").and_then(Value::as_object);
        let others = schema.get("additionalProperties");
        // By patterns, too, more may be known than is looked at here.
        let is_closed =
            others == Some(&Value::Bool(false)) && !schema.contains_key("patternProperties");
        for (name, value) in table {
            let key = at.inner(name);
            let at = At { key: &key, depth: at.depth + 1, ..at };
            match (known.and_then(|known| known.get(name)), others) {
                (Some(schema), _) => self.value(At { schema, ..at }, value, mistakes),
                (None, _) if is_closed => at.wrong(unknown(name, known), mistakes),
                (None, Some(schema @ Value::Object(_))) => {
                    self.value(At { schema, ..at }, value, mistakes);
                }
                (None, _) => {}
            }
        }
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !table.contains_key(name) {
                let schema = known.and_then(|known| known.get(name)).unwrap_or(&Value::Bool(true));
                let wanted = wanted(self.root, schema, DEPTH_MAX);
                let key = at.inner(name);
                At { key: &key, ..at }.wrong(format_args!("is missing: {wanted}"), mistakes);
            }
        }
    }

    fn list(
        &self,
        at: At<'s, '_>,
        schema: &'s Map<String, Value>,
        list: &[Value],
        mistakes: &mut Vec<Mistake>,
    ) {
        let Some(schema) = schema.get("items") else { return };
        for (index, value) in list.iter().enumerate() {
            let key = format!("{}[{index}]", at.key);
            self.value(At { schema, key: &key, depth: at.depth + 1 }, value, mistakes);
        }
    }
}

/// The schema that another one refers to; only within the whole.
fn referred<'s>(root: &'s Value, schema: &Map<String, Value>) -> Option<&'s Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// Whether a value fits what is said of it alone, without what is inside it.
fn fits(schema: &Map<String, Value>, value: &Value) -> bool {
    let is_type = |name: &Value| match (name.as_str().unwrap_or_default(), value) {
        ("integer", Value::Number(number)) => {
            number.as_f64().is_some_and(|number| number.fract().abs() <= 0.0)
        }
        ("number", Value::Number(_))
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_))
        | ("null", Value::Null) => true,
        _ => false,
    };
    let is_of_type = match schema.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(is_type),
        Some(name) => is_type(name),
    };
    let listed = schema.get("enum").and_then(Value::as_array);
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let within = |size: f64, low: &str, high: &str| {
        bound(low).is_none_or(|low| size >= low) && bound(high).is_none_or(|high| size <= high)
    };
    #[expect(clippy::cast_precision_loss, reason = "no list in settings has 2^53 parts")]
    let size = |len: usize| len as f64;
    is_of_type
        && listed.is_none_or(|values| values.contains(value))
        && schema.get("const").is_none_or(|only| only == value)
        && match value {
            Value::Number(number) => number.as_f64().is_some_and(|number| {
                within(number, "minimum", "maximum")
                    && bound("exclusiveMinimum").is_none_or(|low| number > low)
                    && bound("exclusiveMaximum").is_none_or(|high| number < high)
            }),
            Value::String(text) => within(size(text.chars().count()), "minLength", "maxLength"),
            Value::Array(list) => within(size(list.len()), "minItems", "maxItems"),
            Value::Object(table) => within(size(table.len()), "minProperties", "maxProperties"),
            Value::Null | Value::Bool(_) => true,
        }
}

/// The keywords of a schema that are not known here, and those inside it.
fn keywords(schema: &Value, found: &mut BTreeSet<String>) {
    let Some(schema) = schema.as_object() else { return };
    for (keyword, inner) in schema {
        match keyword.as_str() {
            "properties" | "$defs" | "definitions" => {
                inner.as_object().into_iter().flatten().for_each(|(_, part)| keywords(part, found));
            }
            "items" | "additionalProperties" => keywords(inner, found),
            "anyOf" | "oneOf" | "allOf" => {
                inner.as_array().into_iter().flatten().for_each(|part| keywords(part, found));
            }
            known if KNOWN.contains(&known) => {}
            other => {
                found.insert(printable(other));
            }
        }
    }
}

#[cfg(test)]
mod tests;
