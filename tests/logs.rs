//! Standard error that nobody reads: a full pipe, a journal that stands still. Picks go on, and so does the
//! end of the process; what was not logged is counted and told.

use std::process::Command;
use std::sync::mpsc;

use crate::faults::{GOOD_PICKS, pick};
use crate::process::{Process, QUICK};
use crate::support::{PATIENCE, get};

/// A process whose strategy has logged ten times what a pipe holds, while nobody read; its URL.
fn clogged(folder: &tempfile::TempDir) -> (Process, String) {
    let logs = pick("(call $log (i32.const 3) (i32.const 131072) (i32.const 32768))");
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join("policies/mine.wasm"), logs).unwrap();
    let config = format!(
        "{QUICK}\n[host.limits]\nlog_line = \"32KiB\"\npick = \"1s\"\n\
         [[pool]]\nname = \"default\"\nstrategy = \"mine\"\n"
    );
    let mut process = Process::start(folder, &config, &[]);
    let line = process.until("try ");
    let url = line.split_whitespace().last().unwrap().to_owned();
    process.until("machine reports");
    for number in 0..GOOD_PICKS + 30 {
        let (status, body) = get(&url, "application/json");
        assert!(status == 200 && body.contains("\"strategy\":\"mine@"), "pick {number}: {body}");
    }
    (process, url)
}

#[test]
fn picks_go_on_while_nobody_reads_the_log_and_what_is_missing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, url) = clogged(&folder);
    let (_, metrics) = get(&url.replace("/v1/target", "/metrics"), "");
    let counted =
        metrics.lines().find_map(|line| line.strip_prefix("loadline_log_lines_dropped_total "));
    let mut seen = Vec::new();
    let told = process.until_with("log lines were dropped", &mut seen);
    let dropped: usize = told.rsplit("dropped=").next().unwrap().parse().unwrap();
    assert_eq!(counted, Some(&*dropped.to_string()));
    let read = seen.iter().filter(|line| line.contains("\\u{0}")).count();
    // A guest may log twenty lines in ten seconds.
    assert!(dropped > 0 && read > 0 && dropped + read >= 20, "{dropped} dropped, {read} read");
    assert_eq!(process.end("-TERM"), Some(0));
}

#[test]
fn process_ends_while_nobody_reads_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, _) = clogged(&folder);
    let pid = process.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let code = process.child.wait().unwrap().code();
        ended.send(code).unwrap();
        drop(process); // its standard error was open until now
    });
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Some(0)));
}
