//! Bytes to reports ([`read`]) and back; pure. The agent encodes, hosts and tests do both.
//!
//! Frame, version 1: `LL`, version byte, flags byte (0), key id (u32, big-endian; 0: unsigned),
//! payload, and for signed frames 16 bytes of tag. Payload: a MessagePack array of reports, each a
//! positional array in the order of [`Report`]'s fields, of which the last two may be left out; an unknown
//! trailing element is skipped, so that fields may be added at the end. Metrics are two arrays (names, values), labels a map.
//!
//! Invariants: no bytes panic the decoder; encoding then decoding gives the same report; a frame
//! is consumed to its last byte or refused; what is returned has passed [`Report::check`].

mod memory;
mod read;

use serde::ser::{SerializeMap, SerializeTuple};
use serde::{Serialize, Serializer};

use self::memory::Memory;
use super::auth::{Keyring, TAG_BYTES};
use super::{FRAME_BYTES_MAX, MAGIC, NAME_FORM, Report, Service, State};

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;
/// What a frame has besides its reports at most: header, length of the array, tag.
const FRAMING_BYTES: usize = HEADER_BYTES + 5 + TAG_BYTES;

/// Why a frame is not a report for us.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not a Loadline frame at all.
    #[error("does not start with the frame's magic")]
    Foreign,
    /// A frame of another version.
    #[error("frame version {0}, this program speaks {VERSION}")]
    Version(u8),
    /// Flag bits that mean nothing in this version.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// Too short to be whole.
    #[error("truncated frame")]
    Truncated,
    /// Unsigned, and this program has keys.
    #[error("unsigned, but keys are configured")]
    Unsigned,
    /// Signed with a key that this program does not have.
    #[error("signed with an unknown key")]
    UnknownKey,
    /// The tag is not that of the frame.
    #[error("wrong tag")]
    BadTag,
    /// The payload is not MessagePack of the right shape.
    #[error("malformed payload: {0}")]
    Malformed(String),
    /// A name that could not be shown, or would look like another one.
    #[error("field {field} is not a name: {NAME_FORM}")]
    Name {
        /// Which field.
        field: &'static str,
    },
    /// A field is out of range.
    #[error("field {field} is out of range")]
    Field {
        /// Which one.
        field: &'static str,
    },
    /// One report that is longer than a frame may be.
    #[error("longer than a frame may be ({FRAME_BYTES_MAX} bytes)")]
    TooLong,
}

impl WireError {
    /// A word for counters and logs.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Version(_) => "version",
            Self::Flags(_) => "flags",
            Self::Truncated => "truncated",
            Self::Unsigned => "unsigned",
            Self::UnknownKey => "unknown_key",
            Self::BadTag => "bad_tag",
            Self::Malformed(_) => "malformed",
            Self::Name { .. } => "name",
            Self::Field { .. } => "field",
            Self::TooLong => "too_long",
        }
    }
}

/// One frame with these reports, signed if the ring has keys.
///
/// # Errors
/// A report does not pass [`Report::check`].
pub fn encode(reports: &[Report<'_>], keyring: &Keyring) -> Result<Vec<u8>, WireError> {
    let mut bodies = Vec::with_capacity(super::DATAGRAM_BYTES_MAX);
    for report in reports {
        append(report, &mut bodies)?;
    }
    Ok(frame(reports.len(), &bodies, keyring))
}

/// Appends one report's bytes: as many as wanted, one after the other, are the body of a frame.
fn append(report: &Report<'_>, bodies: &mut Vec<u8>) -> Result<(), WireError> {
    report.check()?;
    rmp_serde::encode::write(bodies, report)
        .map_err(|error| WireError::Malformed(error.to_string()))
}

/// The frame of so many reports.
fn frame(reports: usize, bodies: &[u8], keyring: &Keyring) -> Vec<u8> {
    let mut frame = Vec::with_capacity(bodies.len() + FRAMING_BYTES);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&[VERSION, 0]);
    frame.extend_from_slice(&keyring.signing_id().to_be_bytes());
    match u8::try_from(reports) {
        Ok(few @ ..=15) => frame.push(0x90 | few), // MessagePack's short array
        _ => {
            frame.push(0xdd); // and its longest
            frame.extend_from_slice(&u32::try_from(reports).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
    frame.extend_from_slice(bodies);
    keyring.sign(&mut frame);
    frame
}

/// Packs many reports into frames that fit a datagram.
#[derive(Debug)]
pub struct Packer<'k> {
    keyring: &'k Keyring,
    /// Bytes of a frame at most, unless a single report is longer.
    frame_bytes_max: usize,
    bodies: Vec<u8>,
    reports: usize,
    frames: Vec<Vec<u8>>,
}

impl<'k> Packer<'k> {
    /// A packer of frames of so many bytes at most; a single report that is longer gets its own.
    #[must_use]
    pub fn new(keyring: &'k Keyring, frame_bytes_max: usize) -> Self {
        Self { keyring, frame_bytes_max, bodies: Vec::new(), reports: 0, frames: Vec::new() }
    }

    /// Adds a report.
    ///
    /// # Errors
    /// It does not pass [`Report::check`], or no frame may be so long; it is left out.
    pub fn push(&mut self, report: &Report<'_>) -> Result<(), WireError> {
        let before = self.bodies.len();
        let appended = append(report, &mut self.bodies).and_then(|()| {
            let is_too_long = self.bodies.len() - before + FRAMING_BYTES > FRAME_BYTES_MAX;
            if is_too_long { Err(WireError::TooLong) } else { Ok(()) }
        });
        if let Err(error) = appended {
            self.bodies.truncate(before);
            return Err(error);
        }
        if self.reports > 0 && self.bodies.len() + FRAMING_BYTES > self.frame_bytes_max {
            let last = self.bodies.split_off(before);
            self.close();
            self.bodies = last;
        }
        self.reports += 1;
        Ok(())
    }

    /// The frames.
    #[must_use]
    pub fn finish(mut self) -> Vec<Vec<u8>> {
        if self.reports > 0 {
            self.close();
        }
        self.frames
    }

    fn close(&mut self) {
        self.frames.push(frame(self.reports, &self.bodies, self.keyring));
        self.bodies.clear();
        self.reports = 0;
    }
}

/// The reports of one frame, borrowed from it.
///
/// # Errors
/// Why the whole frame is refused.
pub fn decode<'a>(frame: &'a [u8], keyring: &Keyring) -> Result<Vec<Report<'a>>, WireError> {
    let mut reports = Vec::new();
    Decoder { memory: Memory::default() }.decode_onto(&mut reports, frame, keyring)?;
    Ok(reports)
}

/// Decodes frame after frame. It remembers what their reports have in common, the names of their metrics,
/// and gives the same as [`decode`] in less time.
#[derive(Debug)]
pub struct Decoder {
    memory: Memory,
}

impl Decoder {
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let mut memory = Memory::default();
        memory.allow();
        Self { memory }
    }

    /// Appends the reports of one frame to those of others.
    ///
    /// # Errors
    /// Why the whole frame is refused; nothing is appended then.
    pub fn decode_onto<'a>(
        &mut self,
        reports: &mut Vec<Report<'a>>,
        frame: &'a [u8],
        keyring: &Keyring,
    ) -> Result<(), WireError> {
        let payload = open(frame, keyring)?;
        let before = reports.len();
        let read = read::reports(payload, reports, &mut self.memory);
        let read = read.map_err(|error| WireError::Malformed(error.to_string()));
        let checked = read.and_then(|()| reports[before..].iter().try_for_each(Report::check));
        checked.inspect_err(|_| reports.truncate(before))
    }

    /// Takes back reports that were used, for their memory, and from now on remembers one list of names
    /// more.
    pub fn reuse(&mut self, mut reports: Vec<Report<'_>>) {
        self.memory.allow();
        for report in &mut reports {
            for service in &mut report.services {
                self.memory.reuse(&mut service.metrics.values);
            }
            self.memory.reuse(&mut report.metrics.values);
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The payload of a frame for us.
fn open<'a>(frame: &'a [u8], keyring: &Keyring) -> Result<&'a [u8], WireError> {
    if !frame.starts_with(&MAGIC) {
        return Err(WireError::Foreign);
    }
    let header = frame.first_chunk::<HEADER_BYTES>().ok_or(WireError::Truncated)?;
    let [_, _, version, flags, key @ ..] = *header;
    if version != VERSION {
        return Err(WireError::Version(version));
    }
    if flags != 0 {
        return Err(WireError::Flags(flags));
    }
    Ok(&keyring.open(u32::from_be_bytes(key), frame)?[HEADER_BYTES..])
}

impl State {
    fn code(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::Draining => 1,
            Self::Stopped => 2,
            Self::Leaving => 3,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Ready, Self::Draining, Self::Stopped, Self::Leaving].get(usize::from(code)).copied()
    }
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What is not said is left out: the form of the first version.
        let more = if self.hops != 0 { 2 } else { usize::from(self.sent_ms != 0) };
        let mut row = serializer.serialize_tuple(12 + more)?;
        row.serialize_element(self.farm)?;
        row.serialize_element(self.machine)?;
        row.serialize_element(&self.boot)?;
        row.serialize_element(&self.seq)?;
        row.serialize_element(&self.interval_ms)?;
        row.serialize_element(&self.delay_ms)?;
        row.serialize_element(&self.state.code())?;
        row.serialize_element(&self.weight)?;
        row.serialize_element(&self.metrics.names)?;
        row.serialize_element(&self.metrics.values)?;
        row.serialize_element(&self.services)?;
        row.serialize_element(&Labels(&self.labels))?;
        if more >= 1 {
            row.serialize_element(&self.sent_ms)?;
        }
        if more >= 2 {
            row.serialize_element(&self.hops)?;
        }
        row.end()
    }
}

impl Serialize for Service<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let more = usize::from(!self.labels.is_empty());
        let mut row = serializer.serialize_tuple(8 + more)?;
        row.serialize_element(self.name)?;
        row.serialize_element(self.address)?;
        row.serialize_element(&self.weight)?;
        row.serialize_element(&self.metrics.names)?;
        row.serialize_element(&self.metrics.values)?;
        row.serialize_element(&self.accepted)?;
        row.serialize_element(&self.completed)?;
        row.serialize_element(&self.in_flight)?;
        if more >= 1 {
            row.serialize_element(&Labels(&self.labels))?;
        }
        row.end()
    }
}

struct Labels<'l, 'a>(&'l [(&'a str, &'a str)]);

impl Serialize for Labels<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
