//! What happens to a pool's targets between reports: into the table at once, to the guest in batches.
//!
//! The table holds what is noted; here is when it is told. A part is [`PART_ROWS`] targets, and picks
//! go on between two parts. The guest's seat is taken before the table, and no call of a guest is made
//! with the table held.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::feed::tell;
use super::seat::Seat;
use super::{Counts, Kind, Pool};
use crate::pick::decision::Scene;
use crate::pick::health::Outcome;
use crate::pick::table::{News, Noted, PART_ROWS};

impl Pool {
    /// Takes outcomes of targets by their machines; the places of those that are not in the pool.
    pub(in crate::pick) fn record(
        &self,
        outcomes: &[(usize, Arc<str>, Outcome)],
        now_ms: u64,
    ) -> Vec<usize> {
        let (mut unknown, mut is_urgent) = (Vec::new(), false);
        for part in outcomes.chunks(PART_ROWS) {
            let mut table = self.table.lock();
            for (place, machine, outcome) in part {
                match table.slot_of(machine) {
                    Some(slot) => {
                        is_urgent |= table.record(slot, *outcome, now_ms);
                        let Counts { served, failed, .. } = &self.counts;
                        let counter = if outcome.ok { served } else { failed };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                    None => unknown.push(*place),
                }
            }
        }
        if is_urgent {
            self.tell(Noted::Now, now_ms);
        }
        unknown
    }

    /// Takes ended leases of this pool off their machines' counts.
    pub(in crate::pick) fn end_leases(&self, leases: &[(Arc<str>, u64)]) {
        let mut table = self.table.lock();
        for (machine, opened_ms) in leases {
            if table.end_lease(machine, *opened_ms) {
                self.has_news.store(true, Ordering::Release);
            }
        }
    }

    /// Does what time brings and tells the guest what is noted; whether there was anything.
    pub(in crate::pick) fn tend(&self, now_ms: u64) -> bool {
        self.look(now_ms);
        while self.table.lock().tend(now_ms) {}
        let has_noted = self.table.lock().has_noted(Noted::Soon);
        if has_noted {
            self.tell(Noted::Soon, now_ms);
        }
        has_noted
    }

    /// Ranks a large pool's targets by load if decisions need it; whether they did.
    pub(in crate::pick) fn rank(&self, now_ms: u64) -> bool {
        let Some(mut ranking) = self.table.lock().start_ranking(now_ms) else { return false };
        while self.table.lock().rank_part(&mut ranking) {}
        ranking.sort();
        self.table.lock().finish_ranking(ranking);
        true
    }

    /// Names the targets of a scene that are still there.
    pub(in crate::pick) fn resolve(&self, scene: &mut Scene) {
        scene.resolve(&self.table.lock());
    }

    /// Tells the guest what is noted, a part at a time: picks go on in between.
    fn tell(&self, least: Noted, now_ms: u64) {
        while !self.tell_part(&mut self.strategy.take(), least, now_ms) {
            self.strategy.give_way();
        }
    }

    /// Tells the guest part of what is noted; true: there is no more.
    pub(super) fn tell_part(&self, seat: &mut Seat, least: Noted, now_ms: u64) -> bool {
        let note = {
            let mut table = self.table.lock();
            let note = table.take_noted(least, now_ms);
            // Written with the lock that is held when something is noted.
            self.has_news.store(!note.is_last, Ordering::Release);
            note
        };
        if let Seat::Guest(guest) = seat
            && let Err(fault) = tell(guest, &[], &note.views, now_ms)
        {
            self.vacate(seat, Kind::Strategy, &fault);
        }
        note.news.iter().for_each(|news| self.log(news));
        note.is_last
    }

    fn log(&self, news: &News) {
        let pool = self.name();
        match news {
            News::Ejected { machine, why, length_ms } => {
                tracing::warn!(pool, %machine, why = why.name(), length_ms, "target ejected");
            }
            News::Panic(true) => {
                tracing::warn!(pool, "too few targets would be left: ejections are ignored");
            }
            News::Panic(false) => tracing::info!(pool, "enough targets are left: ejections count"),
        }
    }
}
