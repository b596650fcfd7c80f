//! Clients that ask a host for targets, one request after the other, and what each answer took.
//!
//! A wait is also told apart: while the kernel lets the client wait for a processor, nobody waits for the
//! host; while it lets the host's serving threads wait for one that somebody else has, neither; nor while
//! the machine stood still ([`Stalls`]). What the host's other threads had meanwhile, its compiler say, is
//! the host's. Requests are counted under the phase in which they began, so that one run compares two.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::host::{CpuClock, HostProcess};
use super::stalls::Stalls;

/// Phases of one run.
pub(crate) const PHASES: usize = 2;
/// Waits below this are not looked into.
const LOOKED_INTO: Duration = Duration::from_millis(1);

/// Clients at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    phase: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Asked>>,
    stalls: Stalls,
}

/// What clients got.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) bad: Vec<String>,
    pub(crate) phases: [Waits; PHASES],
}

/// What answers of one phase took.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// In microseconds, sorted in what [`Load::stop`] returns.
    all: Vec<u32>,
    pub(crate) native: usize,
    /// Those that took long.
    slow: Vec<Slow>,
    /// By what is the host's of it.
    pub(crate) slowest: Slow,
    /// By the wall's clock.
    pub(crate) longest: Slow,
}

/// One wait, and what of it the host cannot help.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Slow {
    begin: Option<Instant>,
    wall: Duration,
    /// A processor of the machine stood still.
    stalled: Duration,
    /// The client was ready to run and did not.
    client_queued: Duration,
    /// One of the host's serving threads was.
    host_queued: Duration,
    /// What the host's other threads had of the processors meanwhile.
    beside: Duration,
}

impl Slow {
    /// What is the host's: all but waits for a processor that it does not have itself, or, where that
    /// is more, but the time that the machine stood still.
    pub(crate) fn served(&self) -> Duration {
        let elsewhere = self.host_queued.saturating_sub(self.beside);
        self.wall.saturating_sub(self.stalled.max(self.client_queued + elsewhere))
    }
}

impl std::fmt::Display for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { wall, stalled, client_queued, host_queued, beside, .. } = self;
        write!(
            f,
            "{:.2?} (wall {wall:.2?}; the machine stood still for {stalled:.2?}; without a processor: \
             client {client_queued:.2?}, host {host_queued:.2?}; its other threads had {beside:.2?})",
            self.served()
        )
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [half, p99, p999] = [500, 990, 999].map(|share| self.quantile(share));
        let Self { native, slowest, longest, .. } = self;
        write!(
            f,
            "{} picks, {native} native; half in {half:?}, 99 % in {p99:?}, 99.9 % in {p999:?}, \
             slowest {slowest}, longest {longest}",
            self.count()
        )
    }
}

impl Waits {
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The wait by the wall's clock that so many of a thousand answers did not exceed.
    pub(crate) fn quantile(&self, thousandth: usize) -> Duration {
        let place = self.all.len().saturating_sub(1) * thousandth / 1_000;
        Duration::from_micros(self.all.get(place).copied().unwrap_or_default().into())
    }

    fn note(&mut self, slow: Slow) {
        if slow.served() > self.slowest.served() {
            self.slowest = slow;
        }
        if slow.wall > self.longest.wall {
            self.longest = slow;
        }
    }

    fn add(&mut self, other: Self, stalls: &Stalls) {
        self.all.extend(other.all);
        self.all.sort_unstable();
        self.native += other.native;
        for mut slow in other.slow {
            let stalled = |begin| stalls.within(begin, begin + slow.wall);
            slow.stalled = slow.begin.map(stalled).unwrap_or_default();
            self.note(slow);
        }
    }
}

impl Load {
    pub(crate) fn start(host: &HostProcess, clients: usize) -> Self {
        let (stop, phase) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let start = |_| {
            let (stop, phase) = (Arc::clone(&stop), Arc::clone(&phase));
            let served = Served { serving: Threads::that_serve(host), cpu: host.cpu_clock() };
            let client = Client::of(host);
            std::thread::spawn(move || ask(client, &served, &stop, &phase))
        };
        let stalls = Stalls::watch();
        Self { clients: (0..clients).map(start).collect(), stop, phase, stalls }
    }

    /// Requests that begin from now on are counted there.
    pub(crate) fn phase(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    pub(crate) fn stop(self) -> Asked {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Asked::default();
        for client in self.clients {
            let one = client.join().unwrap();
            all.bad.extend(one.bad);
            for (all, one) in all.phases.iter_mut().zip(one.phases) {
                all.add(one, &self.stalls);
            }
        }
        all
    }
}

/// A connection on which one request follows the other.
pub(crate) struct Client {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Client {
    pub(crate) fn of(host: &HostProcess) -> Self {
        let stream = TcpStream::connect(host.url.trim_start_matches("http://")).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, answer: Vec::new() }
    }

    /// One request for a target, and its whole answer if it names one.
    ///
    /// # Errors
    /// Any other answer.
    pub(crate) fn target(&mut self, query: &str) -> Result<&str, String> {
        let head = format!("GET /v1/target{query} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.write_all(head.as_bytes()).unwrap();
        self.answer.clear();
        let mut part = [0; 4_096];
        while !self.answer.ends_with(b"}") {
            let read = self.stream.read(&mut part).unwrap();
            let answer = String::from_utf8_lossy(&self.answer);
            assert!(read > 0, "the connection was closed: {answer}");
            self.answer.extend(&part[..read]);
        }
        let answer = std::str::from_utf8(&self.answer).unwrap();
        if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(answer.to_owned()) }
    }
}

/// Whether an answer says that the strategy did not choose.
pub(crate) fn is_native(answer: &str) -> bool {
    answer.contains("\"strategy\":\"native (")
}

fn ask(mut client: Client, host: &Served, stop: &AtomicBool, phase: &AtomicUsize) -> Asked {
    let own = Threads(vec![File::open("/proc/thread-self/schedstat").unwrap()]);
    let mut asked = Asked::default();
    while !stop.load(Ordering::Relaxed) {
        let waits = &mut asked.phases[phase.load(Ordering::Relaxed)];
        let threads = [&own, &host.serving];
        let (before, cpu) = (threads.map(Threads::times), host.cpu.now());
        let begin = Instant::now();
        let answer = client.target("");
        let wall = begin.elapsed();
        waits.all.push(u32::try_from(wall.as_micros()).unwrap());
        if wall > LOOKED_INTO {
            let cpu = host.cpu.now() - cpu;
            let [client, serving] = [0, 1].map(|of| threads[of].since(&before[of]));
            let beside = cpu.saturating_sub(serving.ran);
            let (begin, stalled) = (Some(begin), Duration::ZERO); // nobody knows yet
            let (client_queued, host_queued) = (client.queued, serving.queued);
            waits.slow.push(Slow { begin, wall, stalled, client_queued, host_queued, beside });
        }
        match answer {
            Ok(answer) => waits.native += usize::from(is_native(answer)),
            Err(answer) => asked.bad.push(answer),
        }
    }
    asked
}

/// What the kernel says of a host.
struct Served {
    serving: Threads,
    cpu: CpuClock,
}

/// Threads, and how long each has run and waited for a processor, as the kernel counts it.
struct Threads(Vec<File>);

/// What threads did in some time.
struct Spent {
    /// All of them. Of one that runs at the end the kernel may not have counted its last millisecond yet.
    ran: Duration,
    /// The one that waited longest for a processor.
    queued: Duration,
}

impl Threads {
    /// Those of a host that serve requests.
    fn that_serve(host: &HostProcess) -> Self {
        let threads = std::fs::read_dir(host.proc("task")).unwrap();
        let serves = |thread: &std::path::PathBuf| {
            std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("tokio"))
        };
        let threads = threads.map(|thread| thread.unwrap().path()).filter(serves);
        Self(threads.map(|thread| File::open(thread.join("schedstat")).unwrap()).collect())
    }

    /// Of each, how long it has run and how long it has waited.
    fn times(&self) -> Vec<[Duration; 2]> {
        let times = |file: &File| {
            let mut text = [0; 64];
            let length = file.read_at(&mut text, 0).unwrap();
            let mut words = std::str::from_utf8(&text[..length]).unwrap().split(' ');
            [(); 2].map(|()| Duration::from_nanos(words.next().unwrap().parse().unwrap()))
        };
        self.0.iter().map(times).collect()
    }

    fn since(&self, before: &[[Duration; 2]]) -> Spent {
        let after = self.times();
        let spent = |of: usize| {
            after
                .iter()
                .zip(before)
                .map(move |(after, before)| after[of].saturating_sub(before[of]))
        };
        Spent { ran: spent(0).sum(), queued: spent(1).max().unwrap_or_default() }
    }
}
