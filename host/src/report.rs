//! What a report is: one message of an agent about one machine.
//!
//! In: fields borrowed from the agent or from a datagram. Out: the same, checked. Ratios are 0 to 1,
//! durations are milliseconds in suffixed integers. Reports are values: nothing here has a clock, a
//! socket or a lock. [`wire`] is the byte form, [`auth`] the keys, [`gate`] who may report,
//! [`address`] where services are, [`metrics`] what is measured.

pub mod address;
pub mod auth;
pub mod fit;
pub mod gate;
mod metrics;
pub mod wire;

pub use auth::{Key, Keyring};
pub use gate::Gate;
pub use metrics::{MetricNames, Metrics, Names};
pub use wire::WireError;

/// What every frame begins with.
pub const MAGIC: [u8; 2] = *b"LL";
/// Bytes of a datagram at most, unless a single report is longer: fits one Ethernet frame, so that
/// it is never fragmented.
pub const DATAGRAM_BYTES_MAX: usize = 1_400;
/// Bytes of a frame at most, over any carrier: what a UDP datagram can hold.
pub const FRAME_BYTES_MAX: usize = 65_000;
/// Bytes of a name at most (farm, machine, metric, service, label): a DNS name fits.
pub const NAME_BYTES_MAX: usize = 253;
/// What a name is ([`is_name`]), for people.
pub const NAME_FORM: &str =
    "1 to 253 bytes without control characters, direction marks or other invisible ones";
/// Metrics of a machine or a service at most: bounds what one report can cost a host.
pub const METRICS_MAX: usize = 256;
/// Services of a machine at most, for the same reason.
pub const SERVICES_MAX: usize = 256;
/// Labels of a machine at most, for the same reason.
pub const LABELS_MAX: usize = 64;
/// Begins the names of labels that agents give themselves.
pub const OWN_LABEL: &str = "loadline.";
/// Given by an agent whose newest configuration is not in force, or not all of it: `refused` or `partly`.
pub const CONFIG_LABEL: &str = "loadline.config";
/// The service of a machine that names none.
pub const DEFAULT_SERVICE: &str = "default";
/// Milliseconds between two reports at most (one hour): a longer one is a unit mistake.
pub const INTERVAL_MS_MAX: u32 = 3_600_000;

/// Whether a machine takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Takes work.
    Ready,
    /// Keeps what it has, takes nothing new.
    Draining,
    /// Up, but takes nothing.
    Stopped,
    /// This is its last report.
    Leaving,
}

/// Those that can be asked for.
impl std::str::FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ready" => Ok(Self::Ready),
            "draining" => Ok(Self::Draining),
            "stopped" => Ok(Self::Stopped),
            _ => Err(format!("{text:?} is not \"ready\", \"draining\" or \"stopped\"")),
        }
    }
}

/// A named thing that a machine offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Service<'a> {
    /// Names the pool's service.
    pub name: &'a str,
    /// `host:port`, or a URL; empty: the datagram's source address.
    pub address: &'a str,
    /// Capacity relative to the other machines of the service, > 0.
    pub weight: f64,
    /// Its own metrics; they hide the machine's of the same name.
    pub metrics: Metrics<'a>,
    /// Requests taken since the agent started.
    pub accepted: u64,
    /// Requests finished since the agent started.
    pub completed: u64,
    /// Requests open now.
    pub in_flight: u32,
    /// Free words; they hide the machine's of the same name.
    pub labels: Vec<(&'a str, &'a str)>,
}

impl Service<'_> {
    /// What a machine offers that names no service.
    #[must_use]
    pub fn implied() -> Self {
        Self {
            name: DEFAULT_SERVICE,
            address: "",
            weight: 1.0,
            metrics: Metrics::default(),
            accepted: 0,
            completed: 0,
            in_flight: 0,
            labels: Vec::new(),
        }
    }
}

/// One message of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Report<'a> {
    /// Which farm this is for; hosts of others ignore it.
    pub farm: &'a str,
    /// Who reports.
    pub machine: &'a str,
    /// Milliseconds since 1970 at the agent's start, never lower after a restart.
    pub boot: u64,
    /// Counts reports since the agent's start, from 1.
    pub seq: u64,
    /// Milliseconds until the next report.
    pub interval_ms: u32,
    /// Milliseconds from capture to send.
    pub delay_ms: u32,
    /// Whether the machine takes work.
    pub state: State,
    /// Capacity relative to other machines, > 0.
    pub weight: f64,
    /// The machine's metrics.
    pub metrics: Metrics<'a>,
    /// What it offers; empty: the service `default`.
    pub services: Vec<Service<'a>>,
    /// Free words for constraints and failure domains.
    pub labels: Vec<(&'a str, &'a str)>,
    /// Milliseconds since 1970 when it was sent, by the agent's clock; 0: not said. Signed reports
    /// say it, so that they cannot be played back later.
    pub sent_ms: u64,
    /// How many relays it went through; 0: it comes from its agent.
    pub hops: u8,
}

impl Report<'_> {
    /// Checks what the byte form cannot: names, ranges, lengths.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), WireError> {
        check_name("farm", self.farm)?;
        check_name("machine", self.machine)?;
        ensure("interval_ms", (1..=INTERVAL_MS_MAX).contains(&self.interval_ms))?;
        check_weight(self.weight)?;
        check_metrics(&self.metrics)?;
        ensure("services", self.services.len() <= SERVICES_MAX)?;
        for (index, service) in self.services.iter().enumerate() {
            check_name("service", service.name)?;
            let again = self.services[..index].iter().any(|other| other.name == service.name);
            ensure("service", !again)?;
            ensure("address", service.address.len() <= 2 * NAME_BYTES_MAX)?;
            ensure("address", !service.address.contains(|c: char| is_deceptive(c) || c == ' '))?;
            check_weight(service.weight)?;
            check_metrics(&service.metrics)?;
            check_labels(&service.labels)?;
        }
        check_labels(&self.labels)?;
        Ok(())
    }
}

/// Whether a name is fit to be shown, logged and compared.
#[must_use]
pub fn is_name(name: &str) -> bool {
    // Most names are ASCII: a look at their bytes is enough, and a fraction of the work.
    let is_printable = |byte: u8| (b' '..=b'~').contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && (name.bytes().all(is_printable) || !name.contains(is_deceptive))
}

/// Whether a character changes how the text around it is shown instead of being shown itself: control
/// characters, those of the direction of writing (Unicode's property `Bidi_Control`), separators of
/// lines and paragraphs, and the ones that have no width at all. A name with one of them can look like
/// another one in a log or on a console.
#[must_use]
pub fn is_deceptive(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    ) || character.is_control()
}

/// Whether the value of a label is fit to be shown, logged and compared; it may be empty.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    value.len() <= NAME_BYTES_MAX && !value.contains(is_deceptive)
}

/// Whether a weight can be divided by.
#[must_use]
pub fn is_weight(weight: f64) -> bool {
    weight.is_finite() && weight > 0.0
}

fn check_name(field: &'static str, name: &str) -> Result<(), WireError> {
    if is_name(name) { Ok(()) } else { Err(WireError::Name { field }) }
}

fn check_weight(weight: f64) -> Result<(), WireError> {
    ensure("weight", is_weight(weight))
}

fn check_metrics(metrics: &Metrics<'_>) -> Result<(), WireError> {
    ensure("metrics", metrics.names.len() == metrics.values.len())?;
    ensure("metrics", metrics.names.len() <= METRICS_MAX)?;
    if metrics.names.known().is_some() {
        return Ok(()); // they were looked at when they were first seen
    }
    metrics.names.iter().try_for_each(|name| check_name("metrics", name))
}

fn check_labels(labels: &[(&str, &str)]) -> Result<(), WireError> {
    ensure("labels", labels.len() <= LABELS_MAX)?;
    for (name, value) in labels {
        check_name("label", name)?;
        ensure("label", is_label_value(value))?;
    }
    Ok(())
}

fn ensure(field: &'static str, holds: bool) -> Result<(), WireError> {
    if holds { Ok(()) } else { Err(WireError::Field { field }) }
}
