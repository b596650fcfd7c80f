//! The comparison as CSV: one row a strategy, value and seed.

use std::fmt::Write;

use crate::sim::compare::{Comparison, Role};
use crate::sim::figures::Single;

/// A column: its name and its figure.
type Column = (&'static str, fn(&Single) -> f64);

const COLUMNS: [Column; 12] = [
    ("mean", |of| of.mean),
    ("p50", |of| of.p50),
    ("p99", |of| of.p99),
    ("p99.9", |of| of.p999),
    ("longest", |of| of.longest),
    ("longest/mean", |of| of.imbalance),
    ("deviation", |of| of.deviation),
    ("peak", |of| of.peak),
    ("evenness", |of| of.evenness),
    ("herd_share", |of| of.herd_share),
    ("moved", |of| of.moved),
    ("failed", |of| of.failed),
];

/// With a head line; numbers in full, nothing where nothing is known.
pub(super) fn text(comparison: &Comparison) -> String {
    let names = COLUMNS.map(|(name, _)| name).join(",");
    let mut text = format!("strategy,role,{},seed,{names},unstable\n", comparison.key);
    for line in &comparison.lines {
        let name = quoted(&line.name);
        let role = match line.role {
            Role::Strategy => "strategy",
            Role::Own => "own",
            Role::Baseline => "baseline",
        };
        for (value, figures) in comparison.values.iter().zip(&line.points) {
            let value = quoted(value);
            for (seed, of) in (1..).zip(&figures.seeds) {
                let figures = COLUMNS.map(|(_, figure)| number(figure(of))).join(",");
                writeln!(text, "{name},{role},{value},{seed},{figures},{}", of.unstable)
                    .expect("a string can be written to");
            }
        }
    }
    text
}

fn number(figure: f64) -> String {
    if figure.is_finite() { figure.to_string() } else { String::new() }
}

/// In quotes where it must be.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_with_a_comma_is_quoted() {
        assert_eq!(quoted("p2c"), "p2c");
        assert_eq!(quoted("[1, 2]"), "\"[1, 2]\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
