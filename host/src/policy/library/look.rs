//! A look at the folder: what lies there now in; what is new is loaded, refused or waits for its signature, what is
//! gone is noted.
//!
//! Invariants: a file is read whole and only while nobody writes into it; the same content under the same
//! signatures is looked at once; a folder that cannot be listed says nothing about what is in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::super::module::{Generation, read_file};
use super::super::signature::{Vouch, beside};
use super::super::steps::Steps;
use super::names::policy_name;
use super::{Content, Library, Origin, Refused, Waiting};
use crate::config::SignatureMode;

impl Library {
    /// Looks at the folder; true when any entry changed. A file into which somebody `is_writing` is left
    /// for a later look. Those that waited for their turn come first.
    pub fn rescan(&mut self, is_writing: &dyn Fn(&Path) -> bool) -> bool {
        let Some(mut files) = self.files() else { return false };
        let mut changed = false;
        let removed: Vec<_> =
            self.seen.keys().filter(|path| !files.contains_key(*path)).cloned().collect();
        for path in removed {
            self.seen.remove(&path);
            changed |= self.remove(&path);
        }
        let waited = std::mem::take(&mut self.turned_away);
        let first = waited.into_iter().filter_map(|path| files.remove_entry(&path));
        for (path, name) in first.collect::<Vec<_>>().into_iter().chain(files) {
            if !is_writing(&path) && !is_writing(&beside(&path)) {
                changed |= self.look_at(&path, &name);
            }
        }
        changed
    }

    /// The policy files by path; `None` when the folder cannot be listed now, which says nothing
    /// about what is in it.
    fn files(&mut self) -> Option<BTreeMap<PathBuf, Arc<str>>> {
        let listed = fs::read_dir(&self.folder).and_then(|entries| {
            entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>()
        });
        let folder = self.folder.display();
        let paths = match listed {
            Ok(paths) => paths,
            Err(error) if error.kind() == ErrorKind::NotFound && self.seen.is_empty() => {
                if !self.complained {
                    tracing::info!(%folder, "no policies folder yet; the built-in policies serve");
                }
                self.complained = true;
                return Some(BTreeMap::new());
            }
            Err(error) => {
                if !self.complained {
                    tracing::error!(
                        %folder, %error,
                        "cannot list the policies folder: its policies serve on (an empty folder gives \
                         their names back to the built-in ones)"
                    );
                }
                self.complained = true;
                return None;
            }
        };
        self.complained = false;
        self.nameless.tell(&paths);
        let named = |path: PathBuf| policy_name(&path).map(|name| (path, name));
        Some(paths.into_iter().filter_map(named).collect())
    }

    /// Loads a file if its content is new, or who vouches for it.
    fn look_at(&mut self, path: &Path, name: &Arc<str>) -> bool {
        let file = match self.read(path, name) {
            Ok(file) => file,
            Err(reason) => {
                let known = self.entries.get(name).and_then(|entry| entry.refused.as_ref());
                if known.is_some_and(|refused| refused.path == path && refused.reason == reason) {
                    return false;
                }
                self.seen.insert(path.to_owned(), None);
                let path = path.to_owned();
                self.refuse(name, Refused { path, generation: None, reason, steps: Vec::new() });
                return true;
            }
        };
        let look = Some((file.generation, file.vouch.clone()));
        if self.seen.get(path) == Some(&look) {
            return false;
        }
        self.seen.insert(path.to_owned(), look);
        let refused = |reason: &str, generation| Refused {
            path: path.to_owned(),
            generation: Some(generation),
            reason: reason.to_owned(),
            steps: file.steps.taken(),
        };
        if let Some(other) = self.other_file(path, name) {
            let other = other.display();
            let reason =
                format!("{other} has the same policy name and is used: remove one of them");
            self.refuse(name, refused(&reason, file.generation));
            return true;
        }
        if self.rules.trust.mode() == SignatureMode::Require && file.vouch.trouble().is_some() {
            self.doubt(path, name, &file);
        }
        match (self.rules.trust.mode(), &file.vouch) {
            (SignatureMode::Require, Vouch::Missing(why)) => {
                self.wait(path, name, file.generation, why)
            }
            (SignatureMode::Require, Vouch::Wrong(why)) => {
                self.refuse(name, refused(why, file.generation));
            }
            _ => self.load(path, name, file),
        }
        true
    }

    /// A file's content and who vouches for it.
    fn read(&self, path: &Path, name: &str) -> Result<Content, String> {
        let bytes = read_file(path, self.rules.limits(name).file_bytes)?;
        let (generation, steps) = (Generation::of(&bytes), Steps::default());
        let (signatures, vouch) = self.rules.trust.judge_beside(path, generation, &steps);
        Ok(Content { bytes, generation, signatures, vouch, steps })
    }

    /// Another file of the same name that is in use.
    fn other_file(&self, path: &Path, name: &Arc<str>) -> Option<PathBuf> {
        match &self.entries.get(name)?.newest()?.origin {
            Origin::File(used) if used != path && self.seen.contains_key(used) => {
                Some(used.clone())
            }
            _ => None,
        }
    }

    /// What serves was taken from this file, and nobody vouches for it any more: it serves on, and is shown.
    fn doubt(&mut self, path: &Path, name: &str, file: &Content) {
        let entry = self.entries.get_mut(name);
        let newest = entry.and_then(|entry| entry.generations.first_mut()).filter(|newest| {
            newest.generation() == file.generation && newest.origin == Origin::File(path.to_owned())
        });
        if let Some(newest) = newest {
            newest.vouch = file.vouch.clone();
        }
    }

    /// A good file, for all that is known, that nobody vouches for yet.
    fn wait(&mut self, path: &Path, name: &Arc<str>, generation: Generation, why: &str) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        entry.refused.take_if(|refused| refused.path == path);
        let since = Instant::now();
        let path = path.to_owned();
        entry.waiting =
            Some(Waiting { path: path.clone(), generation, why: why.to_owned(), since });
        self.shown();
        let file = path.display();
        tracing::info!(policy = %name, %file, %generation, why, "policy waits for its signature");
    }

    /// A file is gone.
    pub(super) fn remove(&mut self, path: &Path) -> bool {
        let Some(name) = policy_name(path) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(&name) else {
            return false;
        };
        entry.refused.take_if(|refused| refused.path == path);
        entry.waiting.take_if(|waiting| waiting.path == path);
        let in_use = entry.newest().map(|kept| &kept.origin);
        if in_use == Some(&Origin::File(path.to_owned())) {
            let grace = self.rules.grace;
            tracing::info!(policy = %name, ?grace, "policy file removed, its generation serves on for a while");
            entry.removed = Some(Instant::now());
            // A second file of the same name was refused because of this one: look at it again.
            self.seen.retain(|other, _| policy_name(other).as_ref() != Some(&name));
        }
        true
    }
}
