//! Steps of a run, and the duration of each.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Steps so far.
#[derive(Debug, Default)]
pub struct Steps(Vec<(String, Duration)>);

impl Steps {
    /// Runs one step.
    pub fn step<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("\n== {name}");
        let began = Instant::now();
        let outcome = work();
        self.0.push((name.to_owned(), began.elapsed()));
        outcome
    }

    /// All steps as a table.
    pub fn table(&self) -> String {
        let total: Duration = self.0.iter().map(|(_, took)| *took).sum();
        let rows = self.0.iter().map(|(name, took)| (name.as_str(), *took)).chain([("total", total)]);
        let line = |(name, took): (&str, Duration)| format!("  {name:<36} {:>8.1} s", took.as_secs_f64());
        rows.map(line).collect::<Vec<_>>().join("\n")
    }
}
