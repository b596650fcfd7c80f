//! What a decoder remembers from one report to the next: lists of metric names, by their bytes in a
//! payload, and memory for values.
//!
//! A list that begins with the bytes of one that was read before is that one, because where a list of
//! MessagePack ends follows from its own bytes. So it need not be read, checked and compared again.
//! Invariants: every list that is remembered is of at most [`METRICS_MAX`] good names; there are at most
//! [`LISTS_MAX`], and each [`allowance`](Memory::allow) lets at most one more in, so that a flood of
//! ever new lists costs little and those of the farm come back soon.

use std::sync::Arc;

use super::super::{METRICS_MAX, MetricNames, is_name};

/// Lists remembered: farms have a few makes of machines.
const LISTS_MAX: usize = 64;
/// Vectors of values kept for the next reports at most.
const SPARE_MAX: usize = 256;

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Memory {
    lists: Vec<List>,
    /// The list that was asked for last, and the one that the next new one replaces when all are there.
    last: usize,
    oldest: usize,
    /// Whether a new list may come in.
    may_learn: bool,
    /// Empty.
    spare: Vec<Vec<f64>>,
}

#[derive(Debug)]
struct List {
    bytes: Box<[u8]>,
    names: MetricNames,
}

impl Memory {
    /// Lets one more list in.
    pub(super) fn allow(&mut self) {
        self.may_learn = true;
    }

    /// The list with which a payload goes on, if it is remembered, and the bytes after it.
    pub(super) fn recall<'a>(&mut self, payload: &'a [u8]) -> Option<(MetricNames, &'a [u8])> {
        let after = |list: &List| payload.strip_prefix(&*list.bytes);
        if let Some((list, rest)) = self.lists.get(self.last).and_then(|l| Some((l, after(l)?))) {
            return Some((Arc::clone(&list.names), rest));
        }
        let (place, rest) =
            self.lists.iter().enumerate().find_map(|(place, list)| Some((place, after(list)?)))?;
        self.last = place;
        Some((Arc::clone(&self.lists[place].names), rest))
    }

    /// Remembers a list that was read from these bytes, if it may and the names are good.
    pub(super) fn learn(&mut self, bytes: &[u8], names: &[&str]) -> Option<MetricNames> {
        let is_good = names.len() <= METRICS_MAX && names.iter().all(|name| is_name(name));
        if !self.may_learn || !is_good {
            return None;
        }
        self.may_learn = false;
        // The same names may have been written another way.
        let is_same =
            |list: &&List| list.names.iter().map(|name| &**name).eq(names.iter().copied());
        let known = self.lists.iter().find(is_same).map(|list| Arc::clone(&list.names));
        let names = known.unwrap_or_else(|| names.iter().map(|name| (*name).into()).collect());
        let list = List { bytes: bytes.into(), names: Arc::clone(&names) };
        if self.lists.len() < LISTS_MAX {
            self.lists.push(list);
        } else {
            self.lists[self.oldest] = list;
            self.oldest = (self.oldest + 1) % LISTS_MAX;
        }
        Some(names)
    }

    /// An empty vector, with memory of an earlier one where there is any.
    pub(super) fn values(&mut self) -> Vec<f64> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the memory of values that were used.
    pub(super) fn reuse(&mut self, values: &mut Vec<f64>) {
        if values.capacity() > 0 && self.spare.len() < SPARE_MAX {
            values.clear();
            self.spare.push(std::mem::take(values));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of one name, as it stands in a payload.
    fn list(name: &str) -> Vec<u8> {
        let length = u8::try_from(name.len()).expect("a short name");
        [&[0x91, 0xd9, length], name.as_bytes()].concat()
    }

    #[test]
    fn a_flood_of_new_lists_is_bounded_and_takes_turns() {
        let mut memory = Memory::default();
        assert_eq!(memory.learn(&list("m"), &["m"]), None, "it may not yet");
        for number in 0..10 * LISTS_MAX {
            let name = format!("m{number}");
            memory.allow();
            assert!(memory.learn(&list(&name), &[&name]).is_some());
            assert!(memory.learn(&list("one more"), &["one more"]).is_none());
            assert!(memory.recall(&list(&name)).is_some());
        }
        assert_eq!(memory.lists.len(), LISTS_MAX);
        let is_known = |number: usize| memory.recall(&list(&format!("m{number}"))).is_some();
        let known: Vec<_> = (0..10 * LISTS_MAX).map(is_known).collect();
        let (old, new) = known.split_at(9 * LISTS_MAX);
        assert!(old.iter().all(|known| !known) && new.iter().all(|known| *known));
    }

    #[test]
    fn names_are_shared_however_they_are_written_and_only_good_ones() {
        let mut memory = Memory::default();
        memory.allow();
        let long = memory.learn(&list("cpu"), &["cpu"]).expect("a good list");
        memory.allow();
        let short = memory.learn(b"\x91\xa3cpu", &["cpu"]).expect("a good list");
        assert!(Arc::ptr_eq(&long, &short));
        memory.allow();
        assert_eq!(memory.learn(&list("a\nb"), &["a\nb"]), None);
        assert_eq!(memory.learn(&list(""), &[""]), None);
        // Bytes that only begin as a list does are not it, and what follows one is left.
        assert!(memory.recall(b"\x91\xa3cp").is_none());
        assert!(memory.recall(b"\x92\xa3cpu\xa1b").is_none());
        let (names, rest) = memory.recall(b"\x91\xa3cpu\x90").expect("known");
        assert_eq!((&*names[0], rest), ("cpu", &b"\x90"[..]));
    }

    #[test]
    fn memory_of_values_is_used_again_and_bounded() {
        let mut memory = Memory::default();
        (0..2 * SPARE_MAX).for_each(|_| memory.reuse(&mut vec![0.5; 3]));
        memory.reuse(&mut Vec::new());
        assert_eq!(memory.spare.len(), SPARE_MAX);
        let values = memory.values();
        assert!(values.is_empty() && values.capacity() >= 3);
    }
}
