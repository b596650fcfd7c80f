//! Water filling: draws a target in proportion to what it is below the level that the picks of all
//! hosts will have filled.
//!
//! Invariant: the targets below the level are found once in a while, after a share of the pool has
//! changed, so that a draw costs O(1) on average; a draw itself goes by what is known now.

use loadline_sdk::{Slot, math};

/// The level is found again after this share of the targets has changed.
const CHANGED_SHARE: usize = 4;
/// A height that a step changes by less than this is found.
const NEAR: f64 = 0.02;
/// 2^32, the end of what 32 random bits say.
const RANDOM_END: f64 = 4_294_967_296.0;
/// Draws before the best one is taken instead.
const TRIES: usize = 16;

/// Eligible targets, and which of them are below the level.
#[derive(Debug, Default)]
pub(crate) struct Level {
    /// By slot.
    queues: Vec<Queue>,
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

/// When a target is free, and how many requests it takes a millisecond; 0: it may not be chosen.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    free_ms: f64,
    rate: f64,
}

impl Level {
    /// An eligible target is free at this time and takes so many requests a millisecond.
    pub(crate) fn set(&mut self, slot: Slot, free_ms: f64, rate: f64) {
        if self.queues.len() <= slot.index() {
            self.queues.resize(slot.index() + 1, Queue::default());
        }
        self.queues[slot.index()] = Queue { free_ms, rate };
        self.changes += 1;
    }

    /// A target that is in has more to do: until this time.
    pub(crate) fn work(&mut self, slot: Slot, free_ms: f64) {
        if let Some(queue) = self.queues.get_mut(slot.index()) {
            queue.free_ms = free_ms;
            self.changes += 1;
        }
    }

    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some(queue) = self.queues.get_mut(slot.index()) {
            *queue = Queue::default();
            self.changes += 1;
        }
    }

    /// A target drawn by how far it is below the level at which `picks` more requests fit in.
    pub(crate) fn draw(&mut self, now_ms: f64, picks: f64, random: u64) -> Option<Slot> {
        let is_old = self.changes > self.queues.len() / CHANGED_SHARE || now_ms >= self.level_ms;
        if self.below.is_empty() || is_old {
            self.find(now_ms, picks);
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
            let Queue { free_ms, rate } = self.queues[slot.index()];
            let room = rate * (self.level_ms - later(free_ms, now_ms));
            if f64::from(share) * most < room * RANDOM_END {
                return Some(*slot);
            }
            if room > 0.0 {
                last = Some(*slot);
            } else {
                self.below.swap_remove(place as usize);
            }
        }
        last.or_else(|| self.first(now_ms))
    }

    /// The one that would be done first with one more request. Cost O(n): only when the draws found
    /// nobody below the level.
    fn first(&self, now_ms: f64) -> Option<Slot> {
        let finish_ms = |queue: &Queue| queue.free_ms.max(now_ms) + 1.0 / queue.rate;
        let targets = (0..).map(Slot).zip(&self.queues).filter(|(_, queue)| queue.rate > 0.0);
        let first = targets.min_by(|a, b| finish_ms(a.1).total_cmp(&finish_ms(b.1)));
        first.map(|(slot, _)| slot)
    }

    /// The level: the sum of rate × (level - free) over all targets below it is `picks`. Cost O(n).
    ///
    /// Newton's method on a convex function of the height, which comes from above after its first
    /// step. It starts from the last height: in a large pool, where heights change little, one look at
    /// all targets is mostly enough.
    fn find(&mut self, now_ms: f64, picks: f64) {
        let mut height = self.height_ms;
        loop {
            let next = self.find_below(height, now_ms, picks);
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
    fn find_below(&mut self, height: f64, now_ms: f64, picks: f64) -> f64 {
        let Self { queues, below, .. } = self;
        below.resize(queues.len(), Slot(0));
        let (mut filled, mut rates, mut len) = (picks, 0.0, 0);
        let (mut deepest, mut fastest) = (0, 0);
        for (slot, Queue { free_ms, rate }) in (0..).map(Slot).zip(&*queues) {
            let delay = f64::from_bits(bits(free_ms - now_ms).max(0).cast_unsigned());
            let is_below = (delay < height) & (*rate > 0.0);
            let rate = rate * f64::from(u8::from(is_below));
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

/// The larger of two numbers that are numbers.
fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
