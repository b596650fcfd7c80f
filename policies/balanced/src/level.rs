//! Water filling: draws a target in proportion to what it is below the level that the picks of all
//! hosts will have filled.
//!
//! Invariant: the targets below the level are found once in a while, after a share of the pool has
//! changed, so that a draw costs O(1) on average; a draw itself goes by what is known now.

use loadline_sdk::Slot;

/// Fewer unseen picks than this are none.
pub(crate) const ALONE: f64 = 0.05;
/// The level is found again after this share of the targets has changed.
const CHANGED_SHARE: usize = 8;
/// Draws before the best one is taken instead.
const TRIES: usize = 16;

/// The targets below the level.
#[derive(Debug, Default)]
pub(crate) struct Level {
    level_ms: f64,
    below: Vec<Slot>,
    deepest: f64,
    /// Changes since it was found.
    changes: usize,
}

impl Level {
    /// So many targets have changed.
    pub(crate) fn spoil(&mut self, changes: usize) {
        self.changes = self.changes.saturating_add(changes);
    }

    pub(crate) fn clear(&mut self) {
        self.below.clear();
    }

    /// A target drawn by how far it is below the level at which `picks` more requests fit in.
    /// `slots` is above all slots of the pool's `targets`;
    /// `backlog` tells when a target is free and how many requests it takes a millisecond.
    pub(crate) fn draw(
        &mut self,
        now_ms: f64,
        picks: f64,
        (targets, slots): (usize, usize),
        random: u64,
        backlog: impl Fn(Slot) -> Option<(f64, f64)>,
    ) -> Option<Slot> {
        let is_old = self.changes > targets / CHANGED_SHARE || now_ms >= self.level_ms;
        if self.below.is_empty() || is_old {
            self.find(now_ms, picks, slots, &backlog);
        }
        let (mut random, mut last) = (random, None);
        for _ in 0..TRIES {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let place = scale(random >> 32, self.below.len())?;
            let slot = *self.below.get(place)?;
            let Some((free_ms, rate)) = backlog(slot) else { continue };
            let room = rate * (self.level_ms - free_ms.max(now_ms));
            let share = (random & 0xffff_ffff) as f64 / 4_294_967_296.0;
            if share * self.deepest < room {
                return Some(slot);
            }
            if room > 0.0 {
                last = Some(slot);
            }
        }
        last
    }

    /// The level: the sum of rate × (level - free) over all targets below it is `picks`. Newton's
    /// method from above on a convex function: it falls to the root in a few steps.
    fn find(
        &mut self,
        now_ms: f64,
        picks: f64,
        slots: usize,
        backlog: impl Fn(Slot) -> Option<(f64, f64)>,
    ) {
        let slots = 0..u32::try_from(slots).unwrap_or(u32::MAX);
        let mut below: Vec<_> = slots
            .filter_map(|slot| {
                let (free_ms, rate) = backlog(Slot(slot))?;
                Some((Slot(slot), (free_ms - now_ms).max(0.0), rate))
            })
            .collect();
        let mut level = f64::INFINITY;
        loop {
            let sums = below.iter().fold((picks, 0.0), |(filled, rates), (_, delay, rate)| {
                (filled + delay * rate, rates + rate)
            });
            let next = sums.0 / sums.1;
            if next >= level || below.is_empty() {
                break;
            }
            level = next;
            below.retain(|(_, delay, _)| *delay < level);
        }
        let room = |delay: f64, rate: f64| rate * (level - delay);
        self.deepest =
            below.iter().fold(0.0, |deepest, (_, delay, rate)| room(*delay, *rate).max(deepest));
        self.level_ms = now_ms + level;
        self.below.clear();
        self.below.extend(below.iter().map(|(slot, _, _)| *slot));
        self.changes = 0;
    }
}

/// A place below `len`, from 32 random bits.
fn scale(random: u64, len: usize) -> Option<usize> {
    usize::try_from((random * len as u64) >> 32).ok()
}
