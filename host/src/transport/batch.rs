//! Datagrams that were received together: one allocation for all their bytes.

use std::net::IpAddr;
use std::time::Instant;

/// One datagram, or one frame of a TCP connection.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'b> {
    /// What was sent.
    pub bytes: &'b [u8],
    /// When it arrived at the socket, on the monotonic clock.
    pub received: Instant,
    /// Who sent it.
    pub from: IpAddr,
}

/// Datagrams in the order in which they arrived at one socket.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    arrivals: Vec<Arrival>,
}

#[derive(Debug)]
struct Arrival {
    end: usize,
    received: Instant,
    from: IpAddr,
}

impl Batch {
    /// An empty batch with room.
    #[must_use]
    pub fn with_capacity(datagrams: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), arrivals: Vec::with_capacity(datagrams) }
    }

    /// Adds a datagram.
    pub fn push(&mut self, datagram: Datagram<'_>) {
        let Datagram { bytes, received, from } = datagram;
        self.bytes.extend_from_slice(bytes);
        self.arrivals.push(Arrival { end: self.bytes.len(), received, from });
    }

    /// How many datagrams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// The datagrams.
    pub fn iter(&self) -> impl Iterator<Item = Datagram<'_>> {
        let mut start = 0;
        self.arrivals.iter().map(move |&Arrival { end, received, from }| {
            let bytes = &self.bytes[start..end];
            start = end;
            Datagram { bytes, received, from }
        })
    }
}

impl<'b> FromIterator<Datagram<'b>> for Batch {
    fn from_iter<I: IntoIterator<Item = Datagram<'b>>>(datagrams: I) -> Self {
        let mut batch = Self::default();
        datagrams.into_iter().for_each(|datagram| batch.push(datagram));
        batch
    }
}
