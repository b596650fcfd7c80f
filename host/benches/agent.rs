//! What an agent costs the machine that it measures: memory and CPU time of the program itself, as it is
//! by default, and with 30 metrics of 6 sources among 3,000 processes, at last while threads come and go.
//!
//! CPU is the process's own user and system time over a minute, as a share of one core; memory is what is
//! resident at the end of it, or was at most. The agent reports to loopback every 2 s; pages, a program
//! and pushes are real. A missed goal ends the run with an error. It takes four minutes:
//! `cargo bench -p loadline --no-default-features --features agent --bench agent`

#![allow(missing_docs, clippy::print_stdout, reason = "a benchmark's output is its purpose")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

const PROCESSES: usize = 3_000;
/// Time between two threads that begin and end.
const THREAD_EVERY: Duration = Duration::from_millis(10);
const MEASURED: Duration = Duration::from_mins(1);
/// Goals: resident memory, and shares of one core.
const RESIDENT_KB_MAX: u64 = 20_000;
const DEFAULT_MAX: f64 = 0.005;
const CROWDED_MAX: f64 = 0.03;

fn main() -> ExitCode {
    let bytes = fs::metadata(program()).expect("it was built").len();
    println!("the program: {:.2} MB", bytes as f64 / 1e6);
    println!(
        "                                resident   at most   of a core   files   longest gap"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let alone = measure("by default", folder.path(), "");
    let config = config(folder.path());
    let crowd = Crowd::start(folder.path());
    let busy = measure("30 metrics, 3,000 processes", folder.path(), &config);
    let threads = Repeated::start(THREAD_EVERY, || {
        thread::spawn(|| {}).join().expect("it does nothing");
    });
    let busier = measure("and 100 new threads a second", folder.path(), &config);
    drop((threads, crowd));
    let is_good = alone.resident_kb <= RESIDENT_KB_MAX
        && alone.share <= DEFAULT_MAX
        && [&busy, &busier].iter().all(|cost| cost.share <= CROWDED_MAX)
        && busier.files <= busy.files;
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_loadline"))
}

/// What a minute of an agent took.
struct Cost {
    resident_kb: u64,
    share: f64,
    files: usize,
}

/// Runs an agent with this file beside a pusher, and prints what it took.
fn measure(what: &str, folder: &Path, config: &str) -> Cost {
    let ear = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    ear.set_read_timeout(Some(MEASURED)).expect("a socket");
    let to = ear.local_addr().expect("bound");
    let mut command = Command::new(program());
    command.arg("agent").current_dir(folder).stderr(Stdio::null());
    command.env("LOADLINE_REPORTS__INTERFACES", "[\"lo\"]");
    command.env("LOADLINE_REPORTS__SEND_TO", format!("[\"udp://{to}\"]"));
    if !config.is_empty() {
        fs::write(folder.join("loadline.toml"), config).expect("a file");
    }
    let agent = Killed(command.spawn().expect("it was built"));
    let socket = folder.join("push");
    let pushes = Repeated::start(Duration::from_secs(2), move || push(&socket));
    let heard = || {
        ear.recv(&mut [0; 2_048]).expect("a report");
        Instant::now()
    };
    // Every window is full, every source was read once.
    let mut last = [heard(), heard(), heard()][2];
    let (begin, before, mut gap) = (last, agent.cpu_seconds(), Duration::ZERO);
    while begin.elapsed() < MEASURED {
        let now = heard();
        gap = gap.max(now - last);
        last = now;
    }
    let share = (agent.cpu_seconds() - before) / begin.elapsed().as_secs_f64();
    let (resident_kb, most_kb) = (agent.status("VmRSS"), agent.status("VmHWM"));
    let files = agent.files();
    drop(pushes);
    println!(
        "{what:<30} {:>6.1} MB {:>6.1} MB {:>9.2} % {files:>7} {gap:>11.1?}",
        resident_kb as f64 / 1e3,
        most_kb as f64 / 1e3,
        share * 1e2,
    );
    Cost { resident_kb, share, files }
}

/// Ends with its value.
struct Killed(Child);

impl Killed {
    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).expect("it runs")
    }

    /// User and system time of the program, without the programs that it ran.
    fn cpu_seconds(&self) -> f64 {
        let stat = self.read("stat");
        let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks: u32 = ticks.map(|ticks| ticks.parse::<u32>().expect("a number")).sum();
        let a_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        f64::from(ticks) / a_second as f64
    }

    /// Kilobytes that its status says.
    fn status(&self, name: &str) -> u64 {
        let status = self.read("status");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a known field");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    }

    /// Open files: the least of some looks, because a source may be read in between.
    fn files(&self) -> usize {
        let open = |_| fs::read_dir(format!("/proc/{}/fd", self.0.id())).expect("it runs").count();
        (0..1_000).map(open).min().unwrap_or_default()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself, which the report that is missing has told.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Something done again and again on a thread, until this is dropped.
struct Repeated {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Repeated {
    fn start(every: Duration, what: impl Fn() + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                what();
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(thread::JoinHandle::join).transpose().expect("no panic");
    }
}

/// Shells that wait for their standard input to end.
struct Crowd(Child);

impl Crowd {
    fn start(folder: &Path) -> Self {
        let shell = folder.join("crowd");
        fs::copy("/bin/sh", &shell).expect("a shell");
        let script = format!(
            "exec 3<&0; i=1; while [ $i -lt {PROCESSES} ]; do (read x <&3) & i=$((i + 1)); done
             echo all; read x <&3"
        );
        let mut command = Command::new(shell);
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut first = command.spawn().expect("a shell");
        let said = first.stdout.as_mut().expect("piped");
        said.read_exact(&mut [0; 4]).expect("all have started");
        Self(first)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it ends");
    }
}

/// Nobody may listen (by default): the agent's own matter.
fn push(socket: &Path) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    let body = r#"{"sessions": 12, "queue": {"add": 1}}"#;
    let head = format!("POST /v1/metrics HTTP/1.1\r\nhost: a\r\ncontent-length: {}", body.len());
    let request = format!("{head}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
}

/// Answers every request with this page.
fn serve(page: String) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let length = page.len();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}");
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            // A client that has gone is its own matter.
            let _ = client.read(&mut [0; 4_096]).and_then(|_| client.write_all(answer.as_bytes()));
        }
    });
    address
}

/// Thirty metrics: of this machine, of three pages, of a program, pushed.
fn config(folder: &Path) -> String {
    let series = (0..2_000).map(|number| format!("line{{n=\"{number}\"}} {number}\n"));
    let named =
        (0..6).map(|number| format!("# TYPE count{number}_total counter\ncount{number}_total 7\n"));
    let series = serve(series.chain(named).collect());
    let json = serve(r#"{"a": 1, "b": {"c": 2}, "d": [3]}"#.to_owned());
    let nginx = serve(
        "Active connections: 291\nserver accepts handled requests\n 16 16 31\nReading: 6 Writing: 179 Waiting: 106\n"
            .to_owned(),
    );
    let system = [
        "cpu",
        "cpu.max",
        "cpu.iowait",
        "load1",
        "load5",
        "memory",
        "swap",
        "disk.space",
        "disk.busy",
        "disk.read",
        "net.in",
        "net.out",
        "files",
        "process.cpu:crowd",
        "process.count:crowd",
        "process.memory:crowd",
    ];
    let system = system.map(|what| format!("system:{what}"));
    let counters = (0..6).map(|number| format!("prometheus:http://{series}/m#count{number}_total"));
    let pointers = ["/a", "/b/c", "/d/0"].map(|at| format!("http-json:http://{json}/#{at}"));
    let fields = ["active", "requests"].map(|field| format!("nginx:http://{nginx}/#{field}"));
    let program = "command:/bin/echo 5".to_owned();
    let sources = system.into_iter().chain(counters).chain(pointers).chain(fields).chain([program]);
    let sources = sources.enumerate().map(|(number, source)| (format!("m{number}"), source));
    let pushed = ["sessions", "queue"].map(|name| (name.to_owned(), "push".to_owned()));
    let metrics: Vec<_> = sources.chain(pushed).collect();
    assert_eq!(metrics.len(), 30);
    let metrics = metrics.iter();
    let metrics = metrics
        .map(|(name, source)| format!("[[agent.metric]]\nname = {name:?}\nsource = {source:?}\n"));
    let push = folder.join("push");
    format!("[agent]\npush = \"unix:{}\"\n{}", push.display(), metrics.collect::<String>())
}
