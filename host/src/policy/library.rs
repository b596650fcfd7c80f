//! The policies by name: those inside this program and those in the policies folder.
//!
//! In: what lies in the folder now. Out: the newest good module of each name, and what is wrong with
//! the others. Identity is the content's hash: touching a file loads nothing, and bytes that were
//! refused are not tried again until they change. A file overrides the built-in of its name; a
//! refused file leaves what was there; a removed file gives the name back to the built-in, or, where
//! there is none, leaves the last good module.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builtin::BUILTIN;
use super::engine::PolicyEngine;
use super::module::{Generation, Module};
use crate::watch::read;

/// Where a module comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Inside this program.
    BuiltIn,
    /// A file of the policies folder.
    File(PathBuf),
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
}

/// What is known under one name.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    /// The newest good module; `None`: there never was one, or the built-in was not needed yet.
    pub module: Option<Arc<Module>>,
    /// Where it comes from.
    pub origin: Option<Origin>,
    /// The generation before it.
    pub previous: Option<Generation>,
    /// How long its check and compilation took.
    pub load_time: Duration,
    /// Loads of this name that succeeded.
    pub loads: u64,
    /// Loads of this name that failed.
    pub refusals: u64,
    /// The file that is not used now.
    pub refused: Option<Refused>,
}

/// All policies by name.
pub struct Library {
    engine: PolicyEngine,
    folder: PathBuf,
    entries: BTreeMap<Arc<str>, Entry>,
    /// Last content seen of each file, good or bad.
    seen: BTreeMap<PathBuf, Option<Generation>>,
    /// What is wrong with the folder was said.
    complained: bool,
}

impl Library {
    /// A library over this folder, which need not exist (yet). Nothing is compiled here.
    #[must_use]
    pub fn new(engine: PolicyEngine, folder: PathBuf) -> Self {
        let built_in = |(name, _): &(&str, _)| {
            (Arc::from(*name), Entry { origin: Some(Origin::BuiltIn), ..Entry::default() })
        };
        Self {
            engine,
            folder,
            entries: BTreeMap::from_iter(BUILTIN.iter().map(built_in)),
            seen: BTreeMap::new(),
            complained: false,
        }
    }

    /// Reads another folder from the next scan on. What the old one held is treated as removed.
    pub fn move_to(&mut self, folder: PathBuf) {
        self.folder = folder;
        self.complained = false;
    }

    /// Whether the compiler gives way to everything else from now on.
    pub fn compile_last(&mut self, last: bool) {
        self.engine.limits.compile_last = last;
    }

    /// The engine that runs them.
    #[must_use]
    pub fn engine(&self) -> &PolicyEngine {
        &self.engine
    }

    /// Everything known, by name.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<Arc<str>, Entry> {
        &self.entries
    }

    /// The module of a name; a built-in is compiled when it is first asked for.
    pub fn module(&mut self, name: &str) -> Option<Arc<Module>> {
        let entry = self.entries.get(name)?;
        if entry.module.is_none() && entry.origin == Some(Origin::BuiltIn) {
            self.load_built_in(name);
        }
        self.entries.get(name)?.module.clone()
    }

    /// Looks at the folder; true when any entry changed.
    pub fn rescan(&mut self) -> bool {
        let Some(files) = self.files() else { return false };
        let mut changed = false;
        let removed: Vec<_> =
            self.seen.keys().filter(|path| !files.contains_key(*path)).cloned().collect();
        for path in removed {
            self.seen.remove(&path);
            changed |= self.remove(&path);
        }
        for (path, name) in files {
            changed |= self.look_at(&path, &name);
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
        let named = |path: PathBuf| policy_name(&path).map(|name| (path, name));
        Some(paths.into_iter().filter_map(named).collect())
    }

    /// Loads a file if its content is new.
    fn look_at(&mut self, path: &Path, name: &Arc<str>) -> bool {
        let bytes = match read(path, self.engine.limits.file_bytes) {
            Ok(bytes) => bytes,
            Err(reason) => {
                let known = self.entries.get(name).and_then(|entry| entry.refused.as_ref());
                if known.is_some_and(|refused| refused.path == path && refused.reason == reason) {
                    return false;
                }
                self.seen.insert(path.to_owned(), None);
                self.refuse(path, name, None, reason);
                return true;
            }
        };
        let generation = Generation::of(&bytes);
        if self.seen.get(path) == Some(&Some(generation)) {
            return false;
        }
        self.seen.insert(path.to_owned(), Some(generation));
        if let Some(other) = self.other_file(path, name) {
            let reason = format!("{} has the same policy name and is used", other.display());
            self.refuse(path, name, Some(generation), reason);
            return true;
        }
        let begin = Instant::now();
        match self.compile(path, &bytes) {
            Ok(module) => {
                let origin = Origin::File(path.to_owned());
                self.accept(name, module, origin, begin.elapsed());
            }
            Err(reason) => self.refuse(path, name, Some(generation), reason),
        }
        true
    }

    fn compile(&self, path: &Path, bytes: &[u8]) -> Result<Module, String> {
        if path.extension().is_some_and(|extension| extension == "wasm") {
            return Module::from_wasm(&self.engine, bytes).map_err(|error| error.to_string());
        }
        let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
        Module::from_text(&self.engine, text).map_err(|error| error.to_string())
    }

    /// Another file of the same name that is in use.
    fn other_file(&self, path: &Path, name: &Arc<str>) -> Option<PathBuf> {
        match self.entries.get(name)?.origin.as_ref()? {
            Origin::File(used) if used != path && self.seen.contains_key(used) => {
                Some(used.clone())
            }
            _ => None,
        }
    }

    fn accept(&mut self, name: &Arc<str>, module: Module, origin: Origin, load_time: Duration) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        let generation = module.generation;
        tracing::info!(policy = %name, kind = %module.kind(), %generation, ?load_time, "policy loaded");
        entry.previous = entry.module.as_ref().map(|module| module.generation);
        entry.module = Some(Arc::new(module));
        let origin_path = match &origin {
            Origin::File(path) => Some(path),
            Origin::BuiltIn => None,
        };
        entry.load_time = load_time;
        entry.loads += 1;
        let is_this = |refused: &mut Refused| origin_path == Some(&refused.path);
        entry.refused.take_if(is_this);
        entry.origin = Some(origin);
    }

    fn refuse(
        &mut self,
        path: &Path,
        name: &Arc<str>,
        generation: Option<Generation>,
        reason: String,
    ) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        let kept = entry.module.as_ref().map(|module| module.generation.to_string());
        let kept = kept.as_deref().unwrap_or("none");
        tracing::warn!(policy = %name, file = %path.display(), reason, kept, "policy refused");
        entry.refusals += 1;
        entry.refused = Some(Refused { path: path.to_owned(), generation, reason });
    }

    /// A file is gone.
    fn remove(&mut self, path: &Path) -> bool {
        let Some(name) = policy_name(path) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(&name) else {
            return false;
        };
        if entry.refused.as_ref().is_some_and(|refused| refused.path == path) {
            entry.refused = None;
        }
        if entry.origin != Some(Origin::File(path.to_owned())) {
            return true;
        }
        if BUILTIN.iter().any(|(built_in, _)| **built_in == *name) {
            tracing::info!(policy = %name, "policy file removed, the built-in of its name serves");
            self.load_built_in(&name);
        } else {
            tracing::warn!(policy = %name, "policy file removed, its last generation serves on");
        }
        // A second file of the same name was refused because of this one: look at it again.
        self.seen.retain(|other, _| policy_name(other).as_ref() != Some(&name));
        true
    }

    fn load_built_in(&mut self, name: &str) {
        let Some((name, bytes)) = BUILTIN.iter().find(|(built_in, _)| *built_in == name) else {
            return;
        };
        let begin = Instant::now();
        match Module::from_wasm(&self.engine, bytes) {
            Ok(module) => {
                self.accept(&Arc::from(*name), module, Origin::BuiltIn, begin.elapsed());
            }
            Err(error) => {
                tracing::error!(policy = name, %error, "the built-in policy does not load");
            }
        }
    }
}

/// The name that a file gives its policy; `None`: not a policy file.
pub(crate) fn policy_name(path: &Path) -> Option<Arc<str>> {
    let extension = path.extension()?;
    if extension != "wasm" && extension != "formula" {
        return None;
    }
    // A name that is not UTF-8 or has odd characters cannot be named by a pool either.
    let stem = path.file_stem()?.to_str()?;
    crate::config::is_policy_name(stem).then(|| Arc::from(stem))
}
