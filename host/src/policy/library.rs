//! The policies by name: those inside this program and those in the policies folder.
//!
//! In: what lies in the folder now, and what an operator asks for. Out: the generation to use of each
//! name, those before it, and what is wrong with the others. Identity is the content's hash: touching a
//! file loads nothing, and bytes that were refused are not tried again until they change. A file
//! overrides the built-in of its name; a refused file leaves what was there. A file that is removed
//! is used on for a grace period; then the name goes back to the built-in, or, where there is none,
//! to nobody. What an operator asks for is written into the folder first, so that a restart finds it.

mod entry;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builtin::BUILTIN;
use super::engine::PolicyEngine;
use super::module::{Form, Generation, Module, ModuleError};
use super::steps::Steps;
use crate::watch::read;
pub use entry::{Entry, Kept, Origin, Refused};

/// Why an operator's wish was not followed.
#[derive(Debug, thiserror::Error)]
pub enum WishError {
    /// Nothing of this name.
    #[error("there is no policy {0}")]
    Unknown(String),
    /// Not a good policy; nothing was written.
    #[error("{0}")]
    Refused(String),
    /// Not among the generations that are kept.
    #[error("{0}")]
    NotKept(String),
    /// The folder cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// The operating system's words.
        error: io::Error,
    },
}

/// Told of all entries.
type Show = Box<dyn Fn(&BTreeMap<Arc<str>, Entry>) + Send>;

/// All policies by name.
pub struct Library {
    engine: PolicyEngine,
    folder: PathBuf,
    entries: BTreeMap<Arc<str>, Entry>,
    /// Last content seen of each file, good or bad.
    seen: BTreeMap<PathBuf, Option<Generation>>,
    /// What is wrong with the folder was said.
    complained: bool,
    /// How long a removed file's generation is used on.
    grace: Duration,
    /// Told whenever an entry changes.
    show: Show,
}

impl Library {
    /// A library over this folder, which need not exist (yet). Nothing is compiled here. `show` is
    /// told of all entries whenever one changes.
    #[must_use]
    pub fn new(
        engine: PolicyEngine,
        folder: PathBuf,
        show: impl Fn(&BTreeMap<Arc<str>, Entry>) + Send + 'static,
    ) -> Self {
        let built_in = |(name, _): &(&str, _)| {
            (Arc::from(*name), Entry { is_built_in: true, ..Entry::default() })
        };
        Self {
            engine,
            folder,
            entries: BTreeMap::from_iter(BUILTIN.iter().map(built_in)),
            seen: BTreeMap::new(),
            complained: false,
            grace: Duration::ZERO,
            show: Box::new(show),
        }
    }

    /// Uses the generation of a removed file for so long.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
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
        if entry.generations.is_empty() && entry.is_built_in {
            self.load_built_in(name);
        }
        self.entries.get(name)?.newest().map(|kept| Arc::clone(&kept.module))
    }

    /// The built-in of a name, whatever is in use.
    pub fn built_in_module(&mut self, name: &str) -> Option<Arc<Module>> {
        let entry = self.entries.get(name).filter(|entry| entry.is_built_in)?;
        let kept = entry.generations.iter().find(|kept| kept.origin == Origin::BuiltIn);
        match kept {
            Some(kept) => Some(Arc::clone(&kept.module)),
            None => self.compile_built_in(name).map(|kept| kept.module),
        }
    }

    /// When the next removed file's grace is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.removed).min().map(|at| at + self.grace)
    }

    /// Gives up what was removed long enough ago; true when any entry changed.
    pub fn give_up(&mut self, now: Instant) -> bool {
        let grace = self.grace;
        let (mut back, mut changed) = (Vec::new(), false);
        for (name, entry) in self
            .entries
            .iter_mut()
            .filter(|(_, entry)| entry.removed.is_some_and(|at| now >= at + grace))
        {
            entry.removed = None;
            changed = true;
            if entry.is_built_in {
                back.push(Arc::clone(name));
            } else {
                tracing::warn!(policy = %name, "policy file removed: its last generation is given up");
                entry.is_withdrawn = true;
            }
        }
        for name in back {
            tracing::info!(policy = %name, "policy file removed, the built-in of its name serves");
            self.load_built_in(&name);
        }
        changed
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
                let path = path.to_owned();
                self.refuse(name, Refused { path, generation: None, reason, steps: Vec::new() });
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
            let (path, generation) = (path.to_owned(), Some(generation));
            self.refuse(name, Refused { path, generation, reason, steps: Vec::new() });
            return true;
        }
        self.load(path, name, &bytes);
        true
    }

    /// Checks and compiles a file's content and takes it, or notes what is wrong with it.
    fn load(&mut self, path: &Path, name: &Arc<str>, bytes: &[u8]) {
        let (form, generation) = (Form::of(path).unwrap_or(Form::Wasm), Generation::of(bytes));
        let kept = self.entries.get(name).and_then(|entry| {
            entry.generations.iter().find(|kept| kept.generation() == generation).cloned()
        });
        let origin = Origin::File(path.to_owned());
        if let Some(kept) = kept {
            self.accept(name, Kept { origin, content: Some((form, bytes.into())), ..kept });
            return;
        }
        match self.compile(name, form, bytes) {
            Ok(kept) => self.accept(name, Kept { origin, ..kept }),
            Err((reason, steps)) => {
                let reason = reason.to_string();
                let refused = Refused {
                    path: path.to_owned(),
                    generation: Some(generation),
                    reason,
                    steps: steps.taken(),
                };
                self.refuse(name, refused);
            }
        }
    }

    /// A generation from a file's content; it is shown as loading meanwhile.
    fn compile(
        &mut self,
        name: &Arc<str>,
        form: Form,
        bytes: &[u8],
    ) -> Result<Kept, (ModuleError, Steps)> {
        self.show_loading(name, Some(Generation::of(bytes)));
        let steps = Steps::default();
        let module = Module::load(&self.engine, form, bytes, &steps);
        self.show_loading(name, None);
        match module {
            Ok(module) => Ok(Kept {
                module: Arc::new(module),
                origin: Origin::BuiltIn,
                content: Some((form, bytes.into())),
                steps: steps.taken(),
                loaded: Instant::now(),
            }),
            Err(error) => Err((error, steps)),
        }
    }

    fn show_loading(&mut self, name: &Arc<str>, loading: Option<Generation>) {
        self.entries.entry(Arc::clone(name)).or_default().loading = loading;
        (self.show)(&self.entries);
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

    fn accept(&mut self, name: &Arc<str>, kept: Kept) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        let (kind, generation) = (kept.module.kind(), kept.generation());
        let took: Duration = kept.steps.iter().map(|step| step.took).sum();
        tracing::info!(policy = %name, %kind, %generation, ?took, "policy loaded");
        entry.loads += 1;
        let is_this = |refused: &mut Refused| kept.origin == Origin::File(refused.path.clone());
        entry.refused.take_if(is_this);
        entry.put(kept);
    }

    fn refuse(&mut self, name: &Arc<str>, refused: Refused) {
        let entry = self.entries.entry(Arc::clone(name)).or_default();
        let used = entry.newest().map(|kept| kept.generation().to_string());
        let used = used.as_deref().unwrap_or("none");
        let (file, reason) = (refused.path.display(), &refused.reason);
        tracing::warn!(policy = %name, %file, reason, kept = used, "policy refused");
        entry.refusals += 1;
        entry.refused = Some(refused);
    }

    /// A file is gone.
    fn remove(&mut self, path: &Path) -> bool {
        let Some(name) = policy_name(path) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(&name) else {
            return false;
        };
        entry.refused.take_if(|refused| refused.path == path);
        let in_use = entry.newest().map(|kept| &kept.origin);
        if in_use == Some(&Origin::File(path.to_owned())) {
            let grace = self.grace;
            tracing::info!(policy = %name, ?grace, "policy file removed, its generation serves on for a while");
            entry.removed = Some(Instant::now());
            // A second file of the same name was refused because of this one: look at it again.
            self.seen.retain(|other, _| policy_name(other).as_ref() != Some(&name));
        }
        true
    }

    fn load_built_in(&mut self, name: &str) {
        if let Some(kept) = self.compile_built_in(name) {
            self.accept(&Arc::from(name), kept);
        }
    }

    fn compile_built_in(&mut self, name: &str) -> Option<Kept> {
        let (name, bytes) = BUILTIN.iter().find(|(built_in, _)| *built_in == name)?;
        match self.compile(&Arc::from(*name), Form::Wasm, bytes) {
            Ok(kept) => Some(Kept { content: None, ..kept }),
            Err((error, _)) => {
                tracing::error!(policy = name, %error, "the built-in policy does not load");
                None
            }
        }
    }

    /// Takes a file's content as the newest generation of a name and writes it into the folder.
    ///
    /// # Errors
    /// It is not good, and nothing has changed; or it cannot be written.
    pub fn upload(
        &mut self,
        name: &str,
        form: Form,
        bytes: &[u8],
    ) -> Result<Generation, WishError> {
        let name: Arc<str> = Arc::from(name);
        let compiled = self.compile(&name, form, bytes);
        let kept = compiled.map_err(|(error, _)| WishError::Refused(error.to_string()))?;
        self.write_and_use(&name, kept)
    }

    /// Goes to a generation that is kept, the previous one if `generation` is empty, and writes it
    /// into the folder.
    ///
    /// # Errors
    /// It is not kept; or the folder cannot be written.
    pub fn activate(&mut self, name: &str, generation: &str) -> Result<Generation, WishError> {
        let entry = self.entries.get(name).ok_or_else(|| WishError::Unknown(name.to_owned()))?;
        let Some(kept) = entry.kept(generation).cloned() else {
            let kept: Vec<_> =
                entry.generations.iter().map(|kept| kept.generation().to_string()).collect();
            let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
            let what =
                if generation.is_empty() { "no previous generation" } else { "no such generation" };
            return Err(WishError::NotKept(format!("{what} of {name} is kept; kept: {kept}")));
        };
        self.write_and_use(&Arc::from(name), kept)
    }

    /// Removes the files of a name: at once, without grace.
    ///
    /// # Errors
    /// There is none, or it cannot be removed.
    pub fn delete(&mut self, name: &str) -> Result<(), WishError> {
        let files = self.files_of(name);
        if files.is_empty() {
            return Err(WishError::Unknown(format!("{name} in the policies folder")));
        }
        for path in files {
            fs::remove_file(&path)
                .map_err(|error| WishError::Write { path: path.clone(), error })?;
            self.seen.remove(&path);
            self.remove(&path);
        }
        if let Some(entry) = self.entries.get_mut(name).filter(|entry| entry.removed.is_some()) {
            entry.removed = Instant::now().checked_sub(self.grace).or(entry.removed);
        }
        self.give_up(Instant::now());
        Ok(())
    }

    /// The files of a name that are there.
    fn files_of(&self, name: &str) -> Vec<PathBuf> {
        let path = |ending: &str| self.folder.join(format!("{name}.{ending}"));
        ["wasm", "formula"].map(path).into_iter().filter(|path| path.exists()).collect()
    }

    fn write_and_use(&mut self, name: &Arc<str>, kept: Kept) -> Result<Generation, WishError> {
        let generation = kept.generation();
        let mut others = self.files_of(name);
        let origin = match &kept.content {
            None => Origin::BuiltIn,
            Some((form, bytes)) => {
                let path = self.folder.join(format!("{name}.{}", form.ending()));
                write_whole(&path, bytes)
                    .map_err(|error| WishError::Write { path: path.clone(), error })?;
                self.seen.insert(path.clone(), Some(generation));
                others.retain(|other| *other != path);
                Origin::File(path)
            }
        };
        for path in others {
            fs::remove_file(&path)
                .map_err(|error| WishError::Write { path: path.clone(), error })?;
            self.seen.remove(&path);
        }
        self.accept(name, Kept { origin, ..kept });
        if let Some(entry) = self.entries.get_mut(name) {
            entry.refused = None; // its file is written over or gone
        }
        Ok(generation)
    }
}

/// Writes a file so that nobody ever sees half of it.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{:016x}.new", fastrand::u64(..)));
    let written = File::create_new(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        fs::remove_file(&temporary).ok(); // it may not be there
    }
    done
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
