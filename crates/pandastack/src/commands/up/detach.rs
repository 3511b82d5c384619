//! `up --detach`: starts `up` in a new session and returns once it is ready.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::log_files::{TAIL_LINES, UP_LOG, logs_dir};
use super::ready::Ready;
use crate::commands::runtime::block_on;
use crate::commands::wait::or_interrupt;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{DATA_DIR, Settings};
use crate::trace;

/// Message for a wait that ends early.
const BACKGROUND: &str = "PandaStack is still starting in the background; `pandastack up` shows when it is \
                          ready, `pandastack down` stops it";

/// Runs the command.
pub fn run(settings: &Settings, output: Output) -> Result<ExitCode> {
    let progress = Progress::start("Starting PandaStack");
    let log = logs_dir(&settings.data_dir).join(UP_LOG);
    let stderr = OpenOptions::new().create(true).write(true).truncate(true).open(&log);
    let stderr = stderr.with_context(|| format!("cannot open {}", log.display()))?;
    let mut command = Command::new("/proc/self/exe");
    // The same arguments without --detach; the child reports as JSON over the pipe.
    let args = std::env::args_os().skip(1).filter(|arg| !is_detach(arg));
    command.arg0("pandastack").args(args).args(["--new-session", "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let line = block_on(or_interrupt(BACKGROUND, first_line(command)))?;
    drop(progress);
    let Ok(ready) = serde_json::from_str::<Ready>(&line) else {
        return Err(Failure::from_stderr(&trace::tail(&log, TAIL_LINES)).into());
    };
    ready.announce(output)?;
    output.note(&format!("  {}        # to stop it", down_command(&settings.data_dir)));
    Ok(ExitCode::SUCCESS)
}

/// The command that stops the installation in a data directory.
fn down_command(data_dir: &Path) -> String {
    match data_dir == Path::new(DATA_DIR) {
        true => "pandastack down".to_owned(),
        false => format!("pandastack down --data-dir {}", data_dir.display()),
    }
}

/// The line that the process prints when it is ready; empty if it ended before.
async fn first_line(command: Command) -> Result<String> {
    let mut child = tokio::process::Command::from(command);
    let mut child = child.spawn().context("cannot start the background process")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line).await;
        read.context("cannot read from the background process")?;
    }
    if line.is_empty() {
        // Its error is complete once it has ended.
        child.wait().await.context("cannot wait for the background process")?;
    }
    Ok(line)
}

fn is_detach(arg: &std::ffi::OsStr) -> bool {
    arg == "--detach" || arg == "-d" || arg == "--json"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_down_command_names_a_non_default_data_directory() {
        assert_eq!(down_command(Path::new(DATA_DIR)), "pandastack down");
        assert_eq!(down_command(Path::new("/srv/x")), "pandastack down --data-dir /srv/x");
    }
}
