//! Times in which the machine itself stood still: what a hypervisor or the kernel took, and no program.
//!
//! On each processor waits a thread that the kernel prefers to all others (`SCHED_FIFO`) and that wakes
//! two thousand times a second. Where it is late, nothing else of that processor could have run either.
//! Where its priority is refused (it takes root, `chrt` and `taskset`), no time counts as stood still.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_micros(500);
/// Later than this it was held up.
const LATE: Duration = Duration::from_micros(200);

/// Looks for them until it is dropped.
pub(crate) struct Stalls {
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<(Instant, Instant)>>>,
    watchers: Vec<JoinHandle<()>>,
}

impl Stalls {
    pub(crate) fn watch() -> Self {
        let (over, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let watcher = |processor| {
            let (over, seen) = (Arc::clone(&over), Arc::clone(&seen));
            std::thread::spawn(move || {
                if is_preferred(processor) {
                    watch(&over, &seen);
                }
            })
        };
        let watchers = (0..processors).map(watcher).collect();
        Self { over, seen, watchers }
    }

    /// How long some processor stood still in this time, as far as is known by now.
    pub(crate) fn within(&self, begin: Instant, end: Instant) -> Duration {
        let seen = self.seen.lock().expect("no watcher panicked");
        let inside = |(from, to): &(Instant, Instant)| (*from.max(&begin), *to.min(&end));
        let mut parts: Vec<_> = seen.iter().map(inside).filter(|(from, to)| from < to).collect();
        parts.sort_unstable();
        let (mut until, mut all) = (begin, Duration::ZERO);
        for (from, to) in parts {
            all += to.saturating_duration_since(from.max(until));
            until = until.max(to);
        }
        all
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            watcher.join().expect("no watcher panicked");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "that it wakes in time is what is measured")]
fn watch(over: &AtomicBool, seen: &Mutex<Vec<(Instant, Instant)>>) {
    let mut due = Instant::now() + BEAT;
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        if now > due + LATE {
            seen.lock().expect("no watcher panicked").push((due, now));
        }
        due = now + BEAT;
    }
}

/// Binds this thread to the processor and gives it its priority; whether that was allowed.
fn is_preferred(processor: usize) -> bool {
    let own = std::fs::read_link("/proc/thread-self").expect("Linux has it");
    let thread = own.file_name().expect("a thread has a number");
    let (processor, mut bind) = (processor.to_string(), Command::new("taskset"));
    bind.args(["--cpu-list", "--pid", &processor]).arg(thread);
    let mut prefer = Command::new("chrt");
    prefer.args(["--fifo", "--pid", "50"]).arg(thread);
    [bind, prefer].iter_mut().all(|command| {
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    })
}
