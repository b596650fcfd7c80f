//! Who is writing into a file: events in, whether its content may be half of it out.
//!
//! A file is being written from its first change until it is closed, renamed or removed. An end that is not
//! heard of (events are lost, a file that is open for ever) is believed after [`QUIET`] without a change,
//! or [`LONGEST`] after the first. Time is an argument.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Event, EventKind};

use super::WRITING;

/// Time without a change after which a file is taken for whole.
const QUIET: Duration = WRITING;
/// So long a file may be written at most; the largest one that is allowed needs it at 30 KiB a second.
const LONGEST: Duration = Duration::from_mins(10);
/// Files that are kept at most, those that are not written any more included.
const FILES_MAX: usize = 1_000;

/// Files that are being written.
#[derive(Debug, Default)]
pub(super) struct Writers(BTreeMap<PathBuf, Writer>);

/// When a file was changed.
#[derive(Debug, Clone, Copy)]
struct Writer {
    first: Instant,
    last: Instant,
}

impl Writer {
    fn is_at_work(self, now: Instant) -> bool {
        let Self { first, last } = self;
        now.duration_since(last) < QUIET && now.duration_since(first) < LONGEST
    }
}

impl Writers {
    /// Something happened to files, of which those count that are wanted.
    pub(super) fn note(&mut self, event: &Event, is_wanted: &impl Fn(&Path) -> bool, now: Instant) {
        match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) | EventKind::Create(CreateKind::File) => {
                for path in event.paths.iter().filter(|path| is_wanted(path)) {
                    if is_begun(event.kind, path) {
                        self.written(path, now);
                    }
                }
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(_) => event.paths.iter().for_each(|path| {
                self.0.remove(path);
            }),
            _ => {}
        }
    }

    fn written(&mut self, path: &Path, now: Instant) {
        if let Some(writer) = self.0.get_mut(path) {
            // What was silent for long begins anew.
            let first = if now.duration_since(writer.last) < QUIET { writer.first } else { now };
            *writer = Writer { first, last: now };
            return;
        }
        if self.0.len() >= FILES_MAX {
            self.0.retain(|_, writer| writer.is_at_work(now));
        }
        if self.0.len() < FILES_MAX {
            self.0.insert(path.to_owned(), Writer { first: now, last: now });
        }
    }

    /// Whether somebody is writing into this file.
    pub(super) fn is_writing(&self, path: &Path, now: Instant) -> bool {
        if self.0.is_empty() {
            return false;
        }
        // Events name files as the watched folder was named: absolutely.
        let path = std::path::absolute(path);
        let writer = path.ok().and_then(|path| self.0.get(&path).copied());
        writer.is_some_and(|writer| writer.is_at_work(now))
    }
}

/// Whether a file of which this is said gets its content from now on: a link is made with all of it.
pub(super) fn is_begun(kind: EventKind, path: &Path) -> bool {
    let is_new_file = |about: std::fs::Metadata| about.is_file() && about.nlink() == 1;
    !matches!(kind, EventKind::Create(_)) || path.symlink_metadata().is_ok_and(is_new_file)
}

#[cfg(test)]
mod tests {
    use notify::event::{DataChange, RemoveKind, RenameMode};

    use super::*;

    const DATA: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CREATED: EventKind = EventKind::Create(CreateKind::File);
    const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));

    fn note(writers: &mut Writers, kind: EventKind, path: &str, now: Instant) {
        let is_wanted = |path: &Path| path.extension().is_some_and(|ending| ending == "wasm");
        writers.note(&Event::new(kind).add_path(path.into()), &is_wanted, now);
    }

    #[test]
    fn a_file_is_written_until_it_is_closed_renamed_or_removed() {
        let now = Instant::now();
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        for end in [CLOSED, renamed, EventKind::Remove(RemoveKind::File)] {
            let mut writers = Writers::default();
            note(&mut writers, DATA, "/p/a.wasm", now);
            note(&mut writers, DATA, "/p/b.wasm", now);
            note(&mut writers, DATA, "/p/c.txt", now);
            note(&mut writers, end, "/p/b.wasm", now);
            let is_writing = |path: &str| writers.is_writing(Path::new(path), now);
            assert!(is_writing("/p/a.wasm"), "{end:?}");
            assert!(!is_writing("/p/b.wasm") && !is_writing("/p/c.txt"), "{end:?}");
        }
    }

    #[test]
    fn a_new_file_is_written_and_a_link_is_there_at_once() {
        let (folder, now) = (tempfile::tempdir().expect("a folder"), Instant::now());
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("new.wasm"), "").expect("written");
        std::fs::write(path("other"), "").expect("written");
        std::os::unix::fs::symlink("other", path("symbolic.wasm")).expect("linked");
        std::fs::hard_link(path("other"), path("hard.wasm")).expect("linked");
        let mut writers = Writers::default();
        for (name, is_written) in
            [("new", true), ("symbolic", false), ("hard", false), ("gone", false)]
        {
            let path = path(&format!("{name}.wasm"));
            note(&mut writers, CREATED, &path, now);
            assert_eq!(writers.is_writing(Path::new(&path), now), is_written, "{name}");
        }
    }

    #[test]
    fn an_end_that_is_not_heard_of_is_believed_after_a_while() {
        let start = Instant::now();
        let mut writers = Writers::default();
        note(&mut writers, DATA, "/p/a.wasm", start);
        let path = Path::new("/p/a.wasm");
        assert!(writers.is_writing(path, start + QUIET / 2));
        assert!(!writers.is_writing(path, start + QUIET));
        // It goes on, and on.
        let begin = start + QUIET * 2;
        let mut now = begin;
        while now < begin + LONGEST {
            note(&mut writers, DATA, "/p/a.wasm", now);
            assert!(writers.is_writing(path, now));
            now += QUIET / 2;
        }
        note(&mut writers, DATA, "/p/a.wasm", now);
        assert!(!writers.is_writing(path, now));
    }

    #[test]
    fn files_without_end_take_no_memory_without_end() {
        let start = Instant::now();
        let mut writers = Writers::default();
        for number in 0..2 * FILES_MAX {
            note(&mut writers, DATA, &format!("/p/{number}.wasm"), start);
        }
        assert_eq!(writers.0.len(), FILES_MAX);
        note(&mut writers, DATA, "/p/late.wasm", start + QUIET);
        assert_eq!(writers.0.len(), 1);
        assert!(writers.is_writing(Path::new("/p/late.wasm"), start + QUIET));
    }
}
