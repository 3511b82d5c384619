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

/// All figures of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    version: &'static str,
    began_at: jiff::Timestamp,
    host: String,
    figures: Vec<Figure>,
}

impl Report {
    /// Begins a run.
    pub fn new() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let (version, began_at) = (env!("CARGO_PKG_VERSION"), jiff::Timestamp::now());
        Self { version, began_at, host: host.trim().to_owned(), figures: Vec::new() }
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

    /// Notes how the median of one figure compares with that of another.
    pub fn ratio(&mut self, name: &str, to: &str) {
        let median = |name: &str| {
            let figure = self.figures.iter().find(|figure| figure.name == name)?;
            figure.samples.percentile(50.0)
        };
        if let (Some(value), Some(base)) = (median(name), median(to)) {
            self.sample(&format!("{name} / {to}"), "ratio of p50", value / base);
        }
    }

    /// The table for people.
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
