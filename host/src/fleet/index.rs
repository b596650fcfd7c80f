//! Machines by their names: a hash and a number a machine, while the names lie in the rows.
//!
//! Where the hashes of two names are equal, the second is found by its name. So a [`guess`](Index::guess)
//! reads nothing but hashes, and many names can be looked up without waiting for the memory of each row;
//! whoever has a guess compares the name. Invariant: each machine is in one of the two maps.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use super::MachineId;

/// Hashes are hashed already.
#[derive(Debug, Default)]
pub(super) struct AsItIs(u64);

/// Machines by their names.
#[derive(Debug, Default)]
pub(super) struct Index<S = foldhash::fast::RandomState> {
    by_hash: HashMap<u64, MachineId, BuildHasherDefault<AsItIs>>,
    /// Whose hash another one has.
    by_name: HashMap<Box<str>, MachineId, S>,
    hasher: S,
}

impl<S: BuildHasher> Index<S> {
    /// The one machine that may have this name, by its hash.
    pub(super) fn guess(&self, name: &str) -> Option<MachineId> {
        self.by_hash.get(&self.hasher.hash_one(name)).copied()
    }

    /// Whether the guess is right, else the machine that has the name; `name_of` says what one is called.
    pub(super) fn confirm<'m>(
        &self,
        guess: Option<MachineId>,
        name: &str,
        name_of: impl FnOnce(MachineId) -> Option<&'m str>,
    ) -> Option<MachineId> {
        let is_right = |guess: &MachineId| name_of(*guess) == Some(name);
        guess.filter(is_right).or_else(|| {
            if self.by_name.is_empty() { None } else { self.by_name.get(name).copied() }
        })
    }

    /// Adds a machine whose name no other one has.
    pub(super) fn insert(&mut self, name: &str, id: MachineId) {
        match self.by_hash.entry(self.hasher.hash_one(name)) {
            Entry::Vacant(place) => {
                place.insert(id);
            }
            Entry::Occupied(_) => {
                self.by_name.insert(name.into(), id);
            }
        }
    }

    /// Takes out a machine.
    pub(super) fn remove(&mut self, name: &str, id: MachineId) {
        let hash = self.hasher.hash_one(name);
        if self.by_hash.get(&hash) == Some(&id) {
            self.by_hash.remove(&hash);
        } else {
            self.by_name.remove(name);
        }
    }

    /// How many machines.
    pub(super) fn len(&self) -> usize {
        self.by_hash.len() + self.by_name.len()
    }
}

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hashes that are often equal: of a name, its length.
    #[derive(Debug, Default)]
    struct Length(u64);

    impl Hasher for Length {
        fn write(&mut self, bytes: &[u8]) {
            self.0 += bytes.len() as u64;
        }

        fn finish(&self) -> u64 {
            self.0
        }
    }

    proptest! {
        #[test]
        fn finds_each_name_as_a_map_of_names_does(
            steps in prop::collection::vec(("[ab]{1,3}", any::<bool>()), 0..60),
        ) {
            check_like_a_map::<BuildHasherDefault<Length>>(&steps);
            check_like_a_map::<foldhash::fast::RandomState>(&steps);
        }
    }

    /// Names come, or go.
    fn check_like_a_map<S: BuildHasher + Default>(steps: &[(String, bool)]) {
        let (mut index, mut names) = (Index::<S>::default(), Vec::<Option<&str>>::new());
        let mut map = HashMap::new();
        for (name, comes) in steps {
            if *comes && !map.contains_key(&**name) {
                let id = MachineId(u32::try_from(names.len()).expect("few"));
                names.push(Some(name));
                index.insert(name, id);
                map.insert(&**name, id);
            } else if !comes && let Some(id) = map.remove(&**name) {
                index.remove(name, id);
                names[id.index()] = None;
            }
            assert_eq!(index.len(), map.len());
            for (name, _) in steps {
                let found = index.confirm(index.guess(name), name, |id| names[id.index()]);
                assert_eq!(found, map.get(&**name).copied(), "{name}");
            }
        }
    }
}
