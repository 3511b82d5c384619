//! Progress of long operations on standard error: on a terminal one line with the present step and the time
//! since the start, plain lines elsewhere, and nothing with `--quiet`.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);
/// The line of an operation; `{elapsed}` is the time since its start.
const LINE: &str = "{spinner} {wide_msg} {elapsed}";
const BYTES_LINE: &str = "{spinner} {msg} {bytes}/{total_bytes} {bytes_per_sec} {elapsed}";

/// Set once at the start, by `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Shows no progress from now on.
pub fn silence() {
    QUIET.store(true, Ordering::Relaxed);
}

/// An operation in progress.
pub struct Progress {
    bar: ProgressBar,
    /// Whether every step is a line of its own.
    plain: bool,
}

impl Progress {
    /// Starts a spinner; dropping it clears the line.
    pub fn start(message: impl Into<String>) -> Self {
        let (terminal, quiet) = (std::io::stderr().is_terminal(), QUIET.load(Ordering::Relaxed));
        let bar = if terminal && !quiet { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if terminal && !quiet {
            if let Ok(style) = ProgressStyle::with_template(LINE) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
        }
        bar.set_message(message.into());
        Self { bar, plain: !terminal && !quiet }
    }

    /// Starts a byte counter with a known total.
    pub fn bytes(message: impl Into<String>, total: u64) -> Self {
        let progress = Self::start(message);
        progress.bar.set_length(total);
        if let Ok(style) = ProgressStyle::with_template(BYTES_LINE) {
            progress.bar.set_style(style);
        }
        progress
    }

    /// Shows the current step. A terminal shows the latest only; a log keeps every step.
    pub fn step(&self, message: impl Into<String>) {
        let message = message.into();
        if self.plain {
            eprintln!("{message}");
        }
        self.bar.set_message(message);
    }

    /// Prints a line of a log, on a terminal above the progress line.
    pub fn log(&self, line: &str) {
        if self.plain {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
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
