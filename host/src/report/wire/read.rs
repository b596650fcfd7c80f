//! A frame's payload to reports: a cursor over its MessagePack.
//!
//! Written out rather than derived: it runs once for every report that a host hears, and a host hears
//! a farm. Invariants: no bytes make it panic, nest or reserve more than they could hold; numbers may
//! have any width that holds them; what a row has beyond the fields that are known is skipped,
//! however deep it is. Source of the format: the MessagePack specification (github.com/msgpack).

use std::fmt;

use super::memory::Memory;
use crate::report::{
    LABELS_MAX, METRICS_MAX, Metrics, Names, Report, SERVICES_MAX, Service, State,
};

/// Reports for which room is made at once: datagrams hold fewer.
const REPORTS_RESERVED: usize = 32;

/// What a payload is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed {
    field: &'static str,
    problem: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// Appends the reports of a payload, unchecked; those before what is malformed, too.
pub(super) fn reports<'a>(
    payload: &'a [u8],
    all: &mut Vec<Report<'a>>,
    memory: &mut Memory,
) -> Result<(), Malformed> {
    let mut cursor = Cursor { rest: payload, field: "reports", memory };
    let reports = cursor.array(usize::MAX)?;
    all.reserve(reports.min(REPORTS_RESERVED));
    for _ in 0..reports {
        report(&mut cursor, all)?;
    }
    cursor.field = "reports";
    if cursor.rest.is_empty() { Ok(()) } else { Err(cursor.is("followed by more bytes")) }
}

fn report<'a>(cursor: &mut Cursor<'a, '_>, all: &mut Vec<Report<'a>>) -> Result<(), Malformed> {
    let mut row = Row::start(cursor, "report")?;
    let report = Report {
        farm: row.field("farm")?.string()?,
        machine: row.field("machine")?.string()?,
        boot: row.field("boot")?.unsigned()?,
        seq: row.field("seq")?.unsigned()?,
        interval_ms: row.field("interval_ms")?.unsigned()?,
        delay_ms: row.field("delay_ms")?.unsigned()?,
        state: row.field("state")?.state()?,
        weight: row.field("weight")?.float()?,
        metrics: metrics(&mut row)?,
        services: row.field("services")?.list(SERVICES_MAX, service)?,
        labels: row.field("labels")?.labels()?,
        sent_ms: row.more("sent_ms").map_or(Ok(0), Cursor::unsigned)?,
        hops: row.more("hops").map_or(Ok(0), Cursor::unsigned)?,
    };
    row.end()?;
    all.push(report); // returned, it would be moved twice
    Ok(())
}

fn service<'a>(cursor: &mut Cursor<'a, '_>) -> Result<Service<'a>, Malformed> {
    let mut row = Row::start(cursor, "service")?;
    let service = Service {
        name: row.field("service name")?.string()?,
        address: row.field("address")?.string()?,
        weight: row.field("service weight")?.float()?,
        metrics: metrics(&mut row)?,
        accepted: row.field("accepted")?.unsigned()?,
        completed: row.field("completed")?.unsigned()?,
        in_flight: row.field("in_flight")?.unsigned()?,
        labels: row.more("service labels").map_or(Ok(Vec::new()), Cursor::labels)?,
    };
    row.end()?;
    Ok(service)
}

fn metrics<'a>(row: &mut Row<'_, 'a, '_>) -> Result<Metrics<'a>, Malformed> {
    Ok(Metrics {
        names: row.field("metric names")?.names()?,
        values: row.field("metric values")?.values()?,
    })
}

/// An array whose elements have their meaning by their place.
struct Row<'c, 'a, 'm> {
    cursor: &'c mut Cursor<'a, 'm>,
    /// Elements that were not read yet.
    left: usize,
}

impl<'c, 'a, 'm> Row<'c, 'a, 'm> {
    fn start(cursor: &'c mut Cursor<'a, 'm>, what: &'static str) -> Result<Self, Malformed> {
        cursor.field = what;
        let left = cursor.array(usize::MAX)?;
        Ok(Self { cursor, left })
    }

    /// The next element, which must be there.
    fn field(&mut self, name: &'static str) -> Result<&mut Cursor<'a, 'm>, Malformed> {
        self.cursor.field = name;
        let Some(left) = self.left.checked_sub(1) else { return Err(self.cursor.is("missing")) };
        self.left = left;
        Ok(self.cursor)
    }

    /// The next element, which need not be there.
    fn more(&mut self, name: &'static str) -> Option<&mut Cursor<'a, 'm>> {
        self.cursor.field = name;
        self.left = self.left.checked_sub(1)?;
        Some(self.cursor)
    }

    /// Skips what a later version appended.
    fn end(self) -> Result<(), Malformed> {
        self.cursor.field = "unknown fields";
        self.cursor.skip(self.left as u64)
    }
}

/// What of a payload was not read yet.
struct Cursor<'a, 'm> {
    rest: &'a [u8],
    /// What is read now.
    field: &'static str,
    memory: &'m mut Memory,
}

impl<'a> Cursor<'a, '_> {
    #[cold]
    fn is(&self, problem: &'static str) -> Malformed {
        Malformed { field: self.field, problem }
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.is("cut off"));
        };
        self.rest = rest;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(self.is("cut off"));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let [byte] = self.fixed()?;
        Ok(byte)
    }

    /// A big-endian number of so many bytes, up to eight.
    fn number<const N: usize>(&mut self) -> Result<u64, Malformed> {
        let bytes: [u8; N] = self.fixed()?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length<const N: usize>(&mut self) -> Result<usize, Malformed> {
        let length = self.number::<N>()?;
        usize::try_from(length).map_err(|_| self.is("too long"))
    }

    /// A whole number that is not negative and fits.
    fn unsigned<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        let number = match self.byte()? {
            small @ ..=0x7f => small.into(),
            0xcc => self.number::<1>()?,
            0xcd => self.number::<2>()?,
            0xce => self.number::<4>()?,
            0xcf => self.number::<8>()?,
            signed => match self.signed(signed)?.map(u64::try_from) {
                Some(Ok(number)) => number,
                Some(Err(_)) => return Err(self.is("negative")),
                None => return Err(self.is("not a whole number")),
            },
        };
        T::try_from(number).map_err(|_| self.is("too large a number"))
    }

    /// The rest of a number that may be negative; `None`: the marker is not that of one.
    fn signed(&mut self, marker: u8) -> Result<Option<i64>, Malformed> {
        Ok(Some(match marker {
            0xe0.. => i8::from_be_bytes([marker]).into(),
            0xd0 => i8::from_be_bytes(self.fixed()?).into(),
            0xd1 => i16::from_be_bytes(self.fixed()?).into(),
            0xd2 => i32::from_be_bytes(self.fixed()?).into(),
            0xd3 => i64::from_be_bytes(self.fixed()?),
            _ => return Ok(None),
        }))
    }

    /// A number; whole ones count as well.
    #[allow(clippy::cast_precision_loss, reason = "what is reported as a float may be rounded")]
    fn float(&mut self) -> Result<f64, Malformed> {
        match self.rest.first() {
            Some(0xcb) => {
                self.byte()?;
                Ok(f64::from_be_bytes(self.fixed()?))
            }
            Some(0xca) => {
                self.byte()?;
                Ok(f32::from_be_bytes(self.fixed()?).into())
            }
            Some(&marker @ (0xd0..=0xd3 | 0xe0..)) => {
                self.byte()?;
                Ok(self.signed(marker)?.unwrap_or_default() as f64)
            }
            Some(..=0x7f | 0xcc..=0xcf) => Ok(self.unsigned::<u64>()? as f64),
            Some(_) => Err(self.is("not a number")),
            None => Err(self.is("cut off")),
        }
    }

    fn string(&mut self) -> Result<&'a str, Malformed> {
        let length = match self.byte()? {
            short @ 0xa0..=0xbf => usize::from(short & 0x1f),
            0xd9 => self.length::<1>()?,
            0xda => self.length::<2>()?,
            0xdb => self.length::<4>()?,
            _ => return Err(self.is("not a string")),
        };
        let bytes = self.bytes(length)?;
        str::from_utf8(bytes).map_err(|_| self.is("not UTF-8"))
    }

    fn state(&mut self) -> Result<State, Malformed> {
        State::from_code(self.unsigned()?).ok_or_else(|| self.is("unknown"))
    }

    /// The length of an array.
    fn array(&mut self, most: usize) -> Result<usize, Malformed> {
        let length = match self.byte()? {
            short @ 0x90..=0x9f => usize::from(short & 0x0f),
            0xdc => self.length::<2>()?,
            0xdd => self.length::<4>()?,
            _ => return Err(self.is("not an array")),
        };
        if length <= most { Ok(length) } else { Err(self.is("too many")) }
    }

    /// An array of at most so many.
    fn list<T>(
        &mut self,
        most: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.array(most)?;
        let mut all = Vec::with_capacity(length);
        for _ in 0..length {
            all.push(element(self)?);
        }
        Ok(all)
    }

    /// Names of metrics: from memory, where the very same bytes were read before.
    fn names(&mut self) -> Result<Names<'a>, Malformed> {
        const NONE: u8 = 0x90;
        if self.rest.first() != Some(&NONE)
            && let Some((names, rest)) = self.memory.recall(self.rest)
        {
            self.rest = rest;
            return Ok(Names::of_known(names));
        }
        let begin = self.rest;
        let names = self.list(METRICS_MAX, Self::string)?;
        if names.is_empty() {
            return Ok(Names::default());
        }
        let bytes = &begin[..begin.len() - self.rest.len()];
        let learnt = self.memory.learn(bytes, &names);
        Ok(learnt.map_or_else(|| names.into(), Names::of_known))
    }

    fn values(&mut self) -> Result<Vec<f64>, Malformed> {
        let length = self.array(METRICS_MAX)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        let mut values = self.memory.values();
        values.reserve(length);
        for _ in 0..length {
            values.push(self.float()?);
        }
        Ok(values)
    }

    fn labels(&mut self) -> Result<Vec<(&'a str, &'a str)>, Malformed> {
        let length = match self.byte()? {
            short @ 0x80..=0x8f => usize::from(short & 0x0f),
            0xde => self.length::<2>()?,
            0xdf => self.length::<4>()?,
            _ => return Err(self.is("not a map")),
        };
        if length > LABELS_MAX {
            return Err(self.is("too many"));
        }
        let mut labels = Vec::with_capacity(length);
        for _ in 0..length {
            labels.push((self.string()?, self.string()?));
        }
        Ok(labels)
    }

    /// Passes over so many values and all that they hold.
    fn skip(&mut self, values: u64) -> Result<(), Malformed> {
        let mut left = values;
        while left > 0 {
            left -= 1;
            // Each value that is announced takes a byte: the sum stays far from overflowing.
            let (bytes, inside) = match self.byte()? {
                ..=0x7f | 0xe0.. | 0xc0 | 0xc2 | 0xc3 => (0, 0),
                map @ 0x80..=0x8f => (0, 2 * u64::from(map & 0x0f)),
                array @ 0x90..=0x9f => (0, u64::from(array & 0x0f)),
                string @ 0xa0..=0xbf => (usize::from(string & 0x1f), 0),
                0xc1 => return Err(self.is("not MessagePack")),
                0xc4 | 0xd9 => (self.length::<1>()?, 0),
                0xc5 | 0xda => (self.length::<2>()?, 0),
                0xc6 | 0xdb => (self.length::<4>()?, 0),
                // Of an extension: its type and its bytes.
                0xc7 => (self.length::<1>()?.saturating_add(1), 0),
                0xc8 => (self.length::<2>()?.saturating_add(1), 0),
                0xc9 => (self.length::<4>()?.saturating_add(1), 0),
                0xcc | 0xd0 => (1, 0),
                0xcd | 0xd1 => (2, 0),
                0xca | 0xce | 0xd2 => (4, 0),
                0xcb | 0xcf | 0xd3 => (8, 0),
                extension @ 0xd4..=0xd8 => (1 + (1 << (extension - 0xd4)), 0),
                0xdc => (0, self.number::<2>()?),
                0xdd => (0, self.number::<4>()?),
                0xde => (0, 2 * self.number::<2>()?),
                0xdf => (0, 2 * self.number::<4>()?),
            };
            self.bytes(bytes)?;
            left += inside;
        }
        Ok(())
    }
}
