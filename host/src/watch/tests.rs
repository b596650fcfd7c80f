//! What events mean, and when to look.

use super::*;

#[test]
fn a_burst_ends_with_a_short_quiet_and_a_file_that_is_written_gets_longer() {
    let start = Instant::now();
    let mut pace = Pace::new(start);
    assert_eq!(pace.due(), start + RESCAN);
    pace.note(Hint::Writing, start);
    assert_eq!(pace.due(), start + WRITING, "also later than the usual look");
    let closed = start + WRITING / 2;
    pace.note(Hint::Changed, closed);
    assert_eq!(pace.due(), closed + SETTLE);
    pace.note(Hint::Writing, closed + SETTLE / 2);
    assert_eq!(pace.due(), closed + SETTLE, "another file that is written puts nothing off");
    pace.looked(closed + SETTLE);
    assert_eq!(pace.due(), closed + SETTLE + RESCAN);
}

#[test]
fn events_without_end_do_not_put_the_look_off_for_ever() {
    let start = Instant::now();
    for (hint, latest) in [(Hint::Changed, LATEST.0), (Hint::Writing, LATEST.1)] {
        let mut pace = Pace::new(start);
        for half in 0..2_000 {
            pace.note(hint, start + SETTLE / 2 * half);
        }
        assert!(pace.due() <= start + latest);
    }
}

#[test]
fn lost_events_and_renames_are_changes_and_reading_is_none() {
    let config = |path: &Path| path.ends_with("c.toml");
    let event = |kind| Event::new(kind).add_path("/etc/c.toml".into());
    let other = |kind| Event::new(kind).add_path("/etc/log".into());
    let data = EventKind::Modify(ModifyKind::Data(notify::event::DataChange::Any));
    let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
    let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
    let renamed = EventKind::Modify(ModifyKind::Name(notify::event::RenameMode::To));
    let lost = Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan);
    for (event, hint) in [
        (event(data), Some(Hint::Writing)),
        (event(closed), Some(Hint::Changed)),
        (event(read), None),
        (other(data), None),
        (other(closed), None),
        (other(renamed), Some(Hint::Changed)),
        (lost, Some(Hint::Changed)),
    ] {
        assert_eq!(hint_of(&event, &config, &Awaited::default()), hint, "{event:?}");
    }
}

#[test]
fn of_the_ancestor_of_a_folder_that_is_not_there_only_the_way_to_it_matters() {
    let root = tempfile::tempdir().expect("a folder");
    let wanted = root.path().join("some/policies");
    let (told, events) = std::sync::mpsc::channel();
    let look = move |hint| told.send(hint).expect("the test waits");
    let mut watch = Watch::new(|path| path.ends_with("a.wasm"), look);
    let patience = Duration::from_secs(30);
    watch.keep(std::slice::from_ref(&wanted));
    std::fs::write(root.path().join("other"), "").expect("written");
    std::fs::create_dir(root.path().join("beside")).expect("made");
    std::fs::create_dir(root.path().join("some")).expect("made");
    assert_eq!(events.recv_timeout(patience), Ok(Hint::Changed));
    watch.keep(std::slice::from_ref(&wanted));
    std::fs::create_dir(&wanted).expect("made");
    assert_eq!(events.recv_timeout(patience), Ok(Hint::Changed));
    assert!(events.try_recv().is_err(), "what came beside was told");
    watch.keep(std::slice::from_ref(&wanted));
    std::fs::write(wanted.join("a.wasm"), "").expect("written");
    assert!(events.recv_timeout(patience).is_ok());
}

#[test]
fn a_link_that_leads_to_the_folder_brings_it() {
    let root = tempfile::tempdir().expect("a folder");
    let wanted = root.path().join("some/policies");
    std::fs::create_dir_all(root.path().join("beside/policies")).expect("made");
    let (told, events) = std::sync::mpsc::channel();
    let mut watch = Watch::new(|_| false, move |hint| told.send(hint).expect("the test waits"));
    watch.keep(std::slice::from_ref(&wanted));
    std::os::unix::fs::symlink("beside", root.path().join("some")).expect("linked");
    assert_eq!(events.recv_timeout(Duration::from_secs(30)), Ok(Hint::Changed));
    assert_eq!(Nearest::of(&wanted).map(|one| one.awaited), Some(None));
}
