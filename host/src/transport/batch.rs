//! Datagrams that were received together: one allocation for all their bytes; and the [`Room`] that
//! bounds what batches take up while they wait.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of batches that wait in one place, at most: some seconds of a large farm.
const ROOM_BYTES: usize = 64 << 20;

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
    /// Given back with the batch.
    held: Option<Held>,
}

/// What batches may take up while they wait, shared by all who put them there.
#[derive(Debug, Clone)]
pub struct Room(Arc<AtomicUsize>);

/// A part of a room, in bytes.
#[derive(Debug)]
struct Held {
    bytes: usize,
    room: Room,
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
        let (bytes, arrivals) = (Vec::with_capacity(bytes), Vec::with_capacity(datagrams));
        Self { bytes, arrivals, held: None }
    }

    /// How long all datagrams are together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Makes room for so many datagrams in all, if they go on as they began.
    pub(super) fn reserve(&mut self, datagrams: usize) {
        let more = datagrams.saturating_sub(self.len());
        self.arrivals.reserve(more);
        self.bytes.reserve(self.bytes.len().div_ceil(self.len().max(1)) * more);
    }

    /// Adds a datagram.
    pub fn push(&mut self, datagram: Datagram<'_>) {
        let Datagram { bytes, received, from } = datagram;
        self.push_parts(std::iter::once(bytes), received, from);
    }

    /// Adds a datagram whose bytes lie in several places.
    pub(super) fn push_parts<'b>(
        &mut self,
        parts: impl Iterator<Item = &'b [u8]>,
        received: Instant,
        from: IpAddr,
    ) {
        parts.for_each(|part| self.bytes.extend_from_slice(part));
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

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(ROOM_BYTES)))
    }
}

impl Room {
    /// Lets a batch in, until it is dropped; `None`: there is no room, and it is dropped.
    #[must_use]
    pub fn admit(&self, mut batch: Batch) -> Option<Batch> {
        let bytes = batch.bytes.capacity() + batch.arrivals.capacity() * size_of::<Arrival>();
        let taken = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).ok()?;
        batch.held = Some(Held { bytes, room: self.clone() });
        Some(batch)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl<'b> FromIterator<Datagram<'b>> for Batch {
    fn from_iter<I: IntoIterator<Item = Datagram<'b>>>(datagrams: I) -> Self {
        let mut batch = Self::default();
        datagrams.into_iter().for_each(|datagram| batch.push(datagram));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_wait_while_there_is_room_and_give_it_back() {
        let room = Room::default();
        let large = || {
            let from = std::net::Ipv4Addr::LOCALHOST.into();
            let datagram = |bytes| Datagram { bytes, received: Instant::now(), from };
            let mut batch = Batch::with_capacity(64, 64 * 65_000);
            (0..64).for_each(|_| batch.push(datagram(&[0; 65_000])));
            batch
        };
        let waiting: Vec<_> = (0..1_024).map_while(|_| room.admit(large())).collect();
        assert!((10..=16).contains(&waiting.len()), "{}", waiting.len());
        drop(waiting);
        assert!(room.admit(large()).is_some());
    }
}
