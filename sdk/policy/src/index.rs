//! Indexes over targets, for strategies that choose the best one: keys in, the best slot out.
//!
//! Invariant: every operation costs O(log n) at most, in the highest slot seen; nothing allocates but
//! the first use of a higher slot.

use crate::Slot;

/// The lowest key of all, as in a knock-out tournament: each inner node holds the winner below it
/// (Knuth, The Art of Computer Programming 3, §5.4.1). Equal keys: the one that was set first wins,
/// so that what is set again and again to one key goes round.
///
/// ```
/// use loadline_sdk::{Slot, index::Tournament};
/// let mut lowest = Tournament::default();
/// [20.0, 30.0, 40.0, 20.0].into_iter().zip(0..).for_each(|(key, slot)| lowest.set(Slot(slot), key));
/// assert_eq!(lowest.min(), Some((Slot(0), 20.0)));
/// lowest.set(Slot(0), 45.0);
/// assert_eq!(lowest.min(), Some((Slot(3), 20.0)));
/// lowest.remove(Slot(3));
/// assert_eq!(lowest.min(), Some((Slot(1), 30.0)));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Tournament {
    /// The leaves, by slot; a power of two of them.
    keys: Vec<Key>,
    /// Winners by node: 1 is the root, node i has the children 2i and 2i + 1, and the nodes from
    /// `keys.len()` on are the leaves themselves and not stored.
    winners: Vec<u32>,
    turn: u64,
    len: usize,
}

/// A key and when it was set.
#[derive(Debug, Clone, Copy)]
struct Key {
    value: f64,
    turn: u64,
}

/// Loses against every key.
const NOBODY: Key = Key { value: f64::INFINITY, turn: u64::MAX };

impl Key {
    fn beats(self, other: Self) -> bool {
        self.value < other.value || (self.value <= other.value && self.turn < other.turn)
    }

    fn is_somebody(self) -> bool {
        self.turn != NOBODY.turn
    }
}

impl Tournament {
    /// Sets a slot's key; NaN counts as infinity, the last of all.
    pub fn set(&mut self, slot: Slot, key: f64) {
        self.grow(slot.index() + 1);
        self.len += usize::from(!self.keys[slot.index()].is_somebody());
        self.turn += 1;
        let value = if key.is_nan() { f64::INFINITY } else { key };
        self.keys[slot.index()] = Key { value, turn: self.turn };
        self.play(slot.index());
    }

    /// Takes a slot out, if it is in.
    pub fn remove(&mut self, slot: Slot) {
        if self.get(slot).is_some() {
            self.len -= 1;
            self.keys[slot.index()] = NOBODY;
            self.play(slot.index());
        }
    }

    /// The slot with the lowest key, and the key. Cost O(1).
    #[must_use]
    pub fn min(&self) -> Option<(Slot, f64)> {
        let winner = *self.winners.get(1)?;
        let key = self.keys[winner as usize];
        key.is_somebody().then_some((Slot(winner), key.value))
    }

    /// A slot's key.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<f64> {
        let key = *self.keys.get(slot.index())?;
        key.is_somebody().then_some(key.value)
    }

    /// How many slots are in.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for so many slots.
    fn grow(&mut self, slots: usize) {
        if slots <= self.keys.len() {
            return;
        }
        let leaves = slots.next_power_of_two().max(2);
        self.keys.resize(leaves, NOBODY);
        self.winners = vec![0; leaves];
        for node in (1..leaves).rev() {
            self.winners[node] = self.winner(node);
        }
    }

    /// Who wins at a node, by its children.
    fn winner(&self, node: usize) -> u32 {
        let of = |child: usize| match child.checked_sub(self.keys.len()) {
            Some(leaf) => u32::try_from(leaf).unwrap_or(u32::MAX),
            None => self.winners[child],
        };
        let (left, right) = (of(2 * node), of(2 * node + 1));
        let is_right = self.keys[right as usize].beats(self.keys[left as usize]);
        if is_right { right } else { left }
    }

    /// Plays a leaf's matches again, up to the root.
    fn play(&mut self, leaf: usize) {
        let mut node = (self.keys.len() + leaf) / 2;
        while node > 0 {
            self.winners[node] = self.winner(node);
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(index: &mut Tournament, keys: &[(u32, f64)]) {
        keys.iter().for_each(|(slot, key)| index.set(Slot(*slot), *key));
    }

    #[test]
    fn lowest_is_found_through_ties_moves_and_removals() {
        // The example of requirement A4: B, C, A = 20, 30, 40; D = 20; B to 40; D to 45.
        let (a, b, c, d) = (0, 1, 2, 3);
        let mut index = Tournament::default();
        set(&mut index, &[(b, 20.0), (c, 30.0), (a, 40.0)]);
        assert_eq!(index.min(), Some((Slot(b), 20.0)));
        set(&mut index, &[(d, 20.0)]);
        assert_eq!(index.min(), Some((Slot(b), 20.0)), "of equal keys the older one");
        set(&mut index, &[(b, 40.0)]);
        assert_eq!(index.min(), Some((Slot(d), 20.0)));
        set(&mut index, &[(d, 45.0)]);
        assert_eq!(index.min(), Some((Slot(c), 30.0)));
        index.remove(Slot(c));
        assert_eq!(index.min(), Some((Slot(a), 40.0)));
        assert_eq!(index.len(), 3);
    }

    #[test]
    fn it_agrees_with_a_sorted_list() {
        let (mut index, mut model) = (Tournament::default(), std::collections::BTreeMap::new());
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (slot, key) = ((random >> 33) as u32 % 37, (random >> 40) % 16);
            if random >> 60 < 5 {
                index.remove(Slot(slot));
                model.remove(&slot);
            } else {
                index.set(Slot(slot), key as f64);
                model.insert(slot, key as f64);
            }
            let lowest = model.values().copied().reduce(f64::min);
            assert_eq!(index.min().map(|(_, key)| key), lowest);
            assert_eq!(index.min().and_then(|(slot, _)| model.get(&slot.0).copied()), lowest);
            assert_eq!(index.len(), model.len());
        }
    }

    #[test]
    fn what_is_set_to_one_key_goes_round() {
        let mut index = Tournament::default();
        set(&mut index, &[(0, 1.0), (1, 1.0), (2, f64::NAN), (3, 1.0)]);
        let mut turn = || {
            let slot = index.min().map(|(slot, _)| slot);
            slot.into_iter().for_each(|slot| index.set(slot, 1.0));
            slot.map(|slot| slot.0)
        };
        assert_eq!([(); 6].map(|()| turn()), [0, 1, 3, 0, 1, 3].map(Some));
    }
}
