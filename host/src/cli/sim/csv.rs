//! The comparison as CSV: one row a strategy, value and seed.

use std::fmt::Write;

use crate::sim::compare::{Comparison, Role};

/// With a head line; numbers in full.
pub(super) fn text(comparison: &Comparison) -> String {
    let mut text =
        format!("strategy,role,{},seed,mean,p50,p99,p99.9,longest,unstable\n", comparison.key);
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
                let times = [of.mean, of.p50, of.p99, of.p999, of.longest];
                let times = times.map(|time| time.to_string()).join(",");
                writeln!(text, "{name},{role},{value},{seed},{times},{}", of.unstable)
                    .expect("a string can be written to");
            }
        }
    }
    text
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
