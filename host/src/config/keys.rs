//! Who may report, as written in `[reports]`: keys with their secrets, and networks of machines.
//!
//! A secret is named by file or environment variable, read when reports start, and never printed. The
//! environment itself is read at the process's edge, which hands it to [`ReportsConfig::take_secrets`].

use std::fmt;
use std::path::{Path, PathBuf};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::read::Section;
use super::{ConfigError, Problem, ReportsConfig};
use crate::report::gate::{Gate, Network, Rule};
use crate::report::{Key, Keyring};

/// One of `reports.keys`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConfig {
    /// Travels with each report; not 0.
    pub id: u32,
    /// Where the secret is; white space around it is cut off.
    pub secret: SecretSource,
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// In a file that holds nothing else.
    File(PathBuf),
    /// In an environment variable.
    Variable {
        /// Its name.
        name: String,
        /// What it holds; `None`: it is not set, or the environment was not looked at.
        value: Option<Secret>,
    },
}

/// A secret; it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// One of `reports.allow`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllowConfig {
    /// Names of machines; `*` stands for any characters.
    pub machines: String,
    /// Where they may report from.
    #[serde(serialize_with = "as_texts")]
    pub networks: Vec<Network>,
}

impl KeyConfig {
    fn read(&self) -> Result<Key, String> {
        let (place, secret) = match &self.secret {
            SecretSource::File(path) => {
                let place = format!("secret_file {}", path.display());
                let secret =
                    std::fs::read(path).map_err(|error| format!("cannot read {place}: {error}"))?;
                (place, secret)
            }
            SecretSource::Variable { name, value: Some(secret) } => {
                (format!("secret_env {name}"), secret.0.clone().into_bytes())
            }
            SecretSource::Variable { name, value: None } => {
                return Err(format!("the environment has no variable {name} (secret_env)"));
            }
        };
        let least = crate::report::auth::SECRET_BYTES_MIN;
        Key::new(self.id, secret.trim_ascii())
            .ok_or_else(|| format!("the secret of {place} is shorter than {least} bytes"))
    }

    /// What is wrong with the secret's file though it can be used.
    fn warning(&self) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        let SecretSource::File(path) = &self.secret else { return None };
        let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
        // The owner and readers of its group are those it is for.
        (mode & 0o037 != 0).then(|| {
            let file = path.display();
            format!("secret_file {file} is open to others (mode {mode:03o}): chmod 600 {file}")
        })
    }
}

/// `{ id, secret_file }` or `{ id, secret_env }`
impl Serialize for KeyConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut key = serializer.serialize_struct("KeyConfig", 2)?;
        key.serialize_field("id", &self.id)?;
        match &self.secret {
            SecretSource::File(path) => key.serialize_field("secret_file", path)?,
            SecretSource::Variable { name, .. } => key.serialize_field("secret_env", name)?,
        }
        key.end()
    }
}

impl ReportsConfig {
    /// Looks up the secrets that the environment holds.
    pub fn take_secrets(&mut self, environment: impl Fn(&str) -> Option<String>) {
        for key in &mut self.keys {
            if let SecretSource::Variable { name, value } = &mut key.secret {
                *value = environment(name).map(Secret);
            }
        }
    }

    /// Reads the secrets.
    ///
    /// # Errors
    /// Every secret that cannot be used.
    pub fn keyring(&self) -> Result<Keyring, ConfigError> {
        let mut problems = Vec::new();
        let mut keys = Vec::new();
        for (index, key) in self.keys.iter().enumerate() {
            match key.read() {
                Ok(key) => keys.push(key),
                Err(what) => {
                    problems.push(Problem::new(format!("reports.keys[{index}]"), what));
                }
            }
        }
        if problems.is_empty() { Ok(Keyring::new(keys)) } else { Err(problems.into()) }
    }

    /// The files that hold secrets.
    pub(super) fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.keys.iter().filter_map(|key| match &key.secret {
            SecretSource::File(path) => Some(&**path),
            SecretSource::Variable { .. } => None,
        })
    }

    /// Who may report; reads the secrets.
    ///
    /// # Errors
    /// Every secret that cannot be used.
    pub fn gate(&self) -> Result<Gate, ConfigError> {
        let rule = |allow: &AllowConfig| Rule {
            machines: allow.machines.clone(),
            networks: allow.networks.clone(),
        };
        Ok(Gate {
            keyring: self.keyring()?,
            rules: self.allow.iter().map(rule).collect(),
            skew_max_ms: u64::try_from(self.max_skew.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// What is dangerous though it works.
    pub(super) fn warnings(&self, is_heard: bool) -> Vec<String> {
        let mut warnings: Vec<_> = self.keys.iter().filter_map(KeyConfig::warning).collect();
        if is_heard && self.keys.is_empty() && !self.is_local() {
            let what = "reports are not signed: whoever reaches the report port can add machines, \
                        take them out and report any load; set reports.keys";
            warnings.push(what.to_owned());
        }
        warnings
    }
}

pub(super) fn key(mut section: Section<'_>) -> KeyConfig {
    section.require("id");
    let id = section.integer("id", 0, 1..=u32::MAX.into());
    let file = section.string("secret_file").map(|file| SecretSource::File(file.into()));
    let variable = section.string("secret_env");
    let variable = variable.map(|name| SecretSource::Variable { name, value: None });
    if file.is_some() == variable.is_some() {
        section.wrong("secret_file", "write either secret_file or secret_env");
    }
    section.finish();
    let nothing = || SecretSource::File(PathBuf::new());
    KeyConfig { id, secret: file.or(variable).unwrap_or_else(nothing) }
}

pub(super) fn allow(mut section: Section<'_>) -> AllowConfig {
    section.require("networks");
    let machines = section.required_name("machines");
    let mut networks = Vec::new();
    for text in section.strings("networks") {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(()) => {
                section
                    .wrong("networks", &format!("{text:?} is not a network like \"10.0.0.0/8\""));
            }
        }
    }
    section.finish();
    AllowConfig { machines, networks }
}

fn as_texts<S: Serializer>(networks: &[Network], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(networks.iter().map(Network::to_string))
}
