//! One source of each kind, from its page or program into a report.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use super::{Ear, Page, start};
use crate::process::{Process, command};
use crate::support::PATIENCE;

/// A metric without a window that is read ten times a second.
fn metric(name: &str, source: &str) -> String {
    format!(
        "[[agent.metric]]\nname = \"{name}\"\nsource = '{source}'\nevery = \"100ms\"\nwindow = 1\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_page_and_program_is_reported() {
    let of = |body: &str| Page::serve(Some(body.as_bytes().to_vec()));
    let series =
        "# TYPE hits_total counter\nhits_total{of=\"a\"} 10\nhits_total{of=\"b\"} 5\nlevel 0.5\n";
    let later = series.replace("} 10", "} 1010");
    // A counter that has grown, and then stands still.
    let pages: Vec<_> = std::iter::once(series).chain(std::iter::repeat_n(&*later, 500)).collect();
    let series = Page::serve_in_turn(pages.iter().map(|page| page.as_bytes().to_vec()).collect());
    let json = of(r#"{"queue": [{"length": "7"}], "up": true}"#);
    let nginx = of(
        "Active connections: 291\nserver accepts handled requests\n 16 16 31\nReading: 6 Writing: 179 Waiting: 106\n",
    );
    let orca = of(r#"{"cpuUtilization": 0.25, "namedMetrics": {"kv": 0.75}}"#);
    let ear = Ear::open();
    let page =
        |form: &str, page: &Page, what: &str| format!("{form}:http://{}/p#{what}", page.address);
    let config = [
        "[agent]\nmachine = \"m\"\ninterval = \"50ms\"\n".to_owned(),
        metric("hits", &page("prometheus", &series, "hits_total{of=\"a\"}")),
        metric("all", &page("prometheus", &series, "value(hits_total)")),
        metric("level", &page("prometheus", &series, "1 - level")),
        metric("queue", &page("http-json", &json, "/queue/0/length")),
        metric("up", &page("http-json", &json, "/up")),
        metric("nginx", &page("nginx", &nginx, "active")),
        metric("cpu", &page("orca", &orca, "cpu_utilization")),
        metric("kv", &page("orca", &orca, "named_metrics.kv")),
        metric("program", "command:/bin/sh -c \"echo queue: 12\""),
        ear.config(),
    ];
    let agent = start(&config.concat()).await;
    tokio::task::block_in_place(|| {
        // A thousand more, in whatever time was between the two; then it stands still.
        ear.until("a rate", |report| report.value("hits").is_some_and(|hits| hits > 0.0));
        let all = ear.until("all of them", |report| {
            report.value("hits") == Some(0.0)
                && report.metrics.iter().all(|(_, value)| value.is_finite())
        });
        for (name, expected) in [
            ("all", 1_015.0),
            ("level", 0.5),
            ("queue", 7.0),
            ("up", 1.0),
            ("nginx", 291.0),
            ("cpu", 0.25),
            ("kv", 0.75),
            ("program", 12.0),
        ] {
            assert_eq!(all.value(name), Some(expected), "{name}");
        }
    });
    agent.stop().await;
}

/// O-B15: commands that do not end in time, with what they started, again and again.
#[test]
fn commands_that_hang_leave_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("hangs");
    // Its name is in the command line of all that it starts.
    fs::write(&script, "#!/bin/sh\nsh -c 'echo 1 >> runs; sleep 1000' \"$0\" &\nsleep 1000\n")
        .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let ear = Ear::open();
    let config = format!(
        "[agent]\ninterval = \"50ms\"\n{}timeout = \"200ms\"\n{}",
        metric("hangs", &format!("command:{}", script.display())),
        ear.config()
    );
    fs::write(folder.path().join("loadline.toml"), config).unwrap();
    let mut agent = command(&folder);
    agent.arg("agent");
    let mut agent = Process::of(agent);
    agent.until("agent ");
    let runs =
        || fs::read_to_string(folder.path().join("runs")).unwrap_or_default().lines().count();
    ear.until("ten runs", |report| {
        assert_eq!(report.value("hangs"), None);
        runs() >= 10
    });
    let pid = agent.child.id();
    let name = script.display().to_string();
    let (zombies, mut left) = processes(pid, &name);
    assert!(zombies <= 1 && left <= 3, "{zombies} zombies, {left} processes of it");
    assert_eq!(agent.end("-TERM"), Some(0));
    let begin = Instant::now();
    while left > 0 {
        left = processes(pid, &name).1; // killed, and gone as soon as the kernel gets to it
        assert!(begin.elapsed() < PATIENCE, "{left} processes of it are left");
    }
}

/// Zombies whose parent this is, and processes with this in their command line.
fn processes(parent: u32, name: &str) -> (usize, usize) {
    let (mut zombies, mut named) = (0, 0);
    for process in fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()) {
        // Any of them may end while it is looked at.
        let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect::<Vec<_>>());
        let is_zombie = |fields: Vec<&str>| fields[0] == "Z" && fields[1] == parent.to_string();
        zombies += usize::from(fields.is_some_and(is_zombie));
        named += usize::from(String::from_utf8_lossy(&read("cmdline")).contains(name));
    }
    (zombies, named)
}
