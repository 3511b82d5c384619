//! A small scatter plot with medians, as SVG.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::samples::Samples;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Room for labels: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 120.0, 36.0, 48.0);
/// One per series; the labels at the ends of the lines distinguish them without colours too.
const COLOURS: [&str; 4] = ["#3366cc", "#dc3912", "#109618", "#990099"];
/// Lines across the plot.
const TICKS: u32 = 5;

/// Points of a few series over one axis.
pub struct Plot {
    title: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    series: Vec<(&'static str, Vec<(f64, f64)>)>,
}

impl Plot {
    /// An empty one.
    pub fn new(title: &'static str, x_label: &'static str, y_label: &'static str) -> Self {
        Self { title, x_label, y_label, series: Vec::new() }
    }

    /// Adds one sample.
    pub fn point(&mut self, series: &'static str, x: f64, y: f64) {
        match self.series.iter_mut().find(|(name, _)| *name == series) {
            Some((_, points)) => points.push((x, y)),
            None => self.series.push((series, vec![(x, y)])),
        }
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        std::fs::write(path, self.svg()).with_context(|| format!("write {}", path.display()))
    }

    fn svg(&self) -> String {
        let scale = Scale::of(self.series.iter().flat_map(|(_, points)| points));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        self.draw_frame(&scale, &mut svg);
        for ((name, points), colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            draw_series(name, points, colour, &scale, &mut svg);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_frame(&self, scale: &Scale, svg: &mut String) {
        let mut text = |x: f64, y: f64, anchor: &str, content: &str| {
            let _ =
                writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
        };
        text(WIDTH / 2.0, 20.0, "middle", self.title);
        text(WIDTH / 2.0, HEIGHT - 10.0, "middle", self.x_label);
        text(8.0, MARGIN.2 - 10.0, "start", self.y_label);
        for tick in 0..=TICKS {
            let share = f64::from(tick) / f64::from(TICKS);
            let (x, y) = (scale.place(share * scale.x_max, 0.0), scale.place(0.0, share * scale.y_max));
            text(x.0, x.1 + 16.0, "middle", &format!("{:.0}", share * scale.x_max));
            text(y.0 - 6.0, y.1 + 4.0, "end", &format!("{:.0}", share * scale.y_max));
        }
    }
}

/// Maps values to positions in the picture.
struct Scale {
    x_max: f64,
    y_max: f64,
}

impl Scale {
    fn of<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Self {
        let start = Self { x_max: 1.0, y_max: 1.0 };
        points.fold(start, |top, (x, y)| Self { x_max: top.x_max.max(*x), y_max: top.y_max.max(*y) })
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let (left, right, above, below) = MARGIN;
        let across = left + x / self.x_max * (WIDTH - left - right);
        (across, HEIGHT - below - y / self.y_max * (HEIGHT - above - below))
    }
}

/// The samples as dots, their medians as a line with the name at its end.
fn draw_series(name: &str, points: &[(f64, f64)], colour: &str, scale: &Scale, svg: &mut String) {
    let _ = writeln!(
        svg,
        "<path d=\"{}\" stroke=\"{colour}\" stroke-width=\"4\" stroke-linecap=\"round\" opacity=\"0.4\"/>",
        dots(points, scale)
    );
    let line: Vec<(f64, f64)> = medians(points).into_iter().map(|(x, y)| scale.place(x, y)).collect();
    let corners: Vec<String> = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", corners.join(" "));
    if let Some((x, y)) = line.last() {
        let (x, y) = (x + 8.0, y + 4.0);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name} (median)</text>");
    }
}

/// A stroke without length for each place that has samples: thousands of them stay a small file.
fn dots(points: &[(f64, f64)], scale: &Scale) -> String {
    let whole = |(x, y): (f64, f64)| (x.round() as i64, y.round() as i64);
    let places: BTreeSet<_> = points.iter().map(|point| whole(scale.place(point.0, point.1))).collect();
    places.into_iter().map(|(x, y)| format!("M{x} {y}h0")).collect()
}

/// The median of each x, in order.
fn medians(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut xs: Vec<f64> = points.iter().map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let median = |x: f64| {
        let mut samples = Samples::default();
        points.iter().filter(|point| point.0 == x).for_each(|point| samples.push(point.1));
        Some((x, samples.percentile(50.0)?))
    };
    xs.into_iter().filter_map(median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_become_medians_and_a_picture() {
        let mut plot = Plot::new("title", "x", "y");
        for (x, y) in [(2.0, 9.0), (1.0, 1.0), (1.0, 3.0), (1.0, 2.0)] {
            plot.point("one", x, y);
        }
        assert_eq!(medians(&plot.series[0].1), [(1.0, 2.0), (2.0, 9.0)]);
        let svg = plot.svg();
        assert_eq!(svg.matches("h0").count(), 4);
        plot.point("one", 1.0, 2.0001);
        assert_eq!(plot.svg().matches("h0").count(), 4, "one dot for what would be drawn over each other");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
