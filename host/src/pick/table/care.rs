//! Who is ejected from a pool, who comes back, and what its guest is still to be told.
//!
//! Envoy's rules of outlier ejection: a target goes after so many failures in a row, or when its share
//! of successes over [`INTERVAL_MS`] is far below the mean of the pool's targets; for longer each time;
//! never more than a share of the pool at once; and when too few are left, ejections are ignored.
//! Invariant: verdicts are written down here and reach `eligible` only in [`Table::take_noted`] and
//! `put`, where the guest is told as well. Work is done in parts of [`PART_ROWS`].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{BTreeSet, Health, PART_ROWS, Row, Table, TargetView};
use crate::pick::health::{INTERVAL_MS, Outcome, Warming, Why};

/// Time after the pool's first live target in which others are warm at once: a host that starts, or
/// that was cut off from all of them, finds its fleet at work. In milliseconds.
const GRACE_MS: u64 = 10_000;
/// The same in report intervals of the target, whichever is longer: one passes until it is heard, and
/// a report may get lost.
const GRACE_INTERVALS: u64 = 2;
/// Targets without whose judged shares of successes there is no mean to compare with.
const JUDGED_MIN: f64 = 5.0;
/// Standard deviations below the mean at which a target is an outlier.
const OUTLIER_DEVIATIONS: f64 = 1.9;
/// And at least this far below it, or one failure in a hundred would do among targets without any.
const OUTLIER_SHARE: f64 = 0.05;

/// What the table knows beside its rows.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// Slots the guest is to be told about before its next pick, and soon.
    now: Vec<u32>,
    soon: Vec<u32>,
    /// Ends of ejections, and of slow starts.
    ejected: BTreeSet<(u64, u32)>,
    warming: BTreeSet<(u64, u32)>,
    pub(super) is_panic: bool,
    /// After a change of that: the ejection up to which rows know it already.
    recheck: Option<(u64, u32)>,
    /// When the pool's first live target came; `None` while there is none.
    first_ms: Option<u64>,
    interval: Interval,
    /// Ejections so far.
    ejections: BTreeMap<&'static str, u64>,
    /// What is to be logged when the lock is free.
    news: Vec<News>,
}

/// Whether and when the guest is to be told about a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pick) enum Noted {
    #[default]
    No,
    /// Averages: within a moment.
    Soon,
    /// What strict strategies count, and who may be picked: before the next pick.
    Now,
}

/// What operators are to hear.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::pick) enum News {
    Ejected {
        machine: Arc<str>,
        why: Why,
        length_ms: u64,
    },
    /// Ejections are ignored from now on, or no more.
    Panic(bool),
}

/// The comparison of targets over an interval.
#[derive(Debug, Default)]
struct Interval {
    started_ms: u64,
    has_outcomes: bool,
    /// While one is evaluated: the next row, and what is known.
    pass: Option<(usize, Pass)>,
}

#[derive(Debug, Clone, Copy)]
enum Pass {
    /// Gathers the shares of successes: how many, their sum and the sum of their squares.
    Sum([f64; 3]),
    /// Ejects who is below.
    Judge(f64),
}

/// What the guest is to be told, at a stretch.
#[derive(Debug, Default)]
pub(in crate::pick) struct Note {
    pub(in crate::pick) views: Vec<TargetView>,
    pub(in crate::pick) news: Vec<News>,
    /// There is no more of what was asked for.
    pub(in crate::pick) is_last: bool,
}

impl Table {
    /// Takes an outcome of a target; whether its guest is to be told before the next pick.
    pub(in crate::pick) fn record(&mut self, slot: u32, outcome: Outcome, now_ms: u64) -> bool {
        let Some(failures) = self.alter(slot, |row| row.health.record(outcome, now_ms)) else {
            return false;
        };
        self.care.interval.has_outcomes = true;
        self.note(slot, Noted::Soon);
        let limit = self.config.consecutive_failures;
        limit > 0 && failures >= limit && self.eject(slot, Why::ConsecutiveFailures, now_ms)
    }

    /// Lets the guest be told about this target.
    pub(in crate::pick) fn note(&mut self, slot: u32, when: Noted) {
        let Some(Some(row)) = self.rows.get_mut(slot as usize) else { return };
        if row.noted < when {
            row.noted = when;
            let list = if when == Noted::Now { &mut self.care.now } else { &mut self.care.soon };
            list.push(slot);
        }
    }

    /// Whether there is something to tell, now or at all.
    pub(in crate::pick) fn has_noted(&self, least: Noted) -> bool {
        let Care { now, soon, recheck, news, .. } = &self.care;
        let has_now = recheck.is_some() || !(now.is_empty() && news.is_empty());
        has_now || (least < Noted::Now && !soon.is_empty())
    }

    /// Part of what the guest is to be told now, or of everything; `eligible` follows the verdicts
    /// here.
    pub(in crate::pick) fn take_noted(&mut self, least: Noted, now_ms: u64) -> Note {
        let mut note = Note { news: std::mem::take(&mut self.care.news), ..Note::default() };
        let is_panic = self.care.is_panic;
        for _ in 0..PART_ROWS {
            let Some(slot) = self.care.next_noted(least) else {
                note.is_last = true;
                break;
            };
            let changed = self.alter(slot, |row| {
                row.noted = Noted::No;
                row.eligible = row.may_serve(is_panic);
            });
            let view = changed.and_then(|()| self.tell(slot, now_ms));
            note.views.extend(view);
        }
        note
    }

    /// Ends ejections and slow starts that are due, a part of them, and compares targets when an
    /// interval is over; whether there is more to do.
    pub(in crate::pick) fn tend(&mut self, now_ms: u64) -> bool {
        for _ in 0..PART_ROWS {
            let due = |ends: &BTreeSet<(u64, u32)>| ends.first().is_some_and(|end| end.0 <= now_ms);
            if due(&self.care.ejected) {
                self.come_back(now_ms);
            } else if due(&self.care.warming) {
                let warm = self.care.warming.pop_first();
                warm.into_iter().for_each(|(_, slot)| self.note(slot, Noted::Soon));
            } else {
                return self.judge_part(now_ms);
            }
        }
        true
    }

    /// Ejections so far, by reason.
    pub(in crate::pick) fn ejections(&self) -> BTreeMap<&'static str, u64> {
        self.care.ejections.clone()
    }

    /// After a row was written: a target that begins to take work warms up while others serve.
    pub(super) fn greet(&mut self, slot: u32, was_live: bool, now_ms: u64) {
        let first_ms = *self.care.first_ms.get_or_insert(now_ms);
        // Who is ejected starts when it returns.
        let starts = |row: &Row| row.is_live() && row.health.ejection.is_none();
        let was_at_work = |row: &Row| {
            let intervals_ms = GRACE_INTERVALS * u64::from(row.fresh.interval_ms);
            now_ms.saturating_sub(first_ms) < intervals_ms.max(GRACE_MS)
        };
        if !was_live && self.get(slot).is_some_and(|row| starts(row) && !was_at_work(row)) {
            self.start_slowly(slot, now_ms);
        }
        self.weigh();
    }

    /// After a row was taken out.
    pub(super) fn part_with(&mut self, slot: u32, health: &Health) {
        if let Some(ejection) = health.ejection {
            self.care.ejected.remove(&(ejection.until_ms, slot));
        }
        if let Some(warming) = &health.warming {
            self.care.warming.remove(&(warming.until_ms, slot));
        }
        self.weigh();
    }

    fn start_slowly(&mut self, slot: u32, now_ms: u64) {
        let warming = Warming::start(&self.config, now_ms);
        let serves = |row: &Row| usize::from(row.eligible);
        let others = self.tally.eligible - self.get(slot).map_or(0, serves);
        if warming.until_ms <= now_ms || others == 0 {
            return;
        }
        self.care.warming.insert((warming.until_ms, slot));
        let before = self.alter(slot, |row| row.health.warming.replace(warming)).flatten();
        if let Some(before) = before.filter(|before| before.until_ms != warming.until_ms) {
            self.care.warming.remove(&(before.until_ms, slot));
        }
    }

    /// Ejects a live target, if there is room for one more; false: it stays.
    fn eject(&mut self, slot: u32, why: Why, now_ms: u64) -> bool {
        let can_go = |row: &Row| row.is_live() && row.health.ejection.is_none();
        if !self.get(slot).is_some_and(can_go) || self.care.ejected.len() >= self.ejected_max() {
            return false;
        }
        let config = self.config.clone();
        let ejected = self.alter(slot, |row| {
            let warming = row.health.warming;
            let until_ms = row.health.eject(why, &config, now_ms);
            (until_ms, warming, Arc::clone(&row.named.machine))
        });
        let Some((until_ms, warming, machine)) = ejected else { return false };
        if let Some(warming) = warming {
            self.care.warming.remove(&(warming.until_ms, slot));
        }
        self.care.ejected.insert((until_ms, slot));
        *self.care.ejections.entry(why.name()).or_default() += 1;
        let length_ms = until_ms - now_ms;
        self.care.news.push(News::Ejected { machine, why, length_ms });
        self.note(slot, Noted::Now);
        self.weigh();
        true
    }

    /// Ends the ejection that is due first.
    fn come_back(&mut self, now_ms: u64) {
        let Some((_, slot)) = self.care.ejected.pop_first() else { return };
        self.alter(slot, |row| row.health.come_back(now_ms));
        self.start_slowly(slot, now_ms);
        self.note(slot, Noted::Now);
        self.weigh();
    }

    /// A share of the live targets, but one at least.
    fn ejected_max(&self) -> usize {
        if self.config.max_ejected <= 0.0 {
            return 0;
        }
        share_of(self.tally.live, self.config.max_ejected).max(1)
    }

    /// Looks whether enough targets are left, or any.
    pub(super) fn weigh(&mut self) {
        let live = self.tally.live;
        if live == 0 {
            self.care.first_ms = None;
        }
        let left = live - self.tally.ejected;
        let needed = count(live) * self.config.panic_threshold;
        let is_panic = self.tally.ejected > 0 && (left == 0 || count(left) < needed);
        if is_panic != self.care.is_panic {
            self.care.is_panic = is_panic;
            self.care.recheck = Some((0, 0));
            self.care.news.push(News::Panic(is_panic));
        }
    }

    /// Part of the comparison of targets, when an interval is over; whether there is more to do.
    fn judge_part(&mut self, now_ms: u64) -> bool {
        let interval = &mut self.care.interval;
        let (from, mut pass) = match interval.pass.take() {
            Some(pass) => pass,
            None if now_ms.saturating_sub(interval.started_ms) < INTERVAL_MS => return false,
            None => {
                interval.started_ms = now_ms;
                if !std::mem::take(&mut interval.has_outcomes) {
                    return false;
                }
                (0, Pass::Sum([0.0; 3]))
            }
        };
        let to = self.rows.len().min(from + PART_ROWS);
        for index in from..to {
            let Some(row) = &mut self.rows[index] else { continue };
            match &mut pass {
                Pass::Sum(sums) => {
                    let Some(rate) = row.health.close_interval() else { continue };
                    sums.iter_mut().zip([1.0, rate, rate * rate]).for_each(|(s, n)| *s += n);
                }
                Pass::Judge(least) => {
                    if row.health.success_rate().is_some_and(|rate| rate < *least) {
                        let slot = u32::try_from(index).unwrap_or(u32::MAX);
                        self.eject(slot, Why::SuccessRate, now_ms);
                    }
                }
            }
        }
        let next = match pass {
            _ if to < self.rows.len() => Some((to, pass)),
            Pass::Sum(sums) => least_rate(sums).map(|least| (0, Pass::Judge(least))),
            Pass::Judge(_) => None,
        };
        self.care.interval.pass = next;
        next.is_some()
    }
}

impl Care {
    /// The next row to tell about.
    fn next_noted(&mut self, least: Noted) -> Option<u32> {
        let now = self.now.pop().or_else(|| self.next_recheck());
        now.or_else(|| if least == Noted::Now { None } else { self.soon.pop() })
    }

    /// The next ejected target whose eligibility is to follow a change of panic.
    fn next_recheck(&mut self) -> Option<u32> {
        let done = self.recheck?;
        let from = if done == (0, 0) { Bound::Included(done) } else { Bound::Excluded(done) };
        self.recheck = self.ejected.range((from, Bound::Unbounded)).next().copied();
        self.recheck.map(|(_, slot)| slot)
    }
}

/// The share of successes below which a target is an outlier, if enough are known.
fn least_rate([judged, sum, squares]: [f64; 3]) -> Option<f64> {
    if judged < JUDGED_MIN {
        return None;
    }
    let mean = sum / judged;
    let deviation = (squares / judged - mean * mean).max(0.0).sqrt();
    Some(mean - (OUTLIER_DEVIATIONS * deviation).max(OUTLIER_SHARE))
}

#[expect(clippy::cast_precision_loss, reason = "no pool has 2^53 targets")]
fn count(targets: usize) -> f64 {
    targets as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of 0 to 1 of a count"
)]
fn share_of(targets: usize, share: f64) -> usize {
    (count(targets) * share) as usize
}

#[cfg(test)]
mod tests {
    use super::super::Fresh;
    use super::*;
    use crate::config::HealthConfig;

    const FAILED: Outcome = Outcome { latency_us: 1, ok: false };
    const SERVED: Outcome = Outcome { latency_us: 900, ok: true };

    fn table(targets: u32, config: HealthConfig) -> Table {
        let mut table = Table::new(config);
        (0..targets).for_each(|slot| table.put(slot, fresh(slot), 0));
        table
    }

    fn fresh(slot: u32) -> Fresh {
        Fresh::of(format!("m{slot}"), 0.5)
    }

    fn fail(table: &mut Table, slot: u32, times: usize, now_ms: u64) -> usize {
        (0..times).filter(|_| table.record(slot, FAILED, now_ms)).count()
    }

    /// Tells the guest everything; what it believes eligible.
    fn settle(table: &mut Table, now_ms: u64) -> Vec<u32> {
        while table.tend(now_ms) {}
        while !table.take_noted(Noted::Soon, now_ms).is_last {}
        table.rows().filter(|(_, row)| row.eligible).map(|(slot, _)| slot).collect()
    }

    #[test]
    fn failures_in_a_row_eject_and_time_brings_back_slowly() {
        let mut table = table(4, HealthConfig::default());
        fail(&mut table, 1, 4, 0);
        table.record(1, SERVED, 0);
        assert_eq!(fail(&mut table, 1, 4, 0), 0, "not in a row");
        assert_eq!(fail(&mut table, 1, 1, 0), 1);
        assert_eq!(table.tally().eligible, 4, "the guest does not know yet");
        assert_eq!(settle(&mut table, 0), [0, 2, 3]);
        assert_eq!(table.tally().ejected, 1);
        // Its own report does not bring it back, its time does.
        table.put(1, fresh(1), 20_000);
        assert_eq!(settle(&mut table, 29_999), [0, 2, 3]);
        assert_eq!(settle(&mut table, 30_000), [0, 1, 2, 3]);
        let warm = |table: &Table, now_ms| table.view(1, now_ms).map(|view| view.warm);
        assert_eq!(warm(&table, 30_000), Some(0.1));
        assert_eq!(warm(&table, 45_000), Some(0.5));
        while !table.take_noted(Noted::Soon, 59_999).is_last {}
        table.tend(60_000);
        let told = table.take_noted(Noted::Soon, 60_000).views;
        assert_eq!(told.iter().map(|view| (view.slot, view.warm)).collect::<Vec<_>>(), [(1, 1.0)]);
    }

    #[test]
    fn no_more_than_the_share_is_ejected_and_one_at_least() {
        let mut ten = table(19, HealthConfig::default());
        assert_eq!((fail(&mut ten, 0, 5, 0), fail(&mut ten, 1, 9, 0)), (1, 0));
        let mut none = table(19, HealthConfig { max_ejected: 0.0, ..HealthConfig::default() });
        assert_eq!(fail(&mut none, 0, 9, 0), 0);
        let never = HealthConfig { consecutive_failures: 0, ..HealthConfig::default() };
        assert_eq!(fail(&mut table(19, never), 0, 9, 0), 0);
    }

    #[test]
    fn with_too_few_left_all_serve() {
        let config = HealthConfig { max_ejected: 1.0, ..HealthConfig::default() };
        let mut table = table(600, config);
        (0..300).for_each(|slot| _ = fail(&mut table, slot, 5, 0));
        assert_eq!((settle(&mut table, 0).len(), table.is_panic()), (300, false), "half are left");
        fail(&mut table, 300, 5, 0);
        assert!(table.is_panic());
        assert_eq!(settle(&mut table, 0).len(), 600);
        // One more that serves, and ejections count again.
        table.put(600, fresh(600), 0);
        table.put(601, fresh(601), 0);
        assert_eq!((settle(&mut table, 0).len(), table.is_panic()), (301, false));
        table.remove(0);
        assert_eq!(table.tally().ejected, 300);
        assert_eq!(settle(&mut table, 30_000).len(), 601);
    }

    #[test]
    fn whatever_happens_counts_and_lists_fit_the_rows() {
        let config = HealthConfig {
            consecutive_failures: 1,
            max_ejected: 0.5,
            ejection_time: std::time::Duration::from_millis(300),
            slow_start: std::time::Duration::from_millis(500),
            ..HealthConfig::default()
        };
        let mut table = Table::new(config);
        let mut random = fastrand::Rng::with_seed(7);
        let mut leases: Vec<(Arc<str>, u64)> = Vec::new();
        for now_ms in 20_000..60_000 {
            let slot = random.u32(..40);
            match random.u32(..8) {
                0 => table.put(slot, Fresh { eligible: random.bool(), ..fresh(slot) }, now_ms),
                1 => table.put(slot, fresh(slot + 100 * random.u32(..2)), now_ms),
                2 if random.u32(..4) == 0 => table.remove(slot),
                3 => _ = table.record(slot, FAILED, now_ms),
                4 if table.get(slot).is_some() => {
                    table.count_pick(slot, true, now_ms);
                    let machine = table.get(slot).map(|row| Arc::clone(&row.named.machine));
                    leases.extend(machine.map(|machine| (machine, now_ms)));
                }
                5 if !leases.is_empty() => {
                    let (machine, opened_ms) = leases.swap_remove(random.usize(..leases.len()));
                    table.end_lease(&machine, opened_ms);
                }
                6 => _ = table.take_noted(Noted::Now, now_ms),
                _ => _ = table.tend(now_ms),
            }
            check(&table);
        }
        let parked: u32 = table.parked.values().sum();
        assert_eq!(table.tally.leases + parked as usize, leases.len());
        settle(&mut table, 90_000); // all return
        settle(&mut table, 99_999); // and are warm
        assert!(table.care.ejected.is_empty() && table.care.warming.is_empty());
        assert!(table.rows().all(|(_, row)| row.eligible == row.is_live()));
        assert!(table.ejections()["consecutive_failures"] > 100, "or this shows nothing");
    }

    #[track_caller]
    fn check(table: &Table) {
        let mut tally = super::super::Tally::default();
        table.rows().for_each(|(_, row)| tally.add(row));
        assert_eq!(table.tally, tally);
        let ends = |end: fn(&Row) -> Option<u64>| {
            let end = |(slot, row): (u32, &Row)| Some((end(row)?, slot));
            table.rows().filter_map(end).collect::<BTreeSet<_>>()
        };
        assert_eq!(table.care.ejected, ends(|row| row.health.ejection.map(|of| of.until_ms)));
        let warming = ends(|row| row.health.warming.map(|of| of.until_ms));
        assert!(table.care.warming.is_subset(&warming), "and ends that are over are forgotten");
        assert!(tally.ejected == 0 || tally.ejected < tally.live || table.care.is_panic);
    }

    #[test]
    fn a_share_of_successes_far_below_the_others_ejects() {
        let mut table = table(300, HealthConfig::default());
        let interval = |table: &mut Table, served: usize, now_ms| {
            for slot in 0..6 {
                (0..100).for_each(|_| _ = table.record(slot, SERVED, now_ms));
            }
            for _ in 0..100 - served {
                table.record(280, FAILED, now_ms);
                table.record(280, SERVED, now_ms);
            }
            (0..served).for_each(|_| _ = table.record(280, SERVED, now_ms));
            settle(table, now_ms + INTERVAL_MS).len()
        };
        assert_eq!(interval(&mut table, 99, 0), 300, "one in a hundred is no outlier");
        assert_eq!(interval(&mut table, 60, 20_000), 299);
        assert!(table.get(280).is_some_and(|row| row.health.ejection.is_some()));
        assert_eq!(table.ejections(), BTreeMap::from([("success_rate", 1)]));
    }

    #[test]
    fn who_joins_a_serving_pool_warms_up_and_the_first_ones_do_not() {
        let mut table = table(2, HealthConfig::default());
        let warm = |table: &Table, slot, now_ms| table.view(slot, now_ms).map(|view| view.warm);
        table.put(2, fresh(2), GRACE_MS - 1);
        assert_eq!(warm(&table, 2, GRACE_MS), Some(1.0));
        table.put(3, fresh(3), GRACE_MS);
        assert_eq!(warm(&table, 3, GRACE_MS), Some(0.1));
        table.put(3, fresh(3), GRACE_MS + 15_000);
        assert_eq!(
            warm(&table, 3, GRACE_MS + 15_000),
            Some(0.5),
            "a report does not start it anew"
        );
        // A host that has just started hears those last that report each minute.
        let seldom = |slot| Fresh { interval_ms: 60_000, ..fresh(slot) };
        table.put(4, seldom(4), 2 * 60_000 - 1);
        assert_eq!(warm(&table, 4, 2 * 60_000), Some(1.0));
        table.put(5, seldom(5), 2 * 60_000);
        assert_eq!(warm(&table, 5, 2 * 60_000), Some(0.1));
        (4..6).for_each(|slot| table.remove(slot));
        table.put(0, Fresh { eligible: false, ..fresh(0) }, 60_000);
        table.put(0, fresh(0), 60_000);
        assert_eq!(warm(&table, 0, 60_000), Some(0.1), "back from draining");
        // Nobody else serves: it takes everything anyway.
        (1..4).for_each(|slot| table.remove(slot));
        table.put(0, Fresh { eligible: false, ..fresh(0) }, 99_000);
        table.put(0, fresh(0), 99_000);
        assert_eq!(warm(&table, 0, 99_000), Some(1.0));
    }

    #[test]
    fn a_pool_that_returns_as_a_whole_is_warm() {
        let mut table = table(3, HealthConfig::default());
        let warm = |table: &Table, slot, now_ms| table.view(slot, now_ms).map(|view| view.warm);
        let all_warm =
            |table: &Table, now_ms| (0..3).all(|slot| warm(table, slot, now_ms) == Some(1.0));
        (0..3).for_each(|slot| table.remove(slot));
        (0..3).for_each(|slot| table.put(slot, fresh(slot), 60_000));
        assert!(all_warm(&table, 60_000), "after all were gone");
        let draining = |slot| Fresh { eligible: false, ..fresh(slot) };
        (0..3).for_each(|slot| table.put(slot, draining(slot), 90_000));
        (0..3).for_each(|slot| table.put(slot, fresh(slot), 90_000));
        assert!(all_warm(&table, 90_000), "after none was ready");
        let late_ms = 90_000 + GRACE_MS;
        table.put(3, fresh(3), late_ms);
        assert_eq!(warm(&table, 3, late_ms), Some(0.1), "who comes later warms up as ever");
    }
}
