//! Pages of Prometheus' text format (and `OpenMetrics`): lines in, folded series out.
//!
//! The page is read line by line and never held, however long it is. A line that is not understood,
//! or whose value is not finite, is left out and counted; the others count, and the reading says so. Counters, by the page's
//! own `# TYPE` or the query's `rate`, become rates a series, so that one that begins anew spoils one
//! reading and not its size. Only lines of wanted series are looked at.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

use tokio::time::Instant;

use super::Reading;
use super::rate::Rate;
use crate::config::{Fold, Labels, Query, Term};

/// Bytes of a page at most: a large exporter's page has some megabytes.
const PAGE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a line at most; a longer one is left out.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The queries to one page.
pub(super) struct Series {
    queries: Vec<Query>,
    /// One or two a query: its term, then its divisor.
    watched: Vec<Watched>,
}

/// One term, with what this page and the last one said of it.
struct Watched {
    term: Term,
    /// By its series' labels.
    now: HashMap<Labels, f64>,
    rates: HashMap<Labels, Rate>,
    counter: bool,
    bad: usize,
}

impl Series {
    pub(super) fn new(queries: Vec<Query>) -> Self {
        let terms = queries.iter().flat_map(|query| [Some(&query.term), query.divisor.as_ref()]);
        let watched = terms.flatten().map(|term| Watched {
            term: term.clone(),
            now: HashMap::new(),
            rates: HashMap::new(),
            counter: false,
            bad: 0,
        });
        Self { watched: watched.collect(), queries }
    }

    pub(super) fn len(&self) -> usize {
        self.queries.len()
    }

    /// One reading a query.
    ///
    /// # Errors
    /// The page broke off or is too long: what it said so far is not used.
    pub(super) fn read(&mut self, body: impl Read, now: Instant) -> Result<Vec<Reading>, String> {
        for watched in &mut self.watched {
            watched.now.clear();
            (watched.counter, watched.bad) = (false, 0);
        }
        let lines = each_line(body, |line| {
            for watched in &mut self.watched {
                watched.look_at(line);
            }
        })?;
        if lines == 0 {
            return Err("the page is empty".to_owned());
        }
        let mut numbers =
            self.watched.iter_mut().map(|watched| (watched.fold(now), watched.left_out()));
        let mut next = || numbers.next().unwrap_or((Reading::NotYet, None)); // one for each term
        let readings = self.queries.iter().map(|query| {
            let (term, left_out) = next();
            let (divisor, also_left_out) = query.divisor.as_ref().map(|_| next()).unzip();
            let reading = combine(query.complement, term, divisor);
            match (reading, left_out.or(also_left_out.flatten())) {
                (Reading::Value(value), Some(left_out)) => Reading::Partly(value, left_out),
                (reading, _) => reading,
            }
        });
        Ok(readings.collect())
    }
}

/// Calls for every line that is not too long; how many lines there were.
fn each_line(body: impl Read, mut look: impl FnMut(&str)) -> Result<usize, String> {
    let mut reader = BufReader::with_capacity(LINE_BYTES_MAX, body.take(PAGE_BYTES_MAX + 1));
    let (mut piece, mut lines, mut bytes) = (Vec::new(), 0, 0);
    // A line that is too long comes in pieces, of which any may look like a line.
    let mut is_within = false;
    loop {
        piece.clear();
        let mut part = reader.by_ref().take(LINE_BYTES_MAX as u64);
        let read = part.read_until(b'\n', &mut piece);
        let len = read.map_err(|error| format!("the page broke off: {error}"))?;
        if len == 0 {
            return Ok(lines);
        }
        bytes += len as u64;
        if bytes > PAGE_BYTES_MAX {
            return Err(format!("the page is longer than {} MiB", PAGE_BYTES_MAX >> 20));
        }
        let was_within = is_within;
        is_within = len == LINE_BYTES_MAX && !piece.ends_with(b"\n");
        lines += usize::from(!was_within);
        if was_within || is_within {
            continue;
        }
        if let Ok(line) = std::str::from_utf8(&piece) {
            look(line.trim());
        }
    }
}

impl Watched {
    fn look_at(&mut self, line: &str) {
        if let Some(comment) = line.strip_prefix('#') {
            self.look_at_comment(comment);
            return;
        }
        let Some(rest) = line.strip_prefix(&*self.term.selector.name) else { return };
        if !rest.starts_with(['{', ' ', '\t']) {
            return; // a longer name
        }
        match sample(rest) {
            Some((labels, value)) if self.term.selector.matches(&labels) => {
                if value.is_finite() {
                    self.now.insert(labels, value);
                } else {
                    self.bad += 1;
                }
            }
            Some(_) => {}
            None => self.bad += 1,
        }
    }

    /// `# TYPE name counter`; a histogram's and a summary's sums and counts are counters too.
    fn look_at_comment(&mut self, comment: &str) {
        let mut words = comment.split_ascii_whitespace();
        if words.next() != Some("TYPE") {
            return;
        }
        let (Some(name), Some(kind)) = (words.next(), words.next()) else { return };
        let Some(ending) = self.term.selector.name.strip_prefix(name) else { return };
        self.counter |= match kind {
            "counter" => matches!(ending, "" | "_total"),
            "histogram" | "summary" => matches!(ending, "_count" | "_sum" | "_bucket"),
            _ => false,
        };
    }

    /// One number of all series of this page.
    fn fold(&mut self, now: Instant) -> Reading {
        if self.now.is_empty() {
            return Reading::Useless(self.missing());
        }
        let rate = match self.term.fold {
            Fold::Rate => true,
            Fold::Value => false,
            Fold::Sum | Fold::Max | Fold::Min | Fold::Average => self.counter,
        };
        if rate { self.fold_rates(now) } else { fold(self.term.fold, self.now.values().copied()) }
    }

    fn fold_rates(&mut self, now: Instant) -> Reading {
        self.rates.retain(|labels, _| self.now.contains_key(labels));
        let (mut rates, mut useless) = (Vec::with_capacity(self.now.len()), None);
        for (labels, count) in self.now.drain() {
            match self.rates.entry(labels).or_default().of(count, now) {
                Reading::Value(rate) => rates.push(rate),
                Reading::NotYet => {} // a new series
                other => useless = Some(other),
            }
        }
        match useless {
            Some(useless) => useless,
            None if rates.is_empty() => Reading::NotYet,
            None => fold(self.term.fold, rates.into_iter()),
        }
    }

    fn missing(&self) -> String {
        let name = &self.term.selector.name;
        self.left_out().unwrap_or_else(|| format!("the page has no such series {name}"))
    }

    /// What of this page is left out, in words.
    fn left_out(&self) -> Option<String> {
        let (name, bad) = (&self.term.selector.name, self.bad);
        (bad > 0).then(|| format!("{bad} lines of {name} have no number to count with"))
    }
}

fn fold(fold: Fold, values: impl ExactSizeIterator<Item = f64>) -> Reading {
    #[expect(clippy::cast_precision_loss, reason = "a page has no 2^53 series")]
    let count = values.len() as f64;
    Reading::Value(match fold {
        Fold::Sum | Fold::Rate | Fold::Value => values.sum(),
        Fold::Max => values.fold(f64::NEG_INFINITY, f64::max),
        Fold::Min => values.fold(f64::INFINITY, f64::min),
        Fold::Average => values.sum::<f64>() / count,
    })
}

fn combine(complement: bool, term: Reading, divisor: Option<Reading>) -> Reading {
    let quotient = match (term, divisor) {
        (term, None) => term,
        (Reading::Value(_), Some(Reading::Value(0.0))) => {
            Reading::Useless("the divisor is 0".to_owned())
        }
        (Reading::Value(term), Some(Reading::Value(divisor))) => Reading::Value(term / divisor),
        (Reading::Value(_), Some(other)) | (other, Some(_)) => other,
    };
    match quotient {
        Reading::Value(value) if complement => Reading::Value(1.0 - value),
        other => other,
    }
}

/// Labels and value of a line, after the series' name: `{a="b"} 1.5 1700000000`.
fn sample(rest: &str) -> Option<(Labels, f64)> {
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?;
    Some((labels, value.parse().ok()?))
}

/// The labels up to the closing brace, sorted, and what follows it.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            labels.sort_unstable();
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
        labels.push((name.trim().to_owned(), value));
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

/// A value up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[index + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests;
