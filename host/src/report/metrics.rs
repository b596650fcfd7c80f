//! Metrics of a report: names and values side by side, the names borrowed or shared.
//!
//! Machines of one make report the same names again and again. Who decodes many reports knows them
//! by their bytes ([`wire::Decoder`](super::wire::Decoder)): then all have one list, and whether two are
//! equal is seen by its address. Both forms compare, print and encode alike.

use std::fmt;
use std::sync::Arc;

/// The names of a report's metrics, shared by all reports that have the same ones, so that a lookup
/// table made for them stays good.
pub type MetricNames = Arc<[Box<str>]>;

/// Metrics by name; names and values have the same order and length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics<'a> {
    /// The names; of two equal ones the first counts.
    pub names: Names<'a>,
    /// The values; one that is not finite counts as not reported.
    pub values: Vec<f64>,
}

/// Names in a report's order.
#[derive(Clone)]
pub struct Names<'a>(Form<'a>);

#[derive(Clone)]
enum Form<'a> {
    Listed(Vec<&'a str>),
    /// Each is fit to be a name ([`is_name`](super::is_name)).
    Known(MetricNames),
}

impl<'a> Names<'a> {
    /// Those of a list that reports have had before; each was found fit to be a name.
    pub(super) fn of_known(names: MetricNames) -> Self {
        Self(Form::Known(names))
    }

    /// The list that others have as well, if they are of one.
    #[must_use]
    pub fn known(&self) -> Option<&MetricNames> {
        match &self.0 {
            Form::Listed(_) => None,
            Form::Known(names) => Some(names),
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Listed(names) => names.len(),
            Form::Known(names) => names.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let (listed, known): (&[&str], &[Box<str>]) = match &self.0 {
            Form::Listed(names) => (names, &[]),
            Form::Known(names) => (&[], names),
        };
        listed.iter().copied().chain(known.iter().map(|name| &**name))
    }

    /// Keeps the first ones.
    pub(super) fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Form::Listed(names) => names.truncate(len),
            Form::Known(names) if len < names.len() => *names = names[..len].into(),
            Form::Known(_) => {}
        }
    }
}

impl Default for Names<'_> {
    fn default() -> Self {
        Self(Form::Listed(Vec::new()))
    }
}

impl<'a> From<Vec<&'a str>> for Names<'a> {
    fn from(names: Vec<&'a str>) -> Self {
        Self(Form::Listed(names))
    }
}

impl<'a> FromIterator<(&'a str, f64)> for Metrics<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, f64)>>(metrics: I) -> Self {
        let (names, values): (Vec<_>, _) = metrics.into_iter().unzip();
        Self { names: names.into(), values }
    }
}

impl PartialEq for Names<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl serde::Serialize for Names<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}
