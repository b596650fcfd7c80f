//! [`Round`]: each target in turn, in slot order, for strategies that go round.

use std::iter;

use crate::index::PerSlot;
use crate::{Candidate, Eligible, Fleet, Request, Slot};

/// Turns that sum up to one but for rounding are one.
const WHOLE: f64 = 1.0 - 1e-9;

/// Whose turn it is.
///
/// A target in its slow start takes its share of its turns, evenly in time: with a share of 0.25 each
/// fourth one. Where nobody is warm the turns are those of the shares, too. Only the first choice for a
/// request takes a turn: the second best of one is the best of the next. So a request that excludes the
/// target whose turn it is uses that turn up, and whoever answers it keeps its own. A request that not every
/// target may answer, for its labels, is answered by one that is drawn: see [`Fleet::is_drawn`].
///
/// Cost of a turn O(1) where most targets are eligible, warm and may serve, O(n) at worst.
#[derive(Debug, Default)]
pub struct Round {
    last: Option<Slot>,
    /// Parts of turns that targets in their slow start have not taken yet, below 1.
    parts: PerSlot<f64>,
}

impl Round {
    /// The next one of those that `may`; `None`: there is none of them.
    pub fn next(
        &mut self,
        fleet: &Fleet,
        request: &Request,
        may: impl Fn(&Candidate) -> bool,
    ) -> Option<Slot> {
        if fleet.is_drawn() {
            fleet.eligible().iter().find(|candidate| may(candidate))?;
            let share = |candidate: &Candidate| {
                if may(candidate) { warmth(fleet, candidate.slot) } else { 0.0 }
            };
            return fleet.eligible().random_by(request.random, share);
        }
        let (last, eligible) = (self.last, fleet.eligible());
        let round = || slots_after(last, eligible, &may);
        let next = if fleet.is_warm() {
            round().next()?
        } else if fleet.is_limited() {
            let wait = |slot: &Slot| self.wait(fleet, *slot);
            round().min_by(|a, b| wait(a).total_cmp(&wait(b)))?
        } else {
            let whole = round().find(|slot| self.give(*slot, warmth(fleet, *slot)) >= WHOLE);
            let next = whole.or_else(|| self.go_round(fleet, round))?;
            self.give(next, -1.0);
            next
        };
        self.take(fleet, next);
        Some(next)
    }

    /// The turn of this one is taken, whoever's it was.
    pub fn take(&mut self, fleet: &Fleet, slot: Slot) {
        if !fleet.is_limited() {
            self.last = Some(slot);
        }
    }

    /// Whose turn was last, as a state to save.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        Slot::save(self.last)
    }

    /// Takes over what [`save`](Self::save) made; false: it is something else.
    pub fn restore(&mut self, state: &[u8]) -> bool {
        Slot::restore(&mut self.last, state)
    }

    /// Nobody has a whole turn after a round: so many rounds more at once until one has; that one.
    fn go_round<S: Iterator<Item = Slot>>(
        &mut self,
        fleet: &Fleet,
        round: impl Fn() -> S,
    ) -> Option<Slot> {
        let rounds = round().map(|slot| self.wait(fleet, slot)).min_by(f64::total_cmp)?;
        let given = round().map(|slot| (slot, self.give(slot, rounds * warmth(fleet, slot))));
        let most = given.reduce(|most, next| if next.1 > most.1 { next } else { most })?;
        Some(most.0)
    }

    /// Adds to a target's part of a turn; what it has then. A warm one has whole ones only.
    fn give(&mut self, slot: Slot, part: f64) -> f64 {
        let part = self.parts.get(slot).copied().unwrap_or(0.0) + part;
        self.parts.set(slot, part);
        part
    }

    /// Rounds until a target has a whole turn.
    fn wait(&self, fleet: &Fleet, slot: Slot) -> f64 {
        let part = self.parts.get(slot).copied().unwrap_or(0.0);
        ((WHOLE - part) / warmth(fleet, slot)).max(0.0)
    }
}

/// Those that may, once, from the one after the last on.
fn slots_after<'f>(
    last: Option<Slot>,
    eligible: Eligible<'f>,
    may: impl Fn(&Candidate) -> bool + 'f,
) -> impl Iterator<Item = Slot> + 'f {
    let after = move |candidate: &&'f Candidate| eligible.after(Some(candidate.slot));
    let round = iter::successors(eligible.after(last), after).take(eligible.len());
    round.filter(move |candidate| may(candidate)).map(|candidate| candidate.slot)
}

/// A target's slow-start share.
fn warmth(fleet: &Fleet, slot: Slot) -> f64 {
    fleet.get(slot).map_or(1.0, |target| target.warmth())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::StrategyHost;
    use crate::{GoesBy, Strategy};

    /// Goes round among those whose load is below 1.
    #[derive(Default)]
    struct Light(Round);

    impl Strategy for Light {
        const GOES_BY: GoesBy = GoesBy::Neither;

        fn pick(&mut self, fleet: &Fleet, request: &Request) -> Option<Slot> {
            self.0.next(fleet, request, |candidate| candidate.load < 1.0)
        }
    }

    fn farm(shares: &[f32]) -> StrategyHost<Light> {
        let mut host = StrategyHost::with_loads(&vec![0.5; shares.len()]);
        for (slot, warm) in (0..).zip(shares) {
            host.change(slot, |target| target.warm = *warm);
        }
        host
    }

    #[test]
    fn slow_start_takes_its_share_of_its_turns() {
        assert_eq!(farm(&[1.0, 0.25, 1.0]).shares(900), [400, 100, 400]);
        // Each fourth turn, not four at a stretch.
        let mut host = farm(&[1.0, 0.25]);
        let picks: Vec<_> = (0..10).filter_map(|_| host.pick()).map(|slot| slot.0).collect();
        assert_eq!(picks, [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn without_a_warm_one_the_turns_are_those_of_the_shares() {
        assert_eq!(farm(&[0.2, 0.1, 0.4]).shares(700), [200, 100, 400]);
        let shares = farm(&[0.0, 0.0, 0.0]).shares(300);
        assert_eq!(shares, [100; 3]);
    }

    #[test]
    fn warm_again_it_has_all_its_turns() {
        let mut host = farm(&[1.0, 0.1]);
        host.shares(105);
        host.change(1, |target| target.warm = 1.0);
        assert_eq!(host.shares(100), [50, 50]);
    }

    #[test]
    fn who_may_not_serve_has_no_turn() {
        let mut host = farm(&[1.0, 0.5, 0.5]);
        host.change(0, |target| target.load = 1.0);
        assert_eq!(host.shares(100), [0, 50, 50]);
        (1..3).for_each(|slot| host.change(slot, |target| target.load = 1.0));
        assert_eq!(host.pick(), None);
    }

    #[test]
    fn second_choice_takes_no_turn_and_prefers_who_is_warm() {
        let mut host = farm(&[1.0, 0.5, 1.0]);
        for _ in 0..9 {
            assert_eq!(host.pick_among(&[1, 2]), Some(Slot(2)));
        }
        assert_eq!(host.pick_among(&[1]), Some(Slot(1)));
        assert_eq!(host.shares(250), [100, 50, 100]);
    }
}
