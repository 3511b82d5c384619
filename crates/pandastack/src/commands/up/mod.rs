//! `pandastack up`: the whole platform on one machine.
//!
//! Starts control and agent as processes of their own, waits until sandboxes can be made, points the person's client at
//! them, and supervises until it is asked to stop. Stopping ends the two processes and nothing else: sandboxes go on
//! running, and the next `up` with the same data directory finds them again. So an upgrade is a restart, and a crash
//! costs nobody their work. `pandastack down --sandboxes kill` ends them too.

mod detach;
mod ready;
mod roles;

use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use pandastack_client::{Client, Config};
use tokio::sync::mpsc;

use super::host_packages;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::lock::{Claim, Holder, UpLock};
use crate::supervise::{RoleEvent, Supervisor, secret, stop_requested};
use crate::trace;
pub use ready::{Ready, read_token};

/// Time from start to the first answer: it includes making the store on first use.
const READY_SECONDS: u64 = 180;
/// Between two questions whether the API answers.
const READY_POLL: Duration = Duration::from_millis(50);
/// Deaths of one role before the first answer that mean it will never come.
const START_DEATHS_MAX: u32 = 3;
/// Lines of a role's log in an error.
const TAIL_LINES: usize = 15;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// Return when the platform is up and leave it running in the background
    #[arg(long, short)]
    detach: bool,
    /// Leave ~/.config/pandastack/config.json alone
    #[arg(long)]
    no_client_config: bool,
    /// Become the leader of a new session: how `--detach` runs the part that stays
    #[arg(long, hide = true)]
    new_session: bool,
}

/// Carries it out.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &args.control, &args.agent)?;
    if !rustix::process::geteuid().is_root() {
        let failure = Failure::new("starting virtual machines and their networks needs root");
        return Err(failure.hint("run `sudo pandastack up`; clients need no rights").into());
    }
    require_programs(&settings)?;
    prepare_directories(&settings)?;
    if args.detach {
        return detach::run(&settings, output);
    }
    if args.new_session {
        rustix::process::setsid().context("leave the terminal's session")?;
    }
    trace::init(None, "warn", None)?;
    super::block_on(serve(settings, !args.no_client_config, output))
}

/// The first start decides how the store is made, so it wants everything that this takes. An installation that has run
/// before starts without: its sandboxes matter more than what only a template build needs.
fn require_programs(settings: &Settings) -> Result<()> {
    let missing = host_packages::missing();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = missing.values().flat_map(|lack| lack.programs.iter().copied()).collect();
    let install = host_packages::install_command(&missing);
    if settings.data_dir.join("store").exists() {
        eprintln!("warning: this machine lacks {}; install it with: {install}", programs.join(", "));
        return Ok(());
    }
    let failure = Failure::new(format!("this machine lacks {}", programs.join(", ")));
    Err(failure.hint(format!("run `{install}`")).into())
}

fn prepare_directories(settings: &Settings) -> Result<()> {
    // Machines run as users of their own and must pass through to their files; nobody may look around.
    for dir in [&settings.data_dir, &settings.runtime_dir] {
        make_directory(dir, 0o711)?;
    }
    make_directory(&logs_dir(&settings.data_dir), 0o700)
}

fn make_directory(dir: &Path, mode: u32) -> Result<()> {
    let make = || -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
    };
    make().with_context(|| format!("make the directory {}", dir.display()))
}

fn logs_dir(data_dir: &Path) -> std::path::PathBuf {
    data_dir.join("logs")
}

async fn serve(settings: Settings, client_config: bool, output: Output) -> Result<ExitCode> {
    let pid = i32::try_from(std::process::id()).context("this process's number")?;
    let holder = Holder {
        pid,
        api_url: settings.api_url(),
        runtime_dir: settings.runtime_dir.clone(),
        subnet: settings.subnet.clone(),
        net_prefix: settings.net_prefix.clone(),
    };
    let _lock = match UpLock::claim(&settings.data_dir, &holder)? {
        Claim::Taken(lock) => lock,
        Claim::Held(holder) => return already_up(&settings, holder, client_config, output),
    };
    require_free_address(&settings)?;
    remove_stale_sockets(&settings);
    let secret = secret::ensure(&settings.data_dir)?;
    let stop = stop_requested(false)?;
    let (control, control_events) = Supervisor::start(roles::control(&settings, &secret));
    let (agent, agent_events) = Supervisor::start(roles::agent(&settings, &secret));
    let started = tokio::select! {
        started = start(&settings, client_config, output, control_events, agent_events) => started,
        () = stop.cancelled() => Ok(()),
    };
    if started.is_ok() {
        stop.cancelled().await;
        eprintln!("Stopping. Sandboxes stay as they are; the next `pandastack up` finds them again.");
    }
    // The agent first: while it stops it still reports to control.
    agent.stop().await;
    control.stop().await;
    started.map(|()| ExitCode::SUCCESS)
}

fn already_up(
    settings: &Settings,
    holder: Option<Holder>,
    client_config: bool,
    output: Output,
) -> Result<ExitCode> {
    let Some(holder) = holder else {
        let failure = Failure::new(format!("another `up` is starting with {}", settings.data_dir.display()));
        return Err(failure.hint("wait for it, or use another --data-dir").into());
    };
    eprintln!("PandaStack is already up (process {}).", holder.pid);
    let mut ready = Ready::of(&settings.data_dir, holder.api_url, client_config)?;
    ready.already_up = true;
    ready.announce(output)?;
    Ok(ExitCode::SUCCESS)
}

/// A taken address is the most common reason not to start; say so before anything else is begun.
fn require_free_address(settings: &Settings) -> Result<()> {
    if let Err(error) = TcpListener::bind(settings.listen) {
        let failure = Failure::new(format!("cannot listen on {}: {error}", settings.listen));
        return Err(failure.hint("choose another address with --listen, such as 127.0.0.1:8081").into());
    }
    Ok(())
}

/// The lock is ours, so whoever made them is gone.
fn remove_stale_sockets(settings: &Settings) {
    for socket in [settings.agent_socket(), settings.control_socket()] {
        let _ = std::fs::remove_file(socket);
    }
}

async fn start(
    settings: &Settings,
    client_config: bool,
    output: Output,
    control_events: mpsc::Receiver<RoleEvent>,
    agent_events: mpsc::Receiver<RoleEvent>,
) -> Result<()> {
    let progress = Progress::start("Starting PandaStack");
    tokio::select! {
        ready = wait_until_ready(settings) => ready?,
        died = dies_repeatedly(settings, control_events) => return Err(died),
        died = dies_repeatedly(settings, agent_events) => return Err(died),
    }
    drop(progress);
    Ready::of(&settings.data_dir, settings.api_url(), client_config)?.announce(output)
}

async fn wait_until_ready(settings: &Settings) -> Result<()> {
    let client = Client::new(Config { api_url: settings.api_url(), token: None })?;
    let deadline = Duration::from_secs(READY_SECONDS);
    let ask = async {
        // Without an agent there is nothing to ask, and every question is a line in control's log.
        while !settings.agent_socket().exists() || !client.is_ready(Duration::from_secs(5)).await {
            tokio::time::sleep(READY_POLL).await;
        }
    };
    tokio::time::timeout(deadline, ask).await.map_err(|_| {
        let failure = Failure::new(format!("the platform did not become ready within {READY_SECONDS} s"));
        failure.hint(format!("look into {}", logs_dir(&settings.data_dir).display())).into()
    })
}

/// Returns only when a role died so often that waiting for it is pointless.
async fn dies_repeatedly(settings: &Settings, mut events: mpsc::Receiver<RoleEvent>) -> anyhow::Error {
    let mut deaths = 0;
    while let Some(event) = events.recv().await {
        deaths += 1;
        if deaths >= START_DEATHS_MAX {
            let log = roles::log_file(settings, event.name);
            let tail = trace::tail(&log, TAIL_LINES);
            let failure = Failure::new(format!("{} does not start: it {}\n{tail}", event.name, event.ended));
            return failure
                .hint("`pandastack doctor` checks what this machine lacks")
                .hint(format!("the whole log is {}", log.display()))
                .into();
        }
    }
    std::future::pending().await
}
