//! Where modules are compiled: work on untrusted bytes in, its result, or why there is none, out.
//!
//! Each has a thread of its own with a large stack, which in a host that serves stands back for all that
//! wants the processor, and still gets on where there is no end of it. Its time is counted on the
//! processor, so that a busy machine gives up no good policy. The compiler cannot be stopped: what is
//! given up goes on to its end, and while [`GIVEN_UP_MAX`] do, nothing else is begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::engine::Limits;
use crate::background;

/// Stack of the thread: nested code needs more than the usual one.
const STACK_BYTES: usize = 64 << 20;
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

/// Ends it, also by a panic, and tells who looks now and then.
struct Working(Arc<Course>, Box<dyn Fn() + Send>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.end();
        (self.1)();
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

/// Work that was begun; given up where it is dropped before its end.
pub(super) struct Work<T, E> {
    result: Receiver<Result<T, E>>,
    thread: Option<JoinHandle<()>>,
    clock: Option<ClockId>,
    begin: Instant,
    load: Duration,
    course: Arc<Course>,
}

impl<T, E> Work<T, E>
where
    T: Send + 'static,
    E: From<Unfinished> + Send + 'static,
{
    /// Begins it; `wake` is called when it is at its end. A panic becomes an error, because the bytes are
    /// untrusted.
    ///
    /// # Errors
    /// It cannot be begun.
    pub(super) fn start(
        limits: &Limits,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Self, E> {
        if GIVEN_UP.load(Ordering::Relaxed) >= GIVEN_UP_MAX {
            let what = "compilations that were given up are not at their end yet: tried again when \
                        they are";
            return Err(Unfinished::Busy(format!("{GIVEN_UP_MAX} {what}")).into());
        }
        let Limits { load, compile_last, .. } = *limits;
        let (started, clock) = mpsc::channel();
        let (done, result) = mpsc::channel();
        let course = Arc::<Course>::default();
        let working = Working(Arc::clone(&course), Box::new(wake));
        let thread = std::thread::Builder::new().name("loadline-compile".to_owned());
        let thread = thread.stack_size(STACK_BYTES).spawn(move || {
            if compile_last && let Err(error) = background::stand_back() {
                tracing::debug!(%error, "the compiler runs at normal priority");
            }
            started.send(clock_of_this_thread()).ok();
            // Dropped last: who is told finds the result, or that there is none.
            let _working = working;
            let done = done;
            done.send(work()).ok(); // nobody waits for what was given up
        });
        let thread = thread.map_err(|error| Unfinished::Failed(error.to_string()))?;
        let (clock, begin) = (clock.recv().ok(), Instant::now());
        Ok(Self { result, thread: Some(thread), clock, begin, load, course })
    }

    /// Its end, if that has come.
    pub(super) fn poll(&mut self) -> Option<Result<T, E>> {
        let end = match self.result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Disconnected) => Err(self.panicked().into()),
            Err(TryRecvError::Empty) => Err(self.exhausted()?.into()),
        };
        self.is_over();
        Some(end)
    }

    /// Its end, when that comes.
    pub(super) fn wait(&mut self) -> Result<T, E> {
        let end = loop {
            match self.result.recv_timeout(self.looks_in()) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Disconnected) => break Err(self.panicked().into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(exhausted) = self.exhausted() {
                break Err(exhausted.into());
            }
        };
        self.is_over();
        end
    }

    /// It cannot use its time up sooner than in this time.
    pub(super) fn looks_in(&self) -> Duration {
        self.load.saturating_sub(self.used()).max(LOOK)
    }

    fn used(&self) -> Duration {
        let used = self.clock.and_then(|clock| clock_gettime(clock).ok());
        used.map_or_else(|| self.begin.elapsed(), Duration::from)
    }

    fn exhausted(&mut self) -> Option<Unfinished> {
        let load = self.load;
        let why = if self.used() >= load {
            Unfinished::Failed(format!("still compiling after {load:?} (host.limits.load)"))
        } else if self.begin.elapsed() >= load * PATIENCE {
            let had = "of the processor it did not have";
            let what = format!("{load:?} (host.limits.load) {had} in {:?}", load * PATIENCE);
            Unfinished::Busy(what)
        } else {
            return None;
        };
        self.course.give_up();
        Some(why)
    }

    fn panicked(&mut self) -> Unfinished {
        let panic = self.thread.take().and_then(|thread| thread.join().err());
        let words = panic.as_ref().and_then(|panic| {
            let text = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned())
        });
        Unfinished::Failed(words.unwrap_or_else(|| "the compiler panicked".to_owned()))
    }
}

impl<T, E> Work<T, E> {
    /// There is nothing left to be given up.
    fn is_over(&mut self) {
        self.thread = None;
    }
}

impl<T, E> Drop for Work<T, E> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.course.give_up();
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

    fn run<T: Send + 'static>(
        limits: &Limits,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        Work::start(limits, work, || {}).and_then(|mut work| work.wait())
    }

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
