//! The comparison as text: the whole sweep, then one point closely.

use super::measures::{Best, FAULTS, Measure, SHARES, TIMES};
use crate::sim::compare::{Comparison, Line, Role};
use crate::sim::figures::Figures;
use crate::sim::setup::{Content, Setup};

/// Before the name of who the user put there.
const OWN: &str = "> ";
/// Behind the best strategy of a column.
const BEST: char = '*';
/// Behind a figure that grows with the run.
const UNSTABLE: char = '!';
/// What is not known.
const NOTHING: &str = "-";

/// All tables with what they mean.
pub(super) fn text(about: &str, comparison: &Comparison) -> String {
    let Comparison { scenario, title, key, point: (at, label), .. } = comparison;
    [
        format!("{scenario}: {title}\n\n{about}\n{}", farm(comparison)),
        format!("Mean response in service times, by {key}\n{}", sweep(comparison)),
        format!("At {key} = {label}, in service times\n{}", times(comparison, *at)),
        format!(
            "At {key} = {label}, who got how much\n{}",
            closely(comparison, *at, &SHARES).text()
        ),
        faults(comparison, *at),
        explained(comparison),
    ]
    .into_iter()
    .filter(|part| !part.is_empty())
    .collect::<Vec<_>>()
    .join("\n\n")
}

/// The farm in one line.
fn farm(comparison: &Comparison) -> String {
    let Setup { servers, utilisation, hosts, every, requests, content, .. } = &comparison.setup;
    let told = match content {
        Content::Counts => "counts",
        Content::Utilisation => "only a load",
    };
    let parts = [
        ("servers", format!("{servers} servers")),
        ("hosts", format!("{hosts} hosts")),
        ("utilisation", format!("utilisation {utilisation}")),
        ("every", format!("reports every {every}")),
        ("content", format!("reports of {told}")),
        ("requests", format!("{requests} requests a run")),
        ("", format!("{} seeds", comparison.seeds)),
    ];
    let fixed = parts.into_iter().filter(|(key, _)| *key != comparison.key);
    let singular = |(_, text): (_, String)| match text.strip_prefix("1 ") {
        Some(plural) => format!("1 {}", plural.trim_end_matches('s')),
        None => text,
    };
    format!("Farm: {}.", fixed.map(singular).collect::<Vec<_>>().join(", "))
}

fn sweep(comparison: &Comparison) -> String {
    let values = comparison.values.iter().map(|value| format!("{value} "));
    let points = 0..comparison.values.len();
    let mean = &TIMES[0];
    let best: Vec<_> = points.map(|point| best(comparison, point, mean)).collect();
    let row = |(index, line): (usize, &Line)| {
        let cell = |(figures, best): (&Figures, &Option<usize>)| {
            let mean = digits(figures.mean, 3);
            let decimals = mean.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            let within = match comparison.seeds {
                1 => String::new(),
                _ => format!(" ±{:.decimals$}", figures.within),
            };
            format!("{mean}{within}{}", sign(figures, *best == Some(index)))
        };
        let cells = line.points.iter().zip(&best).map(cell);
        (line.role, [name(line)].into_iter().chain(cells).collect())
    };
    let rows = comparison.lines.iter().enumerate().map(row).collect();
    Table { head: [comparison.key.clone()].into_iter().chain(values).collect(), rows }.text()
}

/// The columns of which anything is known.
fn known<'m>(comparison: &Comparison, at: usize, measures: &'m [Measure]) -> Vec<&'m Measure> {
    let is_known = |measure: &&Measure| {
        comparison.lines.iter().any(|line| (measure.of)(&line.points[at]).is_finite())
    };
    measures.iter().filter(is_known).collect()
}

fn closely(comparison: &Comparison, at: usize, measures: &[Measure]) -> Table {
    let measures = known(comparison, at, measures);
    let best: Vec<_> = measures.iter().map(|measure| best(comparison, at, measure)).collect();
    let row = |(index, line): (usize, &Line)| {
        let figures = &line.points[at];
        let cell = |(measure, best): (&&Measure, &Option<usize>)| {
            format!("{}{}", digits((measure.of)(figures), 3), sign(figures, *best == Some(index)))
        };
        let mut cells = vec![name(line)];
        cells.extend(measures.iter().zip(&best).map(cell));
        (line.role, cells)
    };
    let mut head = vec![String::new()];
    // Room for a sign behind the figures.
    head.extend(measures.iter().map(|measure| format!("{} ", measure.head)));
    Table { head, rows: comparison.lines.iter().enumerate().map(row).collect() }
}

/// How long requests took, and the simulation.
fn times(comparison: &Comparison, at: usize) -> String {
    let mut table = closely(comparison, at, &TIMES);
    table.head.push("ns/request".to_owned());
    for ((_, cells), line) in table.rows.iter_mut().zip(&comparison.lines) {
        cells.push(digits(line.nanoseconds[at], 2));
    }
    table.text()
}

/// Empty where nothing happens to a server.
fn faults(comparison: &Comparison, at: usize) -> String {
    let Setup { incident, failures, .. } = &comparison.setup;
    let during = match incident {
        Some((start, end)) => format!("from {start} to {end} and after it"),
        None if *failures > 0.0 => "which fails requests".to_owned(),
        None => return String::new(),
    };
    format!("The first server, {during}\n{}", closely(comparison, at, &FAULTS).text())
}

/// What the signs and columns mean.
fn explained(comparison: &Comparison) -> String {
    let all = || comparison.lines.iter();
    let figures = || all().flat_map(|line| &line.points);
    let bound = match comparison.setup.equal_speeds() {
        true => "one central queue",
        false => "the better of sed-now and never-queue-now",
    };
    let unanswered: u64 = figures().map(|of| of.unanswered).sum();
    let lines = [
        Some(format!("{BEST} best strategy of a column")),
        all().any(|line| line.role == Role::Own).then(|| format!("{OWN}yours")),
        (comparison.seeds > 1).then(|| "± 95 % interval over the seeds".to_owned()),
        figures().any(|of| of.unstable).then(|| {
            format!("{UNSTABLE} queues grew all the time: unstable, or the run is too short")
        }),
        Some(format!("quality: 0 is {bound}, 1 is random (by speed, where random is unstable)")),
        Some(meanings(comparison)),
        Some("ns/request: what the whole simulation took, on this machine now".to_owned()),
        (unanswered > 0).then(|| {
            format!("{unanswered} requests got no answer from a strategy and went to any server")
        }),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// A line for each column that there is and whose name does not say it.
fn meanings(comparison: &Comparison) -> String {
    let at = comparison.point.0;
    let is_faulty = !faults(comparison, at).is_empty();
    let measures = [&TIMES[..], &SHARES[..], if is_faulty { &FAULTS[..] } else { &[] }];
    let known = measures.into_iter().flat_map(|measures| known(comparison, at, measures));
    let told = known.filter(|measure| !measure.meaning.is_empty());
    told.map(|measure| format!("{}: {}", measure.head, measure.meaning))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The strategy with the best figure, unstable ones left out.
fn best(comparison: &Comparison, point: usize, measure: &Measure) -> Option<usize> {
    let of = measure.of;
    let wanted = measure.best?;
    let lines = comparison.lines.iter().enumerate();
    let strategies = lines.filter(|(_, line)| line.role != Role::Baseline);
    let figures = strategies.map(|(index, line)| (index, &line.points[point]));
    let known = figures.filter(|(_, figures)| !figures.unstable && of(figures).is_finite());
    let best = known.min_by(|(_, a), (_, b)| match wanted {
        Best::Lowest => of(a).total_cmp(&of(b)),
        Best::Highest => of(b).total_cmp(&of(a)),
    });
    best.map(|(index, _)| index)
}

fn name(line: &Line) -> String {
    let mark = if line.role == Role::Own { OWN } else { "" };
    format!("{mark}{}", line.name)
}

fn sign(figures: &Figures, best: bool) -> char {
    match (figures.unstable, best) {
        (true, _) => UNSTABLE,
        (false, true) => BEST,
        (false, false) => ' ',
    }
}

/// With this many significant digits, but all before the point.
fn digits(value: f64, significant: usize) -> String {
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let value = value + 0.0; // no minus before a zero
    let before = |decimals| format!("{:.decimals$}", value.abs()).find('.').unwrap_or(1);
    format!("{value:.*}", significant.saturating_sub(before(significant - 1)))
}

/// Rows of strategies, then of baselines.
struct Table {
    head: Vec<String>,
    rows: Vec<(Role, Vec<String>)>,
}

impl Table {
    /// Aligned: names to the left, figures to the right.
    fn text(&self) -> String {
        let widths: Vec<_> = (0..self.head.len()).map(|column| self.width(column)).collect();
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        let mut lines = vec![aligned(&self.head, &widths), rule.clone()];
        let is_baseline = |row: &(Role, _)| row.0 == Role::Baseline;
        let first = self.rows.iter().position(is_baseline);
        for (index, (_, cells)) in self.rows.iter().enumerate() {
            if first == Some(index) && index > 0 {
                lines.push(rule.clone());
            }
            lines.push(aligned(cells, &widths));
        }
        lines.join("\n")
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|(_, cells)| &cells[column]);
        let widths = cells.chain([&self.head[column]]).map(|cell| cell.chars().count());
        widths.max().unwrap_or(0)
    }
}

fn aligned(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).enumerate();
    let aligned = cells.map(|(column, (cell, width))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    aligned.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0123, "0.01"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (21.84, "21.8"),
            (218.4, "218"),
            (21_840.0, "21840"),
            (-0.0, "0.00"),
            (-9.53, "-9.53"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(digits(value, 3), text);
        }
    }

    #[test]
    fn a_table_is_aligned() {
        let row = |role, cells: [&str; 2]| (role, cells.map(str::to_owned).to_vec());
        let rows = vec![row(Role::Own, ["> mine", "1.00*"]), row(Role::Baseline, ["x", "10.0 "])];
        let head = ["every", "1 "].map(str::to_owned).to_vec();
        let rule = "-------------";
        let text = Table { head, rows }.text();
        assert_eq!(text, format!("every      1\n{rule}\n> mine  1.00*\n{rule}\nx       10.0"));
    }
}
