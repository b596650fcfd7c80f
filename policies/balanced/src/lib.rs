//! `balanced`: whoever is free first, as far as reports and own picks tell. The default.
//!
//! *Use it* unless you know better: it needs no settings, learns how fast targets are, and is made to
//! be no worse than taking turns. What it goes by depends on what targets report:
//!
//! - **Counts** (requests inside, accepted, completed): each target has a *virtual finish time*, when
//!   it will be done with all that it is known to have. A report sets it, an own pick puts one request
//!   on top, and time drains it by itself. The earliest finish wins. How fast a target works is
//!   learned from how far its queue is from the expected one (a Kalman filter of one variable).
//!   Reports that show more requests than this host sent mean that others choose too: then an own
//!   pick counts for all of them, and the choice is drawn among all targets below the level that the
//!   others' picks will have filled meanwhile (water filling), so that hosts do not herd.
//! - **Only loads**: targets take turns in proportion to their weight (stride scheduling), and each
//!   report moves a target's next turn forward or back by what its load differs from the mean, in
//!   picks and at most one. A pick's cost in load is the mean load over the picks of a report period,
//!   and weights are corrected slowly until loads are alike.
//!
//! Slow start and failures make a target's requests dearer. A load that is not known yet moves
//! nothing. Where only loads are known, a target whose report lacks a metric of the formula is the
//! last choice; by counts it is served like the others.
//!
//! *Source*: Dahlin, "Interpreting stale load information" (2000); Goren, Vargaftik and Moses (2020);
//! Waldspurger and Weihl, "Stride scheduling" (1995).
//!
//! *Settings*: none. What was learned is carried over a reload.
//!
//! *Cost* of a pick: O(log n), and so of a changed target; with several hosts and counts O(1) more on
//! average. Figures: `host/benches/gates.md`; not shown there is that requests of always one length, and
//! light load with very old reports, are better served in turns, and so are the first twenty reports of
//! targets that report once in some two hundred requests, because only reports tell how fast targets are.

mod backlog;
mod counted;
mod idle;
mod level;
mod queues;
mod turns;

use loadline_sdk::index::{PerSlot, Tournament};
use loadline_sdk::prelude::*;

use backlog::{Backlog, Backlogs, Picks};
use counted::{Counted, Pace};
use level::Level;
use queues::Queues;
use turns::{Turn, Turns};

/// The strategy.
#[derive(Debug, Default)]
pub struct Balanced {
    known: PerSlot<Known>,
    backlogs: Backlogs,
    way: Way,
    /// Eligible targets by their next turn.
    turn: Tournament,
    /// Eligible targets by when they are free, when they work and when they do not.
    queues: Queues,
    /// Eligible targets by when they are free, against where others' picks will fill them to.
    level: Level,
    /// Targets known, and how many of them report counts.
    targets: usize,
    counting: usize,
    pace: Pace,
    turns: Turns,
    /// The host's clock at the last call.
    now_ms: f64,
}

/// How to choose, by what targets report. Only the index of the present way is kept up to date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Way {
    /// Only loads: in turns.
    #[default]
    Turns,
    /// Counts, and nobody else chooses: the earliest finish.
    Alone,
    /// Counts, and others choose too: drawn below the level.
    Shared,
}

/// Fewer unseen picks than this are none, and fewer than half of it are none again.
const ALONE: f64 = 0.05;

/// What is remembered of a target.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    is_eligible: bool,
    reports_counts: bool,
    /// Of the last report, on the host's clock.
    captured_ms: f64,
    /// Picks so far, own ones and those that other hosts told of, and before that capture; by counts without
    /// those that its backlog has.
    picks: u64,
    picks_before: u64,
    /// Since that capture, as the host counts them: without leases that have ended.
    since: u32,
    /// What a request costs here over what it costs where all is well.
    price: f64,
    counted: Counted,
    turn: Turn,
}

/// A report as both ways of choosing need it.
#[derive(Debug, Clone, Copy)]
struct Heard {
    target: Target,
    /// Since the last report.
    elapsed_ms: f64,
    /// Picks in that time.
    picks: f64,
}

impl Strategy for Balanced {
    const GOES_BY: GoesBy = GoesBy::Neither;

    fn update(&mut self, fleet: &Fleet, changed: &[Slot]) {
        self.now_ms = fleet.now_ms() as f64;
        for target in changed.iter().filter_map(|slot| fleet.get(*slot)) {
            self.hear(&target, fleet.now_ms(), fleet.hosts());
        }
        self.choose_way();
    }

    fn leave(&mut self, _fleet: &Fleet, slots: &[Slot]) {
        for slot in slots {
            self.withdraw(*slot);
            if let Some(known) = self.known.remove(*slot) {
                self.targets -= 1;
                self.counting -= usize::from(known.reports_counts);
                self.backlogs.forget(*slot);
            }
        }
        self.choose_way();
    }

    fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
        let now_ms = request.now_ms as f64;
        self.now_ms = now_ms;
        let slot = if fleet.is_drawn() && self.way == Way::Turns {
            let share = |candidate: &Candidate| {
                self.known.get(candidate.slot).map_or(0.0, |known| known.turn.share())
            };
            fleet.eligible().random_by(request.random, share)?
        } else if fleet.is_limited() {
            let key = |slot: Slot| self.key(slot, now_ms);
            let slots = fleet.eligible().iter().map(|candidate| candidate.slot);
            slots.min_by(|a, b| key(*a).total_cmp(&key(*b)))?
        } else {
            self.best(request)?
        };
        self.count(slot, request, !fleet.is_limited());
        Some(slot)
    }

    fn save(&self) -> Vec<u8> {
        self.pace.save(self.known.iter().map(|(slot, known)| (slot, &known.counted)))
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let Some((pace, rates)) = Pace::restore(state) else { return state.is_empty() };
        self.pace = pace;
        for (slot, rate) in rates {
            if let Some(known) = self.known.get_mut(slot) {
                known.counted.relearn(rate);
            }
        }
        if !self.choose_way() {
            self.start_anew();
        }
        true
    }
}

impl Balanced {
    /// Takes a target's view to what is known of it.
    fn hear(&mut self, target: &Target, now_ms: u64, hosts: u32) {
        let slot = target.slot;
        let is_new = self.known.get(slot).is_none();
        let mut known = self.known.get(slot).copied().unwrap_or_default();
        let mut backlog = self.backlogs.get(slot);
        known.count(self.backlogs.take_picks(slot));
        let captured_ms = now_ms as f64 - f64::from(target.age_ms);
        let price = target.failure_price() * target.weight / target.capacity();
        if !is_new {
            known.turn.cost(price / known.price, &self.turns);
        }
        known.price = price;
        let returns = target.eligible && !known.is_eligible;
        known.is_eligible = target.eligible;
        self.targets += usize::from(is_new);
        if is_new || captured_ms > known.captured_ms || !known.counted.is_same(target) {
            self.hear_report(target, captured_ms, &mut known, &mut backlog, is_new, hosts);
        } else {
            self.hear_picks(target, now_ms as f64, &mut known, &mut backlog);
        }
        if is_new || returns {
            known.turn.join(&self.turns);
        }
        self.known.set(slot, known);
        if known.is_eligible {
            backlog.offer(known.price, &known.counted, &self.pace);
            self.backlogs.set(slot, backlog);
            self.place(slot, &known, &backlog);
        } else {
            backlog.withdraw();
            self.backlogs.set(slot, backlog);
            self.withdraw(slot);
        }
    }

    fn hear_report(
        &mut self,
        target: &Target,
        captured_ms: f64,
        known: &mut Known,
        backlog: &mut Backlog,
        is_new: bool,
        hosts: u32,
    ) {
        let elapsed_ms = (captured_ms - known.captured_ms).max(0.0);
        let picks_before = known.picks.saturating_sub(u64::from(target.picks));
        let heard = Heard {
            target: *target,
            elapsed_ms: if is_new { 0.0 } else { elapsed_ms },
            picks: picks_before.saturating_sub(known.picks_before) as f64,
        };
        let counted_before = known.reports_counts;
        known.reports_counts |= target.accepted > 0 || target.completed > 0;
        self.counting += usize::from(known.reports_counts && !counted_before);
        // A first report of totals since some start says nothing about the time since the last one.
        let learns = counted_before && heard.elapsed_ms > 0.0;
        known.counted.hear(&heard, learns, &mut self.pace, self.targets, hosts);
        known.turn.hear(&heard, &mut self.turns, self.targets);
        known.captured_ms = captured_ms.max(known.captured_ms);
        known.picks_before = picks_before;
        known.picks = picks_before + u64::from(target.picks);
        known.since = target.picks;
        if known.reports_counts {
            let last_ms = self.backlogs.picked_ms(target.slot);
            let picks = Picks { count: f64::from(target.picks), last_ms };
            backlog.report(known.captured_ms, picks, &known.counted, &self.pace);
        }
    }

    /// The same report again: only the host's count of picks may be another. More: other hosts have
    /// told of theirs. Fewer: the last pick was not handed out, or a lease has ended, and then it was
    /// a pick all the same and time drains it.
    fn hear_picks(
        &mut self,
        target: &Target,
        now_ms: f64,
        known: &mut Known,
        backlog: &mut Backlog,
    ) {
        let (more, fewer) =
            (target.picks.saturating_sub(known.since), known.since.saturating_sub(target.picks));
        let was_just_picked = self.backlogs.picked_ms(target.slot).total_cmp(&now_ms).is_eq();
        known.since = target.picks;
        known.picks += u64::from(more);
        backlog.add(f64::from(more) * known.price, &known.counted, &self.pace);
        if fewer > 0 && was_just_picked {
            known.picks = known.picks.saturating_sub(u64::from(fewer));
            backlog.add(-f64::from(fewer) * known.price, &known.counted, &self.pace);
        }
    }

    /// Goes by counts when most targets report them and one knows how fast targets are; true: the way
    /// has changed, and all are placed anew.
    fn choose_way(&mut self) -> bool {
        let most = if self.goes_by_counts() { self.counting * 4 } else { self.counting * 2 };
        let alone = if self.way == Way::Shared { ALONE / 2.0 } else { ALONE };
        let way = if most <= self.targets || !self.pace.is_known() {
            Way::Turns
        } else if self.pace.unseen_picks() > alone {
            Way::Shared
        } else {
            Way::Alone
        };
        let changes = self.way != way;
        if changes {
            self.way = way;
            self.start_anew();
        }
        changes
    }

    fn goes_by_counts(&self) -> bool {
        self.way != Way::Turns
    }

    /// Places every target by what is known of it, as if it had come now; all at once, because an update
    /// has a deadline.
    fn start_anew(&mut self) {
        for (slot, known) in self.known.iter_mut() {
            let mut backlog = self.backlogs.get(slot);
            known.count(self.backlogs.take_picks(slot));
            let last_ms = self.backlogs.picked_ms(slot);
            let picks = Picks { count: f64::from(known.since), last_ms };
            backlog.report(known.captured_ms, picks, &known.counted, &self.pace);
            if known.is_eligible {
                backlog.offer(known.price, &known.counted, &self.pace);
            }
            self.backlogs.set(slot, backlog);
            known.turn.join(&self.turns);
        }
        (self.turn, self.queues, self.level) = Default::default();
        let (known, backlogs, pace) = (&self.known, &self.backlogs, &self.pace);
        let eligible = || known.iter().filter(|(_, known)| known.is_eligible);
        match self.way {
            Way::Turns => self.turn.fill(eligible().map(|(slot, known)| (slot, known.turn.next()))),
            Way::Alone => {
                let queues = eligible().map(|(slot, _)| (slot, backlogs.get(slot)));
                self.queues.fill(queues, pace, self.now_ms);
            }
            Way::Shared => {} // it is found at the next pick
        }
    }

    /// Puts an eligible target where it is found.
    fn place(&mut self, slot: Slot, known: &Known, backlog: &Backlog) {
        match self.way {
            Way::Turns => self.turn.refresh(slot, known.turn.next()),
            Way::Alone => self.queues.set(slot, backlog, &self.pace, self.now_ms),
            Way::Shared => self.level.note_change(),
        }
    }

    /// Takes a target out of where it is found.
    fn withdraw(&mut self, slot: Slot) {
        self.turn.remove(slot);
        self.queues.remove(slot);
        self.level.note_change();
    }

    /// The lowest is chosen.
    fn key(&self, slot: Slot, now_ms: f64) -> f64 {
        let Some(known) = self.known.get(slot) else { return f64::INFINITY };
        if self.goes_by_counts() {
            self.backlogs.get(slot).finish_ms(now_ms)
        } else {
            known.turn.next()
        }
    }

    fn best(&mut self, request: &Request) -> Option<Slot> {
        let now_ms = request.now_ms as f64;
        match self.way {
            Way::Turns => self.turn.min().map(|(slot, _)| slot),
            Way::Alone => self.queues.first(now_ms),
            Way::Shared => {
                let picks = 1.0 + self.pace.unseen_picks();
                self.level.draw(self.backlogs.all(), now_ms, picks, request.random)
            }
        }
    }

    /// The pick is one more request for the target, and its turn unless it is asked for as the next
    /// best: that one is not used.
    fn count(&mut self, slot: Slot, request: &Request, takes_turn: bool) {
        if self.goes_by_counts() {
            let free_ms = self.backlogs.pick(slot, request.now_ms as f64, &self.pace);
            if self.way == Way::Alone {
                self.queues.work(slot, free_ms);
            } else {
                self.level.note_change();
            }
            return;
        }
        let Some(known) = self.known.get_mut(slot) else { return };
        known.count(1);
        if takes_turn {
            known.turn.pick(known.price, &mut self.turns);
            self.turn.set(slot, known.turn.next());
        }
    }
}

impl Known {
    /// So many picks more.
    fn count(&mut self, picks: u32) {
        self.picks += u64::from(picks);
        self.since = self.since.saturating_add(picks);
    }
}

export_strategy!(Balanced);

#[cfg(test)]
mod tests;
