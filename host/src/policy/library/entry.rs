//! What is known under one policy name: the generations that are kept, and what is wrong with the file.
//!
//! Invariants: the newest of `generations` is the one to use, every one of them was checked and
//! compiled; a file's bytes are kept with its module, so that a rollback can write them back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::super::module::{Form, Generation, Module};
use super::super::signature::Vouch;
use super::super::steps::{Step, Steps};
use super::offer::Uploaded;

/// Generations of a name that are kept, the one in use included.
pub(super) const KEPT_MAX: usize = 5;

/// Where a module comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Inside this program.
    BuiltIn,
    /// A file of the policies folder.
    File(PathBuf),
}

/// One generation, ready to be used.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Checked and compiled.
    pub module: Arc<Module>,
    /// Where it came from.
    pub origin: Origin,
    /// The file's content; `None`: built in.
    pub(super) content: Option<(Form, Arc<[u8]>)>,
    /// The text of its signature file.
    pub(super) signatures: Option<String>,
    /// Who vouches for it.
    pub vouch: Vouch,
    /// What its loading took.
    pub steps: Vec<Step>,
    /// When it was loaded.
    pub loaded: Instant,
}

/// A file that is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The file.
    pub path: PathBuf,
    /// Its content, where it could be read.
    pub generation: Option<Generation>,
    /// What is wrong and what to do.
    pub reason: String,
    /// How far it came.
    pub steps: Vec<Step>,
}

/// A file that is not used yet: nobody vouches for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub generation: Generation,
    /// What it waits for.
    pub why: String,
    /// Since when.
    pub since: Instant,
}

/// What is known under one name.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// Newest first; empty: there never was a good one, or the built-in was not needed yet.
    pub generations: Vec<Kept>,
    /// There is a policy of this name inside this program.
    pub is_built_in: bool,
    /// What is being checked and compiled now.
    pub loading: Option<Generation>,
    /// The file in use was removed then: its generation is given up when the grace is over.
    pub removed: Option<Instant>,
    /// The grace is over and there is no built-in policy of this name.
    pub is_withdrawn: bool,
    /// Loads of this name that succeeded.
    pub loads: u64,
    /// Loads of this name that failed.
    pub refusals: u64,
    /// The file that is not used now.
    pub refused: Option<Refused>,
    /// The file that waits for its signature.
    pub waiting: Option<Waiting>,
    /// The last upload, and what became of it.
    pub uploaded: Option<Uploaded>,
}

impl Entry {
    /// The generation to use.
    #[must_use]
    pub fn newest(&self) -> Option<&Kept> {
        self.generations.first().filter(|_| !self.is_withdrawn)
    }

    /// A kept generation by the beginning of its name; an empty one is the previous generation.
    #[must_use]
    pub fn kept(&self, generation: &str) -> Option<&Kept> {
        if generation.is_empty() {
            return self.generations.get(1);
        }
        self.generations.iter().find(|kept| kept.generation().to_string().starts_with(generation))
    }

    /// Puts a generation first; one that was kept already moves there.
    pub(super) fn put(&mut self, newest: Kept) {
        self.generations.retain(|kept| kept.generation() != newest.generation());
        self.generations.insert(0, newest);
        self.generations.truncate(KEPT_MAX);
        (self.removed, self.is_withdrawn) = (None, false);
    }
}

impl Kept {
    /// A module of this content, that comes from nowhere else yet.
    pub(super) fn new(module: Module, form: Form, bytes: &[u8], steps: &Steps) -> Self {
        Self {
            module: Arc::new(module),
            origin: Origin::BuiltIn,
            content: Some((form, bytes.into())),
            signatures: None,
            vouch: Vouch::BuiltIn,
            steps: steps.taken(),
            loaded: Instant::now(),
        }
    }

    /// Whether this is the same content from the same place.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.generation() == other.generation() && self.origin == other.origin
    }

    /// Names it.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.module.generation
    }
}
