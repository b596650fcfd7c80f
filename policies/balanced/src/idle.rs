//! Targets that have nothing to do: of the fastest ones the one that is free for longest.
//!
//! Invariant: a target stands in at most one of the queues, a doubly linked list for each class of
//! speed; bit c of `occupied` says whether queue c has anybody. Every operation costs O(1).

use loadline_sdk::{Slot, math};

/// Rates that are this close are equally fast, or noise would choose.
const ALIKE: f64 = 1.25;
/// Classes of speed: up to a thousand times faster and slower than the pool.
const CLASSES: usize = 64;
const MIDDLE: f64 = 31.5;
/// Nobody.
const END: u32 = u32::MAX;
/// The class of who is not in.
const OUT: u8 = u8::MAX;

/// The queues.
#[derive(Debug)]
pub(crate) struct Idle {
    occupied: u64,
    first: [u32; CLASSES],
    last: [u32; CLASSES],
    /// By slot.
    places: Vec<Place>,
}

/// Who stands before and after a target, and in which queue.
#[derive(Debug, Clone, Copy)]
struct Place {
    before: u32,
    after: u32,
    class: u8,
}

impl Default for Idle {
    fn default() -> Self {
        let nobody = [END; CLASSES];
        Self { occupied: 0, first: nobody, last: nobody, places: Vec::new() }
    }
}

/// The class of a target that is so many times as fast as the pool's mean: the fastest have the
/// lowest.
pub(crate) fn class(relative: f64) -> u8 {
    let steps = MIDDLE - math::ln(relative) / math::ln(ALIKE);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let class = steps.clamp(0.0, CLASSES as f64 - 1.0) as u8;
    class
}

impl Idle {
    /// A target is free; one that stands in this class's queue already keeps its place.
    pub(crate) fn join(&mut self, slot: Slot, class: u8) {
        if self.places.len() <= slot.index() {
            let out = Place { before: END, after: END, class: OUT };
            self.places.resize(slot.index() + 1, out);
        }
        if self.places[slot.index()].class == class {
            return;
        }
        self.remove(slot);
        let queue = usize::from(class);
        let before = std::mem::replace(&mut self.last[queue], slot.0);
        match self.places.get_mut(before as usize) {
            Some(place) => place.after = slot.0,
            None => self.first[queue] = slot.0,
        }
        self.places[slot.index()] = Place { before, after: END, class };
        self.occupied |= 1 << class;
    }

    /// Takes a target out, if it is in.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let Some(place) = self.places.get_mut(slot.index()) else { return };
        let Place { before, after, class } = *place;
        if class == OUT {
            return;
        }
        place.class = OUT;
        let queue = usize::from(class);
        match self.places.get_mut(before as usize) {
            Some(place) => place.after = after,
            None => self.first[queue] = after,
        }
        match self.places.get_mut(after as usize) {
            Some(place) => place.before = before,
            None => self.last[queue] = before,
        }
        if self.first[queue] == END {
            self.occupied &= !(1 << class);
        }
    }

    /// The one to take.
    pub(crate) fn first(&self) -> Option<Slot> {
        self.first.get(self.occupied.trailing_zeros() as usize).map(|slot| Slot(*slot))
    }
}
