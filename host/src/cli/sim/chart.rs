//! The comparison as a picture: mean response over what is varied, both on logarithmic scales.
//!
//! Every line has its name at its right end, names pushed apart where lines are close; baselines are
//! grey and dashed, unstable figures open circles, at the upper edge where they are too high. The text's
//! size is estimated, because no fonts are read.

#![expect(clippy::cast_possible_truncation, reason = "pixels and powers of ten are small")]

use std::ops::Range;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Text};
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE};

use crate::sim::compare::{Comparison, Role};
use crate::sim::figures::Figures;
use crate::sim::scenario::Scenario;

const SIZE: (u32, u32) = (960, 600);
/// Room for the title above and the names to the right.
const TOP: u32 = 64;
const RIGHT: u32 = 150;
/// Between a line's end and its name.
const GAP: i32 = 22;
/// Characters of a name that there is room for.
const NAME_MAX: usize = 18;
/// From name to name at least.
const NAME_HEIGHT: i32 = 16;
const FONT: &str = "sans-serif";
const DARK: RGBColor = RGBColor(40, 40, 40);
const GREY: RGBColor = RGBColor(125, 125, 125);
const LIGHT: RGBColor = RGBColor(228, 228, 228);
/// The user's own.
const OWN: RGBColor = RGBColor(0, 0, 0);
/// Colours that are told apart by most eyes, the first ones best.
const COLOURS: [RGBColor; 16] = [
    RGBColor(213, 43, 30),
    RGBColor(0, 98, 178),
    RGBColor(0, 145, 100),
    RGBColor(224, 130, 0),
    RGBColor(140, 70, 165),
    RGBColor(0, 165, 200),
    RGBColor(200, 80, 140),
    RGBColor(130, 90, 45),
    RGBColor(95, 125, 20),
    RGBColor(60, 60, 150),
    RGBColor(235, 120, 120),
    RGBColor(110, 165, 225),
    RGBColor(95, 195, 150),
    RGBColor(190, 160, 20),
    RGBColor(185, 140, 215),
    RGBColor(110, 35, 45),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;
/// Why it could not be drawn.
type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// An axis with its marks; its values are logarithms or places.
struct Axis {
    range: Range<f64>,
    marks: Vec<(f64, String)>,
}

/// A line of the chart, in logarithms.
#[derive(Clone)]
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    /// Those of `points` that are unstable.
    unstable: Vec<(f64, f64)>,
    colour: RGBColor,
    width: u32,
    dashed: bool,
}

/// The picture, an SVG.
pub(super) fn svg(scenario: &Scenario, comparison: &Comparison) -> Result<String, String> {
    let mut text = String::new();
    let places = places(scenario);
    let curves = curves(comparison, &places);
    if curves.is_empty() {
        return Err(
            "there is nothing to draw: no request was served; try more --requests".to_owned()
        );
    }
    draw(&mut text, comparison, &places, &curves)
        .map_err(|error| format!("cannot draw the chart: {error}"))?;
    Ok(text)
}

/// Where the values stand on the horizontal axis: by logarithm, or side by side.
fn places(scenario: &Scenario) -> Vec<f64> {
    let positive = |number: &f64| *number > 0.0;
    let numbers: Option<Vec<_>> =
        scenario.points.iter().map(|point| point.number.filter(positive)).collect();
    match numbers {
        Some(numbers) => numbers.into_iter().map(f64::log10).collect(),
        None => (0..scenario.points.len()).map(|place| place as f64).collect(),
    }
}

fn curves(comparison: &Comparison, places: &[f64]) -> Vec<Curve> {
    let mut colours = COLOURS.iter().cycle();
    let mut curve = |role| match role {
        Role::Baseline => (GREY, 1, true),
        Role::Own => (OWN, 3, false),
        Role::Strategy => (*colours.next().unwrap_or(&DARK), 2, false),
    };
    let curves = comparison.lines.iter().map(|line| {
        let (colour, width, dashed) = curve(line.role);
        let points = |wanted: fn(&Figures) -> bool| {
            let figures = places.iter().zip(&line.points).filter(|(_, figures)| wanted(figures));
            let points = figures.map(|(place, figures)| (*place, figures.mean.log10()));
            points.filter(|(_, height)| height.is_finite()).collect()
        };
        let name = shortened(&line.name);
        let (points, unstable) = (points(|_| true), points(|figures| figures.unstable));
        Curve { name, points, unstable, colour, width, dashed }
    });
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

fn draw(
    text: &mut String,
    comparison: &Comparison,
    places: &[f64],
    curves: &[Curve],
) -> Result<(), DrawError> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("{}: {}", comparison.scenario, comparison.title);
    root.draw(&Text::new(title, (24, 18), style(19, DARK, HPos::Left)))?;
    let open = match curves.iter().all(|curve| curve.unstable.is_empty()) {
        true => "",
        false => "; open circles: unstable",
    };
    let subtitle =
        format!("mean response in service times, lower is better; dashed: references{open}");
    root.draw(&Text::new(subtitle, (24, 42), style(13, GREY, HPos::Left)))?;

    let up = widened(heights(curves).into_iter(), 0.03);
    let curves = &lowered(curves, up.end);
    let up = Axis { marks: marks(&up), range: up };
    let values = places.iter().copied().zip(comparison.values.iter().cloned());
    let across = Axis { range: widened(places.iter().copied(), 0.02), marks: values.collect() };
    let mut chart = ChartBuilder::on(&root)
        .margin_top(TOP)
        .margin_right(RIGHT)
        .margin_left(12)
        .margin_bottom(10)
        .x_label_area_size(44)
        .y_label_area_size(50)
        .build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .x_desc(meaning(&comparison.key))
        .label_style(style(13, DARK, HPos::Left))
        .axis_desc_style(style(14, DARK, HPos::Center))
        .axis_style(GREY)
        .bold_line_style(LIGHT)
        .light_line_style(WHITE.mix(0.0))
        .draw()?;
    draw_curves(&mut chart, curves)?;
    draw_names(&root, &chart, curves)?;
    root.present()?;
    Ok(())
}

/// What the vertical axis must show: of figures that grow with the run there is no true one, and one
/// may be a thousand times the others.
fn heights(curves: &[Curve]) -> Vec<f64> {
    let all =
        || curves.iter().flat_map(|curve| curve.points.iter().map(move |point| (curve, point)));
    let is_stable = |(curve, point): &(&Curve, &(f64, f64))| !curve.unstable.contains(point);
    let stable: Vec<_> = all().filter(is_stable).map(|(_, (_, height))| *height).collect();
    match stable.is_empty() {
        true => all().map(|(_, (_, height))| *height).collect(),
        false => stable,
    }
}

/// With everything above the top at the top.
fn lowered(curves: &[Curve], top: f64) -> Vec<Curve> {
    let lower = |points: &[(f64, f64)]| {
        points.iter().map(|(place, height)| (*place, height.min(top))).collect()
    };
    let lowered = curves.iter().map(|curve| Curve {
        points: lower(&curve.points),
        unstable: lower(&curve.unstable),
        ..curve.clone()
    });
    lowered.collect()
}

/// Strategies over baselines, and the user's own, which come first, over all.
fn draw_curves(chart: &mut Chart<'_>, curves: &[Curve]) -> Result<(), DrawError> {
    for curve in curves.iter().rev() {
        let style = ShapeStyle::from(curve.colour).stroke_width(curve.width);
        let points = curve.points.iter().copied();
        if curve.dashed {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?;
        } else {
            chart.draw_series(LineSeries::new(points.clone(), style))?;
            chart.draw_series(points.map(|point| Circle::new(point, 3, style.filled())))?;
        }
        let unstable = || curve.unstable.iter().copied();
        chart.draw_series(unstable().map(|point| Circle::new(point, 3, WHITE.filled())))?;
        chart.draw_series(unstable().map(|point| Circle::new(point, 3, curve.colour)))?;
    }
    Ok(())
}

/// Each curve's name to the right, with a line from its end.
fn draw_names(root: &Area<'_>, chart: &Chart<'_>, curves: &[Curve]) -> Result<(), DrawError> {
    let (across, up) = (chart.x_range(), chart.y_range());
    let (edge, bottom) = chart.backend_coord(&(across.end, up.start));
    let ends: Vec<_> = curves
        .iter()
        .map(|curve| chart.backend_coord(curve.points.last().unwrap_or(&(across.end, up.start))))
        .collect();
    for ((curve, end), height) in curves.iter().zip(&ends).zip(apart(&ends, bottom)) {
        let leader = [(end.0 + 5, end.1), (edge, end.1), (edge + GAP - 4, height)];
        root.draw(&PathElement::new(leader, curve.colour.mix(0.5)))?;
        let style = style(13, curve.colour, HPos::Left);
        root.draw(&Text::new(curve.name.clone(), (edge + GAP, height), style))?;
    }
    Ok(())
}

fn style(size: u32, colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    let style = TextStyle::from((FONT, size).into_font());
    TextStyle { color: colour.to_backend_color(), ..style }.pos(Pos::new(horizontal, VPos::Center))
}

/// What there is room for.
fn shortened(name: &str) -> String {
    match name.chars().count() > NAME_MAX {
        true => name.chars().take(NAME_MAX - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// A key of the setup with its unit.
fn meaning(key: &str) -> String {
    let unit = match key {
        "every" => "service times between two reports of a server",
        "delay" => "service times from a report's capture to its arrival",
        "loss" => "share of reports that a host misses",
        "failures" => "share of its requests that the first server fails",
        "key_skew" => "the n-th key comes 1 / n to this power as often as the first",
        "utilisation" => "arriving work over what all servers can do",
        _ => return key.to_owned(),
    };
    format!("{key}: {unit}")
}

/// From the lowest to the highest, a little more on both sides.
fn widened(values: impl Iterator<Item = f64> + Clone, share: f64) -> Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    let more = ((high - low) * share).max(0.02);
    low - more..high + more
}

/// 1, 2 and 5 times each power of ten that is in this range of logarithms.
fn marks(range: &Range<f64>) -> Vec<(f64, String)> {
    let powers = range.start.floor() as i32..=range.end.ceil() as i32;
    let values = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    let marks = values.map(|value| (value.log10(), short(value)));
    marks.filter(|(mark, _)| range.contains(mark)).collect()
}

/// Without zeros at the end.
fn short(value: f64) -> String {
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.marks.iter().map(|(mark, _)| *mark).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        short(*value)
    }

    /// What is written at the nearest mark.
    fn format_ext(&self, value: &f64) -> String {
        let distance = |mark: &&(f64, String)| (mark.0 - value).abs();
        let nearest = self.marks.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// Heights for the names: each at its line's end, or as near as the others let it.
fn apart(ends: &[(i32, i32)], bottom: i32) -> Vec<i32> {
    let mut order: Vec<_> = (0..ends.len()).collect();
    order.sort_by_key(|index| ends[*index].1);
    // Neighbours that are too close become a group, which stands around the mean of its lines.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let span = |group: &[usize]| NAME_HEIGHT * i32::try_from(group.len()).unwrap_or(i32::MAX);
    let top_of = |group: &[usize]| {
        let count = i32::try_from(group.len()).unwrap_or(i32::MAX).max(1);
        let mean = group.iter().map(|index| ends[*index].1).sum::<i32>() / count;
        (mean - span(group) / 2).min(bottom - span(group)).max(0)
    };
    for index in order {
        let mut group = vec![index];
        while let Some(above) = groups.pop() {
            if top_of(&above) + span(&above) <= top_of(&group) {
                groups.push(above);
                break;
            }
            group.splice(0..0, above);
        }
        groups.push(group);
    }
    let mut heights = vec![0; ends.len()];
    for group in &groups {
        for (place, index) in (0..).zip(group) {
            heights[*index] = top_of(group) + NAME_HEIGHT * place + NAME_HEIGHT / 2;
        }
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_overlap_and_keep_their_order() {
        let ends = [300, 100, 101, 102, 90, 300, 590, 592].map(|height| (0, height));
        let heights = apart(&ends, 600);
        let mut sorted = heights.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= NAME_HEIGHT), "{heights:?}");
        assert!(heights[4] < heights[1] && heights[1] < heights[2] && heights[2] < heights[3]);
        assert!(sorted.iter().all(|height| (0..600).contains(height)), "{heights:?}");
        assert_eq!(apart(&[(0, 100)], 600), [100]);
    }

    #[test]
    fn what_grows_with_the_run_does_not_press_the_others_flat() {
        let curve = |points: &[(f64, f64)], unstable: &[(f64, f64)]| Curve {
            name: String::new(),
            points: points.to_vec(),
            unstable: unstable.to_vec(),
            colour: DARK,
            width: 1,
            dashed: false,
        };
        let curves = [curve(&[(0.0, 0.5)], &[]), curve(&[(0.0, 0.4), (1.0, 9.0)], &[(1.0, 9.0)])];
        assert_eq!(heights(&curves), [0.5, 0.4]);
        assert_eq!(heights(&curves[1..]), [0.4]);
        let lowered = lowered(&curves, 0.6);
        assert_eq!(
            (&*lowered[1].points, &*lowered[1].unstable),
            (&[(0.0, 0.4), (1.0, 0.6)][..], &[(1.0, 0.6)][..])
        );
        assert_eq!(heights(&[curve(&[(0.0, 9.0)], &[(0.0, 9.0)])]), [9.0], "nothing else to show");
    }

    #[test]
    fn marks_are_round_numbers() {
        let marks: Vec<_> = marks(&(-0.1..1.4)).into_iter().map(|(_, text)| text).collect();
        assert_eq!(marks, ["1", "2", "5", "10", "20"]);
    }
}
