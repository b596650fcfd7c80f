//! What was refused lately, for people: by source, reason and machine, with the last one's details.
//!
//! Bounded: with [`KINDS_MAX`] kinds of refusals known a new one takes the place of one that has not
//! come for a while, or is counted by its reason only.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Kinds of refusals that are remembered at most.
const KINDS_MAX: usize = 256;
/// A refusal that has not come for so long makes room for another, in milliseconds.
const STALE_MS: u64 = 60_000;

/// Who was refused, why, and in whose name if that is known.
pub type Kind = (IpAddr, &'static str, Option<Box<str>>);

/// Refusals of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// How many.
    pub count: u64,
    /// When the last one came, milliseconds of the host's clock.
    pub last_ms: u64,
    /// What was wrong with the last one.
    pub detail: String,
}

/// All that was refused.
#[derive(Debug, Default)]
pub struct Refused {
    kinds: BTreeMap<Kind, Refusal>,
    /// When room was last looked for: a flood must not make that the work.
    cleared_ms: u64,
}

impl Refused {
    /// Counts a refusal.
    pub(super) fn add(&mut self, kind: Kind, now_ms: u64, detail: impl FnOnce() -> String) {
        if let Some(refusal) = self.kinds.get_mut(&kind) {
            refusal.count += 1;
            // Details may be long in the making: each second is often enough.
            if now_ms.saturating_sub(refusal.last_ms) >= 1_000 {
                refusal.detail = detail();
            }
            refusal.last_ms = now_ms;
            return;
        }
        if self.kinds.len() >= KINDS_MAX && now_ms.saturating_sub(self.cleared_ms) >= 1_000 {
            self.cleared_ms = now_ms;
            self.kinds.retain(|_, refusal| now_ms.saturating_sub(refusal.last_ms) < STALE_MS);
        }
        if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(kind, Refusal { count: 1, last_ms: now_ms, detail: detail() });
        }
    }

    /// Every kind, by source.
    pub fn kinds(&self) -> impl Iterator<Item = (&Kind, &Refusal)> {
        self.kinds.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(source: u32) -> Kind {
        (IpAddr::from(source.to_be_bytes()), "foreign", None)
    }

    #[test]
    fn a_flood_of_sources_is_bounded_and_old_ones_make_room() {
        let mut refused = Refused::default();
        (0..100_000).for_each(|source| refused.add(kind(source), 5, || "junk".to_owned()));
        assert_eq!(refused.kinds().count(), KINDS_MAX);
        refused.add(kind(7), 50_000, || "again".to_owned());
        refused.add(kind(300), STALE_MS + 5, || "new".to_owned());
        let counts: Vec<_> = refused.kinds().map(|(_, of)| (of.count, &*of.detail)).collect();
        assert_eq!(counts, [(2, "again"), (1, "new")]);
    }
}
