//! Water filling: draws a target in proportion to what it is below the level that the picks of all
//! hosts will have filled.
//!
//! Invariant: the targets below the level are found once in a while, after a share of the pool has
//! changed, so that a draw costs O(1) on average; a draw itself goes by what is known now.

use loadline_sdk::{Slot, math};

/// The level is found again after this share of the targets has changed.
const CHANGED_SHARE: usize = 4;
/// How much higher the level may be than the last one, to be found among fewer targets.
const NEAR: f64 = 1.25;
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
    /// The most room that one of them had.
    deepest: f64,
    /// How high above its time the level was when it was found.
    height_ms: f64,
    /// Changes since it was found.
    changes: usize,
    /// Delay and rate of those that may be below, while the level is looked for.
    candidates: Vec<(f64, f64, Slot)>,
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
        let (mut random, mut last) = (random, None);
        for _ in 0..TRIES {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (share, place) = math::halves(random);
            let place = (u64::from(place) * self.below.len() as u64) >> 32;
            let Some(slot) = usize::try_from(place).ok().and_then(|at| self.below.get(at)) else {
                break;
            };
            let Queue { free_ms, rate } = self.queues[slot.index()];
            let room = rate * (self.level_ms - free_ms.max(now_ms));
            if f64::from(share) * self.deepest < room * RANDOM_END {
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
    fn find(&mut self, now_ms: f64, picks: f64) {
        // Mostly it is near the last one, and those far above need not be looked at twice.
        let near = NEAR * self.height_ms;
        if !self.find_below(near, now_ms, picks) {
            self.find_below(f64::INFINITY, now_ms, picks);
        }
        self.level_ms = now_ms + self.height_ms;
        self.changes = 0;
        self.below.clear();
        self.deepest = 0.0;
        for (delay, rate, slot) in &self.candidates {
            self.deepest = self.deepest.max(rate * (self.height_ms - delay));
            self.below.push(*slot);
        }
    }

    /// The height and the `candidates` below it, if it is not above `near`. Newton's method from above
    /// on a convex function: it falls to the root in a few steps.
    fn find_below(&mut self, near: f64, now_ms: f64, picks: f64) -> bool {
        self.candidates.clear();
        let (mut filled, mut rates) = (picks, 0.0);
        for (slot, queue) in (0..).map(Slot).zip(&self.queues) {
            let delay = (queue.free_ms - now_ms).max(0.0);
            if delay < near && queue.rate > 0.0 {
                (filled, rates) = (filled + delay * queue.rate, rates + queue.rate);
                self.candidates.push((delay, queue.rate, slot));
            }
        }
        let mut height = f64::INFINITY;
        while !self.candidates.is_empty() && filled / rates < height {
            height = filled / rates;
            if height > near {
                return false;
            }
            (filled, rates) = (picks, 0.0);
            self.candidates.retain(|(delay, rate, _)| {
                let is_below = *delay < height;
                if is_below {
                    (filled, rates) = (filled + delay * rate, rates + rate);
                }
                is_below
            });
        }
        self.height_ms = height;
        height.is_finite()
    }
}
