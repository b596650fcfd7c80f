//! A configuration as it was written: a file's text and the environment's variables in, one table and
//! where each of its keys stands out.
//!
//! A variable `LOADLINE_SECTION__KEY` stands for `key` of `[section]`, `__` for each dot: no name that
//! others make (`LOADLINE_HOST_PORT` of a container platform) has that form. It wins over the file. It
//! gives no process a role: what belongs to a table that is not there is left alone.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::Problem;

/// What every variable that sets a key begins with.
pub const VARIABLE_PREFIX: &str = "LOADLINE_";
/// The tables whose keys variables can set.
const SECTIONS: [&str; 4] = ["agent", "reports", "host", "relay"];

/// Where a key was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of the file, from 1.
    Line(usize),
    /// The environment's variable of this name.
    Variable(String),
}

/// Where all keys were written, by path.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<String, Place>);

impl Places {
    /// Where a key stands, or else the table it would stand in.
    pub(super) fn of(&self, path: &str) -> Option<&Place> {
        let mut path = path;
        loop {
            if let Some(place) = self.0.get(path) {
                return Some(place);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Whether a variable set this key.
    pub(super) fn is_variable(&self, path: &str) -> bool {
        matches!(self.0.get(path), Some(Place::Variable(_)))
    }

    /// The keys that variables set, with their variables.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(path, place)| match place {
            Place::Variable(name) => Some((&**path, &**name)),
            Place::Line(_) => None,
        })
    }

    fn of_text(text: &str) -> Self {
        let mut places = Self::default();
        // A text that is wrong is refused as a whole, with its own words.
        if let Ok(table) = DeTable::parse(text) {
            places.add_table(table.get_ref(), "", text);
        }
        places
    }

    fn add_table(&mut self, table: &DeTable<'_>, path: &str, text: &str) {
        for (key, value) in table {
            let dot = if path.is_empty() { "" } else { "." };
            let path = format!("{path}{dot}{}", key.get_ref());
            self.add(&path, &key.span(), text);
            self.add_inner(value.get_ref(), &path, text);
        }
    }

    fn add_inner(&mut self, value: &DeValue<'_>, path: &str, text: &str) {
        match value {
            DeValue::Table(table) => self.add_table(table, path, text),
            DeValue::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    self.add(&path, &value.span(), text);
                    self.add_inner(value.get_ref(), &path, text);
                }
            }
            _ => {}
        }
    }

    fn add(&mut self, path: &str, span: &Range<usize>, text: &str) {
        let before = text.get(..span.start).unwrap_or_default();
        self.0.insert(path.to_owned(), Place::Line(line_of(before)));
    }
}

/// Where a text is no TOML, and what would be.
fn not_toml(error: &toml::de::Error, text: &str) -> Problem {
    let mut problem = Problem::of_all(format!("not TOML: {}", error.message()));
    if let Some(before) = error.span().and_then(|span| text.get(..span.start)) {
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        problem.what.push_str(&format!(" (column {})", 1 + before[start..].chars().count()));
        problem.place = Some(Place::Line(line_of(before)));
    }
    problem
}

/// The line of what comes after a text, from 1.
fn line_of(before: &str) -> usize {
    1 + before.bytes().filter(|byte| *byte == b'\n').count()
}

/// A configuration before its values are looked at.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) table: Table,
    pub(super) places: Places,
    /// Variables that set nothing.
    pub(super) problems: Vec<Problem>,
}

impl Document {
    /// A file's text.
    ///
    /// # Errors
    /// It is no TOML: where, and what was expected.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let table = text.parse().map_err(|error| not_toml(&error, text))?;
        Ok(Self { table, places: Places::of_text(text), problems: Vec::new() })
    }

    /// Adds a table, if it is not there.
    pub(super) fn ensure(&mut self, section: &str) {
        self.table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    }

    /// Sets what the variables say.
    pub(super) fn set(&mut self, variables: &[(String, String)]) {
        for (name, text) in variables {
            let path = name.strip_prefix(VARIABLE_PREFIX).filter(|path| path.contains("__"));
            let Some(path) = path else { continue };
            let keys: Vec<_> = path.split("__").map(str::to_ascii_lowercase).collect();
            if let Err(what) = self.set_one(&keys, name, text) {
                let place = Some(Place::Variable(name.clone()));
                self.problems.push(Problem { key: keys.join("."), place, what });
            }
        }
    }

    fn set_one(&mut self, keys: &[String], name: &str, text: &str) -> Result<(), String> {
        let [section, inner @ .., key] = keys else { return Ok(()) };
        if !SECTIONS.contains(&&**section) {
            let near = super::read::nearest(section, SECTIONS.into_iter());
            let hint = near.map_or_else(String::new, |near| format!(", did you mean {near}?"));
            return Err(format!(
                "there is no table [{section}] whose keys a variable can set (those of [agent], \
                 [reports], [host] and [relay] can be){hint}"
            ));
        }
        if section == "reports" {
            self.ensure(section);
        }
        let Some(Value::Table(table)) = self.table.get_mut(section) else { return Ok(()) };
        let mut table = table;
        for key in inner {
            let entry = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            table = entry.as_table_mut().ok_or_else(|| format!("{key} is not a table"))?;
        }
        table.insert(key.clone(), Value::String(text.to_owned()));
        self.places.0.insert(keys.join("."), Place::Variable(name.to_owned()));
        Ok(())
    }
}
