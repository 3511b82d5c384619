//! Figures by name, as a table and as raw samples.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::samples::Samples;

/// One measured figure.
#[derive(Debug, Clone, Serialize)]
struct Figure {
    name: String,
    unit: &'static str,
    samples: Samples,
}

/// A target and whether it was met.
#[derive(Debug, Clone, Serialize)]
struct Bar {
    name: String,
    measured: f64,
    at_most: f64,
}

/// All figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    version: &'static str,
    began_at: jiff::Timestamp,
    host: String,
    figures: Vec<Figure>,
    bars: Vec<Bar>,
}

impl Report {
    /// Begins a run.
    pub fn new() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let (version, began_at) = (env!("CARGO_PKG_VERSION"), jiff::Timestamp::now());
        Self { version, began_at, host: host.trim().to_owned(), figures: Vec::new(), bars: Vec::new() }
    }

    /// Adds one sample of a figure.
    pub fn sample(&mut self, name: &str, unit: &'static str, value: f64) {
        match self.figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.samples.push(value),
            None => {
                let mut samples = Samples::default();
                samples.push(value);
                self.figures.push(Figure { name: name.to_owned(), unit, samples });
            }
        }
    }

    /// The median of a figure, if it was measured.
    pub fn median(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name)?.samples.percentile(50.0)
    }

    /// A percentile of a figure, if it was measured.
    pub fn percentile(&self, name: &str, percent: f64) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name)?.samples.percentile(percent)
    }

    /// The highest sample of a figure, if it was measured.
    pub fn highest(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name)?.samples.percentile(100.0)
    }

    /// Records the ratio of two figures' medians.
    pub fn ratio(&mut self, name: &str, to: &str) {
        if let (Some(value), Some(base)) = (self.median(name), self.median(to)) {
            self.sample(&format!("{name} / {to}"), "ratio of p50", value / base);
        }
    }

    /// Compares a figure with its target. A figure that was not measured is left out.
    pub fn bar(&mut self, name: &str, measured: Option<f64>, at_most: f64) {
        self.bars.extend(measured.map(|measured| Bar { name: name.to_owned(), measured, at_most }));
    }

    /// Holds the ratio of two medians against its bar.
    pub fn ratio_bar(&mut self, name: &str, to: &str, at_most: f64) {
        let ratio = self.median(name).zip(self.median(to)).map(|(value, base)| value / base);
        self.bar(&format!("{name} / {to}"), ratio, at_most);
    }

    /// The human-readable table.
    pub fn markdown(&self) -> String {
        let mut lines = vec![
            "| figure | unit | n | p50 | p90 | p99 |".to_owned(),
            "|---|---|---|---|---|---|".to_owned(),
        ];
        for Figure { name, unit, samples } in &self.figures {
            let value =
                |percent| samples.percentile(percent).map_or_else(String::new, |value| format!("{value:.2}"));
            let count = samples.count();
            lines.push(format!(
                "| {name} | {unit} | {count} | {} | {} | {} |",
                value(50.0),
                value(90.0),
                value(99.0)
            ));
        }
        if !self.bars.is_empty() {
            lines.extend(["", "| bar | at most | measured | |", "|---|---|---|---|"].map(str::to_owned));
        }
        for Bar { name, measured, at_most } in &self.bars {
            let verdict = if measured <= at_most { "met" } else { "**not met**" };
            lines.push(format!("| {name} | {at_most:.2} | {measured:.2} | {verdict} |"));
        }
        lines.join("\n")
    }

    /// Writes the raw samples.
    pub fn write(&self, dir: &Path, name: &str) -> Result<PathBuf> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let path = dir.join(format!("{name}-{}.json", self.began_at.as_second()));
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}
