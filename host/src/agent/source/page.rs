//! One page with everything that is wanted of it: fetched once a beat, read by its form.

use std::time::Duration;

use tokio::time::Instant;

use super::fetch::Fetch;
use super::{Read, Reading, http_json, nginx, orca, prometheus};
use crate::config::{NginxField, Part};

/// A page and its readers.
pub(super) struct Page {
    fetch: Fetch,
    parts: Parts,
    timeout: Duration,
    ran_out_of_time: bool,
}

/// What is wanted of a page; all of one form.
pub(super) enum Parts {
    Series(Box<prometheus::Series>),
    Pointers(Vec<Box<str>>),
    Nginx(nginx::Status),
    Orca(Vec<Box<str>>),
}

impl Parts {
    /// The parts of one page, in their order.
    pub(super) fn new(parts: &[Part]) -> Self {
        let mut wanted = Wanted::default();
        for part in parts {
            match part {
                Part::Series(query) => wanted.queries.push(query.clone()),
                Part::Pointer(pointer) => wanted.pointers.push(pointer.clone()),
                Part::Nginx { field, rate } => wanted.fields.push((*field, *rate)),
                Part::Orca(field) => wanted.orca.push(field.clone()),
            }
        }
        match parts.first() {
            Some(Part::Pointer(_)) => Self::Pointers(wanted.pointers),
            Some(Part::Nginx { .. }) => Self::Nginx(nginx::Status::new(wanted.fields)),
            Some(Part::Orca(_)) => Self::Orca(wanted.orca),
            Some(Part::Series(_)) | None => {
                Self::Series(Box::new(prometheus::Series::new(wanted.queries)))
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Series(series) => series.len(),
            Self::Pointers(wanted) | Self::Orca(wanted) => wanted.len(),
            Self::Nginx(status) => status.len(),
        }
    }
}

/// The parts by their form.
#[derive(Default)]
struct Wanted {
    queries: Vec<crate::config::Query>,
    pointers: Vec<Box<str>>,
    fields: Vec<(NginxField, bool)>,
    orca: Vec<Box<str>>,
}

impl Page {
    pub(super) fn new(url: &str, timeout: Duration, parts: Parts) -> Self {
        Self { fetch: Fetch::new(url, timeout), parts, timeout, ran_out_of_time: false }
    }

    fn try_read(&mut self) -> Result<Vec<Reading>, String> {
        let body = |answer: ureq::http::Response<ureq::Body>| answer.into_body().into_reader();
        match &mut self.parts {
            Parts::Series(series) => {
                let page = self.fetch.get(&[("accept", "text/plain;version=0.0.4")])?;
                series.read(body(page), Instant::now())
            }
            Parts::Pointers(pointers) => {
                let page = self.fetch.get(&[("accept", "application/json")])?;
                http_json::read(body(page), pointers)
            }
            Parts::Nginx(status) => {
                let page = self.fetch.get(&[])?;
                status.read(body(page), Instant::now())
            }
            Parts::Orca(fields) => {
                let page = self.fetch.get(&[(orca::FORMAT_HEADER, "JSON")])?;
                let header = page.headers().get(orca::HEADER).cloned();
                let header = header.as_ref().map(|value| value.as_bytes());
                orca::read(header, body(page), fields)
            }
        }
    }
}

impl Read for Page {
    fn read(&mut self) -> Vec<Reading> {
        let wanted = self.parts.len();
        let start = Instant::now();
        let read = self.try_read();
        // Whatever it was that hung: a connection, the head, or the middle of the body.
        self.ran_out_of_time = read.is_err() && start.elapsed() >= self.timeout;
        read.unwrap_or_else(|why| vec![Reading::Silent(why); wanted])
    }

    fn ran_out_of_time(&self) -> bool {
        self.ran_out_of_time
    }
}
