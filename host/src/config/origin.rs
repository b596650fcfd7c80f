//! Where a process's configuration comes from: read again and again, each time to a checked
//! [`Config`] or every problem.
//!
//! The environment is handed in by the process's edge. A file that is empty is only taken at the
//! start: later it is one that is being written.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::document::Document;
use super::{Config, ConfigError, Destination, Problem};

/// Read when no file is named, if it exists.
pub const USUAL_FILE: &str = "loadline.toml";
/// Bytes of a configuration file at most.
const FILE_BYTES_MAX: usize = 16 << 20;

/// What a process was told to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// What the file names; without a file, all this program can be.
    #[default]
    AsWritten,
    /// An agent only.
    Agent,
    /// A host only.
    Host,
    /// A relay only.
    Relay,
}

/// A file, the environment, and a role.
#[derive(Clone, Default)]
pub struct Origin {
    named: Option<PathBuf>,
    /// May hold secrets.
    variables: Vec<(String, String)>,
    role: Role,
    /// Where a relay sends besides what is written.
    send_to: Vec<Destination>,
}

/// What was read, before it is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The file; `None`: there is none.
    pub file: Option<PathBuf>,
    /// Its content.
    pub text: String,
}

impl Written {
    /// Tells this content from any other.
    #[must_use]
    pub fn digest(&self) -> String {
        let digest: [u8; 32] = Sha256::digest(&self.text).into();
        digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Origin {
    /// The named file, else [`USUAL_FILE`] where there is one, with the environment's variables.
    #[must_use]
    pub fn new(
        file: Option<PathBuf>,
        variables: impl Iterator<Item = (String, String)>,
        role: Role,
    ) -> Self {
        let mut variables: Vec<_> = variables.collect();
        variables.sort_unstable();
        Self { named: file, variables, role, send_to: Vec::new() }
    }

    /// A relay sends there, too.
    #[must_use]
    pub fn sending_to(self, send_to: Vec<Destination>) -> Self {
        Self { send_to, ..self }
    }

    /// The file that is read now, or would be.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.named.as_deref().unwrap_or(Path::new(USUAL_FILE))
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or a named one is not there.
    pub fn read(&self) -> Result<Written, ConfigError> {
        let path = self.path();
        if self.named.is_none() && !path.exists() {
            return Ok(Written { file: None, text: String::new() });
        }
        let read = std::fs::read(path).map_err(|error| format!("cannot be read: {error}"));
        let text = read.and_then(|bytes| {
            String::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))
        });
        match text {
            Ok(text) => Ok(Written { file: Some(path.to_owned()), text }),
            Err(why) => Err(self.unreadable(&why)),
        }
    }

    /// The same of a running process: never waits, and never takes a file for whole that may be on
    /// its way. One that was there and is gone is no wish for the defaults: with it would go keys,
    /// pools and the token.
    ///
    /// # Errors
    /// There is nothing to be taken now.
    pub fn read_again(&self, had_file: bool) -> Result<Written, ConfigError> {
        let path = self.path();
        let bytes = match crate::watch::read(path, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(_) if self.named.is_none() && !had_file && !path.exists() => {
                return Ok(Written { file: None, text: String::new() });
            }
            Err(why) => return Err(self.unreadable(&why.to_string())),
        };
        if bytes.trim_ascii().is_empty() {
            return Err(self.unreadable("is empty: taken for a file that is being written"));
        }
        let text = String::from_utf8(bytes)
            .map_err(|error| self.unreadable(&format!("not UTF-8: {error}")))?;
        Ok(Written { file: Some(path.to_owned()), text })
    }

    /// Checks what was read, with the environment and the role.
    ///
    /// # Errors
    /// Every problem of it; secrets are not read.
    pub fn check(&self, written: &Written) -> Result<Config, ConfigError> {
        let of_file = |error: ConfigError| ConfigError { file: written.file.clone(), ..error };
        let document = self.document(written).map_err(|problem| of_file(problem.into()))?;
        let mut config = Config::from_document(document).map_err(of_file)?;
        match self.role {
            Role::AsWritten => {}
            Role::Agent => (config.host, config.relay) = (None, None),
            Role::Host => (config.agent, config.relay) = (None, None),
            Role::Relay => (config.agent, config.host) = (None, None),
        }
        if let Some(relay) = &mut config.relay {
            relay.send_to.extend(self.send_to.iter().cloned());
        }
        let variable = |name: &str| self.variables.iter().find(|(known, _)| known == name);
        config.reports.take_secrets(|name| variable(name).map(|(_, secret)| secret.clone()));
        Ok(config)
    }

    /// Reads and checks.
    ///
    /// # Errors
    /// Every problem.
    pub fn load(&self) -> Result<Config, ConfigError> {
        self.check(&self.read()?)
    }

    /// Where what is in force comes from, as comments of a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn told(&self) -> Result<String, ConfigError> {
        let written = self.read()?;
        let file = written.file.as_ref().map(|file| file.display().to_string());
        let mut lines = format!("# from {}\n", file.as_deref().unwrap_or("no file: the defaults"));
        let document = self.document(&written).map_err(ConfigError::from)?;
        for (key, variable) in document.places.variables() {
            lines.push_str(&format!("# {key} from {variable}\n"));
        }
        Ok(lines)
    }

    fn document(&self, written: &Written) -> Result<Document, Problem> {
        let mut document = Document::parse(&written.text)?;
        let everything = written.file.is_none() && self.role == Role::AsWritten;
        if cfg!(feature = "agent") && everything || self.role == Role::Agent {
            document.ensure("agent");
        }
        if cfg!(feature = "host") && everything || self.role == Role::Host {
            document.ensure("host");
        }
        if self.role == Role::Relay {
            document.ensure("relay");
        }
        document.set(&self.variables);
        Ok(document)
    }

    fn unreadable(&self, why: &str) -> ConfigError {
        Problem::of_all(format!("{}: {why}", self.path().display())).into()
    }
}
