//! The local terminal while it shows a sandbox's terminal.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result};
use bytes::Bytes;
use pandastack_types::api::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// Maximum queued chunks of input; standard input is not read while the queue is full.
const INPUT_QUEUE_MAX: usize = 16;
/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// A terminal in raw mode. Dropping it restores the previous mode.
pub(super) struct RawTerminal(Termios);

impl RawTerminal {
    /// Switches standard input to raw mode; `None` if it is not a terminal.
    pub(super) fn enter() -> Result<Option<Self>> {
        if !std::io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(std::io::stdin()).context("cannot read the terminal settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)
            .context("cannot change the terminal settings")?;
        Ok(Some(Self(before)))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// Size of the terminal on standard output, or the default size if it is not a terminal.
pub(super) fn size() -> TerminalSize {
    match console::Term::stdout().size_checked() {
        Some((rows, cols)) if rows > 0 && cols > 0 => TerminalSize { rows, cols },
        _ => TerminalSize::default(),
    }
}

/// Chunks of standard input; closed at end of input. A separate thread reads them, because the read
/// cannot be cancelled and must not delay the program's exit.
pub(super) fn stdin_chunks() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(INPUT_QUEUE_MAX);
    std::thread::spawn(move || {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = std::io::stdin().read(&mut buffer) {
            if sender.blocking_send(Bytes::copy_from_slice(&buffer[..count])).is_err() {
                return;
            }
        }
    });
    receiver
}
