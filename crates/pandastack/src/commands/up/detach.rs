//! `up --detach`: starts `up` in a new session and returns once it is ready.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

use super::log_files::{TAIL_LINES, logs_dir};
use super::ready::Ready;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::trace;

/// Runs the command.
pub fn run(settings: &Settings, output: Output) -> Result<ExitCode> {
    let progress = Progress::start("Starting PandaStack");
    let log = logs_dir(&settings.data_dir).join("up.log");
    let stderr = OpenOptions::new().create(true).write(true).truncate(true).open(&log);
    let stderr = stderr.with_context(|| format!("cannot open {}", log.display()))?;
    let mut command = Command::new("/proc/self/exe");
    // The same arguments without --detach; the child reports as JSON over the pipe.
    let args = std::env::args_os().skip(1).filter(|arg| !is_detach(arg));
    command.arg0("pandastack").args(args).args(["--new-session", "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().context("cannot start the background process")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot read from the background process")?;
    }
    drop(progress);
    let Ok(ready) = serde_json::from_str::<Ready>(&line) else {
        let _ = child.wait();
        return Err(Failure::from_stderr(&trace::tail(&log, TAIL_LINES)).into());
    };
    ready.announce(output)?;
    if !output.is_json() {
        eprintln!("  pandastack down        # to stop it");
    }
    Ok(ExitCode::SUCCESS)
}

fn is_detach(arg: &std::ffi::OsStr) -> bool {
    arg == "--detach" || arg == "-d" || arg == "--json"
}
