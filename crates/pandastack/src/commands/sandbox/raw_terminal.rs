//! This program's own terminal while a sandbox's terminal is shown on it.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result};
use bytes::Bytes;
use pandastack_types::api::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// Pieces of typed input that wait to be sent; beyond it the keyboard is not read.
const TYPED_QUEUE_MAX: usize = 16;
/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// A terminal that passes every key on. Dropping it brings the old behaviour back.
pub(super) struct RawTerminal(Termios);

impl RawTerminal {
    /// Switches standard input to raw; `None` if it is no terminal.
    pub(super) fn enter() -> Result<Option<Self>> {
        if !std::io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(std::io::stdin()).context("read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).context("change the terminal's settings")?;
        Ok(Some(Self(before)))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing better can be done about a terminal that is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// Size of the terminal that this program's output goes to; the usual one if it is none.
pub(super) fn size() -> TerminalSize {
    match console::Term::stdout().size_checked() {
        Some((rows, cols)) if rows > 0 && cols > 0 => TerminalSize { rows, cols },
        _ => TerminalSize::default(),
    }
}

/// What arrives on standard input; closed at its end. A thread of its own reads: it cannot be interrupted, and the
/// program must be able to end without it.
pub(super) fn typed() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(TYPED_QUEUE_MAX);
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
