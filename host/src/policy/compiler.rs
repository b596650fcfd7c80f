//! Where modules are compiled: work on untrusted bytes in, its result, or why there is none, out.
//!
//! Each has a thread of its own with a large stack, which in a host that serves comes last of all that
//! wants the processor. Its time is counted on the processor, so that a busy machine gives up no good
//! policy. The compiler cannot be stopped: what is given up goes on to its end, and while
//! [`GIVEN_UP_MAX`] do, nothing else is begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::engine::Limits;

/// Stack of the thread: nested code needs more than the usual one.
const STACK_BYTES: usize = 64 << 20;
/// How far it stands back for threads that serve.
const NICE: i32 = 19;
/// By the wall clock it may take so many times what it may use of the processor.
const PATIENCE: u32 = 10;
/// Between two looks at what it has used, at least.
const LOOK: Duration = Duration::from_millis(50);
/// Given up and not at their end yet, at most.
const GIVEN_UP_MAX: usize = 4;

/// Those of this process.
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);

/// One compilation, shared by who waits and who works: whoever leaves first says so.
#[derive(Default)]
struct Course(AtomicBool);

impl Course {
    /// Nobody waits any more.
    fn give_up(&self) {
        GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        self.end();
    }

    /// Its end, or else the end of waiting: the second of both takes it from the count.
    fn end(&self) {
        if self.0.swap(true, Ordering::AcqRel) {
            GIVEN_UP.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Ends it, also by a panic.
struct Working(Arc<Course>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Why work did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// Of itself, in words.
    Failed(String),
    /// The machine had no time for it, in words: another time it may.
    Busy(String),
}

/// Runs this there. A panic becomes an error, because the bytes are untrusted.
///
/// # Errors
/// Its own, or why it did not come to its end.
pub(super) fn run<T, E>(
    limits: &Limits,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Unfinished> + Send + 'static,
{
    let failed = |what: String| E::from(Unfinished::Failed(what));
    if GIVEN_UP.load(Ordering::Relaxed) >= GIVEN_UP_MAX {
        let what =
            "compilations that were given up are not at their end yet: tried again when they are";
        return Err(Unfinished::Busy(format!("{GIVEN_UP_MAX} {what}")).into());
    }
    let Limits { load, compile_last, .. } = *limits;
    let (started, clock) = mpsc::channel();
    let (done, result) = mpsc::channel();
    let course = Arc::<Course>::default();
    let working = Working(Arc::clone(&course));
    let thread = std::thread::Builder::new().name("loadline-compile".to_owned());
    let thread = thread.stack_size(STACK_BYTES).spawn(move || {
        // On Linux this is the thread's own. Where it is refused, the compiler runs as it is.
        if compile_last && let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "the compiler runs at normal priority");
        }
        let _working = working;
        started.send(clock_of_this_thread()).ok();
        done.send(work()).ok(); // nobody waits for what was given up
    });
    let thread = thread.map_err(|error| failed(error.to_string()))?;
    match wait(&result, clock.recv().ok(), load) {
        Ok(result) => result,
        Err(End::UsedUp) => {
            course.give_up();
            Err(failed(format!("still compiling after {load:?} (host.limits.load)")))
        }
        Err(End::Starved) => {
            course.give_up();
            let had = "of the processor it did not have";
            let what = format!("{load:?} (host.limits.load) {had} in {:?}", load * PATIENCE);
            Err(Unfinished::Busy(what).into())
        }
        Err(End::Panicked) => {
            let panic = thread.join().err();
            let words = panic.as_ref().and_then(|panic| {
                let text = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
                text.or_else(|| panic.downcast_ref::<String>().cloned())
            });
            Err(failed(words.unwrap_or_else(|| "the compiler panicked".to_owned())))
        }
    }
}

/// Why there is no result.
enum End {
    UsedUp,
    Starved,
    Panicked,
}

/// Waits until it has used this much of the processor by its clock.
fn wait<R>(result: &Receiver<R>, clock: Option<ClockId>, load: Duration) -> Result<R, End> {
    let begin = Instant::now();
    loop {
        let passed = begin.elapsed();
        let used = clock.and_then(|clock| clock_gettime(clock).ok()).map_or(passed, Duration::from);
        if used >= load {
            return Err(End::UsedUp);
        }
        if passed >= load * PATIENCE {
            return Err(End::Starved);
        }
        // It cannot use it up sooner than this.
        match result.recv_timeout((load - used).max(LOOK)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(End::Panicked),
        }
    }
}

/// The clock of this thread's time on the processor, for other threads to read: Linux makes its number
/// from the thread's (`pthread_getcpuclockid(3)`).
fn clock_of_this_thread() -> ClockId {
    const OF_A_THREAD_BY_SCHEDULER: i32 = 0b110;
    ClockId::from_raw(
        (!rustix::thread::gettid().as_raw_nonzero().get() << 3) | OF_A_THREAD_BY_SCHEDULER,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(load: Duration) -> Limits {
        Limits { load, compile_last: false, ..Limits::default() }
    }

    /// What is a test's own, and what is not.
    impl From<Unfinished> for String {
        fn from(unfinished: Unfinished) -> Self {
            match unfinished {
                Unfinished::Failed(what) => what,
                Unfinished::Busy(what) => format!("busy: {what}"),
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let work = || -> Result<(), String> { std::panic::panic_any("too deep".to_owned()) };
        assert_eq!(run(&limits(Duration::from_secs(9)), work), Err("too deep".to_owned()));
    }

    /// Time on the processor counts: who waits for it is not given up, who uses it up is, and who gets
    /// none for long is another time.
    #[test]
    fn time_is_that_of_the_processor_and_those_given_up_are_counted_until_their_end() {
        let load = Duration::from_millis(100);
        let waits = move |times: u32| {
            move || {
                std::thread::park_timeout(load * times);
                Ok::<_, String>(7)
            }
        };
        assert_eq!(run(&limits(load), waits(3)), Ok(7));
        let (end, ended) = mpsc::channel::<()>();
        let spins = move || {
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {}
            Ok::<_, String>(7)
        };
        let said = run(&limits(load), spins);
        assert_eq!(said, Err("still compiling after 100ms (host.limits.load)".to_owned()));
        assert_eq!(GIVEN_UP.load(Ordering::Relaxed), 1);
        drop(end);
        let said = run(&limits(load), waits(PATIENCE + 1));
        assert!(said.is_err_and(|what| what.starts_with("busy: 100ms (host.limits.load) of the")));
        while GIVEN_UP.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }
}
