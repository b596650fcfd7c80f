//! One table of the configuration file: keys are taken out by name and type, and every problem is
//! noted with its path instead of ending the reading.
//!
//! A wrong value reads as the default, so that one mistake gives one message. What is left when a
//! section is finished was misspelled: the message names the nearest key that was asked for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use toml::{Table, Value};

use super::document::Places;
use super::limits::{size_of, size_text};
use super::{Problem, is_policy_name};
use crate::report::{
    LABELS_MAX, NAME_BYTES_MAX, NAME_FORM, OWN_LABEL, is_deceptive, is_label_value, is_name,
    is_weight,
};

/// One table, with its path from the root.
pub(super) struct Section<'p> {
    table: Table,
    path: String,
    known: Vec<&'static str>,
    places: &'p Places,
    problems: Problems<'p>,
}

/// Shared by a section and those inside it.
type Problems<'p> = std::rc::Rc<RefCell<&'p mut Vec<Problem>>>;

impl<'p> Section<'p> {
    pub(super) fn new(
        table: Table,
        path: String,
        places: &'p Places,
        problems: &'p mut Vec<Problem>,
    ) -> Self {
        let problems = std::rc::Rc::new(RefCell::new(problems));
        Self { table, path, known: Vec::new(), places, problems }
    }

    pub(super) fn section(&mut self, key: &'static str) -> Option<Self> {
        match self.take(key)? {
            Value::Table(table) => Some(self.inner(table, key.to_owned())),
            other => {
                self.wrong(key, &format!("{} where a table [{key}] belongs", kind(&other)));
                None
            }
        }
    }

    /// An array of tables; `None` where there is none.
    pub(super) fn sections(&mut self, key: &'static str) -> Option<Vec<Self>> {
        let Value::Array(values) = self.take(key)? else {
            self.wrong(key, &format!("write each one as a table of its own, [[{key}]]"));
            return None;
        };
        let mut sections = Vec::new();
        for (index, value) in values.into_iter().enumerate() {
            let key = format!("{key}[{index}]");
            match value {
                Value::Table(table) => sections.push(self.inner(table, key)),
                other => self.wrong(&key, &format!("{} where a table belongs", kind(&other))),
            }
        }
        Some(sections)
    }

    pub(super) fn string(&mut self, key: &'static str) -> Option<String> {
        match self.take_text(key)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong(key, &format!("{} where a string belongs", kind(&other)));
                None
            }
        }
    }

    /// A string where there is one; what is something else is left for another look.
    pub(super) fn text_or_other(&mut self, key: &'static str) -> Option<String> {
        self.table.get(key)?.as_str()?;
        self.string(key)
    }

    /// A name fit for reports, logs and URLs.
    pub(super) fn name(&mut self, key: &'static str, default: String) -> String {
        match self.string(key) {
            None => default,
            Some(name) if is_name(&name) => name,
            Some(name) => {
                self.wrong(key, &format!("{name:?} is not a name: {NAME_FORM}"));
                default
            }
        }
    }

    /// A name; `None`: nothing is written, or "".
    pub(super) fn name_or_none(&mut self, key: &'static str) -> Option<String> {
        let name = self.string(key).filter(|name| !name.is_empty())?;
        if is_name(&name) {
            return Some(name);
        }
        self.wrong(key, &format!("{name:?} is not a name: {NAME_FORM}"));
        None
    }

    pub(super) fn required_name(&mut self, key: &'static str) -> String {
        self.require(key);
        self.name(key, String::new())
    }

    /// Notes that a key without a default is missing.
    pub(super) fn require(&self, key: &'static str) {
        if !self.table.contains_key(key) {
            self.wrong(key, "is missing");
        }
    }

    pub(super) fn policy_name(&mut self, key: &'static str, default: String) -> String {
        self.string(key).and_then(|name| self.as_policy_name(key, name)).unwrap_or(default)
    }

    /// A policy's name; notes what is none.
    pub(super) fn as_policy_name(&self, key: &'static str, name: String) -> Option<String> {
        if is_policy_name(&name) {
            return Some(name);
        }
        let what = "letters, digits, '-', '_' and '.', the file's name without its ending";
        self.wrong(key, &format!("{name:?} is not a policy's name: {what}"));
        None
    }

    pub(super) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        match self.take(key) {
            None => default,
            Some(Value::Boolean(value)) => value,
            Some(other) => {
                self.wrong(key, &format!("{} where true or false belongs", kind(&other)));
                default
            }
        }
    }

    pub(super) fn integer<T>(
        &mut self,
        key: &'static str,
        default: T,
        range: RangeInclusive<i64>,
    ) -> T
    where
        T: TryFrom<i64>,
    {
        let Some(value) = self.take(key) else { return default };
        let in_range = value.as_integer().filter(|value| range.contains(value));
        in_range.and_then(|value| T::try_from(value).ok()).unwrap_or_else(|| {
            let ((low, high), value) = (range.into_inner(), told(&value));
            self.wrong(key, &format!("{value} is not a whole number from {low} to {high}"));
            default
        })
    }

    pub(super) fn weight(&mut self, key: &'static str) -> f64 {
        match self.take(key) {
            None => 1.0,
            Some(value) => number(&value).filter(|value| is_weight(*value)).unwrap_or_else(|| {
                self.wrong(key, &format!("{} is not a number above 0", told(&value)));
                1.0
            }),
        }
    }

    pub(super) fn share(&mut self, key: &'static str, default: f64) -> f64 {
        self.number(key, default, 0.0..=1.0, "from 0 to 1")
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
        in_words: &str,
    ) -> f64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        number(&value).filter(|value| range.contains(value)).unwrap_or_else(|| {
            self.wrong(key, &format!("{} is not a number {in_words}", told(&value)));
            default
        })
    }

    /// A share that may not be 0.
    pub(super) fn part(&mut self, key: &'static str, default: f64) -> f64 {
        let share = self.share(key, default);
        if share > 0.0 {
            return share;
        }
        let why = "a target without any work would never show what it can";
        self.wrong(key, &format!("{share} is not above 0: {why}"));
        default
    }

    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let text = match self.take_text(key) {
            None => return default,
            Some(Value::String(text)) => text,
            Some(other) => {
                self.wrong(key, &format!("{} where a duration like \"2s\" belongs", kind(&other)));
                return default;
            }
        };
        match humantime::parse_duration(&text) {
            Ok(duration) if range.contains(&duration) => duration,
            Ok(_) => {
                let (low, high) = range.into_inner();
                let [low, high] = [low, high].map(humantime::format_duration);
                self.wrong(key, &format!("{text:?} is not between {low} and {high}"));
                default
            }
            Err(_) => {
                self.wrong(key, &format!("{text:?} is not a duration like \"500ms\" or \"2s\""));
                default
            }
        }
    }

    /// Bytes, written as `"64MiB"`.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        let Some(value) = self.take_text(key) else { return default };
        let size = value.as_str().and_then(size_of);
        size.filter(|size| range.contains(size)).unwrap_or_else(|| {
            let (low, high) = range.into_inner();
            let [low, high] = [low, high].map(size_text);
            self.wrong(key, &format!("{value} is not a size from \"{low}\" to \"{high}\""));
            default
        })
    }

    pub(super) fn parsed<T: FromStr>(&mut self, key: &'static str, default: T, wanted: &str) -> T {
        match self.string(key) {
            None => default,
            Some(text) => text.parse().unwrap_or_else(|_| {
                self.wrong(key, &format!("{text:?} is not {wanted}"));
                default
            }),
        }
    }

    /// Fills in what is not written; of the metrics (`metric`) those whose names are not.
    pub(super) fn fill(&mut self, table: Table) {
        for (key, value) in table {
            match (self.table.get_mut(&key), value) {
                (None, value) => {
                    self.table.insert(key, value);
                }
                (Some(Value::Array(own)), Value::Array(others)) if key == "metric" => {
                    let is_own =
                        |other: &Value| own.iter().any(|one| one.get("name") == other.get("name"));
                    let others: Vec<_> = others.into_iter().filter(|o| !is_own(o)).collect();
                    own.splice(0..0, others);
                }
                (Some(_), _) => {}
            }
        }
    }

    /// What is written here counts for the metrics inside, too, where they do not say otherwise.
    pub(super) fn hand_down(&mut self, keys: &[&'static str]) {
        for key in keys {
            let Some(value) = self.table.get(*key).cloned() else { continue };
            let metrics = self.table.get_mut("metric").and_then(Value::as_array_mut);
            for metric in metrics.into_iter().flatten().filter_map(Value::as_table_mut) {
                metric.entry(*key).or_insert_with(|| value.clone());
            }
        }
    }

    /// A value whose own reading says what is wrong with it; `None` where there is none to use.
    pub(super) fn checked<T: FromStr<Err = String>>(&mut self, key: &'static str) -> Option<T> {
        let read = self.string(key)?.parse();
        read.map_err(|what: String| self.wrong(key, &what)).ok()
    }

    pub(super) fn strings(&mut self, key: &'static str) -> Vec<String> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let strings = value.as_array().and_then(|values| {
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
        });
        strings.unwrap_or_else(|| {
            self.wrong(key, "must be a list of strings");
            Vec::new()
        })
    }

    /// A service's address: empty, `host:port` or a URL.
    pub(super) fn address(&mut self, key: &'static str) -> String {
        let address = self.string(key).unwrap_or_default();
        let rest = address.split_once("://").map_or(&*address, |(_, rest)| rest);
        let fits = address.len() <= NAME_BYTES_MAX && !address.contains(is_deceptive);
        if address.is_empty() || (fits && !rest.is_empty() && !rest.contains(' ')) {
            return address;
        }
        self.wrong(key, &format!("{address:?} is not \"host:port\" or a URL"));
        String::new()
    }

    pub(super) fn labels(&mut self, key: &'static str) -> BTreeMap<String, String> {
        let Some(value) = self.take(key) else {
            return BTreeMap::new();
        };
        let labels = value.as_table().and_then(|table| {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            table.iter().map(|(name, value)| Some((name.clone(), text(value)?))).collect()
        });
        let Some(labels): Option<BTreeMap<String, String>> = labels else {
            self.wrong(key, "must be a table of strings, { zone = \"a\" }");
            return BTreeMap::new();
        };
        for (name, value) in &labels {
            if !is_name(name) {
                let what = format!("{name:?} is not a label's name: {NAME_FORM}");
                self.wrong(key, &what);
            }
            if name.starts_with(OWN_LABEL) {
                let what = format!("{name:?} is one of the names that agents give themselves");
                self.wrong(key, &what);
            }
            if !is_label_value(value) {
                let what = format!("{value:?} is not the value of a label: empty, or {NAME_FORM}");
                self.wrong(key, &what);
            }
        }
        self.bound(key, labels.len(), LABELS_MAX);
        labels
    }

    /// Notes that there are more of something than a report can carry.
    pub(super) fn bound(&self, key: &str, count: usize, most: usize) {
        if count > most {
            self.wrong(key, &format!("{count} are more than a report can carry, {most}"));
        }
    }

    /// Whether something is written.
    #[cfg(feature = "host")]
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Leaves a key to programs that have what it configures.
    #[cfg(not(feature = "host"))]
    pub(super) fn skip(&mut self, key: &'static str) {
        self.take(key);
    }

    /// Notes every key that nobody asked for.
    pub(super) fn finish(self) {
        for key in self.table.keys() {
            let near = nearest(key, self.known.iter().copied());
            let hint =
                near.map_or_else(|| format!(" (known here: {})", self.known.join(", ")), did_you);
            self.wrong(key, &format!("unknown key{hint}"));
        }
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<Value> {
        let is_variable = self.places.is_variable(&self.path_of(key));
        let value = self.take_text(key)?;
        // A variable holds text: what reads as a number, a list or the like is meant as one.
        match &value {
            Value::String(text) if is_variable => Some(typed(text).unwrap_or(value)),
            _ => Some(value),
        }
    }

    /// The value as it was written; a variable's is text whatever it reads as.
    fn take_text(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn inner(&self, table: Table, key: String) -> Self {
        let problems = std::rc::Rc::clone(&self.problems);
        Self { table, path: self.path_of(&key), known: Vec::new(), places: self.places, problems }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Notes what is wrong with a key.
    pub(super) fn wrong(&self, key: &str, what: &str) {
        self.problems.borrow_mut().push(Problem::new(self.path_of(key), what));
    }
}

/// The known name that is most like a misspelled one.
pub(crate) fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|name| (strsim::osa_distance(written, name), name));
    let best = scored.min_by_key(|(distance, _)| *distance);
    let slips = 1 + written.chars().count() / 4;
    best.filter(|(distance, _)| *distance <= slips).map(|(_, name)| name)
}

/// The value that a text has in a file; `None`: it has none, it is plain text.
fn typed(text: &str) -> Option<Value> {
    let mut table = format!("value = {text}").parse::<Table>().ok()?;
    table.remove("value").filter(|_| table.is_empty())
}

fn did_you(near: &str) -> String {
    format!(", did you mean {near}?")
}

fn number(value: &Value) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a weight above 2^53 is no real weight")]
    let from_integer = value.as_integer().map(|integer| integer as f64);
    value.as_float().or(from_integer)
}

/// A value as a message tells it: what is short as it was written, else its kind.
pub(super) fn told(value: &Value) -> String {
    match value {
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => value.to_string(),
        other => kind(other).to_owned(),
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}
