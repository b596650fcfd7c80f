//! The choice of one request: ranks from the guest, each checked, or from native code; then handed out.
//!
//! The guest counts each first choice; what it was asked about beside that is put right before it is
//! asked again. What a request does not want is the [`sieve`](super::sieve)'s.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::sieve::{Domains, Sieve, candidates};
use super::{Ask, HOSTS, Pool};
use crate::pick::constraint::{Constraint, TargetLabels};
use crate::pick::decision::{Focus, Scene};
use crate::pick::table::{Noted, Row, Table};
use crate::pick::{Picked, Unfit, native};
use crate::policy::{CallError, StrategyGuest};

/// Time after which no further rank is asked for; what was chosen is answered.
const RANKS_WAIT: Duration = Duration::from_millis(10);

impl Pool {
    /// The choice without a guest; of ejected targets if there is no other: no request fails for them.
    pub(in crate::pick) fn ask_native(
        &self,
        ask: &Ask<'_>,
        scene: &mut Option<Scene>,
    ) -> Vec<Picked> {
        let label = self.failure_domain.lock().clone();
        let mut table = self.table.lock();
        let sieve = Sieve::of(&table, ask);
        let mut domains = Domains::of(label, &table, &sieve);
        let mut chosen: Vec<u32> = Vec::new();
        while chosen.len() < ask.n {
            let is_free = |slot: u32| {
                !chosen.contains(&slot) && sieve.drops(slot, table.labels(slot)).is_none()
            };
            let elsewhere =
                domains.as_ref().filter(|domains| domains.is_any()).and_then(|domains| {
                    native::best(&table, &ask.request, |slot, row| {
                        row.eligible && is_free(slot) && domains.is_elsewhere(&table, slot)
                    })
                });
            let best =
                || native::best(&table, &ask.request, |slot, row| row.eligible && is_free(slot));
            let any =
                || native::best(&table, &ask.request, |slot, row| row.is_live() && is_free(slot));
            let best = elsewhere.or_else(best);
            let best = if chosen.is_empty() { best.or_else(any) } else { best };
            let Some(slot) = best else { break };
            if let Some(domains) = &mut domains {
                domains.touch(&table, slot);
            }
            chosen.push(slot);
        }
        if let Some(first) = chosen.first() {
            // A guest that was busy did not count it.
            table.note(*first, Noted::Now);
            self.has_news.store(true, Ordering::Release);
        }
        hand_out(&mut table, &chosen, ask, true, scene)
    }

    /// Asks the guest for `n` different targets, best first. What was chosen before a fault is good.
    pub(super) fn choose(
        &self,
        guest: &mut StrategyGuest,
        ask: &Ask<'_>,
        chosen: &mut Vec<u32>,
    ) -> Result<(), CallError> {
        if ask.n == 1 && ask.exclude.is_empty() && ask.constraint.is_empty() {
            let Some(slot) = guest.pick(ask.request)? else { return Ok(()) };
            self.check(slot).map_err(|what| guest.nonsense("pick", what))?;
            chosen.push(slot);
            return Ok(());
        }
        self.choose_among(guest, ask, chosen)
    }

    /// The same for a request that wants several, or not all of them: costs O(n).
    fn choose_among(
        &self,
        guest: &mut StrategyGuest,
        ask: &Ask<'_>,
        chosen: &mut Vec<u32>,
    ) -> Result<(), CallError> {
        let start = Instant::now();
        let label = self.failure_domain.lock().clone();
        let (sieve, mut domains) = {
            let table = self.table.lock();
            let sieve = Sieve::of(&table, ask);
            let domains = Domains::of(label, &table, &sieve);
            (sieve, domains)
        };
        let mut uncounted = Vec::new(); // the guest takes them for picked, and they are not
        let keeps_away = domains.as_ref().is_some_and(Domains::is_any);
        // Where nearly all are wanted the first choice is mostly good, and cheap.
        if ask.constraint.is_empty()
            && !keeps_away
            && let Some(slot) = guest.pick(ask.request)?
        {
            self.check(slot).map_err(|what| guest.nonsense("pick", what))?;
            let is_wanted = sieve.drops(slot, self.table.lock().labels(slot)).is_none();
            if is_wanted { chosen.push(slot) } else { uncounted.push(slot) }
        }
        let mut left = Vec::new();
        while chosen.len() < ask.n && start.elapsed() < RANKS_WAIT {
            self.leave_out(&mut left, chosen, &sieve, domains.as_mut());
            if left.is_empty() {
                break;
            }
            let Some(slot) = guest.pick_among(ask.request, &left)? else { break };
            if !left.contains(&slot) {
                let what = format!("slot {slot} is not one of the candidates");
                return Err(guest.nonsense("pick-among", what));
            }
            if !chosen.is_empty() {
                uncounted.push(slot);
            }
            chosen.push(slot);
        }
        self.correct(guest, &uncounted, ask.request.now_ms)
    }

    /// The candidates of the next rank. They are gathered once where there are no failure domains: only
    /// the last chosen one is none any more then.
    fn leave_out(
        &self,
        left: &mut Vec<u32>,
        chosen: &[u32],
        sieve: &Sieve<'_>,
        mut domains: Option<&mut Domains>,
    ) {
        if domains.is_none() && !left.is_empty() {
            left.retain(|slot| chosen.last() != Some(slot));
            return;
        }
        let table = self.table.lock();
        if let (Some(domains), Some(last)) = (&mut domains, chosen.last()) {
            domains.touch(&table, *last);
        }
        let is_wanted = |slot, _: &Row| {
            !chosen.contains(&slot) && sieve.drops(slot, table.labels(slot)).is_none()
        };
        *left = candidates(&table, domains.as_deref(), is_wanted);
    }

    /// Whether the guest may answer this slot.
    fn check(&self, slot: u32) -> Result<(), String> {
        let table = self.table.lock();
        let row = table.get(slot).ok_or_else(|| format!("slot {slot} holds no target"))?;
        if row.eligible {
            return Ok(());
        }
        Err(format!("slot {slot} is {} and may not be picked", row.named.machine))
    }

    /// Whether there is somebody to answer with, at worst a target that is ejected.
    pub(super) fn has_candidate(&self, ask: &Ask<'_>) -> bool {
        let table = self.table.lock();
        if table.tally().live == 0 {
            return false;
        }
        let sieve = Sieve::of(&table, ask);
        table
            .rows()
            .any(|(slot, row)| row.is_live() && sieve.drops(slot, table.labels(slot)).is_none())
    }

    /// What is said where nobody fits.
    pub(in crate::pick) fn unfit(&self, constraint: &Constraint) -> Option<Unfit> {
        if constraint.is_empty() {
            return None;
        }
        let table = self.table.lock();
        let of = |(slot, _): (u32, &Row)| table.labels(slot);
        let fit = table.rows().map(of).filter(|labels| constraint.fits(labels)).count();
        let has = |label: &str| table.rows().map(of).any(|labels| labels.get(label).is_some());
        let unknown = constraint.labels().find(|label| !has(label)).map(|label| {
            let known = table.rows().map(of).flat_map(TargetLabels::names);
            (label.to_owned(), crate::config::nearest(label, known).map(str::to_owned))
        });
        Some(Unfit { constraint: constraint.clone(), fit, unknown })
    }

    /// Tells the guest the true state of targets that it believes picked.
    fn correct(
        &self,
        guest: &mut StrategyGuest,
        slots: &[u32],
        now_ms: u64,
    ) -> Result<(), CallError> {
        if slots.is_empty() {
            return Ok(());
        }
        let views: Vec<_> = {
            let table = self.table.lock();
            slots.iter().filter_map(|slot| table.view(*slot, now_ms)).collect()
        };
        guest.update(now_ms, HOSTS, &views)
    }
}

/// Counts the first as picked, reads all from the table and keeps what was seen.
pub(super) fn hand_out(
    table: &mut Table,
    chosen: &[u32],
    ask: &Ask<'_>,
    is_native: bool,
    scene: &mut Option<Scene>,
) -> Vec<Picked> {
    let Some(first) = chosen.first() else { return Vec::new() };
    let now_ms = ask.request.now_ms;
    let sieve = Sieve::of(table, ask);
    if let Some(scene) = scene {
        scene.take(table, &Focus { chosen, sieve: &sieve, explain: ask.explain, now_ms });
    }
    table.count_pick(*first, ask.has_lease, now_ms);
    // A shadow is asked for the first choice; what is left out it cannot know.
    let request = sieve.is_open().then_some(ask.request);
    table.hear_pick(*first, is_native, now_ms, request);
    chosen.iter().filter_map(|slot| table.get(*slot).map(Picked::of)).collect()
}

impl Picked {
    fn of(row: &Row) -> Self {
        Self {
            machine: row.named.machine.clone(),
            address: row.named.address.clone(),
            load: row.fresh.load,
        }
    }
}
