//! `pandastack down`: stop the platform that `up` started.
//!
//! Sandboxes are left running unless told otherwise: stopping the platform is how it is upgraded. `--purge` is the
//! opposite: nothing of this installation stays, except the image cache, which holds no user's data.

mod leftovers;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use pandastack_client::{Client, Config};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::up::read_token;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::lock::{Holder, UpLock};

/// Time `up` has to stop both roles, each of which has 20 s.
const STOP: Duration = Duration::from_secs(60);

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// What becomes of the sandboxes
    #[arg(long, value_enum, default_value_t = Sandboxes::Keep)]
    sandboxes: Sandboxes,
    /// Also delete every sandbox, snapshot, key and record: the whole data directory
    #[arg(long)]
    purge: bool,
}

/// What becomes of the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sandboxes {
    /// They go on running; the next `up` finds them again
    Keep,
    /// They are deleted
    Kill,
}

/// Carries it out.
pub fn run(args: Args, _output: Output) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &ControlArgs::default(), &AgentArgs::default())?;
    let data_dir = &settings.data_dir;
    // What the installation used of this machine is in its lock: flags given to `up` need not be repeated here.
    let Some((holder, held)) = UpLock::look(data_dir)? else {
        eprintln!("There is no PandaStack in {}.", data_dir.display());
        return Ok(ExitCode::SUCCESS);
    };
    let end_sandboxes = args.purge || args.sandboxes == Sandboxes::Kill;
    if held {
        // An agent that runs alone has no API to ask; its machines are ended below.
        if end_sandboxes && !holder.api_url.is_empty() {
            super::block_on(delete_sandboxes(data_dir, &holder))?;
        }
        stop(&holder)?;
        eprintln!("PandaStack is down.");
    } else {
        eprintln!("PandaStack is not up with {}.", data_dir.display());
    }
    if end_sandboxes {
        leftovers::end_machines(data_dir, &holder)?;
    }
    if args.purge {
        leftovers::purge(data_dir, &holder)?;
        eprintln!("{} is gone.", data_dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete_sandboxes(data_dir: &Path, holder: &Holder) -> Result<()> {
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

/// Asks the supervisor to stop and waits for its end, by the kernel's word.
fn stop(holder: &Holder) -> Result<()> {
    let pid = Pid::from_raw(holder.pid).context("the lock names no process")?;
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(error) => return Err(error).context("look for the running platform"),
    };
    rustix::process::pidfd_send_signal(&pidfd, Signal::TERM).map_err(|error| {
        let failure = Failure::new(format!("cannot stop process {}: {error}", holder.pid));
        failure.hint("run `sudo pandastack down`")
    })?;
    let _progress = Progress::start("Stopping PandaStack");
    let timeout = Timespec::try_from(STOP).context("the time to wait")?;
    let ended = rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    if ended.context("wait for the platform's end")? == 0 {
        let failure =
            Failure::new(format!("process {} did not stop within {} s", holder.pid, STOP.as_secs()));
        return Err(failure.hint("its log is in the data directory, under logs/").into());
    }
    Ok(())
}
