//! Files that may change under a running process: changes on disk in, "look now" out.
//!
//! Folders are watched, not files, so that renames, re-creation and swapped links are seen; for one that
//! is not there its nearest ancestor, until it comes. Events only say that somebody should look; what
//! changed is found by content. Whoever watches also looks every [`RESCAN`] by itself: for file systems
//! without events, and where the system gives no watch. [`Pace`] says when: after a short quiet, longer
//! while a file is written. Which files that are, [`Watch::is_writing`] says: half of one is no content.

mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use writers::{Writers, is_begun};

/// Time between two looks without any event.
pub const RESCAN: Duration = Duration::from_secs(2);
/// Time without events after which a burst of changes is over.
const SETTLE: Duration = Duration::from_millis(100);
/// The same while a file is open for writing: its end is an event of its own.
const WRITING: Duration = Duration::from_secs(3);
/// Time after the first event at which is looked however many follow: of whole files, and of files
/// that are being written.
const LATEST: (Duration, Duration) = (RESCAN, Duration::from_secs(60));

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Something may have changed.
    Changed,
    /// A file is being written and is not whole yet.
    Writing,
}

/// A watch over some folders; it ends when this is dropped.
pub struct Watch {
    watcher: Option<RecommendedWatcher>,
    /// What is watched, by what tells a folder from another one of its name: device and inode.
    watched: BTreeMap<(u64, u64), PathBuf>,
    awaited: Arc<Mutex<Awaited>>,
    writers: Arc<Mutex<Writers>>,
    handler: Handler,
    /// That the system gives no watch was said.
    complained: bool,
}

type Handler = Arc<dyn Fn(Event) + Send + Sync>;

/// Folders that are not there.
#[derive(Debug, Default)]
struct Awaited {
    /// What has to come first.
    paths: BTreeSet<PathBuf>,
    /// What is watched for them alone: nothing else in there matters.
    ancestors: BTreeSet<PathBuf>,
}

/// A folder that is there, for one that is wanted.
#[derive(Debug, PartialEq, Eq)]
struct Nearest {
    folder: PathBuf,
    /// Where the wanted one is not there: what in this folder has to come first.
    awaited: Option<PathBuf>,
}

/// Times that folders are looked for again when some came meanwhile.
const CHASES: u32 = 4;

impl Watch {
    /// Watches nothing yet. `look` is called from another thread and must not block; while a file is
    /// written it is called for those that `is_wanted` by their path.
    #[must_use]
    pub fn new(
        is_wanted: impl Fn(&Path) -> bool + Send + Sync + 'static,
        look: impl Fn(Hint) + Send + Sync + 'static,
    ) -> Self {
        let awaited = Arc::<Mutex<Awaited>>::default();
        let known = Arc::clone(&awaited);
        let writers = Arc::<Mutex<Writers>>::default();
        let told = Arc::clone(&writers);
        let handler = move |event: Event| {
            lock(&told).note(&event, &is_wanted, Instant::now());
            let hint = {
                let awaited = lock(&known);
                hint_of(&event, &is_wanted, &awaited)
            };
            if let Some(hint) = hint {
                look(hint);
            }
        };
        let (watched, handler) = (BTreeMap::new(), Arc::new(handler));
        Self { watcher: None, watched, awaited, writers, handler, complained: false }
    }

    /// Whether somebody is writing into this file, so that what is in it now may be half of it.
    #[must_use]
    pub fn is_writing(&self, path: &Path) -> bool {
        lock(&self.writers).is_writing(path, Instant::now())
    }

    /// Watches these folders, as they are now, and no other. To be called at each look: a folder may
    /// have been made anew.
    pub fn keep(&mut self, folders: &[PathBuf]) {
        let all = || folders.iter().filter_map(|folder| Nearest::of(folder)).collect::<Vec<_>>();
        let mut nearest = all();
        for _ in 0..CHASES {
            self.watch_all(&nearest);
            // One that came before its ancestor was watched was told by no event.
            let before = std::mem::replace(&mut nearest, all());
            if before == nearest {
                return;
            }
        }
    }

    fn watch_all(&mut self, nearest: &[Nearest]) {
        let of_wanted = nearest.iter().filter(|one| one.awaited.is_none()).map(|one| &one.folder);
        let of_wanted: BTreeSet<_> = of_wanted.collect();
        let folders = nearest.iter().map(|one| &one.folder);
        let ancestors = folders.filter(|folder| !of_wanted.contains(folder)).cloned().collect();
        let paths = nearest.iter().filter_map(|one| one.awaited.clone()).collect();
        *lock(&self.awaited) = Awaited { paths, ancestors };

        // One folder under two names has one watch in the kernel, and so here.
        let mut found = BTreeMap::new();
        for Nearest { folder, .. } in nearest {
            let about = std::fs::metadata(folder).ok();
            found.extend(about.map(|about| ((about.dev(), about.ino()), folder)));
        }
        let gone = self.watched.extract_if(.., |folder, _| !found.contains_key(folder));
        for (_, folder) in gone {
            if let Some(watcher) = &mut self.watcher {
                watcher.unwatch(&folder).ok(); // the kernel has ended that of a folder that is gone
            }
        }
        for (identity, folder) in found {
            if self.watched.contains_key(&identity) {
                continue;
            }
            match self.watch(folder) {
                Ok(()) => {
                    self.watched.insert(identity, folder.clone());
                    self.complained = false;
                }
                Err(error) if !self.complained => {
                    self.complained = true;
                    let limit = limit_of(&error);
                    tracing::warn!(
                        folder = %folder.display(), %error, limit,
                        "no watch: changes are noticed every {RESCAN:?} only"
                    );
                }
                Err(_) => {}
            }
        }
    }

    fn watch(&mut self, folder: &Path) -> Result<(), notify::Error> {
        if self.watcher.is_none() {
            let handler = Arc::clone(&self.handler);
            let handle = move |event: Result<Event, notify::Error>| match event {
                Ok(event) => handler(event),
                Err(error) => {
                    tracing::warn!(%error, "watching for changes");
                    handler(Event::new(EventKind::Any));
                }
            };
            self.watcher = Some(notify::recommended_watcher(handle)?);
        }
        let watcher = self.watcher.as_mut();
        watcher.map_or(Ok(()), |watcher| watcher.watch(folder, RecursiveMode::NonRecursive))
    }
}

/// What is locked here is whole whatever a thread that held it did.
fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limit that the system's refusal is about, as its administrator knows it.
fn limit_of(error: &notify::Error) -> Option<&'static str> {
    let too_many_instances =
        |error: &std::io::Error| error.raw_os_error() == Some(nix::errno::Errno::EMFILE as i32);
    match &error.kind {
        notify::ErrorKind::MaxFilesWatch => Some("fs.inotify.max_user_watches"),
        notify::ErrorKind::Io(error) if too_many_instances(error) => {
            Some("fs.inotify.max_user_instances")
        }
        _ => None,
    }
}

impl Nearest {
    /// `None`: not even the root is there.
    fn of(folder: &Path) -> Option<Self> {
        let path = std::path::absolute(folder).ok()?;
        let folder = path.ancestors().find(|ancestor| ancestor.is_dir())?.to_owned();
        let first = path.strip_prefix(&folder).ok().and_then(|rest| rest.components().next());
        Some(Self { awaited: first.map(|first| folder.join(first)), folder })
    }
}

impl Awaited {
    /// Whether an event is about what has to come first; `None`: it is about something else.
    fn is_it(&self, event: &Event) -> Option<bool> {
        if event.paths.iter().any(|path| self.paths.contains(path)) {
            return Some(true);
        }
        let in_ancestor =
            |path: &PathBuf| path.parent().is_some_and(|parent| self.ancestors.contains(parent));
        let is_beside = !event.paths.is_empty() && event.paths.iter().all(in_ancestor);
        is_beside.then_some(false)
    }
}

/// What an event means; `None`: nothing. Reading a file is no change, or our own would be one.
fn hint_of(event: &Event, is_wanted: &impl Fn(&Path) -> bool, awaited: &Awaited) -> Option<Hint> {
    if event.need_rescan() {
        return Some(Hint::Changed); // events were lost
    }
    if let Some(is_it) = awaited.is_it(event) {
        let is_read = matches!(event.kind, EventKind::Access(_));
        return (is_it && !is_read).then_some(Hint::Changed);
    }
    let of_wanted = || event.paths.is_empty() || event.paths.iter().any(|path| is_wanted(path));
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
            of_wanted().then_some(Hint::Changed)
        }
        EventKind::Access(_) => None,
        EventKind::Modify(ModifyKind::Data(_)) | EventKind::Create(CreateKind::File) => {
            let is_begun = event.paths.iter().any(|path| is_begun(event.kind, path));
            of_wanted().then_some(if is_begun { Hint::Writing } else { Hint::Changed })
        }
        _ => Some(Hint::Changed),
    }
}

/// When to look next.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    /// When the first change since the last look came.
    changed: Option<Instant>,
    /// When the first word of a file that is being written did.
    writing: Option<Instant>,
}

impl Pace {
    /// Looked now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { next: now + RESCAN, changed: None, writing: None }
    }

    /// When to look.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.next
    }

    /// An event came.
    pub fn note(&mut self, hint: Hint, now: Instant) {
        match hint {
            Hint::Changed => {
                let first = *self.changed.get_or_insert(now);
                self.next = (now + SETTLE).min(first + LATEST.0);
            }
            // What changed meanwhile does not wait for it.
            Hint::Writing if self.changed.is_some() => {}
            Hint::Writing => {
                let first = *self.writing.get_or_insert(now);
                self.next = (now + WRITING).min(first + LATEST.1);
            }
        }
    }

    /// Somebody wants a look at once.
    pub fn hurry(&mut self, now: Instant) {
        self.next = now;
    }

    /// A look begins: what happens from now on is for the next one.
    pub fn looked(&mut self, now: Instant) {
        *self = Self::new(now);
    }
}

/// Why a file has no content.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system's words.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// A folder, a pipe, a device.
    #[error("not a regular file")]
    NotAFile,
    /// Longer than it may be.
    #[error("longer than the {max} bytes it may have")]
    TooLong {
        /// The most.
        max: usize,
    },
}

/// The whole file, if it is a regular one and not too long. Never waits: a pipe is refused.
///
/// # Errors
/// Why there is no content.
pub fn read(path: &Path, max: usize) -> Result<Vec<u8>, ReadError> {
    let nonblocking = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(ReadError::TooLong { max });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
