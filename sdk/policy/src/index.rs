//! Indexes over targets: [`Tournament`] for the best one, [`WeightedDraw`] for one in proportion to
//! its weight, [`PerSlot`] for what a strategy remembers of each.
//!
//! Invariant: every operation costs O(log n) at most, in the highest slot seen; nothing allocates but
//! the first use of a higher slot.

use crate::{Slot, math};

/// What a tournament ranks.
pub trait Key: Copy + Default + PartialOrd {
    /// The key with infinity, the last of all, instead of NaN.
    #[must_use]
    fn ordered(self) -> Self;
}

impl Key for f64 {
    fn ordered(self) -> Self {
        if self.is_nan() { Self::INFINITY } else { self }
    }
}

/// The second ranks where the first is equal.
impl Key for (f64, f64) {
    fn ordered(self) -> Self {
        (self.0.ordered(), self.1.ordered())
    }
}

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
pub struct Tournament<K = f64> {
    /// The leaves, by slot; a power of two of them.
    entries: Vec<Entry<K>>,
    /// Winners by node: 1 is the root, node i has the children 2i and 2i + 1, and the nodes from
    /// `entries.len()` on are the leaves themselves and not stored.
    winners: Vec<u32>,
    turn: u64,
    len: usize,
}

/// A key and when it was set; `NEVER`: the slot is not in.
#[derive(Debug, Clone, Copy)]
struct Entry<K> {
    key: K,
    turn: u64,
}

const NEVER: u64 = u64::MAX;

impl<K: Key> Entry<K> {
    fn is_in(self) -> bool {
        self.turn != NEVER
    }

    fn beats(self, other: Self) -> bool {
        let is_first = self.key < other.key || (self.key <= other.key && self.turn < other.turn);
        self.is_in() && (is_first || !other.is_in())
    }
}

impl<K: Key> Tournament<K> {
    /// Sets a slot's key; NaN counts as infinity, the last of all.
    pub fn set(&mut self, slot: Slot, key: K) {
        self.grow(slot.index() + 1);
        self.len += usize::from(!self.entries[slot.index()].is_in());
        self.turn += 1;
        self.entries[slot.index()] = Entry { key: key.ordered(), turn: self.turn };
        self.play(slot.index());
    }

    /// Starts anew with these, in this order of turns. Cost O(n): an update in which everything changes
    /// has a deadline.
    pub fn fill(&mut self, keys: impl IntoIterator<Item = (Slot, K)>) {
        self.entries.iter_mut().for_each(|entry| entry.turn = NEVER);
        self.len = 0;
        for (slot, key) in keys {
            if slot.index() >= self.entries.len() {
                let leaves = (slot.index() + 1).next_power_of_two().max(2);
                self.entries.resize(leaves, Entry { key: K::default(), turn: NEVER });
            }
            self.turn += 1;
            self.len += usize::from(!self.entries[slot.index()].is_in());
            self.entries[slot.index()] = Entry { key: key.ordered(), turn: self.turn };
        }
        self.play_all();
    }

    /// Sets a slot's key as a report tells it: a slot that has this key already keeps its turn, or
    /// of equal keys the one that reported longest ago would win.
    pub fn refresh(&mut self, slot: Slot, key: K) {
        if self.get(slot) != Some(key.ordered()) {
            self.set(slot, key);
        }
    }

    /// Takes a slot out, if it is in.
    pub fn remove(&mut self, slot: Slot) {
        if self.get(slot).is_some() {
            self.len -= 1;
            self.entries[slot.index()].turn = NEVER;
            self.play(slot.index());
        }
    }

    /// The slot with the lowest key, and the key. Cost O(1).
    #[must_use]
    pub fn min(&self) -> Option<(Slot, K)> {
        let winner = Slot(*self.winners.get(1)?);
        Some((winner, self.get(winner)?))
    }

    /// A slot's key.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<K> {
        let entry = *self.entries.get(slot.index())?;
        entry.is_in().then_some(entry.key)
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
        if slots <= self.entries.len() {
            return;
        }
        let leaves = slots.next_power_of_two().max(2);
        self.entries.resize(leaves, Entry { key: K::default(), turn: NEVER });
        self.play_all();
    }

    /// Plays every match.
    fn play_all(&mut self) {
        self.winners.clear();
        self.winners.resize(self.entries.len(), 0);
        for node in (1..self.entries.len()).rev() {
            self.winners[node] = self.winner(node);
        }
    }

    /// Who wins at a node, by its children.
    fn winner(&self, node: usize) -> u32 {
        let (left, right) = (self.at(2 * node), self.at(2 * node + 1));
        let is_right = self.entries[right as usize].beats(self.entries[left as usize]);
        if is_right { right } else { left }
    }

    /// Plays a leaf's matches again, up to the root or to where another slot won before and wins again:
    /// nothing changes above. What only falls behind is placed in O(1) on average.
    fn play(&mut self, leaf: usize) {
        let leaf = u32::try_from(leaf).unwrap_or(u32::MAX);
        let (mut winner, mut best) = (leaf, self.entries[leaf as usize]);
        let mut node = self.entries.len() + leaf as usize;
        while node > 1 {
            let rival = self.at(node ^ 1);
            let other = self.entries[rival as usize];
            if other.beats(best) {
                (winner, best) = (rival, other);
            }
            node /= 2;
            let before = std::mem::replace(&mut self.winners[node], winner);
            if before == winner && winner != leaf {
                break;
            }
        }
    }

    /// Who stands at a node.
    fn at(&self, node: usize) -> u32 {
        match node.checked_sub(self.entries.len()) {
            Some(leaf) => u32::try_from(leaf).unwrap_or(u32::MAX),
            None => self.winners[node],
        }
    }
}

/// Slots in proportion to their weights: a binary tree of sums. A sum is always added up anew from
/// the two below it, so that nothing drifts however often a weight changes.
///
/// ```
/// use loadline_sdk::{Slot, index::WeightedDraw};
/// let mut weights = WeightedDraw::default();
/// [1.0, 2.0, 5.0].into_iter().zip(0..).for_each(|(weight, slot)| weights.set(Slot(slot), weight));
/// assert_eq!([0.0, 0.2, 0.5].map(|share| weights.at(share)), [0, 1, 2].map(|slot| Some(Slot(slot))));
/// weights.set(Slot(2), 0.0);
/// assert_eq!(weights.at(0.5), Some(Slot(1)));
/// ```
#[derive(Debug, Clone, Default)]
pub struct WeightedDraw {
    /// By node: 1 is the root, node i has the children 2i and 2i + 1, and the upper half are the
    /// leaves, by slot.
    sums: Vec<f64>,
}

/// So that no sum is infinite: 2^32 slots of it are not.
const WEIGHT_MAX: f64 = 1e290;

impl WeightedDraw {
    /// Sets a slot's weight, at most 1e290; 0, a negative one or NaN: it is not drawn.
    pub fn set(&mut self, slot: Slot, weight: f64) {
        self.grow(slot.index() + 1);
        let mut node = self.sums.len() / 2 + slot.index();
        let weight = if weight > 0.0 { weight.min(WEIGHT_MAX) } else { 0.0 };
        if self.sums[node].to_bits() == weight.to_bits() {
            return;
        }
        self.sums[node] = weight;
        while node > 1 {
            node /= 2;
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
        }
    }

    /// Takes a slot out, if it is in.
    pub fn remove(&mut self, slot: Slot) {
        if self.get(slot) > 0.0 {
            self.set(slot, 0.0);
        }
    }

    /// A slot's weight, 0 where none was set.
    #[must_use]
    pub fn get(&self, slot: Slot) -> f64 {
        self.sums.get(self.sums.len() / 2 + slot.index()).copied().unwrap_or(0.0)
    }

    /// The sum of all weights. Cost O(1).
    #[must_use]
    pub fn total(&self) -> f64 {
        self.sums.get(1).copied().unwrap_or(0.0)
    }

    /// The slot that a share of the total falls on, 0 <= share < 1, when the weights are laid end to
    /// end in slot order.
    #[must_use]
    pub fn at(&self, share: f64) -> Option<Slot> {
        if self.total() <= 0.0 {
            return None;
        }
        let (mut node, mut point) = (1, share * self.total());
        while 2 * node < self.sums.len() {
            node *= 2;
            let (left, right) = (self.sums[node], self.sums[node + 1]);
            // Rounding may push the point past the end, and must not reach a weight of 0 there.
            if point >= left && right > 0.0 {
                point -= left;
                node += 1;
            }
        }
        u32::try_from(node - self.sums.len() / 2).ok().map(Slot)
    }

    /// A slot drawn with 64 random bits.
    #[must_use]
    pub fn draw(&self, random: u64) -> Option<Slot> {
        self.at(math::unit(random))
    }

    /// Makes room for so many slots.
    fn grow(&mut self, slots: usize) {
        let (had, leaves) = (self.sums.len() / 2, slots.next_power_of_two().max(2));
        if slots <= had {
            return;
        }
        let weights = self.sums.split_off(had);
        self.sums = vec![0.0; leaves];
        self.sums.extend(weights);
        self.sums.resize(2 * leaves, 0.0);
        for node in (1..leaves).rev() {
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
        }
    }
}

/// What a strategy remembers of targets, by slot.
///
/// ```
/// use loadline_sdk::{Slot, index::PerSlot};
/// let mut seen = PerSlot::default();
/// seen.set(Slot(2), "two");
/// assert_eq!((seen.get(Slot(1)), seen.get(Slot(2))), (None, Some(&"two")));
/// assert_eq!(seen.remove(Slot(2)), Some("two"));
/// ```
#[derive(Debug, Clone)]
pub struct PerSlot<T>(Vec<Option<T>>);

impl<T> Default for PerSlot<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PerSlot<T> {
    /// What is remembered of a slot.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.0.get(slot.index())?.as_ref()
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.0.get_mut(slot.index())?.as_mut()
    }

    /// Everything that is remembered, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        (0..).map(Slot).zip(&self.0).filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }

    /// Everything that is remembered, in slot order, to change it.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut T)> {
        let all = (0..).map(Slot).zip(&mut self.0);
        all.filter_map(|(slot, value)| Some((slot, value.as_mut()?)))
    }

    /// The highest slot so far, plus one.
    #[must_use]
    pub fn end(&self) -> usize {
        self.0.len()
    }

    /// Remembers this from now on.
    pub fn set(&mut self, slot: Slot, value: T) {
        if self.0.len() <= slot.index() {
            self.0.resize_with(slot.index() + 1, || None);
        }
        self.0[slot.index()] = Some(value);
    }

    /// Forgets a slot; what was remembered of it.
    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        self.0.get_mut(slot.index())?.take()
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
    fn filled_at_once_or_one_by_one_it_is_the_same() {
        let keys = [(5, 2.0), (0, 1.0), (9, 1.0), (3, f64::NAN)];
        let (mut one_by_one, mut filled) = (Tournament::default(), Tournament::default());
        set(&mut filled, &[(1, 0.0), (40, 0.5)]); // gone afterwards
        set(&mut one_by_one, &keys);
        filled.fill(keys.map(|(slot, key)| (Slot(slot), key)));
        for _ in 0..5 {
            assert_eq!((filled.min(), filled.len()), (one_by_one.min(), one_by_one.len()));
            for index in [&mut filled, &mut one_by_one] {
                let lowest = index.min();
                lowest.into_iter().for_each(|(slot, _)| index.remove(slot));
            }
        }
        assert!(filled.is_empty());
        filled.fill([]);
        assert_eq!(Tournament::<f64>::default().min(), filled.min());
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
    #[test]
    fn pairs_rank_by_the_second_where_the_first_is_equal() {
        let mut index = Tournament::default();
        index.set(Slot(0), (1.0, 2.0));
        index.set(Slot(1), (1.0, 1.0));
        index.set(Slot(2), (f64::NAN, 0.0));
        assert_eq!(index.min(), Some((Slot(1), (1.0, 1.0))));
        index.remove(Slot(1));
        index.remove(Slot(0));
        assert_eq!(index.min(), Some((Slot(2), (f64::INFINITY, 0.0))));
    }

    #[test]
    fn refreshed_with_the_same_key_a_slot_keeps_its_turn() {
        let mut index = Tournament::default();
        set(&mut index, &[(0, 1.0), (1, 1.0)]);
        index.refresh(Slot(0), 1.0);
        assert_eq!(index.min(), Some((Slot(0), 1.0)));
        index.refresh(Slot(0), 2.0);
        index.refresh(Slot(0), 1.0);
        assert_eq!(index.min(), Some((Slot(1), 1.0)));
    }

    #[test]
    fn draws_agree_with_weights_laid_end_to_end() {
        let (mut index, mut model) = (WeightedDraw::default(), [0_u32; 37]);
        for random in math::draws(1).take(20_000) {
            let (slot, weight) = (random % 37, (random >> 32) % 6);
            let slot = Slot(u32::try_from(slot).unwrap());
            model[slot.index()] = u32::try_from(weight).unwrap();
            index.set(slot, weight as f64);
            let total: u32 = model.iter().sum();
            assert_eq!(index.total().to_bits(), f64::from(total).to_bits());
            let share = math::unit(math::mix(random));
            let mut left = share * f64::from(total);
            let drawn = (0..).zip(model).find(|(_, weight)| {
                left -= f64::from(*weight);
                left < 0.0
            });
            assert_eq!(index.at(share), drawn.map(|(slot, _)| Slot(slot)));
        }
    }

    #[test]
    fn what_has_no_weight_is_never_drawn_even_at_the_edges() {
        let mut index = WeightedDraw::default();
        assert_eq!(index.draw(7), None);
        for (slot, weight) in (0..).zip([0.0, f64::NAN, f64::MAX, 1e-300, f64::INFINITY, -1.0]) {
            index.set(Slot(slot), weight);
        }
        for share in [0.0, 0.5, f64::from_bits(1.0_f64.to_bits() - 1), 1.0] {
            assert!(matches!(index.at(share), Some(Slot(2..=4))), "{share}");
        }
        (2..5).for_each(|slot| index.remove(Slot(slot)));
        assert_eq!(index.draw(7), None);
    }
}
