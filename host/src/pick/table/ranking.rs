//! The targets of a large pool in the order of their loads, where decisions find who was near.
//!
//! A ranking is made beside the picks, a part of the rows at a time, and sorted without the lock. Loads
//! in it are those of its making: whoever reads it looks at the rows for what is true now. Unknown loads
//! stand last, equal ones in the order of their slots.

use super::{ROSTER_MAX, Row, Table};

/// Age at which a ranking is made anew, in milliseconds: where decisions read it, with the intake's
/// sweep a second; else seldom, so that the first pick after a pause has one.
const READ_MS: u64 = 900;
const IDLE_MS: u64 = 10_000;

/// Targets by load, as of its making.
#[derive(Debug, Default)]
pub(in crate::pick) struct Ranking {
    /// Ascending.
    slots: Vec<(f64, u32)>,
    /// The table's version and the time before the first row was read.
    version: u64,
    made_ms: u64,
    /// The next row, while it is made.
    next: usize,
}

/// What the table keeps of them.
#[derive(Debug, Default)]
pub(super) struct Rankings {
    last: Option<Ranking>,
    /// The buffer of the one before.
    spare: Vec<(f64, u32)>,
    /// Decisions read the last one, or would have.
    is_read: bool,
}

impl Table {
    /// Begins a ranking if one is due; small pools have none.
    pub(in crate::pick) fn start_ranking(&mut self, now_ms: u64) -> Option<Ranking> {
        if self.tally.targets <= ROSTER_MAX {
            self.rankings = Rankings::default();
            return None;
        }
        let Rankings { last, spare, is_read } = &mut self.rankings;
        let after_ms = if *is_read { READ_MS } else { IDLE_MS };
        let is_good = |last: &Ranking| {
            last.version == self.version || now_ms.saturating_sub(last.made_ms) < after_ms
        };
        if last.as_ref().is_some_and(is_good) {
            return None;
        }
        *is_read = false;
        let slots = std::mem::take(spare);
        Some(Ranking { slots, version: self.version, made_ms: now_ms, next: 0 })
    }

    /// Gives a ranking part of the rows; false: it has all.
    pub(in crate::pick) fn rank_part(&self, ranking: &mut Ranking) -> bool {
        let part = self.part(ranking.next);
        for (index, row) in (ranking.next..).zip(part) {
            let slot = u32::try_from(index).unwrap_or(u32::MAX);
            ranking.slots.extend(row.as_ref().map(|row| (key(row.fresh.load), slot)));
        }
        ranking.next += part.len();
        !part.is_empty()
    }

    /// Lets decisions read it from now on.
    pub(in crate::pick) fn finish_ranking(&mut self, ranking: Ranking) {
        let before = self.rankings.last.replace(ranking);
        let mut spare = before.unwrap_or_default().slots;
        spare.clear();
        self.rankings.spare = spare;
    }

    /// Has the ranking kept fresh.
    pub(in crate::pick) fn want_ranking(&mut self) {
        self.rankings.is_read = true;
    }

    /// The last ranking, if there is one.
    pub(in crate::pick) fn ranking(&self) -> Option<&Ranking> {
        self.rankings.last.as_ref()
    }
}

impl Ranking {
    /// Sorts it, when it has all rows.
    pub(in crate::pick) fn sort(&mut self) {
        self.slots.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }

    /// Milliseconds since it was made.
    pub(in crate::pick) fn age_ms(&self, now_ms: u64) -> u32 {
        u32::try_from(now_ms.saturating_sub(self.made_ms)).unwrap_or(u32::MAX)
    }

    /// Slots by the distance of their loads from this one, nearest first. They may hold nothing or
    /// another target now.
    pub(in crate::pick) fn near(&self, load: f64) -> impl Iterator<Item = u32> {
        let load = key(load);
        let (mut below, mut above) =
            self.slots.split_at(self.slots.partition_point(|(of, _)| *of < load));
        std::iter::from_fn(move || {
            let is_below = match (below.last(), above.first()) {
                // Among unknown loads the right side is NaN: those above are nearer.
                (Some((low, _)), Some((high, _))) => load - low < high - load,
                (low, _) => low.is_some(),
            };
            let side = if is_below { below.split_off_last() } else { above.split_off_first() };
            side.map(|(_, slot)| *slot)
        })
    }

    /// Whether the target was in its slot when the ranking was made.
    pub(in crate::pick) fn knows(&self, row: &Row) -> bool {
        row.born <= self.version
    }
}

/// Infinity for an unknown load: no known one is infinite.
fn key(load: f64) -> f64 {
    if load.is_nan() { f64::INFINITY } else { load }
}

#[cfg(test)]
mod tests {
    use super::super::Fresh;
    use super::*;

    fn put(table: &mut Table, slot: u32, load: f64) {
        table.put(slot, Fresh::of(format!("m{slot}"), load), 0);
    }

    /// Loads 0, 1, 2, … by slot.
    fn table(targets: u32) -> Table {
        let mut table = Table::default();
        (0..targets).for_each(|slot| put(&mut table, slot, f64::from(slot)));
        table
    }

    /// Whether one was made.
    fn rank(table: &mut Table, now_ms: u64) -> bool {
        let Some(mut ranking) = table.start_ranking(now_ms) else { return false };
        while table.rank_part(&mut ranking) {}
        ranking.sort();
        table.finish_ranking(ranking);
        true
    }

    #[track_caller]
    fn check_near(table: &mut Table, load: f64, expected: &[u32]) {
        let ranking = table.ranking().expect("it was made");
        let near: Vec<_> = ranking.near(load).take(expected.len()).collect();
        assert_eq!(near, expected, "near {load}");
    }

    #[test]
    fn the_nearest_come_first_from_both_sides() {
        let mut table = table(300);
        assert!(table.ranking().is_none() && rank(&mut table, 0));
        check_near(&mut table, 100.0, &[100, 101, 99, 102, 98]);
        check_near(&mut table, 99.7, &[100, 99, 101, 98]);
        check_near(&mut table, 0.0, &[0, 1, 2, 3]);
        check_near(&mut table, 1e9, &[299, 298, 297]);
        let ranking = table.ranking().expect("it was made");
        assert_eq!(ranking.near(7.0).count(), 300, "every one once");
    }

    #[test]
    fn equal_loads_stand_by_slot_and_unknown_ones_last() {
        let mut table = table(60);
        for slot in [3, 50, 7] {
            put(&mut table, slot, 20.0);
        }
        for slot in [8, 4] {
            put(&mut table, slot, f64::NAN);
        }
        rank(&mut table, 0);
        check_near(&mut table, 20.0, &[3, 7, 20, 50, 21, 19]);
        check_near(&mut table, 59.0, &[59, 58]);
        check_near(&mut table, f64::NAN, &[4, 8, 59, 58]);
        let ranking = table.ranking().expect("it was made");
        assert_eq!(ranking.near(0.0).skip(58).collect::<Vec<_>>(), [4, 8]);
    }

    #[test]
    fn who_came_after_it_is_not_known_and_who_left_is_not_there() {
        let mut table = table(60);
        rank(&mut table, 0);
        table.remove(9);
        table.put(10, Fresh::of("another".to_owned(), 10.0), 0);
        put(&mut table, 11, 99.0); // the same one
        let ranking = table.ranking().expect("it was made");
        let knows = |slot| table.get(slot).map(|row| ranking.knows(row));
        assert_eq!([8, 9, 10, 11].map(knows), [Some(true), None, Some(false), Some(true)]);
    }

    #[test]
    fn it_is_made_anew_when_read_seldom_when_not_and_never_for_few_or_nothing() {
        let mut table = table(51);
        assert!(rank(&mut table, 0));
        assert!(!rank(&mut table, IDLE_MS), "nothing has changed");
        put(&mut table, 0, 5.0);
        assert!(!rank(&mut table, IDLE_MS - 1));
        assert!(rank(&mut table, IDLE_MS));
        put(&mut table, 0, 6.0);
        table.want_ranking();
        assert!(!rank(&mut table, IDLE_MS + READ_MS - 1));
        assert!(rank(&mut table, IDLE_MS + READ_MS));
        let ranking = table.ranking().expect("it was made");
        assert_eq!(ranking.age_ms(IDLE_MS + READ_MS + 7), 7);
        table.remove(0);
        assert!(!rank(&mut table, 99_999) && table.ranking().is_none(), "fifty are few");
    }
}
