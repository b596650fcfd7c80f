//! Where a metric's samples come from, as written in the configuration: text in, a checked source
//! or a message that says what would be right out.
//!
//! `system:NAME`, `push`, `KIND:URL#WHAT` for pages (`prometheus`, `http-json`, `nginx`, `orca`) and
//! `command:PROGRAM ARGUMENTS`. The text is kept and printed as it was written. Units stand in the
//! table [`SystemMetric::ALL`], for people in config/METRICS.md; a test keeps the two together.

mod query;
mod system;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use ureq::http::Uri;

use super::nearest;
use crate::report::is_deceptive;
pub use query::{Fold, Label, Labels, Query, Selector, Term};
pub use system::{Of, SystemMetric, SystemSource};

/// Bytes of a URL at most: what servers take as a request's first line.
const URL_BYTES_MAX: usize = 8_000;
/// The words before the colon, and what follows them.
const FORMS: [(&str, &str); 7] = [
    ("system", "system:cpu"),
    ("push", "push"),
    ("prometheus", "prometheus:http://127.0.0.1:9100/metrics#node_load1"),
    ("http-json", "http-json:http://127.0.0.1:8080/status#/queue/length"),
    ("nginx", "nginx:http://127.0.0.1/stub_status#active"),
    ("orca", "orca:http://127.0.0.1:8000/health#application_utilization"),
    ("command", "command:/usr/local/bin/queue-length --all"),
];

/// A source with the text it was written as.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSource {
    text: Box<str>,
    /// What the text means.
    pub kind: SourceKind,
}

/// What can be sampled.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceKind {
    /// The machine that the agent runs on.
    System(SystemSource),
    /// What applications say, over the agent's own HTTP.
    Push,
    /// A value of a page.
    Page {
        /// `http://…`, without the fragment.
        url: Box<str>,
        /// What is read from it.
        part: Part,
    },
    /// The first number that a program prints: the program and its arguments.
    Command(Vec<String>),
}

/// What is read from a page.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Series of a page in Prometheus' text format.
    Series(Query),
    /// The number at a JSON pointer.
    Pointer(Box<str>),
    /// A number of nginx' `stub_status` page.
    Nginx {
        /// Which one.
        field: NginxField,
        /// Its growth a second, rather than as it is.
        rate: bool,
    },
    /// A field of an ORCA load report, `cpu_utilization` or `named_metrics.NAME`.
    Orca(Box<str>),
}

/// The numbers of nginx' `stub_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NginxField {
    /// Open connections, waiting ones included.
    Active,
    /// Connections accepted, a second.
    Accepts,
    /// Connections handled, a second.
    Handled,
    /// Requests, a second.
    Requests,
    /// Connections whose request is being read.
    Reading,
    /// Connections that are being answered.
    Writing,
    /// Idle connections.
    Waiting,
}

impl NginxField {
    /// By their names.
    pub const ALL: [(&str, Self); 7] = [
        ("active", Self::Active),
        ("accepts", Self::Accepts),
        ("handled", Self::Handled),
        ("requests", Self::Requests),
        ("reading", Self::Reading),
        ("writing", Self::Writing),
        ("waiting", Self::Waiting),
    ];

    /// Whether it only grows, and is reported as a rate.
    #[must_use]
    pub fn is_counter(self) -> bool {
        matches!(self, Self::Accepts | Self::Handled | Self::Requests)
    }
}

impl Part {
    /// The word before its URL.
    #[must_use]
    pub fn form(&self) -> &'static str {
        match self {
            Self::Series(_) => "prometheus",
            Self::Pointer(_) => "http-json",
            Self::Nginx { .. } => "nginx",
            Self::Orca(_) => "orca",
        }
    }

    /// The same with counters as they are, not as rates.
    #[must_use]
    pub fn as_it_is(&self) -> Self {
        match self {
            Self::Series(query) => Self::Series(query.as_it_is()),
            Self::Nginx { field, .. } => Self::Nginx { field: *field, rate: false },
            Self::Pointer(_) | Self::Orca(_) => self.clone(),
        }
    }
}

/// ORCA's fields that are single numbers.
const ORCA_FIELDS: [&str; 6] = [
    "cpu_utilization",
    "mem_utilization",
    "application_utilization",
    "rps_fractional",
    "rps",
    "eps",
];
/// ORCA's fields that are maps.
const ORCA_MAPS: [&str; 3] = ["named_metrics.", "utilization.", "request_cost."];

impl MetricSource {
    /// A source of this machine.
    #[must_use]
    pub fn system(what: SystemMetric) -> Self {
        let source = SystemSource { what, of: None };
        Self { text: format!("system:{source}").into(), kind: SourceKind::System(source) }
    }

    /// Time between two samples where none is written.
    pub(super) fn usual_every(&self) -> Duration {
        match &self.kind {
            SourceKind::System(source) => source.what.usual_every(),
            SourceKind::Push | SourceKind::Page { .. } => Duration::from_secs(2),
            SourceKind::Command(_) => Duration::from_secs(10),
        }
    }

    /// Samples averaged where nothing is written: five of what jumps from one sample to the next.
    pub(super) fn usual_window(&self) -> usize {
        match &self.kind {
            SourceKind::System(source) if source.what.usual_every() < Duration::from_secs(1) => 5,
            _ => 1,
        }
    }
}

impl FromStr for MetricSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (form, rest) = text.split_once(':').unwrap_or((text, ""));
        let kind = match form {
            "push" if rest.is_empty() => SourceKind::Push,
            "push" => return Err("push takes nothing after it".to_owned()),
            "system" => SourceKind::System(rest.parse()?),
            "command" => SourceKind::Command(command(rest)?),
            "prometheus" => page(rest, "a series", |what| Ok(Part::Series(what.parse()?)))?,
            "http-json" => page(rest, "a JSON pointer", pointer)?,
            "nginx" => page(rest, "a field of the page", nginx)?,
            "orca" => page(rest, "a field of the report", orca)?,
            _ => return Err(no_such_form(form)),
        };
        Ok(Self { text: text.into(), kind })
    }
}

fn no_such_form(form: &str) -> String {
    let hint = match nearest(form, FORMS.iter().map(|(name, _)| *name)) {
        Some(near) => format!("did you mean {near}?"),
        None => "write ".to_owned() + &FORMS.map(|(_, example)| format!("{example:?}")).join(", "),
    };
    format!("there is no source {form:?}, {hint}")
}

fn page(
    rest: &str,
    what: &str,
    part: impl Fn(&str) -> Result<Part, String>,
) -> Result<SourceKind, String> {
    let (url, wanted) = rest.split_once('#').unwrap_or((rest, ""));
    check_url(url)?;
    if wanted.is_empty() {
        return Err(format!("name {what} after the URL, {url}#…"));
    }
    Ok(SourceKind::Page { url: url.into(), part: part(wanted)? })
}

/// What is wrong with the URL of a page.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(match url.starts_with("https://") {
            true => "https is not built into this program: read the page over http, on loopback \
                     or through a local proxy"
                .to_owned(),
            false => format!("{url:?} is not a URL of the form http://host:port/path"),
        });
    };
    let not_one = || format!("{url:?} is not a URL of the form http://host:port/path");
    if rest.contains(|c: char| c.is_whitespace() || is_deceptive(c)) {
        return Err(not_one());
    }
    if url.len() > URL_BYTES_MAX {
        let bytes = url.len();
        return Err(format!("a URL of {bytes} bytes: servers take {URL_BYTES_MAX} at most"));
    }
    // By the rules of who fetches it.
    let read: Uri = url.parse().map_err(|error| format!("{}: {error}", not_one()))?;
    let authority = read.authority().filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or_else(not_one)?;
    let port = authority.as_str().rsplit_once(':').map(|(_, port)| port);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match port.filter(|port| !port.ends_with(']') && !is_port(port)) {
        Some(port) => Err(format!("{url:?}: {port:?} is not a port from 1 to 65535")),
        None => Ok(()),
    }
}

fn pointer(text: &str) -> Result<Part, String> {
    if text.starts_with('/') {
        return Ok(Part::Pointer(text.into()));
    }
    Err(format!("{text:?} is not a JSON pointer; they begin with /, as #/queue/length does"))
}

fn nginx(text: &str) -> Result<Part, String> {
    let known = NginxField::ALL.iter().find(|(name, _)| *name == text);
    known.map(|(_, field)| Part::Nginx { field: *field, rate: field.is_counter() }).ok_or_else(
        || {
            let names = NginxField::ALL.map(|(name, _)| name).join(", ");
            format!("{text:?} is not one of {names}")
        },
    )
}

fn orca(text: &str) -> Result<Part, String> {
    let in_map = ORCA_MAPS.iter().any(|map| text.len() > map.len() && text.starts_with(map));
    if in_map || ORCA_FIELDS.contains(&text) {
        return Ok(Part::Orca(text.into()));
    }
    let hint = nearest(text, ORCA_FIELDS.into_iter());
    let hint = hint.map_or_else(String::new, |near| format!(", did you mean {near}?"));
    Err(format!(
        "{text:?} is not one of {}, named_metrics.NAME, utilization.NAME, request_cost.NAME{hint}",
        ORCA_FIELDS.join(", ")
    ))
}

/// Words as a shell would split them; nothing else of a shell is understood.
fn command(text: &str) -> Result<Vec<String>, String> {
    let words = shlex::split(text).ok_or("a quote is not closed")?;
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err("name the program, command:/usr/local/bin/queue-length".to_owned()),
    }
}

impl fmt::Display for MetricSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for MetricSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
