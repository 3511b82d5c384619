//! `pandastack down`: stops the platform.
//!
//! Sandboxes keep running by default, because an upgrade stops and starts the platform. `--purge` removes
//! the whole installation, also one that never started, except the image cache, which holds no user data.

mod leftovers;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use pandastack_client::{Client, Config};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::runtime::block_on;
use super::up::read_token;
use crate::client_config::{self, InvokingUser};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::lock::{Holder, UpLock};

/// Time that `up` has to stop both roles, each of which has 20 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Keep or delete running sandboxes
    #[arg(long, value_enum, default_value_t = Sandboxes::Keep)]
    sandboxes: Sandboxes,
    /// Delete everything that `up` created: all sandboxes, snapshots, databases, keys and settings; only the
    /// image cache is kept
    #[arg(long)]
    purge: bool,
}

/// Action on running sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sandboxes {
    /// Keep sandboxes running; the next `up` reconnects to them
    Keep,
    /// Delete all sandboxes
    Kill,
}

/// Runs the command.
pub fn run(args: Args, _output: Output) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &ControlArgs::default(), &AgentArgs::default())?;
    let data_dir = &settings.data_dir;
    // The lock records the host resources in use, so the flags of `up` need not be repeated.
    let Some((holder, held)) = UpLock::last_holder(data_dir)? else {
        eprintln!("No PandaStack installation in {}.", data_dir.display());
        if args.purge {
            leftovers::remove_begun(data_dir, &settings.runtime_dir)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let delete_sandboxes = args.purge || args.sandboxes == Sandboxes::Kill;
    if held {
        // A standalone agent has no API; its machines are stopped below.
        if delete_sandboxes && !holder.api_url.is_empty() {
            let deleted = block_on(delete_all_sandboxes(data_dir, &holder));
            match deleted {
                // A server that does not work must not prevent its own removal. Machines are stopped below.
                Err(error) if args.purge => {
                    eprintln!("warning: the API cannot delete the sandboxes: {error:#}")
                }
                deleted => deleted?,
            }
        }
        stop(&holder)?;
        eprintln!("PandaStack stopped.");
    } else {
        eprintln!("PandaStack is not running in {}.", data_dir.display());
    }
    if delete_sandboxes {
        leftovers::stop_machines(data_dir, &holder)?;
    }
    if args.purge {
        forget_client_config(data_dir, &holder);
        leftovers::purge(data_dir, &holder)?;
        eprintln!("Deleted {}.", data_dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the purged server from the user's client configuration. The purge continues without it.
fn forget_client_config(data_dir: &Path, holder: &Holder) {
    let forgotten =
        InvokingUser::current().and_then(|user| client_config::forget(&user, data_dir, &holder.api_url));
    match forgotten {
        Ok(Some(path)) => eprintln!("Removed this server from {}.", path.display()),
        Ok(None) => {}
        Err(error) => {
            eprintln!("warning: cannot remove this server from the client configuration: {error:#}")
        }
    }
}

async fn delete_all_sandboxes(data_dir: &Path, holder: &Holder) -> Result<()> {
    let token = Some(read_token(data_dir)?);
    let client = Client::new(Config { api_url: holder.api_url.clone(), token })?;
    let sandboxes = client.list_sandboxes().await?;
    let progress = Progress::start("Deleting sandboxes");
    for (index, sandbox) in sandboxes.iter().enumerate() {
        progress.step(format!("Deleting sandbox {} of {}", index + 1, sandboxes.len()));
        match client.delete_sandbox(&sandbox.id).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Stops the supervisor and waits until it has exited.
fn stop(holder: &Holder) -> Result<()> {
    let pid = Pid::from_raw(holder.pid).context("invalid PID in the lock file")?;
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error).context("cannot find the running process"),
    };
    rustix::process::pidfd_send_signal(&pidfd, Signal::TERM).map_err(|error| {
        let failure = Failure::new(format!("cannot stop process {}: {error}", holder.pid));
        failure.hint("run `sudo pandastack down`")
    })?;
    let _progress = Progress::start("Stopping PandaStack");
    let timeout = Timespec::try_from(STOP_TIMEOUT).context("invalid timeout")?;
    let ended = rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    if ended.context("cannot wait for the process to stop")? == 0 {
        let failure =
            Failure::new(format!("process {} did not stop within {} s", holder.pid, STOP_TIMEOUT.as_secs()));
        return Err(failure.hint("see its logs in the logs directory of the data directory").into());
    }
    Ok(())
}
