//! Files that are compiled while the library goes on: a new content in, later its generation or what is
//! wrong with it.
//!
//! Invariants: one at a time, the others wait for the next look at the folder, and whoever waited comes first
//! there; what the folder does not hold any more when it is ready is thrown away.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::super::module::{Form, Generation, Loading, Module, ModuleError};
use super::{Content, Kept, Library, Origin, Refused};

/// Called when something is ready.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

/// A file on its way.
pub(super) struct Compiling {
    path: PathBuf,
    name: Arc<str>,
    form: Form,
    file: Content,
    loading: Loading,
}

impl Compiling {
    /// What is compiled, if it is of this name.
    pub(super) fn of(&self, name: &str) -> Option<Generation> {
        (*self.name == *name).then_some(self.file.generation)
    }
}

impl Library {
    /// From now on a look at the folder waits for no compilation: `wake` is called when there is something
    /// to [`collect`](Self::collect).
    pub fn compile_beside(&mut self, wake: impl Fn() + Send + Sync + 'static) {
        self.wake = Some(Arc::new(wake));
    }

    /// Takes what was compiled meanwhile, if it is ready; of which file: look at the folder again, others may
    /// wait.
    pub fn collect(&mut self) -> Option<PathBuf> {
        let compiling = self.compiling.as_mut()?;
        let loaded = compiling.loading.poll()?;
        let path = compiling.path.clone();
        self.end_of_compiling(loaded);
        Some(path)
    }

    /// Files that are compiled, or wait until it is their turn.
    #[must_use]
    pub fn pending(&self) -> BTreeSet<PathBuf> {
        let compiling = self.compiling.iter().map(|compiling| &compiling.path);
        compiling.chain(&self.turned_away).cloned().collect()
    }

    /// When to [`collect`](Self::collect) though nobody was woken.
    #[must_use]
    pub fn collect_due(&self) -> Option<Instant> {
        self.compiling.as_ref().map(|compiling| Instant::now() + compiling.loading.looks_in())
    }

    /// Begins to compile a file's content.
    pub(super) fn begin(&mut self, path: &Path, name: &Arc<str>, file: Content, wake: Wake) {
        let form = Form::of(path).unwrap_or(Form::Wasm);
        let engine = self.engine(name);
        let begun = Module::start(&engine, form, &file.bytes, &file.steps, move || wake());
        match begun {
            Ok(loading) => {
                self.show_loading(name, Some(file.generation));
                let (path, name) = (path.to_owned(), Arc::clone(name));
                self.compiling = Some(Compiling { path, name, form, file, loading });
            }
            Err(error) => self.note_bad(path, name, &file, &error),
        }
    }

    fn end_of_compiling(&mut self, loaded: Result<Module, ModuleError>) {
        let Some(Compiling { path, name, form, file, .. }) = self.compiling.take() else { return };
        self.show_loading(&name, None);
        let look = Some((file.generation, file.vouch.clone()));
        if self.seen.get(&path) != Some(&look) {
            return; // it was removed or written over meanwhile
        }
        match loaded {
            Ok(module) => {
                let Content { bytes, signatures, vouch, steps, .. } = file;
                let (origin, kept) = (Origin::File(path), Kept::new(module, form, &bytes, &steps));
                self.accept(&name, Kept { origin, signatures, vouch, ..kept });
            }
            Err(error) => self.note_bad(&path, &name, &file, &error),
        }
    }

    /// Notes what is wrong with a file, once.
    pub(super) fn note_bad(
        &mut self,
        path: &Path,
        name: &Arc<str>,
        file: &Content,
        error: &ModuleError,
    ) {
        if matches!(error, ModuleError::Busy { .. }) {
            self.seen.remove(path); // it is no fault of the file: the next look tries again
        }
        let known = self.entries.get(name).and_then(|entry| entry.refused.as_ref());
        let known = known.map(|known| (&*known.path, known.generation, &*known.reason));
        let (reason, generation): (_, Option<Generation>) =
            (error.to_string(), Some(file.generation));
        if known != Some((path, generation, &reason)) {
            let (path, steps) = (path.to_owned(), file.steps.taken());
            self.refuse(name, Refused { path, generation, reason, steps });
        }
    }
}
