//! A small scatter plot with medians, as SVG.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::samples::Samples;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
/// Room for labels: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 120.0, 36.0, 48.0);
/// One per series; told apart also without colours by the labels at their ends.
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
        let all = || self.series.iter().flat_map(|(_, points)| points);
        let top = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0_f64, f64::max).max(1.0);
        let (x_max, y_max) = (top(&mut all().map(|p| p.0)), top(&mut all().map(|p| p.1)));
        let (left, right, above, below) = MARGIN;
        let place = |x: f64, y: f64| {
            let across = left + x / x_max * (WIDTH - left - right);
            (across, HEIGHT - below - y / y_max * (HEIGHT - above - below))
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let mut text = |x: f64, y: f64, anchor: &str, content: &str| {
            let _ =
                writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
        };
        text(WIDTH / 2.0, 20.0, "middle", self.title);
        text(WIDTH / 2.0, HEIGHT - 10.0, "middle", self.x_label);
        text(8.0, above - 10.0, "start", self.y_label);
        for tick in 0..=TICKS {
            let share = f64::from(tick) / f64::from(TICKS);
            let (x, y) = (place(share * x_max, 0.0), place(0.0, share * y_max));
            text(x.0, x.1 + 16.0, "middle", &format!("{:.0}", share * x_max));
            text(y.0 - 6.0, y.1 + 4.0, "end", &format!("{:.0}", share * y_max));
        }
        for ((name, points), colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            for (x, y) in points.iter().map(|point| place(point.0, point.1)) {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"{colour}\" opacity=\"0.4\"/>"
                );
            }
            let line: Vec<(f64, f64)> = medians(points).into_iter().map(|(x, y)| place(x, y)).collect();
            let corners: Vec<String> = line.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>",
                corners.join(" ")
            );
            if let Some((x, y)) = line.last() {
                let (x, y) = (x + 8.0, y + 4.0);
                let _ =
                    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name} (median)</text>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
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
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
