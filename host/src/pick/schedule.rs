//! Which entry of a pool's schedule is in force at a time of day, and until when.
//!
//! A function of the time alone, which is an argument: in force is the entry that began last, looking
//! back from now; of two that begin in one minute the later one in the file; before any, the pool's own
//! policies are. So a host that starts, a machine that slept and a clock that was set all come to the same
//! entry as a host that was there all the time, and nothing that was missed is made up for.

use std::sync::Arc;

use crate::calendar::{Cron, Zone};

/// Minutes in which other entries begin and are overridden at once, looked at for the next change: with
/// as many there is none.
const OVERRIDDEN_MAX: usize = 500;

/// The times of a pool's entries.
#[derive(Debug, Default)]
pub(super) struct Timetable {
    zone: Zone,
    entries: Vec<Cron>,
    standing: Option<Arc<Standing>>,
}

/// Which entry is in force, and what comes next.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Whose clocks count.
    pub zone: Zone,
    /// In force since then; `None`: the pool's own policies are.
    pub entry: Option<Beginning>,
    /// The next one that is another; `None`: there will be none.
    pub next: Option<Beginning>,
}

/// An entry at one of its times.
#[derive(Debug, Clone, PartialEq)]
pub struct Beginning {
    /// Its place in the file, from 0.
    pub place: usize,
    /// When it begins, as configured.
    pub at: Cron,
    /// This time: milliseconds since 1970.
    pub ms: u64,
}

impl Timetable {
    pub(super) fn new(zone: Zone, entries: Vec<Cron>) -> Self {
        Self { zone, entries, standing: None }
    }

    /// What is in force at this time; `None`: there is no schedule.
    pub(super) fn at(&mut self, now_ms: u64) -> Option<&Arc<Standing>> {
        if self.entries.is_empty() {
            return None;
        }
        let known = self.standing.take().filter(|standing| standing.holds(now_ms));
        let standing = known.unwrap_or_else(|| Arc::new(self.look(now_ms)));
        Some(self.standing.insert(standing))
    }

    /// Milliseconds until another entry begins, 1 at least.
    pub(super) fn until_next(&self, now_ms: u64) -> Option<u64> {
        let next = self.standing.as_ref()?.next.as_ref()?;
        Some(next.ms.saturating_sub(now_ms).max(1))
    }

    fn look(&self, now_ms: u64) -> Standing {
        let last = self.times(|cron| cron.last(&self.zone, now_ms));
        let entry = last.max_by_key(|beginning| (beginning.ms, beginning.place));
        let current = entry.as_ref().map(|beginning| beginning.place);
        let next = self.next(current, now_ms);
        Standing { zone: self.zone.clone(), entry, next }
    }

    /// What takes the place of this entry next.
    fn next(&self, current: Option<usize>, now_ms: u64) -> Option<Beginning> {
        let mut after_ms = now_ms;
        for _ in 0..OVERRIDDEN_MAX {
            let next = self.times(|cron| cron.next(&self.zone, after_ms));
            let others = next.filter(|beginning| Some(beginning.place) != current);
            let first = others.min_by_key(|b| (b.ms, std::cmp::Reverse(b.place)))?;
            // The entry in force may begin anew in the same minute, and stand later in the file.
            let stays = current.filter(|place| *place > first.place).is_some_and(|place| {
                self.entries[place].last(&self.zone, first.ms) == Some(first.ms)
            });
            if !stays {
                return Some(first);
            }
            after_ms = first.ms;
        }
        None
    }

    fn times(&self, time: impl Fn(&Cron) -> Option<u64>) -> impl Iterator<Item = Beginning> {
        let beginning = move |(place, at): (usize, &Cron)| {
            Some(Beginning { place, at: at.clone(), ms: time(at)? })
        };
        self.entries.iter().enumerate().filter_map(beginning)
    }
}

impl Standing {
    /// Whether it is still so, or again: a clock may have been set either way.
    fn holds(&self, now_ms: u64) -> bool {
        let since = self.entry.as_ref().map_or(0, |entry| entry.ms);
        let until = self.next.as_ref().map_or(u64::MAX, |next| next.ms);
        (since..until).contains(&now_ms)
    }

    /// The place of the entry in force; `None`: the pool's own policies are.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        self.entry.as_ref().map(|entry| entry.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(instant: &str) -> u64 {
        let instant: jiff::Timestamp = instant.parse().expect("an instant");
        u64::try_from(instant.as_millisecond()).expect("after 1970")
    }

    fn berlin(entries: &[&str]) -> Timetable {
        let crons = entries.iter().map(|cron| cron.parse().expect("an expression")).collect();
        Timetable::new(Zone::named("Europe/Berlin").expect("a zone"), crons)
    }

    /// The entry in force since when, and the next one, as `place@time`.
    fn shown(table: &mut Timetable, now: &str) -> [String; 2] {
        let standing = table.at(ms(now)).expect("a schedule").clone();
        let text = |of: &Option<Beginning>| match of {
            Some(beginning) => format!("{}@{}", beginning.place, standing.zone.show(beginning.ms)),
            None => "none".to_owned(),
        };
        [text(&standing.entry), text(&standing.next)]
    }

    #[track_caller]
    fn check(entries: &[&str], now: &str, expected: [&str; 2]) {
        assert_eq!(shown(&mut berlin(entries), now), expected);
    }

    const OFFICE: [&str; 2] = ["0 8 * * MON-FRI", "0 18 * * MON-FRI"];

    #[test]
    fn in_force_is_what_began_last() {
        let day = ["0@2026-11-30T08:00:00+01:00", "1@2026-11-30T18:00:00+01:00"];
        check(&OFFICE, "2026-11-30T07:00:00Z", day);
        check(&OFFICE, "2026-11-30T16:59:59.999Z", day);
        let night = ["1@2026-11-30T18:00:00+01:00", "0@2026-12-01T08:00:00+01:00"];
        check(&OFFICE, "2026-11-30T17:00:00Z", night);
        let weekend = ["1@2026-11-27T18:00:00+01:00", "0@2026-11-30T08:00:00+01:00"];
        check(&OFFICE, "2026-11-29T10:00:00Z", weekend);
    }

    #[test]
    fn before_any_entry_the_pools_own_are_in_force() {
        // Nothing began before 1970, where time begins.
        check(&["0 0 2 1 *"], "1970-01-01T00:00:00Z", ["none", "0@1970-01-02T00:00:00+01:00"]);
        assert!(berlin(&[]).at(0).is_none());
    }

    #[test]
    fn of_two_at_one_minute_the_later_in_the_file_wins() {
        // The first of the month is another day, unless an entry after it says otherwise.
        let entries = ["0 8 * * *", "0 8 1 * *"];
        check(
            &entries,
            "2026-12-01T08:00:00Z",
            ["1@2026-12-01T08:00:00+01:00", "0@2026-12-02T08:00:00+01:00"],
        );
        let entries = ["0 8 1 * *", "0 8 * * *"];
        check(&entries, "2026-12-01T08:00:00Z", ["1@2026-12-01T08:00:00+01:00", "none"]);
    }

    #[test]
    fn an_entry_that_begins_again_is_no_change() {
        check(
            &["0 * * * *", "30 20 * * *"],
            "2026-11-30T12:10:00Z",
            ["0@2026-11-30T13:00:00+01:00", "1@2026-11-30T20:30:00+01:00"],
        );
        check(&["0 * * * *"], "2026-11-30T12:10:00Z", ["0@2026-11-30T13:00:00+01:00", "none"]);
    }

    #[test]
    fn a_clock_that_is_set_either_way_finds_the_entry_of_that_time() {
        let mut table = berlin(&OFFICE);
        let place = |table: &mut Timetable, now: &str| {
            table.at(ms(now)).and_then(|standing| standing.place())
        };
        assert_eq!(place(&mut table, "2026-11-30T12:00:00Z"), Some(0));
        assert_eq!(place(&mut table, "2026-11-30T20:00:00Z"), Some(1), "it slept");
        assert_eq!(place(&mut table, "2026-11-30T16:59:58Z"), Some(0), "a step back");
        assert_eq!(table.until_next(ms("2026-11-30T16:59:58Z")), Some(2_000));
        assert_eq!(place(&mut table, "2029-06-06T12:00:00Z"), Some(0), "years later");
    }

    #[test]
    fn days_of_another_length_begin_and_end_as_clocks_show() {
        // Summer time begins on 2026-03-29 and ends on 2026-10-25; both are Sundays.
        let nightly = ["30 2 * * *", "0 6 * * *"];
        check(
            &nightly,
            "2026-03-29T00:59:59Z",
            ["1@2026-03-28T06:00:00+01:00", "0@2026-03-29T03:00:00+02:00"],
        );
        check(
            &nightly,
            "2026-03-29T01:00:00Z",
            ["0@2026-03-29T03:00:00+02:00", "1@2026-03-29T06:00:00+02:00"],
        );
        for twice in ["2026-10-25T00:45:00Z", "2026-10-25T01:15:00Z", "2026-10-25T01:45:00Z"] {
            check(&nightly, twice, ["0@2026-10-25T02:30:00+02:00", "1@2026-10-25T06:00:00+01:00"]);
        }
    }
}
