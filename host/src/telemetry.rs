//! Logs to standard error: human on a terminal, JSON on request; and [`Quiet`], which keeps a
//! repeated complaint from flooding them.
//!
//! Invariant: once logging has started nobody waits for who reads standard error; [`tell`] and panics go the
//! same way. Before, and in commands that do not log, what is told is written at once.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tracing_subscriber::EnvFilter;

use queue::{Queue, Writer};

/// Time between two logs of the same complaint.
const QUIET: Duration = Duration::from_secs(60);
/// Complaints remembered at most; beyond, new ones stay silent until old ones may speak again.
const COMPLAINTS_MAX: usize = 1_024;
/// Complaints of one kind logged in [`QUIET`] at most: sources can be forged, one a datagram.
const LINES_MAX: u32 = 100;
/// What is said of lines that found no room.
const DROPPED: &str = "log lines were dropped: nobody reads standard error, or not fast enough";
/// Time that a thread which panics gives its last words: the process may end with it.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What waits to be written; one, as there is one standard error.
static LINES: OnceLock<Arc<Queue>> = OnceLock::new();

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Starts logging. `filter` is a level, or `loadline=debug,policy=off` and the like.
///
/// # Errors
/// The filter cannot be understood, logging was started before, or there is no thread for it.
pub fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let lines = write_lines(format).map_err(|error| error.to_string())?;
    let writer = Writer(Arc::clone(&lines));
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || writer.clone());
    let started = match format {
        LogFormat::Text => logs.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| error.to_string())?;
    LINES.set(lines).map_err(|_| "logging was started before".to_owned())?;
    std::panic::set_hook(Box::new(|panic| {
        let (thread, trace) = (std::thread::current(), Backtrace::capture());
        let mut words = format!("thread '{}' {panic}", thread.name().unwrap_or("without a name"));
        if trace.status() == BacktraceStatus::Captured {
            words.push_str(&format!("\n{trace}"));
        }
        tell(&words);
        flush(LAST_WORDS);
    }));
    Ok(())
}

/// Writes a text and a line's end to standard error: after what was logged before, if logging has started.
pub fn tell(text: &str) {
    match LINES.get() {
        Some(lines) => lines.take(format!("{text}\n").as_bytes()),
        // If that is closed there is nowhere left to say so.
        None => writeln!(io::stderr(), "{text}").unwrap_or_default(),
    }
}

/// Waits so long at most until all that was logged is written.
pub fn flush(longest: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(longest);
    }
}

/// Lines of the log that were dropped because nobody read them.
#[must_use]
pub fn dropped() -> u64 {
    LINES.get().map_or(0, |lines| lines.dropped())
}

/// A queue whose lines a thread writes to standard error, past the lock of the standard library: whoever
/// else writes there does not wait for this thread.
fn write_lines(format: LogFormat) -> io::Result<Arc<Queue>> {
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let lines = Arc::<Queue>::default();
    let writing = Arc::clone(&lines);
    let write = move || writing.write_to(out, |dropped| dropped_line(format, dropped));
    std::thread::Builder::new().name("log".to_owned()).spawn(write)?;
    Ok(lines)
}

/// Looks like any other line, whatever is filtered.
fn dropped_line(format: LogFormat, dropped: u64) -> String {
    let now = humantime::format_rfc3339_micros(SystemTime::now());
    match format {
        LogFormat::Text => {
            format!("{now}  WARN loadline::telemetry: {DROPPED} dropped={dropped}\n")
        }
        LogFormat::Json => {
            let line = serde_json::json!({
                "timestamp": now.to_string(), "level": "WARN", "message": DROPPED,
                "dropped": dropped, "target": "loadline::telemetry",
            });
            format!("{line}\n")
        }
    }
}

/// Says whether a complaint may be logged: once a minute each, and no more than [`LINES_MAX`].
#[derive(Debug)]
pub struct Quiet<K> {
    last: HashMap<K, Instant>,
    /// When the present minute began, and the lines of it.
    minute: Option<(Instant, u32)>,
    /// When old complaints were last cleared out: a flood must not make that the work.
    cleared: Option<Instant>,
}

impl<K> Default for Quiet<K> {
    fn default() -> Self {
        Self { last: HashMap::new(), minute: None, cleared: None }
    }
}

impl<K: Hash + Eq> Quiet<K> {
    /// Whether this complaint may be logged now.
    pub fn may(&mut self, complaint: K) -> bool {
        self.may_at(complaint, Instant::now())
    }

    fn may_at(&mut self, complaint: K, now: Instant) -> bool {
        let rested = self.cleared.is_none_or(|at| now.duration_since(at) >= QUIET / 4);
        if self.last.len() >= COMPLAINTS_MAX && rested {
            self.cleared = Some(now);
            self.last.retain(|_, at| now.duration_since(*at) < QUIET);
        }
        let known = self.last.get(&complaint);
        if known.is_some_and(|at| now.duration_since(*at) < QUIET)
            || (known.is_none() && self.last.len() >= COMPLAINTS_MAX)
        {
            return false;
        }
        let (began, lines) =
            self.minute.filter(|(at, _)| now.duration_since(*at) < QUIET).unwrap_or((now, 0));
        self.minute = Some((began, lines.saturating_add(1)));
        if lines == LINES_MAX {
            tracing::warn!("more complaints of this kind are not logged for a minute");
        }
        if lines >= LINES_MAX {
            return false;
        }
        self.last.insert(complaint, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_logged_once_a_minute_and_a_flood_is_bounded() {
        let mut quiet = Quiet::default();
        let start = Instant::now();
        assert!(quiet.may_at(0, start));
        assert!(!quiet.may_at(0, start + QUIET / 2));
        assert!(quiet.may_at(0, start + QUIET));
        let flood = |quiet: &mut Quiet<i32>, now| {
            (0..100_000).filter(|source| quiet.may_at(*source, now)).count()
        };
        assert_eq!(flood(&mut quiet, start + QUIET), LINES_MAX as usize - 1);
        assert_eq!(flood(&mut quiet, start + QUIET * 2), LINES_MAX as usize);
        for minute in 3..20 {
            flood(&mut quiet, start + QUIET * minute);
            assert!(quiet.last.len() <= COMPLAINTS_MAX);
        }
    }
}
