//! Findings as SVG: lines over a scale, or bars side by side.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::units::show_bytes;

const SIZE: (u32, u32) = (880, 520);
const FONT: (&str, u32) = ("sans-serif", 15);
/// Okabe and Ito's colours, which colour-blind readers can tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Named points, `(x, y)`; of bars, x is the index of the group.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// In any order.
    pub points: Vec<(f64, f64)>,
}

/// A drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Above the drawing.
    pub title: String,
    /// What x is, with its unit.
    pub x_label: String,
    /// What y is, with its unit.
    pub y_label: String,
    /// How points are shown.
    pub shape: Shape,
    /// The points.
    pub series: Vec<Series>,
}

/// How points are shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Lines; the x axis is logarithmic.
    Lines {
        /// A logarithmic y axis.
        log_y: bool,
        /// x counts bytes.
        x_bytes: bool,
    },
    /// Lines over a linear x axis.
    LinearLines,
    /// One group of bars per name, one bar per series in each.
    Bars {
        /// Names of the groups.
        groups: Vec<String>,
    },
}

impl Figure {
    /// Draws to a file.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        let done = root.fill(&WHITE).map_err(|error| anyhow!("{error}")).and_then(|()| match &self.shape {
            Shape::Lines { log_y, x_bytes } => {
                let (left, right) = range(self.points().map(|(x, _)| x));
                // Bytes come in powers of two.
                let x = (left..right).log_scale().base(if *x_bytes { 2.0 } else { 10.0 });
                let (low, high) = self.y_range();
                match log_y {
                    true => self.lines(&root, x, (low..high).log_scale(), *x_bytes),
                    false => self.lines(&root, x, self.linear_y(), *x_bytes),
                }
            }
            Shape::LinearLines => {
                let high = self.points().map(|(x, _)| x).fold(0.0, f64::max);
                self.lines(&root, 0.0..(high * 1.02).max(1.0), self.linear_y(), false)
            }
            Shape::Bars { groups } => self.bars(&root, groups),
        });
        done.and_then(|()| root.present().map_err(|error| anyhow!("{error}")))
            .map_err(|error| error.context(format!("cannot draw {}", file.display())))
    }

    fn linear_y(&self) -> std::ops::Range<f64> {
        0.0..self.y_range().1 * 1.05
    }

    fn lines<X, Y>(&self, root: &Area<'_>, x: X, y: Y, x_bytes: bool) -> anyhow::Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut builder = ChartBuilder::on(root);
        builder.margin(14).caption(&self.title, FONT).x_label_area_size(44).y_label_area_size(70);
        let mut chart = builder.build_cartesian_2d(x, y).map_err(|error| anyhow!("{error}"))?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT);
        let x_name = |x: &f64| if x_bytes { show_bytes(x.round() as u64) } else { short(*x) };
        let drawn = mesh.x_desc(&self.x_label).y_desc(&self.y_label).x_label_formatter(&x_name);
        drawn.y_label_formatter(&|y| short(*y)).draw().map_err(|error| anyhow!("{error}"))?;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let mut points = series.points.clone();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let dots = points.clone().into_iter().map(|point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots).map_err(|error| anyhow!("{error}"))?;
            let line = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)));
            let line = line.map_err(|error| anyhow!("{error}"))?;
            line.label(&series.name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
        }
        let mut legend = chart.configure_series_labels();
        legend.border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).position(SeriesLabelPosition::LowerRight);
        legend.draw().map_err(|error| anyhow!("{error}"))
    }

    fn bars(&self, root: &Area<'_>, groups: &[String]) -> anyhow::Result<()> {
        let width = 0.8 / self.series.len().max(1) as f64;
        let x: RangedCoordf64 = (-0.5..groups.len().max(1) as f64 - 0.5).into();
        let mut builder = ChartBuilder::on(root);
        builder.margin(14).caption(&self.title, FONT).x_label_area_size(44).y_label_area_size(70);
        let lowest = self.points().map(|(_, y)| y).fold(0.0, f64::min);
        // Room for the legend above the bars.
        let chart = builder.build_cartesian_2d(x, 1.1 * lowest..self.y_range().1 * 1.25);
        let mut chart = chart.map_err(|error| anyhow!("{error}"))?;
        let name = |x: &f64| match (x - x.round()).abs() < 0.01 && *x > -0.5 {
            true => groups.get(x.round() as usize).cloned().unwrap_or_default(),
            false => String::new(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT);
        let drawn = mesh.disable_x_mesh().x_labels(2 * groups.len() + 1).x_label_formatter(&name).x_desc(&self.x_label);
        drawn.y_desc(&self.y_label).y_label_formatter(&|y| short(*y)).draw().map_err(|error| anyhow!("{error}"))?;
        for (place, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let bar = |(group, height): (f64, f64)| {
                let left = group - 0.4 + place as f64 * width;
                Rectangle::new([(left, 0.0), (left + 0.92 * width, height)], colour.filled())
            };
            let bars = chart.draw_series(series.points.iter().copied().map(bar)).map_err(|error| anyhow!("{error}"))?;
            bars.label(&series.name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
        }
        let mut legend = chart.configure_series_labels();
        legend.border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).position(SeriesLabelPosition::UpperRight);
        legend.draw().map_err(|error| anyhow!("{error}"))
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.series.iter().flat_map(|series| series.points.iter().copied())
    }

    fn y_range(&self) -> (f64, f64) {
        range(self.points().map(|(_, y)| y))
    }
}

/// A range that holds all values, is not empty and suits a logarithm.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let positive = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = positive.fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if high == 0.0 { (1.0, 2.0) } else { (low * 0.9, (high * 1.1).max(low * 1.5)) }
}

/// A number for an axis: 250, 4.5, 0.015, 1e-10.
fn short(value: f64) -> String {
    let without_zeros = |text: String| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    match value.abs() {
        0.0 => "0".into(),
        large if large >= 100.0 || value == value.round() => format!("{value:.0}"),
        // Three digits that count.
        size if size >= 1e-3 => without_zeros(format!("{value:.*}", (2.0 - size.log10().floor()) as usize)),
        _ => format!("{value:.1e}").replace(".0e", "e"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(shape: Shape) -> Figure {
        let series = |name: &str, y: f64| Series { name: name.into(), points: vec![(1.0, y), (2.0, 3.0 * y)] };
        Figure {
            title: "times".into(),
            x_label: "size, bytes".into(),
            y_label: "ms".into(),
            shape,
            series: vec![series("ours", 1.0), series("theirs", 2.0)],
        }
    }

    #[test]
    fn every_shape_becomes_a_drawing_with_a_legend() {
        let groups = vec!["small".to_owned(), "large".into(), "huge".into()];
        let lines = |log_y| Shape::Lines { log_y, x_bytes: log_y };
        for shape in [lines(true), lines(false), Shape::LinearLines, Shape::Bars { groups }] {
            let file = std::env::temp_dir().join(format!("fanin-plot-{}.svg", std::process::id()));
            figure(shape.clone()).write(&file).unwrap();
            let drawing = std::fs::read_to_string(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            assert!(drawing.starts_with("<svg"));
            for word in ["times", "ours", "theirs"] {
                assert!(drawing.contains(word), "{word} in {shape:?}");
            }
        }
    }

    #[test]
    fn a_drawing_of_nothing_is_empty_and_no_panic() {
        let file = std::env::temp_dir().join(format!("fanin-plot-empty-{}.svg", std::process::id()));
        Figure { series: Vec::new(), ..figure(Shape::Lines { log_y: true, x_bytes: true }) }.write(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!([0.0, 0.25, 4.0, 12.34, 256.7].map(short), ["0", "0.25", "4", "12.3", "257"]);
        assert_eq!([0.001, 0.0015, 0.002, 0.0125, 1.25].map(short), ["0.001", "0.0015", "0.002", "0.0125", "1.25"]);
        assert_eq!([0.5, -0.015, 1e-3, 1e-10, -2.5e-7].map(short), ["0.5", "-0.015", "0.001", "1e-10", "-2.5e-7"]);
    }

    #[test]
    fn small_numbers_on_axes_can_be_told_apart() {
        let points = (-12..-2).map(|power| (10f64.powi(power), 10f64.powi(power))).collect();
        let series = vec![Series { name: "errors".into(), points }];
        let file = std::env::temp_dir().join(format!("fanin-plot-small-{}.svg", std::process::id()));
        let shape = Shape::Lines { log_y: true, x_bytes: false };
        Figure { series, ..figure(shape) }.write(&file).unwrap();
        let drawing = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<&str> = drawing.lines().map(str::trim).collect();
        // Once on each axis.
        assert_eq!(lines.iter().filter(|line| **line == "1e-10").count(), 2, "{drawing}");
        assert!(!lines.contains(&"0.00") && !lines.contains(&"0"), "{drawing}");
    }
}
