//! Progress of long operations on standard error: a spinner on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// An operation in progress.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    /// Starts a spinner; dropping it clears the line.
    pub fn start(message: impl Into<String>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if terminal {
            bar.enable_steady_tick(TICK);
        }
        bar.set_message(message.into());
        Self { bar, terminal }
    }

    /// Starts a byte counter with a known total.
    pub fn bytes(message: impl Into<String>, total: u64) -> Self {
        let progress = Self::start(message);
        progress.bar.set_length(total);
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {msg} {bytes}/{total_bytes} {bytes_per_sec}")
        {
            progress.bar.set_style(style);
        }
        progress
    }

    /// Shows the current step. A terminal shows the latest only; a log keeps every step.
    pub fn step(&self, message: impl Into<String>) {
        let message = message.into();
        if !self.terminal {
            eprintln!("{message}");
        }
        self.bar.set_message(message);
    }

    /// Shows the current step on a terminal only.
    pub fn show(&self, message: impl Into<String>) {
        self.bar.set_message(message.into());
    }

    /// Adds transferred bytes.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
