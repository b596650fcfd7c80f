//! Times of day: when a cron expression fired last in a time zone, and when it fires next.
//!
//! Pure: instants are arguments, in milliseconds since 1970, and answers are whole minutes. A time that
//! the clocks of spring leave out fires at the first moment after the gap, one that the clocks of autumn
//! show twice fires the first time. An expression for several hours or minutes of a day (`*`, lists,
//! steps) goes by what the clocks show instead: never in the gap, twice in the hour that is repeated.

use std::fmt;
use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};
use serde::{Serialize, Serializer};

/// How an expression is written.
const FORM: &str =
    "write minute, hour, day of the month, month and day of the week, \"0 8 * * MON-FRI\"";

/// A time zone with its rules.
#[derive(Debug, Clone)]
pub struct Zone(TimeZone);

impl Zone {
    /// A zone by its IANA name, in capitals or not; `None`: nobody knows it. By the system's rules,
    /// which are newer than a program, or, where there are none, by those that are built in.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let known = jiff::tz::db().get(name);
        known.or_else(|_| TimeZoneDatabase::bundled().get(name)).ok().map(Self)
    }

    /// All names that can be asked for.
    #[must_use]
    pub fn names() -> Vec<String> {
        let built_in = TimeZoneDatabase::bundled();
        let all = jiff::tz::db().available().chain(built_in.available());
        all.map(|name| name.to_string()).collect()
    }

    /// Its IANA name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// An instant as the zone's clocks show it, `2026-03-29T03:00:00+02:00`.
    #[must_use]
    pub fn show(&self, at_ms: u64) -> String {
        let Some(at) = self.at(at_ms) else { return format!("{at_ms} ms after 1970") };
        at.timestamp().display_with_offset(at.offset()).to_string()
    }

    /// `None`: after the year 9999.
    fn at(&self, at_ms: u64) -> Option<Zoned> {
        let seconds = i64::try_from(at_ms / 1_000).ok()?;
        Timestamp::from_second(seconds).ok().map(|at| at.to_zoned(self.0.clone()))
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A cron expression of five fields.
#[derive(Debug, Clone)]
pub struct Cron {
    text: String,
    cron: croner::Cron,
}

impl Cron {
    /// When it fired last, at this instant or before; `None`: never.
    #[must_use]
    pub fn last(&self, zone: &Zone, at_ms: u64) -> Option<u64> {
        self.cron.find_previous_occurrence(&zone.at(at_ms)?, true).ok().and_then(to_ms)
    }

    /// When it fires next after this instant; `None`: never.
    #[must_use]
    pub fn next(&self, zone: &Zone, at_ms: u64) -> Option<u64> {
        self.cron.find_next_occurrence(&zone.at(at_ms)?, false).ok().and_then(to_ms)
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Cron {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
        let cron = parser.build().parse(text).map_err(|error| {
            let why = error.to_string();
            let why = why.trim_end_matches('.');
            format!("{text:?} is not a cron expression ({why}): {FORM}")
        })?;
        let cron = Self { text: text.to_owned(), cron };
        match cron.next(&Zone::default(), 0) {
            Some(_) => Ok(cron),
            None => Err(format!("{text:?} is never: there is no such day")),
        }
    }
}

impl PartialEq for Cron {
    /// Whether both fire at the same times, however they are written.
    fn eq(&self, other: &Self) -> bool {
        self.cron == other.cron
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Cron {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// `None`: before 1970.
fn to_ms(at: Zoned) -> Option<u64> {
    u64::try_from(at.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(instant: &str) -> u64 {
        let instant: Timestamp = instant.parse().expect("an instant");
        to_ms(instant.to_zoned(TimeZone::UTC)).expect("after 1970")
    }

    /// When an expression fired last and fires next, as the zone's clocks show it.
    #[track_caller]
    fn check(zone: &str, cron: &str, at: &str, expected: [&str; 2]) {
        let (zone, at) = (Zone::named(zone).expect("a zone"), ms(at));
        let cron: Cron = cron.parse().expect("an expression");
        let shown = |at: Option<u64>| at.map_or("never".to_owned(), |at| zone.show(at));
        assert_eq!([cron.last(&zone, at), cron.next(&zone, at)].map(shown), expected);
    }

    #[test]
    fn the_minute_itself_is_the_last_time_and_not_the_next() {
        let days = ["2026-11-30T08:00:00+01:00", "2026-12-01T08:00:00+01:00"];
        check("Europe/Berlin", "0 8 * * *", "2026-11-30T07:00:00Z", days);
        check("Europe/Berlin", "0 8 * * *", "2026-11-30T07:00:59.999Z", days);
        check("Europe/Berlin", "0 8 * * *", "2026-12-01T06:59:59.999Z", days);
        let friday_and_monday = ["2026-11-27T08:00:00+01:00", "2026-11-30T08:00:00+01:00"];
        check("Europe/Berlin", "0 8 * * MON-FRI", "2026-11-29T12:00:00Z", friday_and_monday);
        check(
            "UTC",
            "0 0 29 2 *",
            "2026-01-01T00:00:00Z",
            ["2024-02-29T00:00:00+00:00", "2028-02-29T00:00:00+00:00"],
        );
    }

    #[test]
    fn a_time_that_spring_leaves_out_is_the_first_moment_after_the_gap() {
        // 2026-03-29: from 01:59:59+01:00 the clocks go to 03:00:00+02:00.
        let yesterday = "2026-03-28T02:30:00+01:00";
        let after = "2026-03-29T03:00:00+02:00";
        let tomorrow = "2026-03-30T02:30:00+02:00";
        check("Europe/Berlin", "30 2 * * *", "2026-03-29T00:59:59Z", [yesterday, after]);
        check("Europe/Berlin", "30 2 * * *", "2026-03-29T01:00:00Z", [after, tomorrow]);
        check("Europe/Berlin", "30 2 * * *", "2026-03-29T12:00:00Z", [after, tomorrow]);
        // The other side of the sea changes two weeks earlier.
        check(
            "America/New_York",
            "30 2 * * *",
            "2026-03-08T12:00:00Z",
            ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"],
        );
    }

    #[test]
    fn a_time_that_autumn_shows_twice_is_the_first_one() {
        // 2026-10-25: from 02:59:59+02:00 the clocks go to 02:00:00+01:00.
        let first = "2026-10-25T02:30:00+02:00";
        let tomorrow = "2026-10-26T02:30:00+01:00";
        let yesterday = "2026-10-24T02:30:00+02:00";
        check("Europe/Berlin", "30 2 * * *", "2026-10-25T00:10:00Z", [yesterday, first]);
        check("Europe/Berlin", "30 2 * * *", "2026-10-25T00:30:00Z", [first, tomorrow]);
        // 02:10, 02:30 and 03:10 the second time round.
        for at in ["2026-10-25T01:10:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:10:00Z"] {
            check("Europe/Berlin", "30 2 * * *", at, [first, tomorrow]);
        }
    }

    #[test]
    fn every_hour_goes_by_what_the_clocks_show() {
        check(
            "Europe/Berlin",
            "30 * * * *",
            "2026-03-29T01:00:00Z",
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"],
        );
        check(
            "Europe/Berlin",
            "30 * * * *",
            "2026-10-25T01:00:00Z",
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"],
        );
    }

    #[test]
    fn zones_are_known_by_any_case_and_without_the_systems_data() {
        assert_eq!(
            Zone::named("europe/berlin").map(|zone| zone.name().to_owned()).as_deref(),
            Some("Europe/Berlin")
        );
        assert!(Zone::named("Europe/Berlln").is_none());
        assert!(TimeZoneDatabase::bundled().get("Asia/Kolkata").is_ok());
        assert!(Zone::names().iter().any(|name| name == "Europe/Berlin"));
    }

    #[track_caller]
    fn check_refused(cron: &str, reason: &str) {
        let error = cron.parse::<Cron>().expect_err("not an expression");
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn what_is_not_an_expression_is_refused_with_the_right_form() {
        check_refused("0 25 * * *", "\"0 25 * * *\" is not a cron expression (");
        check_refused("0 25 * * *", FORM);
        check_refused("8:00", FORM);
        check_refused("", FORM);
        check_refused("0 0 8 * * *", FORM);
        check_refused("0 0 8 * * * 2030", FORM);
        check_refused("0 0 30 2 *", "is never");
    }

    #[test]
    fn expressions_are_the_same_however_they_are_written() {
        let [one, other, third] = ["0 8 * * MON-FRI", "00 8 * * 1-5", "0 9 * * 1-5"]
            .map(|text| text.parse::<Cron>().expect("an expression"));
        assert!(one == other && one != third);
    }
}
