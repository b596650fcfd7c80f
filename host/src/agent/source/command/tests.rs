//! Programs that behave and programs that do not.

use std::time::Instant;

use super::*;

fn command(words: &[&str], limit_ms: u64) -> Command {
    let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
    Command::new(&words, Duration::from_millis(limit_ms))
}

async fn shell(script: &str, limit_ms: u64) -> Reading {
    command(&["/bin/sh", "-c", script], limit_ms).read().await
}

#[track_caller]
fn check_why(reading: &Reading, words: &str) {
    let (Reading::Useless(why) | Reading::Silent(why)) = reading else { panic!("{reading:?}") };
    assert!(why.contains(words), "{why}");
}

/// Whether the process that wrote its number into this file is gone, its zombie too.
fn is_gone(file: &std::path::Path) -> bool {
    let pid = std::fs::read_to_string(file).expect("a number");
    !std::path::Path::new("/proc").join(pid.trim()).exists()
}

#[tokio::test]
async fn the_first_number_counts() {
    assert_eq!(shell("echo 0.5", 10_000).await, Reading::Value(0.5));
    assert_eq!(shell("echo load nan inf 1e400 -3 7", 10_000).await, Reading::Value(-3.0));
    check_why(&shell("echo busy", 10_000).await, "it printed no number");
    check_why(&shell("echo broken >&2; echo 1; exit 3", 10_000).await, "exit status: 3: broken");
    check_why(&command(&["/no/such"], 10_000).read().await, "cannot start /no/such");
}

#[tokio::test]
async fn much_output_blocks_nothing() {
    assert_eq!(shell("echo 7; yes | head -c 10000000", 60_000).await, Reading::Value(7.0));
}

#[tokio::test]
async fn one_that_hangs_is_killed_with_all_it_started_and_reaped() {
    let folder = tempfile::tempdir().expect("a folder");
    let (own, child) = (folder.path().join("own"), folder.path().join("child"));
    let script = format!(
        "echo $$ > {own}; sleep 1000 & echo $! > {child}; wait",
        own = own.display(),
        child = child.display()
    );
    let begin = Instant::now();
    check_why(&shell(&script, 1_000).await, "did not end within 1s and was killed");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(is_gone(&own));
    until_gone(&child).await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_killed_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let child = folder.path().join("child");
    let script = format!("sleep 1000 & echo $! > {}; echo 4", child.display());
    assert_eq!(shell(&script, 20_000).await, Reading::Value(4.0));
    until_gone(&child).await;
}

#[tokio::test]
async fn the_number_of_one_that_has_ended_is_taken_until_its_group_is_killed() {
    let mut children = unix::signal(SignalKind::child()).expect("signals");
    let mut child = Process::new("/bin/sh").args(["-c", "exit 3"]).spawn().expect("a child");
    let id = child.id().expect("its number");
    ended(i32::try_from(id).ok().map(Pid::from_raw), &mut children).await;
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it is not reaped");
    assert!(stat.contains(") Z "), "it has ended: {stat}");
    assert_eq!(child.wait().await.expect("its end").code(), Some(3));
}

#[tokio::test]
async fn one_that_is_no_longer_wanted_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("own");
    let script =
        format!("echo $$ > {own}.new; mv {own}.new {own}; sleep 1000", own = own.display());
    let reading = tokio::spawn(async move { shell(&script, 60_000).await });
    while !own.exists() {
        tokio::task::yield_now().await;
    }
    reading.abort();
    assert!(reading.await.is_err_and(|error| error.is_cancelled()));
    until_gone(&own).await;
}

/// Orphans are reaped by process 1, in its own time.
async fn until_gone(file: &std::path::Path) {
    let begin = Instant::now();
    while !is_gone(file) {
        assert!(begin.elapsed() < Duration::from_secs(30), "it still runs");
        tokio::task::yield_now().await;
    }
}
