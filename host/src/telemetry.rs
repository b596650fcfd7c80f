//! Logs to standard error: human on a terminal, JSON on request; and [`Quiet`], which keeps a
//! repeated complaint from flooding them.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;

/// Time between two logs of the same complaint.
const QUIET: Duration = Duration::from_secs(60);
/// Complaints remembered at most; beyond, new ones stay silent until old ones may speak again.
const COMPLAINTS_MAX: usize = 1_024;
/// Complaints of one kind logged in [`QUIET`] at most: sources can be forged, one a datagram.
const LINES_MAX: u32 = 100;

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
/// The filter cannot be understood, or logging was started before.
pub fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => logs.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| error.to_string())
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
