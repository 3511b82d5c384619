//! Opening a URL in the user's browser.

use std::process::{Command, Stdio};

use crate::output::Output;

/// Programs that open a URL in the user's browser; the first that is installed is used.
const OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

/// Opens a printed URL; prints a note if no browser is found.
pub fn open(url: &str, output: Output) {
    if !OPENERS.iter().any(|program| opens(program, url)) {
        output.note("no browser found on this machine; open the URL yourself");
    }
}

fn opens(program: &str, url: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
