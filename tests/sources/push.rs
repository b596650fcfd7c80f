//! What applications push into a running agent, over its Unix socket and over loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use loadline::config::Config;

use super::{Arrived, Ear, start};
use crate::process::Process;
use crate::support::{PATIENCE, program};

/// Status and body of a request over a Unix socket.
fn ask(socket: &Path, head: &str, body: &str) -> (u16, String) {
    let begin = Instant::now();
    // The agent binds it when it starts.
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
    };
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    send(&mut stream, &request)
}

/// Status and body of the answer to a request.
fn send(stream: &mut (impl Read + Write), request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

fn config(socket: &Path, ear: &Ear) -> String {
    format!(
        r#"
        [agent]
        interval = "50ms"
        push = "unix:{}"
        metric = [{{ name = "sessions", source = "push" }}, {{ name = "cpu", source = "system:cpu" }}]
        [[agent.service]]
        name = "web"
        address = "10.0.0.1:80"
        labels = {{ rack = "7" }}
        accepted = "push"
        completed = "push"
        in_flight = "push"
        [[agent.service.metric]]
        name = "queue"
        source = "push"
        capacity = 10
        {}"#,
        socket.display(),
        ear.config()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_set_and_add_to_metrics_and_counters() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("push");
    let ear = Ear::open();
    // One that was left by an agent that is no more.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let agent = start(&config(&socket, &ear)).await;
    let checked = tokio::task::spawn_blocking(move || {
        let push = |path: &str, body: &str| {
            let (status, answer) = ask(&socket, &format!("POST {path}"), body);
            assert_eq!(status, 204, "{answer}");
        };
        let first = ear.until("no session", |_| true);
        assert_eq!(first.value("sessions"), None, "nobody said anything yet");
        push("/v1/metrics", r#"{"sessions": 12}"#);
        ear.until("12 sessions", |report| report.value("sessions") == Some(12.0));
        push("/v1/metrics", r#"{"sessions": {"add": -2}}"#);
        push(
            "/v1/services/web",
            r#"{"queue": {"set": 5}, "accepted": {"add": 3}, "in_flight": {"add": 2}}"#,
        );
        push("/v1/services/web", r#"{"completed": {"add": 1}, "in_flight": {"add": -1}}"#);
        let all = ear.until("all of it", |report| report.counts("web") == (3, 1, 1));
        assert_eq!(all.value("sessions"), Some(10.0));
        assert_eq!(all.service_value("web", "queue"), Some(0.5));
        assert_eq!(all.service("web").labels, [("rack".to_owned(), "7".to_owned())]);
        let (status, shown) = ask(&socket, "GET /v1/metrics", "");
        assert!(
            status == 200 && shown.contains(r#""name":"sessions","source":"push","value":10.0"#)
        );
    });
    checked.await.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_push_changes_nothing_and_says_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("push");
    let ear = Ear::open();
    let agent = start(&config(&socket, &ear)).await;
    let checked = tokio::task::spawn_blocking(move || {
        let check = |head: &str, body: &str, status: u16, words: &str| {
            let (found, answer) = ask(&socket, head, body);
            assert!(found == status && answer.contains(words), "{head} {body}: {found} {answer}");
        };
        let metrics = "POST /v1/metrics";
        check(metrics, r#"{"sessions": 1}"#, 204, "");
        check(metrics, r#"{"sessions": 7, "sesions": 1}"#, 404, "did you mean sessions?");
        check(metrics, r#"{"cpu": 0}"#, 404, "no metric \\\"cpu\\\" is pushed here");
        check(metrics, "sessions=1", 400, "the body is not an object like");
        check(metrics, r#"{"sessions": 1e400}"#, 400, "the body is not an object like");
        check(metrics, r#"{"sessions": "many"}"#, 400, "is not a number, {\\\"set\\\": number}");
        check(metrics, r#"{"sessions": {"set": 1, "add": 1}}"#, 400, "is not a number");
        check("POST /v1/services/wev", "{}", 404, "did you mean web?");
        check("POST /v1/services/web", r#"{"accepted": -1}"#, 400, "is below 0");
        check("DELETE /v1/metrics", "", 405, "");
        check(metrics, &" ".repeat(70_000), 413, "");
        // Other users' applications, too: the folder decides who comes here.
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        let from_a_page = "POST /v1/metrics HTTP/1.1\r\norigin: http://evil.example\r\nx:";
        check(from_a_page, r#"{"sessions": 9}"#, 403, "web pages may not push");
        let report = ear.until("what was pushed", |report| report.value("sessions").is_some());
        assert_eq!(report.value("sessions"), Some(1.0));
    });
    checked.await.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_pushed_outlives_a_change_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("push");
    let ear = Ear::open();
    let written = config(&socket, &ear);
    let mut agent = start(&written).await;
    let push = |path: &str, body: &str| {
        let (status, answer) = ask(&socket, &format!("POST {path}"), body);
        assert_eq!(status, 204, "{answer}");
    };
    tokio::task::block_in_place(|| {
        push("/v1/metrics", r#"{"sessions": {"add": 4}}"#);
        push("/v1/services/web", r#"{"accepted": {"add": 3}, "in_flight": {"add": 2}}"#);
    });
    let other = Config::parse(&written.replace("rack = \"7\"", "rack = \"8\"")).unwrap();
    assert_eq!(agent.apply(&other).await, []);
    tokio::task::block_in_place(|| {
        let is_new = |report: &Arrived| report.service("web").labels[0].1 == "8";
        let first = ear.until("the new labels", is_new);
        assert_eq!((first.counts("web"), first.value("sessions")), ((3, 0, 2), Some(4.0)));
        push("/v1/metrics", r#"{"sessions": {"add": -1}}"#);
        push("/v1/services/web", r#"{"completed": {"add": 1}, "in_flight": {"add": -1}}"#);
        let all = ear.until("one less", |report| report.counts("web") == (3, 1, 1));
        assert_eq!(all.value("sessions"), Some(3.0));
    });
    agent.stop().await;
}

/// O-E12 again: over loopback a page whose name leads here could push, too.
#[tokio::test(flavor = "multi_thread")]
async fn applications_push_over_loopback_by_names_of_this_machine() {
    // An address of this machine that nobody else listens on, and a port that is free there.
    let id = std::process::id();
    let here = Ipv4Addr::new(127, 77, (id >> 8 & 0xff) as u8, (id & 0xff) as u8);
    let address = TcpListener::bind((here, 0)).unwrap().local_addr().unwrap();
    let (folder, ear) = (tempfile::tempdir().unwrap(), Ear::open());
    let unix = folder.path().join("push");
    let text =
        config(&unix, &ear).replace(&format!("unix:{}", unix.display()), &address.to_string());
    let agent = start(&text).await;
    let push = |hosts: &[&str]| {
        let begin = Instant::now();
        let mut stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            }
        };
        let hosts: String = hosts.iter().map(|host| format!("host: {host}\r\n")).collect();
        let body = "{\"sessions\": 3}";
        let length = body.len();
        let head = format!("POST /v1/metrics HTTP/1.1\r\n{hosts}content-length: {length}\r\n");
        send(&mut stream, &format!("{head}connection: close\r\n\r\n{body}")).0
    };
    tokio::task::block_in_place(|| {
        for hosts in [&["evil.example"][..], &["localhost", "evil.example"]] {
            assert_eq!(push(hosts), 403, "{hosts:?}");
        }
        for host in [&*address.to_string(), "localhost:14100", "[::1]"] {
            assert_eq!(push(&[host]), 204, "{host}");
        }
        ear.until("what was pushed", |report| report.value("sessions") == Some(3.0));
    });
    agent.stop().await;
}

/// Clients that say nothing, or their head byte by byte, many more than the agent may have open files.
#[test]
fn quiet_and_slow_clients_keep_no_push_and_no_report_out() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("push");
    let ear = Ear::open();
    std::fs::write(folder.path().join("loadline.toml"), config(&socket, &ear)).unwrap();
    let mut command = Command::new("sh");
    command.current_dir(folder.path()).env_remove("LOADLINE_CONFIG").env_remove("LOADLINE_LOG");
    command.args(["-c", "ulimit -n 256 && exec \"$0\" agent"]).arg(program());
    let mut agent = Process::of(command);
    agent.until("agent ");
    let files = |agent: &Process| {
        std::fs::read_dir(format!("/proc/{}/fd", agent.child.id())).unwrap().count()
    };
    assert_eq!(ask(&socket, "GET /v1/metrics", "").0, 200, "it listens");
    let before = files(&agent);
    let mut clients = Vec::new();
    for number in 0..400 {
        let mut client = UnixStream::connect(&socket).unwrap();
        if number % 2 == 0 {
            client.write_all(b"POST /v1/metrics HTTP/1.1\r\nhos").unwrap();
        }
        clients.push(client);
        if number % 40 == 39 {
            let (status, answer) = ask(&socket, "POST /v1/metrics", "{\"sessions\": 12}");
            assert_eq!(status, 204, "{answer}");
        }
    }
    ear.until("what was pushed", |report| report.value("sessions") == Some(12.0));
    let during = files(&agent);
    assert!(during > before && during <= before + 40, "{before} open files, then {during}");
    let mut said = Vec::new();
    agent.until_with("all HTTP connections are taken", &mut said);
    assert_eq!(agent.end("-TERM"), Some(0));
}
