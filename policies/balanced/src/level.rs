//! Water filling: draws a target in proportion to what it is below the level that the picks of all
//! hosts will have filled.
//!
//! Invariant: the targets below the level are found once in a while, after a share of the pool has
//! changed, so that a draw costs O(1) on average; a draw itself goes by what is known now.

use loadline_sdk::{Slot, math};

use super::backlog::{Backlog, later};

/// The level is found again after this share of the targets has changed.
const CHANGED_SHARE: usize = 4;
/// A height that a step changes by less than this is found.
const NEAR: f64 = 0.02;
/// 2^32, the end of what 32 random bits say.
const RANDOM_END: f64 = 4_294_967_296.0;
/// Draws before the best one is taken instead.
const TRIES: usize = 16;

/// Which of the targets are below the level.
#[derive(Debug, Default)]
pub(crate) struct Level {
    level_ms: f64,
    /// Those that may still have room.
    below: Vec<Slot>,
    /// The most room that one of them had, and the highest rate: no room is more than either allows.
    deepest: f64,
    fastest: f64,
    /// How high above its time the level was when it was found.
    height_ms: f64,
    /// Changes since it was found.
    changes: usize,
}

impl Level {
    /// A target's backlog is another one.
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// A target drawn by how far it is below the level at which `picks` more requests fit in.
    pub(crate) fn draw(
        &mut self,
        targets: &[Backlog],
        now_ms: f64,
        picks: f64,
        random: u64,
    ) -> Option<Slot> {
        let is_old = self.changes > targets.len() / CHANGED_SHARE || now_ms >= self.level_ms;
        if self.below.is_empty() || is_old {
            self.find(targets, now_ms, picks);
        }
        // Room shrinks with time, so that draws by what it was would miss more and more.
        let most = self.deepest.min(self.fastest * (self.level_ms - now_ms));
        let (mut random, mut last) = (random, None);
        for _ in 0..TRIES {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (share, place) = math::halves(random);
            let place = (u64::from(place) * self.below.len() as u64) >> 32;
            let Some(slot) = usize::try_from(place).ok().and_then(|at| self.below.get(at)) else {
                break;
            };
            let Some(target) = targets.get(slot.index()) else { break };
            let room = target.rate * (self.level_ms - later(target.free_ms, now_ms));
            if f64::from(share) * most < room * RANDOM_END {
                return Some(*slot);
            }
            if room > 0.0 {
                last = Some(*slot);
            } else {
                self.below.swap_remove(place as usize);
            }
        }
        last.or_else(|| first(targets, now_ms))
    }

    /// The level: the sum of rate × (level - free) over all targets below it is `picks`. Cost O(n).
    ///
    /// Newton's method on a convex function of the height, which comes from above after its first
    /// step. It starts from the last height: in a large pool, where heights change little, one look at
    /// all targets is mostly enough.
    fn find(&mut self, targets: &[Backlog], now_ms: f64, picks: f64) {
        let mut height = self.height_ms;
        loop {
            let next = self.find_below(targets, height, now_ms, picks);
            let is_found = (next - height).abs() <= NEAR * next;
            let is_nobody = height.is_infinite() && next.is_infinite();
            height = next;
            if is_found || is_nobody {
                break;
            }
        }
        (self.height_ms, self.level_ms) = (height, now_ms + height);
        self.changes = 0;
    }

    /// Finds those below a height, and the next one: infinite, if nobody is below.
    ///
    /// No branch depends on a target, because the processor would guess every other one wrong: who is
    /// not below counts with a rate of 0. A choice between floating-point numbers would be a branch in
    /// a guest, so that it goes by their bits, which are in order where none is negative.
    fn find_below(&mut self, targets: &[Backlog], height: f64, now_ms: f64, picks: f64) -> f64 {
        let below = &mut self.below;
        below.resize(targets.len(), Slot(0));
        let (mut filled, mut rates, mut len) = (picks, 0.0, 0);
        let (mut deepest, mut fastest) = (0, 0);
        for (slot, target) in (0..).map(Slot).zip(targets) {
            let delay = f64::from_bits(bits(target.free_ms - now_ms).max(0).cast_unsigned());
            let is_below = (delay < height) & (target.rate > 0.0);
            let rate = target.rate * f64::from(u8::from(is_below));
            (filled, rates) = (filled + delay * rate, rates + rate);
            deepest = deepest.max(bits(rate * (height - delay)));
            fastest = fastest.max(bits(rate));
            if let Some(place) = below.get_mut(len) {
                *place = slot;
            }
            len += usize::from(is_below);
        }
        below.truncate(len);
        self.deepest = f64::from_bits(deepest.cast_unsigned());
        self.fastest = f64::from_bits(fastest.cast_unsigned());
        filled / rates
    }
}

/// A number that is negative where this one is.
fn bits(number: f64) -> i64 {
    number.to_bits().cast_signed()
}

/// The one that would be done first with one more request. Cost O(n): only when the draws found nobody
/// below the level.
fn first(targets: &[Backlog], now_ms: f64) -> Option<Slot> {
    let offered = (0..).map(Slot).zip(targets).filter(|(_, target)| target.rate > 0.0);
    let first = offered.min_by(|a, b| a.1.finish_ms(now_ms).total_cmp(&b.1.finish_ms(now_ms)));
    first.map(|(slot, _)| slot)
}
