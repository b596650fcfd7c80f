//! What a strategy's guest is told: targets that came, changed and left, and the whole fleet to a new
//! one, which then takes the seat.
//!
//! Invariant: table and guest change together under the seat, at most [`PART_ROWS`] targets at a time;
//! picks go on between two parts, and while a new guest is fed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;
use super::seat::Seat;
use crate::pick::table::{Fed, Fresh, Noted, PART_ROWS};
use crate::policy::guest::TargetView;
use crate::policy::{CallError, Kind, StrategyGuest};

/// Hosts that choose, as strategies are told: others are not heard of. What targets report of others'
/// requests tells more: see `policies/balanced`.
pub(in crate::pick) const HOSTS: u32 = 1;
/// Rounds in which a new guest catches up with what changes while it is fed, at most.
const CATCH_UP_MAX: usize = 8;
/// Changed rows that may be left for the moment of the swap.
const CAUGHT_UP_ROWS: usize = 64;

/// Whether a new guest takes over the state of the old one of its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pick) enum Heir {
    /// It does.
    OfState,
    /// It is fed the fleet alone.
    OfNothing,
}

impl Pool {
    /// Writes targets, which are taken out of `fresh`, and tells the guest, a part at a time: picks go
    /// on in between.
    pub(in crate::pick) fn publish(
        &self,
        left: &[u32],
        fresh: &mut Vec<(u32, Fresh)>,
        now_ms: u64,
    ) {
        for left in left.chunks(PART_ROWS) {
            self.publish_part(left, &mut std::iter::empty(), now_ms);
        }
        let mut fresh = fresh.drain(..);
        while fresh.len() > 0 {
            self.publish_part(&[], &mut fresh.by_ref().take(PART_ROWS), now_ms);
            self.strategy.give_way();
        }
    }

    fn publish_part(
        &self,
        left: &[u32],
        fresh: &mut dyn Iterator<Item = (u32, Fresh)>,
        now_ms: u64,
    ) {
        let mut views = Vec::with_capacity(PART_ROWS);
        let mut seat = self.strategy.take();
        {
            let mut table = self.table.lock();
            left.iter().for_each(|slot| table.remove(*slot));
            let put = |(slot, fresh)| {
                table.put(slot, fresh, now_ms);
                table.tell(slot, now_ms)
            };
            views.extend(fresh.filter_map(put));
            if table.has_noted(Noted::Now) {
                self.has_news.store(true, Ordering::Release);
            }
        }
        if let Seat::Guest(guest) = &mut *seat
            && let Err(fault) = tell(guest, left, &views, now_ms)
        {
            self.vacate(&mut seat, Kind::Strategy, &fault);
        }
    }

    /// Puts a configured guest in the seat: feeds it the fleet, carries the old one's state over, if it
    /// is to have that, and swaps. Requests are served by the old one meanwhile, but for the last moment.
    ///
    /// # Errors
    /// The new guest failed; the old one stays.
    pub(in crate::pick) fn seat_strategy(
        &self,
        mut guest: StrategyGuest,
        heir: Heir,
        now_ms: u64,
    ) -> Result<(), CallError> {
        let (decider, settings) = (guest.decider.clone(), Arc::clone(&guest.settings));
        let mut fed = Fed::default();
        // Picks go on meanwhile: catch up without the lock until little is left for it.
        for _ in 0..CATCH_UP_MAX {
            if self.feed(&mut guest, &mut fed, now_ms)? <= CAUGHT_UP_ROWS {
                break;
            }
        }
        let mut seat = self.strategy.take();
        self.feed(&mut guest, &mut fed, now_ms)?;
        // Another policy would not understand its state.
        if let Seat::Guest(old) = &mut *seat
            && heir == Heir::OfState
            && old.decider.policy == decider.policy
        {
            match old.save() {
                Ok(state) => log_restored(&decider.policy, guest.restore(&state)?),
                // Its state is lost with it; the new guest is good.
                Err(fault) => self.note_fault(Kind::Strategy, &fault, None),
            }
        }
        let old = std::mem::replace(&mut *seat, Seat::Guest(Box::new(guest)));
        self.note_serving(Kind::Strategy, decider, settings);
        drop(seat);
        drop(old); // unmapping its memory takes longer than a pick
        Ok(())
    }

    /// Tells the guest what has changed since it was fed; the number of rows.
    fn feed(
        &self,
        guest: &mut StrategyGuest,
        fed: &mut Fed,
        now_ms: u64,
    ) -> Result<usize, CallError> {
        let mut rows = 0;
        loop {
            let part = self.table.lock().feed(fed, now_ms);
            tell(guest, &part.left, &part.views, now_ms)?;
            rows += part.left.len() + part.views.len();
            if part.is_last {
                return Ok(rows);
            }
        }
    }
}

pub(super) fn tell(
    guest: &mut StrategyGuest,
    left: &[u32],
    views: &[TargetView],
    now_ms: u64,
) -> Result<(), CallError> {
    if !left.is_empty() {
        guest.leave(left)?;
    }
    if !views.is_empty() {
        guest.update(now_ms, HOSTS, views)?;
    }
    Ok(())
}

pub(in crate::pick) fn log_restored(policy: &str, restored: bool) {
    if !restored {
        tracing::info!(policy, "the new generation starts without the old one's state");
    }
}
