//! Watches the policies folder: changes on disk in, one call after each burst of them out.
//!
//! The folder is watched, not its files, so that renames and re-creation are seen. Events only say
//! "look"; what changed is found by content. The caller also looks every few seconds by itself, for
//! file systems without events, for a folder that is created later, and for a watch that fails.

use std::path::Path;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

/// A watch; it ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    /// Holds the watch open.
    _watcher: RecommendedWatcher,
}

impl Watch {
    /// Calls `look` for every change in the folder, from another thread; it must not block.
    ///
    /// # Errors
    /// The folder does not exist or the system gives no watch.
    pub fn start(folder: &Path, look: impl Fn() + Send + 'static) -> Result<Self, notify::Error> {
        let handler = move |event: Result<Event, notify::Error>| match event {
            // Our own reading is no change.
            Ok(event) if !is_mere_access(event.kind) => look(),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "watching the policies folder");
                look();
            }
        };
        let mut watcher = notify::recommended_watcher(handler)?;
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(Self { _watcher: watcher })
    }
}

fn is_mere_access(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(access) => access != AccessKind::Close(AccessMode::Write),
        _ => false,
    }
}
