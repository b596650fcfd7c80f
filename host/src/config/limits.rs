//! `[host.limits]` and `[[host.policy]]`: what a policy may use, all of them or one by its name.
//!
//! Times are of CPU, sizes in bytes, `"64MiB"` in the file. What a policy does not say of itself is what is
//! said of all.

use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::as_text;
use super::read::Section;

const MILLISECOND: Duration = Duration::from_millis(1);
/// A pick at most: who asks waits for it.
const PICK_MAX: Duration = Duration::from_secs(1);
/// A batch at most: reports wait for it.
const BATCH_MAX: Duration = Duration::from_secs(10);
/// A start's calls, each, at most.
const CONFIGURE_MAX: Duration = Duration::from_mins(1);
/// Checking and compiling a file at most.
const LOAD_MAX: Duration = Duration::from_mins(10);
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// What one policy may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitsConfig {
    /// One pick, and any other call on the way of a request.
    #[serde(serialize_with = "as_text")]
    pub pick: Duration,
    /// One batch: evaluate, update, leave, save, restore.
    #[serde(serialize_with = "as_text")]
    pub batch: Duration,
    /// Instantiate, describe and configure, each.
    #[serde(serialize_with = "as_text")]
    pub configure: Duration,
    /// Checking and compiling a file, in wall-clock time.
    #[serde(serialize_with = "as_text")]
    pub load: Duration,
    /// Linear memory of one guest.
    #[serde(serialize_with = "as_size")]
    pub memory: usize,
    /// A policy file.
    #[serde(serialize_with = "as_size")]
    pub file: usize,
    /// A line that a guest logs; what is longer is cut.
    #[serde(serialize_with = "as_size")]
    pub log_line: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            pick: Duration::from_millis(10),
            batch: Duration::from_millis(50),
            configure: Duration::from_secs(1),
            load: Duration::from_secs(30),
            memory: 128 * MIB,
            file: 16 * MIB,
            log_line: KIB,
        }
    }
}

/// What becomes of a policy that imports functions of WASI, which no policy gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wasi {
    /// It is refused.
    #[default]
    Refuse,
    /// It is taken, and fails if it calls one.
    Trap,
}

impl FromStr for Wasi {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "refuse" => Ok(Self::Refuse),
            "trap" => Ok(Self::Trap),
            other => Err(format!("{other:?} is neither \"refuse\" nor \"trap\"")),
        }
    }
}

/// `[[host.policy]]`: what is wanted of one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyConfig {
    /// The policy.
    pub name: String,
    /// What becomes of its imports of WASI.
    pub wasi: Wasi,
    /// What it may use.
    #[serde(flatten)]
    pub limits: LimitsConfig,
}

pub(super) fn limits(mut section: Section<'_>) -> LimitsConfig {
    let limits = read(&mut section, LimitsConfig::default());
    section.finish();
    limits
}

pub(super) fn policy(mut section: Section<'_>, all: &LimitsConfig) -> PolicyConfig {
    section.require("name");
    let config = PolicyConfig {
        name: section.policy_name("name", String::new()),
        wasi: section.checked("wasi").unwrap_or_default(),
        limits: read(&mut section, all.clone()),
    };
    section.finish();
    config
}

fn read(section: &mut Section<'_>, default: LimitsConfig) -> LimitsConfig {
    LimitsConfig {
        pick: section.duration("pick", default.pick, MILLISECOND..=PICK_MAX),
        batch: section.duration("batch", default.batch, MILLISECOND..=BATCH_MAX),
        configure: section.duration("configure", default.configure, MILLISECOND..=CONFIGURE_MAX),
        load: section.duration("load", default.load, Duration::from_secs(1)..=LOAD_MAX),
        // A guest starts with a page of 64 KiB at least, and has no more than 4 GiB.
        memory: section.size("memory", default.memory, 64 * KIB..=4_096 * MIB),
        file: section.size("file", default.file, 1..=1_024 * MIB),
        log_line: section.size("log_line", default.log_line, 16..=64 * KIB),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn as_size<S: Serializer>(bytes: &usize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&size_text(*bytes))
}

/// In the largest unit that leaves no rest.
pub(super) fn size_text(bytes: usize) -> String {
    let units = [("GiB", 1_024 * MIB), ("MiB", MIB), ("KiB", KIB)];
    let whole = units.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Bytes of a text like `"64MiB"`.
pub(super) fn size_of(text: &str) -> Option<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "B" => 1,
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => 1_024 * MIB,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::{size_of, size_text};

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in [("0B", 0), ("1KiB", 1_024), ("64MiB", 64 << 20), ("4GiB", 4 << 30)] {
            assert_eq!((size_of(text), size_text(bytes)), (Some(bytes), text.to_owned()));
        }
        assert_eq!(size_of("16 MiB"), Some(16 << 20));
        assert_eq!(size_text(1_500), "1500B");
        for wrong in ["", "16", "16MB", "1.5MiB", "-1B", "99999999999999999999B", "99999999999GiB"]
        {
            assert_eq!(size_of(wrong), None, "{wrong}");
        }
    }
}
