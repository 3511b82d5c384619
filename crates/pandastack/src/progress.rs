//! Talk while something takes its time: a spinner on a terminal, plain lines elsewhere. Always on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// Something under way.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    /// Begins; the line disappears when it ends.
    pub fn start(message: impl Into<String>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if terminal {
            bar.enable_steady_tick(TICK);
        }
        bar.set_message(message.into());
        Self { bar, terminal }
    }

    /// Begins with a known end, in bytes.
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

    /// What it does now. Terminals show the newest only; logs keep every step.
    pub fn step(&self, message: impl Into<String>) {
        let message = message.into();
        if !self.terminal {
            eprintln!("{message}");
        }
        self.bar.set_message(message);
    }

    /// What it does now, for terminals only: too much for a log.
    pub fn show(&self, message: impl Into<String>) {
        self.bar.set_message(message.into());
    }

    /// More bytes have passed.
    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
