//! Lines for a file descriptor that may stand still: taken at once, written by a thread of its own.
//!
//! Who logs may hold what others wait for, so nobody who logs waits for a reader. Invariants: [`Queue::take`]
//! never blocks and never fails; lines are written whole and in order; at most [`BYTES_MAX`] wait. What finds
//! no room is dropped and counted, and from the first dropped line on all are until half of the room is
//! free: then one line says at this place how many are missing.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lines that wait at most, all together: some two thousand usual ones.
const BYTES_MAX: usize = 256 << 10;

/// The lines that wait.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// There is a line.
    filled: Condvar,
    /// There is none, and none is being written.
    written: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    is_writing: bool,
    /// Dropped and not told yet.
    dropped: u64,
}

impl Queue {
    /// Takes one whole line, its end included.
    pub(super) fn take(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.dropped > 0 || waiting.bytes + line.len() > BYTES_MAX {
            waiting.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.filled.notify_one();
    }

    /// Lines that were dropped, ever.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, or so long; whether it is.
    pub(super) fn flush(&self, longest: Duration) -> bool {
        let is_left = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        let waited = self.written.wait_timeout_while(self.lock(), longest, is_left);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Writes for ever what is taken; `tell` makes the line that says how many were dropped.
    pub(super) fn write_to(&self, mut out: impl Write, tell: impl Fn(u64) -> String) {
        loop {
            let line = self.next();
            // Of a reader that is gone there is nobody left to tell.
            out.write_all(&line).unwrap_or_default();
            self.wrote(&tell);
        }
    }

    fn next(&self) -> Vec<u8> {
        let is_empty = |waiting: &mut Waiting| waiting.lines.is_empty();
        let waiting = self.filled.wait_while(self.lock(), is_empty);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let line = waiting.lines.pop_front().unwrap_or_default();
        waiting.bytes -= line.len();
        waiting.is_writing = true;
        line
    }

    fn wrote(&self, tell: &impl Fn(u64) -> String) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        if waiting.dropped > 0 && waiting.bytes <= BYTES_MAX / 2 {
            let line = tell(std::mem::take(&mut waiting.dropped)).into_bytes();
            waiting.bytes += line.len();
            waiting.lines.push_back(line);
        }
        if waiting.lines.is_empty() {
            self.written.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One event of the log becomes one line of the queue.
#[derive(Clone)]
pub(super) struct Writer(pub(super) Arc<Queue>);

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.take(line);
        Ok(line.len())
    }

    /// Somebody else waits for that.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    /// A queue whose lines go into a pipe, and its reader.
    fn piped() -> (Arc<Queue>, BufReader<io::PipeReader>) {
        let (reader, writer) = io::pipe().unwrap();
        let queue = Arc::<Queue>::default();
        let writing = Arc::clone(&queue);
        std::thread::spawn(move || {
            writing.write_to(writer, |dropped| format!("{dropped} dropped\n"));
        });
        (queue, BufReader::new(reader))
    }

    #[test]
    fn lines_without_a_reader_are_dropped_counted_and_told_where_they_are_missing() {
        let (queue, mut reader) = piped();
        let sent = 2_000_u64;
        for number in 0..sent {
            queue.take(format!("{number} {}\n", "x".repeat(1_000)).as_bytes());
        }
        let dropped = queue.dropped();
        assert!(dropped > 1_000 && dropped < sent, "{dropped}");
        assert!(!queue.flush(Duration::from_millis(1)), "nobody reads");
        let mut next = || {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line
        };
        for number in 0..sent - dropped {
            assert!(next().starts_with(&format!("{number} ")), "in order and whole");
        }
        assert_eq!(next(), format!("{dropped} dropped\n"));
        queue.take(b"as ever\n");
        assert_eq!(next(), "as ever\n");
        assert_eq!(queue.dropped(), dropped);
    }

    #[test]
    fn flush_is_the_end_of_what_was_taken_before() {
        let (queue, mut reader) = piped();
        queue.take(b"the last words\n");
        assert!(queue.flush(Duration::from_secs(60)));
        let mut words = [0; 15];
        reader.read_exact(&mut words).unwrap();
        assert_eq!(&words, b"the last words\n");
    }

    #[test]
    fn reader_that_is_gone_holds_nobody_up() {
        let (queue, reader) = piped();
        drop(reader);
        queue.take(b"to nobody\n");
        assert!(queue.flush(Duration::from_secs(60)));
    }
}
