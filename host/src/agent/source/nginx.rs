//! nginx' `stub_status`: its four lines in, connections and rates out.

use std::io::Read;

use tokio::time::Instant;

use super::Reading;
use super::http_json::whole;
use super::rate::Rate;
use crate::config::NginxField;

/// The page has some hundred bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The wanted fields, with what their rates need.
pub(super) struct Status {
    fields: Vec<(NginxField, Option<Rate>)>,
}

impl Status {
    /// Each field as a rate, or as it is.
    pub(super) fn new(fields: Vec<(NginxField, bool)>) -> Self {
        let fields = fields.into_iter().map(|(field, rate)| (field, rate.then(Rate::default)));
        Self { fields: fields.collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// One reading a field.
    ///
    /// # Errors
    /// The page cannot be read, or is not nginx' status.
    pub(super) fn read(&mut self, body: impl Read, now: Instant) -> Result<Vec<Reading>, String> {
        let page = whole(body, BYTES_MAX)?;
        let page = String::from_utf8_lossy(&page);
        let numbers = numbers(&page).ok_or("the page is not that of nginx' stub_status")?;
        let reading = |(field, rate): &mut (NginxField, Option<Rate>)| {
            let value = numbers[*field as usize];
            rate.as_mut().map_or(Reading::Value(value), |rate| rate.of(value, now))
        };
        Ok(self.fields.iter_mut().map(reading).collect())
    }
}

/// The page's numbers, in the order of [`NginxField`].
fn numbers(page: &str) -> Option<[f64; 7]> {
    let mut lines = page.lines();
    let active = number(lines.next()?.strip_prefix("Active connections:")?)?;
    lines.next().filter(|line| line.starts_with("server accepts handled requests"))?;
    let mut counters = lines.next()?.split_ascii_whitespace().map(number);
    let mut counter = || counters.next().flatten();
    let (accepts, handled, requests) = (counter()?, counter()?, counter()?);
    let states = lines.next()?;
    let state = |name: &str| number(states.split_once(name)?.1.split_ascii_whitespace().next()?);
    let (reading, writing, waiting) = (state("Reading:")?, state("Writing:")?, state("Waiting:")?);
    Some([active, accepts, handled, requests, reading, writing, waiting])
}

fn number(text: &str) -> Option<f64> {
    let count: u64 = text.trim().parse().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
    Some(count as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counters_are_rates_and_gauges_are_as_they_are() {
        let page = |requests: u64| {
            format!(
                "Active connections: 291 \nserver accepts handled requests\n 1663 1663 {requests} \
                 \nReading: 6 Writing: 179 Waiting: 106 \n"
            )
        };
        let fields = vec![
            (NginxField::Active, false),
            (NginxField::Requests, true),
            (NginxField::Waiting, false),
            (NginxField::Requests, false),
        ];
        let (mut status, start) = (Status::new(fields), Instant::now());
        let value = Reading::Value;
        let first = status.read(page(1_000).as_bytes(), start).expect("a status");
        assert_eq!(first, [value(291.0), Reading::NotYet, value(106.0), value(1_000.0)]);
        let later = start + Duration::from_secs(2);
        let second = status.read(page(1_500).as_bytes(), later).expect("a status");
        assert_eq!(second, [value(291.0), value(250.0), value(106.0), value(1_500.0)]);
    }

    #[test]
    fn another_page_is_not_taken_for_it() {
        let mut status = Status::new(vec![(NginxField::Active, false)]);
        for page in ["<html>Welcome to nginx!", "", "Active connections: many"] {
            let error = status.read(page.as_bytes(), Instant::now()).expect_err("no status");
            assert!(error.contains("stub_status"), "{error}");
        }
    }
}
