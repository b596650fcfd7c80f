//! `balanced`: whoever is free first, as far as reports and own picks tell. The default.
//!
//! It needs no settings, learns how fast targets are, and never does worse than taking turns. What it
//! goes by depends on what targets report:
//!
//! - **Counts** (requests inside, accepted, completed): each target has a *virtual finish time*, when
//!   it will be done with all that it is known to have. A report sets it, an own pick puts one request
//!   on top, and time drains it by itself. The earliest finish wins. How fast a target works is
//!   learned from how far its queue is from the expected one (a Kalman filter of one variable).
//!   Reports that show more requests than this host sent mean that others choose too: then an own
//!   pick counts for all of them, and the choice is drawn among all targets below the level that the
//!   others' picks will have filled meanwhile (water filling: Dahlin, "Interpreting stale load
//!   information", 2000; Goren, Vargaftik and Moses 2020), so that hosts do not herd.
//! - **Only loads**: targets take turns in proportion to their weight (stride scheduling: Waldspurger
//!   and Weihl 1995), and each report moves a target's next turn forward or back by what its load
//!   differs from the mean, in picks and at most one. A pick's cost in load is the mean load over the
//!   picks of a report period, and weights are corrected slowly until loads are alike.
//!
//! Slow start and failures make a target's requests dearer; an unknown load moves nothing. No
//! settings. Cost O(log n) a pick and a changed target; with several hosts and counts O(1) more on
//! average. Figures: `cargo bench -p loadline -- gates`.

mod counted;
mod level;
mod queues;
mod turns;

use loadline_sdk::index::{PerSlot, Tournament};
use loadline_sdk::prelude::*;

use counted::{Counted, Pace};
use queues::Queues;
use turns::{Turn, Turns};

/// The strategy.
#[derive(Debug, Default)]
pub struct Balanced {
    known: PerSlot<Known>,
    /// Eligible targets by their next turn.
    turn: Tournament,
    /// Eligible targets by when they are free, when they work and when they do not.
    queues: Queues,
    by_counts: bool,
    /// Targets known, and how many of them report counts.
    targets: usize,
    counting: usize,
    pace: Pace,
    turns: Turns,
    level: level::Level,
}

/// What is remembered of a target.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    is_eligible: bool,
    reports_counts: bool,
    /// Of the last report, on the host's clock.
    captured_ms: f64,
    /// Own picks so far, and before that capture.
    own: u64,
    own_before: u64,
    /// What a request costs here over what it costs where all is well.
    price: f64,
    counted: Counted,
    turn: Turn,
}

/// A report as both ways of choosing need it.
#[derive(Debug, Clone, Copy)]
struct Heard {
    target: Target,
    captured_ms: f64,
    /// Since the last report.
    elapsed_ms: f64,
    /// Own picks in that time.
    own: f64,
}

impl Strategy for Balanced {
    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        for target in changed.iter().filter_map(|slot| fleet.get(*slot)) {
            self.hear(&target, fleet.now_ms(), fleet.hosts());
        }
        self.level.spoil(changed.len());
        self.choose_by();
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        for slot in slots {
            self.turn.remove(*slot);
            self.queues.remove(*slot);
            if let Some(known) = self.known.remove(*slot) {
                self.targets -= 1;
                self.counting -= usize::from(known.reports_counts);
            }
        }
        self.level.clear();
        self.choose_by();
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let now_ms = request.now_ms as f64;
        let slot = if fleet.is_limited() {
            let key =
                |slot: Slot| self.known.get(slot).map_or(f64::INFINITY, |k| self.key(k, now_ms));
            let slots = fleet.eligible().iter().map(|candidate| candidate.slot);
            slots.min_by(|a, b| key(*a).total_cmp(&key(*b)))?
        } else {
            self.best(request)?
        };
        self.count(slot, request);
        Some(slot)
    }

    fn save(&self) -> Vec<u8> {
        self.pace.save(self.known.iter().map(|(slot, known)| (slot, &known.counted)))
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let Some(learned) = Pace::restore(state) else { return state.is_empty() };
        let (pace, rates) = learned;
        self.pace = pace;
        for (slot, rate) in rates {
            if let Some(known) = self.known.get_mut(slot) {
                known.counted.relearn(rate, &self.pace);
            }
        }
        self.place_all();
        true
    }
}

impl Balanced {
    /// Takes a target's view to what is known of it.
    fn hear(&mut self, target: &Target, now_ms: u64, hosts: u32) {
        let slot = target.slot;
        let is_new = self.known.get(slot).is_none();
        let mut known = self.known.get(slot).copied().unwrap_or_default();
        let counts = target.accepted > 0 || target.completed > 0 || target.in_flight > 0;
        self.targets += usize::from(is_new);
        self.counting += usize::from(counts && !known.reports_counts);
        known.reports_counts |= counts;
        known.price = target.failure_price() * target.weight / target.capacity();
        let captured_ms = now_ms as f64 - f64::from(target.age_ms);
        let returns = target.eligible && !known.is_eligible;
        known.is_eligible = target.eligible;
        // Leases change what is inside without a report.
        if is_new || captured_ms > known.captured_ms || !known.counted.is_same(target) {
            let own_before = known.own.saturating_sub(u64::from(target.picks));
            let heard = Heard {
                target: *target,
                captured_ms,
                elapsed_ms: if is_new { 0.0 } else { (captured_ms - known.captured_ms).max(0.0) },
                own: own_before.saturating_sub(known.own_before) as f64,
            };
            known.counted.hear(&heard, known.reports_counts, &mut self.pace, self.targets, hosts);
            known.turn.hear(&heard, &mut self.turns, self.targets);
            known.captured_ms = captured_ms.max(known.captured_ms);
            known.own_before = own_before;
            known.own = own_before + u64::from(target.picks);
        } else {
            // The same report again: only the host's count of picks may be another, when one was not
            // handed out or other hosts have told of theirs.
            let counted = known.own - known.own_before;
            known.own = known.own_before + u64::from(target.picks);
            known.counted.correct(f64::from(target.picks) - counted as f64, &self.pace);
        }
        if is_new || returns {
            known.turn.join(&self.turns);
        }
        self.known.set(slot, known);
        if known.is_eligible {
            self.place(slot, &known);
        } else {
            self.turn.remove(slot);
            self.queues.remove(slot);
        }
    }

    /// Goes by counts when most targets report them.
    fn choose_by(&mut self) {
        let most = if self.by_counts { self.counting * 4 } else { self.counting * 2 };
        if self.by_counts != (most > self.targets) {
            self.by_counts = !self.by_counts;
            self.place_all();
        }
    }

    /// Puts an eligible target where it is found.
    fn place(&mut self, slot: Slot, known: &Known) {
        if self.by_counts {
            self.queues.set(slot, &known.counted, known.price, &self.pace);
        } else {
            self.turn.refresh(slot, known.turn.next());
        }
    }

    fn place_all(&mut self) {
        self.turn = Tournament::default();
        self.queues = Queues::default();
        self.level.clear();
        let eligible = self.known.iter().filter(|(_, known)| known.is_eligible);
        let eligible: Vec<_> = eligible.map(|(slot, known)| (slot, *known)).collect();
        eligible.iter().for_each(|(slot, known)| self.place(*slot, known));
    }

    /// The lowest is chosen.
    fn key(&self, known: &Known, now_ms: f64) -> f64 {
        if self.by_counts {
            known.counted.finish_ms(now_ms, known.price, &self.pace)
        } else {
            known.turn.next()
        }
    }

    fn best(&mut self, request: &Request) -> Option<Slot> {
        if !self.by_counts {
            return self.turn.min().map(|(slot, _)| slot);
        }
        let now_ms = request.now_ms as f64;
        let unseen = self.pace.unseen_picks();
        if unseen > level::ALONE {
            let backlog = |slot: Slot| {
                let known = self.known.get(slot).filter(|known| known.is_eligible)?;
                Some(known.counted.backlog(known.price, &self.pace))
            };
            let slots = self.known.end();
            let drawn = self.level.draw(now_ms, 1.0 + unseen, slots, request.random, backlog);
            if drawn.is_some() {
                return drawn;
            }
        }
        self.queues.first(now_ms)
    }

    /// The pick is one more request for the target.
    fn count(&mut self, slot: Slot, request: &Request) {
        let Some(mut known) = self.known.get(slot).copied() else { return };
        known.own += 1;
        known.counted.pick(request.now_ms as f64, known.price, &self.pace);
        known.turn.pick(known.price, &mut self.turns);
        self.known.set(slot, known);
        self.place(slot, &known);
        self.level.spoil(1);
    }
}

export_strategy!(Balanced);

#[cfg(test)]
mod tests;
