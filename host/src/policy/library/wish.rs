//! What an operator asks of the library: a generation is found (or was compiled, see `offer.rs`), then, when who asked has seen it
//! start, written into the folder and used, so that a restart finds the same. A policy and its signatures are two files: the signatures of the old and the new content stand
//! there together while the policy itself is exchanged, so that whatever is found in between is vouched for.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::super::builtin::built_in;
use super::super::module::{Form, Generation};
use super::super::signature::{Vouch, beside, read_beside};
use super::{Kept, Library, Origin};
use crate::config::SignatureMode;

/// Why an operator's wish was not followed.
#[derive(Debug, thiserror::Error)]
pub enum WishError {
    /// Nothing of this name.
    #[error("there is no policy {0}")]
    Unknown(String),
    /// Not a good policy; nothing was written.
    #[error("{0}")]
    Refused(String),
    /// Another wish for the same name came while it was compiled.
    #[error("another wish for {0} came while this file was compiled: it is not used")]
    Overtaken(String),
    /// Too much of this is being done.
    #[error("{0}")]
    Busy(String),
    /// Nobody vouches for it, and somebody must; nothing was written.
    #[error("{0}")]
    NotSigned(String),
    /// Not among the generations that are kept.
    #[error("{0}")]
    NotKept(String),
    /// No such pool.
    #[error("there is no pool {0:?}")]
    UnknownPool(String),
    /// It is not in shadow, or cannot be.
    #[error("{0}")]
    Shadow(String),
    /// The folder cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// The operating system's words.
        error: io::Error,
    },
}

impl Library {
    /// A generation that is kept, the previous one if `generation` is empty, to be used again.
    ///
    /// # Errors
    /// It is not kept; or nobody vouches for it any more.
    pub fn kept(&self, name: &str, generation: &str) -> Result<Kept, WishError> {
        let entry = self.entries.get(name).ok_or_else(|| WishError::Unknown(name.to_owned()))?;
        let Some(kept) = entry.kept(generation).cloned() else {
            let kept: Vec<_> =
                entry.generations.iter().map(|kept| kept.generation().to_string()).collect();
            let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
            let what =
                if generation.is_empty() { "no previous generation" } else { "no such generation" };
            return Err(WishError::NotKept(format!("{what} of {name} is kept; kept: {kept}")));
        };
        self.vouched(kept)
    }

    /// A generation that is kept under another name, to be used as the newest of this one.
    ///
    /// # Errors
    /// It is not kept; or nobody vouches for it any more.
    pub fn kept_of(
        &self,
        name: &str,
        from: &str,
        generation: Generation,
    ) -> Result<Kept, WishError> {
        if name == from {
            return self.kept(name, &generation.to_string());
        }
        let entry = self.entries.get(from).ok_or_else(|| WishError::Unknown(from.to_owned()))?;
        let kept = entry.generations.iter().find(|kept| kept.generation() == generation);
        let kept = kept.cloned().ok_or_else(|| {
            WishError::NotKept(format!("generation {generation} of {from} is not kept any more"))
        })?;
        let built_in = || Some((Form::Wasm, built_in(from)?.into()));
        let content = kept.content.clone().or_else(built_in);
        self.vouched(Kept { content, ..kept })
    }

    /// The same with who vouches for it now.
    ///
    /// # Errors
    /// Nobody does any more, and somebody must.
    pub fn vouched(&self, kept: Kept) -> Result<Kept, WishError> {
        let vouch = match &kept.content {
            Some(_) => self.vouch(kept.generation(), kept.signatures.as_deref())?,
            None => Vouch::BuiltIn,
        };
        Ok(Kept { vouch, ..kept })
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
            self.remove_file(&path)?;
            self.remove(&path);
        }
        if let Some(entry) = self.entries.get_mut(name).filter(|entry| entry.removed.is_some()) {
            entry.removed = Instant::now().checked_sub(self.rules.grace).or(entry.removed);
        }
        self.give_up(Instant::now());
        Ok(())
    }

    /// Who vouches for a content; an error where somebody must and nobody does, or where signatures that
    /// are given are wrong.
    pub(super) fn vouch(
        &self,
        content: Generation,
        signatures: Option<&str>,
    ) -> Result<Vouch, WishError> {
        let vouch = self.rules.trust.judge(content, signatures);
        let is_required = self.rules.trust.mode() == SignatureMode::Require;
        match vouch.trouble() {
            Some(why) if is_required || signatures.is_some() => {
                Err(WishError::NotSigned(format!("{content} {why}")))
            }
            _ => Ok(vouch),
        }
    }

    /// The files of a name that are there.
    fn files_of(&self, name: &str) -> Vec<PathBuf> {
        let path = |ending: &str| self.folder.join(format!("{name}.{ending}"));
        ["wasm", "formula"].map(path).into_iter().filter(|path| path.exists()).collect()
    }

    /// Writes a generation into the folder and takes it as the newest of this name.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn use_now(&mut self, name: &str, kept: Kept) -> Result<Generation, WishError> {
        let (name, generation) = (&Arc::<str>::from(name), kept.generation());
        let mut others = self.files_of(name);
        let origin = match &kept.content {
            None => Origin::BuiltIn,
            Some((form, bytes)) => {
                let path = self.folder.join(format!("{name}.{}", form.ending()));
                write_both(&path, bytes, kept.signatures.as_deref())?;
                self.seen.insert(path.clone(), Some((generation, kept.vouch.clone())));
                others.retain(|other| *other != path);
                Origin::File(path)
            }
        };
        for path in others {
            self.remove_file(&path)?;
        }
        self.accept(name, Kept { origin, ..kept });
        if let Some(entry) = self.entries.get_mut(name) {
            (entry.refused, entry.waiting) = (None, None); // their files are written over or gone
        }
        Ok(generation)
    }

    /// Removes a policy file with its signatures.
    fn remove_file(&mut self, path: &Path) -> Result<(), WishError> {
        fs::remove_file(path).map_err(|error| not_written(path, error))?;
        self.seen.remove(path);
        remove_if_there(&beside(path))
    }
}

/// Writes a policy file and its signatures.
fn write_both(path: &Path, bytes: &[u8], signatures: Option<&str>) -> Result<(), WishError> {
    let beside = beside(path);
    let write = |path: &Path, bytes: &[u8]| {
        write_whole(path, bytes).map_err(|error| not_written(path, error))
    };
    let Some(signatures) = signatures else {
        write(path, bytes)?;
        return remove_if_there(&beside);
    };
    // What cannot be read vouches for nothing.
    let old = read_beside(path).ok().flatten().unwrap_or_default();
    write(&beside, format!("{}\n{signatures}", old.trim_end()).as_bytes())?;
    write(path, bytes)?;
    write(&beside, signatures.as_bytes())
}

fn remove_if_there(path: &Path) -> Result<(), WishError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_written(path, error)),
        _ => Ok(()),
    }
}

fn not_written(path: &Path, error: io::Error) -> WishError {
    WishError::Write { path: path.to_owned(), error }
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
