//! What is known of the configuration in force, for whoever shows it.
//!
//! Holds no secret: those are in files of their own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{Change, ConfigError};

/// What [`InForce::word`] says where nothing is wrong.
const IN_FORCE: &str = "in_force";

/// Shared by who reloads and who shows.
#[derive(Debug, Clone, Default)]
pub struct ConfigState(Arc<Mutex<InForce>>);

/// The configuration in force.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    /// Where it comes from; `None`: the defaults.
    pub file: Option<PathBuf>,
    /// Of the file's content, 12 hexadecimal digits; `None`: no file.
    pub digest: Option<String>,
    /// When it took effect; `None`: at the start.
    pub since: Option<Instant>,
    /// Changes that took effect.
    pub applied: u64,
    /// Files that were refused as a whole.
    pub refused: u64,
    /// The trouble is with the newest file as a whole.
    pub is_refused: bool,
    /// What is wrong with the newest file, or could not be done; `None`: nothing.
    pub trouble: Option<ConfigError>,
    /// Keys of the last change.
    pub changes: Vec<Change>,
}

impl InForce {
    /// `in_force`, `refused` or `partly`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match (self.is_refused, &self.trouble) {
            (_, None) => IN_FORCE,
            (true, Some(_)) => "refused",
            (false, Some(_)) => "partly",
        }
    }
}

impl ConfigState {
    /// As it is now.
    #[must_use]
    pub fn get(&self) -> InForce {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong, in a word; `None`: nothing.
    #[must_use]
    pub fn trouble(&self) -> Option<&'static str> {
        let word = self.0.lock().unwrap_or_else(PoisonError::into_inner).word();
        (word != IN_FORCE).then_some(word)
    }

    /// Writes down what happened.
    pub fn note(&self, write: impl FnOnce(&mut InForce)) {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
