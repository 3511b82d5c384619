//! `pandastack up`: runs the whole platform on one machine.
//!
//! Starts control and agent as child processes, waits until they are ready, configures the user's
//! client and supervises both until it is stopped. Stopping ends only the two processes: sandboxes
//! keep running, and the next `up` with the same data directory adopts them. An upgrade is
//! therefore a restart, and a crash loses no work. `pandastack down --sandboxes kill` also deletes
//! the sandboxes.

mod detach;
mod log_files;
mod ready;
mod roles;

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use pandastack_client::{Client, Config};
use tokio::sync::mpsc;

use super::host_packages;
use super::runtime::block_on;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::lock::{Claim, Holder, UpLock};
use crate::supervise::service_user::ServiceUser;
use crate::supervise::{RoleEvent, Supervisor, addresses, secret, service_user, stop_requested};
use crate::trace;
use log_files::{LogMark, TAIL_LINES, log_file};
pub use log_files::{UP_LOG, logs_dir};
pub use ready::{Ready, read_token};

/// Startup timeout; includes the creation of the store on first use.
const READY_SECONDS: u64 = 180;
/// Interval between readiness checks.
const READY_POLL: Duration = Duration::from_millis(50);
/// Crashes of one role during startup after which `up` gives up.
const START_CRASHES_MAX: u32 = 3;
/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// Run in the background; return when PandaStack is ready
    #[arg(long, short)]
    detach: bool,
    /// Do not write ~/.config/pandastack/config.json
    #[arg(long)]
    no_client_config: bool,
    /// Start a new session; set by --detach
    #[arg(long, hide = true)]
    new_session: bool,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &args.control, &args.agent)?;
    if !rustix::process::geteuid().is_root() {
        let failure = Failure::new("cannot start PandaStack: root privileges are required");
        return Err(failure.hint("run `sudo pandastack up`; other commands do not need root").into());
    }
    require_programs(&settings)?;
    prepare_directories(&settings)?;
    // Options of one letter can be joined, as in `-dq`, and then reach the background process.
    if args.detach && !args.new_session {
        return detach::run(&settings, output);
    }
    if args.new_session {
        rustix::process::setsid().context("cannot start a new session")?;
    }
    trace::init(None, "warn", None)?;
    block_on(serve(settings, !args.no_client_config, output))
}

/// The first start creates the store, so it requires every program. An existing installation starts
/// with a warning: its sandboxes matter more than programs that only template builds need.
fn require_programs(settings: &Settings) -> Result<()> {
    let missing = host_packages::missing();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = missing.values().flat_map(|package| package.programs.iter().copied()).collect();
    let install = host_packages::install_command(&missing);
    if settings.data_dir.join("store").exists() {
        eprintln!("warning: missing programs: {}; run `{install}`", programs.join(", "));
        return Ok(());
    }
    let failure = Failure::new(format!("missing programs: {}", programs.join(", ")));
    Err(failure.hint(format!("run `{install}`")).into())
}

fn prepare_directories(settings: &Settings) -> Result<()> {
    // Machines and control run as users of their own.
    service_user::make_passable(settings)?;
    service_user::make_directory(&logs_dir(&settings.data_dir), 0o700)?;
    log_files::link_logs_of_control(settings).context("cannot link the logs of control")
}

async fn serve(mut settings: Settings, client_config: bool, output: Output) -> Result<ExitCode> {
    addresses::choose(&mut settings)?;
    let pid = i32::try_from(std::process::id()).context("cannot read this process's ID")?;
    let holder = Holder {
        pid,
        api_url: settings.api_url(),
        runtime_dir: settings.runtime_dir.clone(),
        subnet: settings.subnet.clone(),
        net_prefix: settings.net_prefix.clone(),
    };
    let _lock = match UpLock::claim(&settings.data_dir, &holder)? {
        Claim::Acquired(lock) => lock,
        Claim::Held(holder) => return already_up(&settings, holder, client_config, output),
    };
    require_free_address(&settings)?;
    remove_stale_sockets(&settings);
    let secret = secret::ensure(&settings.data_dir, settings.accept_new_link_secret)?;
    // Both roles must mean the same user, also if one is restarted after the users of this machine changed.
    settings.run_as = Some(
        ServiceUser::resolve(settings.run_as.as_deref())?
            .map_or_else(|| service_user::ROOT.to_owned(), |user| user.name().to_owned()),
    );
    let stop = stop_requested(false)?;
    let (control, control_events) = Supervisor::start(roles::control(&settings, &secret));
    let (agent, agent_events) = Supervisor::start(roles::agent(&settings, &secret));
    let started = tokio::select! {
        started = start(&settings, client_config, output, control_events, agent_events) => started,
        () = stop.cancelled() => Ok(()),
    };
    if started.is_ok() {
        stop.cancelled().await;
        eprintln!("Stopping. Sandboxes keep running; `pandastack up` reconnects to them.");
    }
    // The agent first, because it reports to control while it stops.
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
        let failure = Failure::new(format!(
            "another `pandastack up` is starting with data directory {}",
            settings.data_dir.display()
        ));
        return Err(failure.hint("wait until it is ready, or use another --data-dir").into());
    };
    eprintln!("PandaStack is already running (PID {}).", holder.pid);
    let mut ready = Ready::new(&settings.data_dir, holder.api_url, client_config)?;
    ready.already_up = true;
    ready.announce(output)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks the most common startup error first: an address in use.
fn require_free_address(settings: &Settings) -> Result<()> {
    if let Err(error) = TcpListener::bind(settings.listen) {
        let failure = Failure::new(format!("cannot listen on {}: {error}", settings.listen));
        return Err(failure.hint("choose another address with --listen, such as 127.0.0.1:8081").into());
    }
    Ok(())
}

/// Removes sockets of a previous `up`. This process holds the lock, so that one is gone.
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
        ready = wait_until_ready(settings, &progress) => ready?,
        error = crash_loop(settings, control_events) => return Err(error.into()),
        error = crash_loop(settings, agent_events) => return Err(error.into()),
    }
    drop(progress);
    Ready::new(&settings.data_dir, settings.api_url(), client_config)?.announce(output)
}

async fn wait_until_ready(settings: &Settings, progress: &Progress) -> Result<()> {
    let client = Client::new(Config { api_url: settings.api_url(), token: None })?;
    let deadline = Duration::from_secs(READY_SECONDS);
    let logs = ["control", "agent"].map(|role| LogMark::now(log_file(settings, role)));
    let ready = async {
        // Not ready without an agent; each check would only add a line to control's log.
        progress.show("Preparing the store, the engine and the network");
        while !settings.agent_socket().exists() {
            tokio::time::sleep(READY_POLL).await;
        }
        progress.show("Waiting for the API");
        while !client.is_ready(Duration::from_secs(5)).await {
            tokio::time::sleep(READY_POLL).await;
        }
    };
    tokio::time::timeout(deadline, ready).await.map_err(|_| {
        let mut message = format!("PandaStack was not ready within {READY_SECONDS} s");
        for line in logs.iter().flat_map(LogMark::problems) {
            message.push_str(&format!("\n{line}"));
        }
        let logs = logs_dir(&settings.data_dir);
        let failure = Failure::new(message).hint("run `pandastack doctor` to check this machine");
        failure.hint(format!("the full logs are in {}", logs.display())).into()
    })
}

/// Returns an error once a role has crashed [`START_CRASHES_MAX`] times; otherwise never.
async fn crash_loop(settings: &Settings, mut events: mpsc::Receiver<RoleEvent>) -> Failure {
    let mut crashes = 0;
    while let Some(event) = events.recv().await {
        crashes += 1;
        if crashes >= START_CRASHES_MAX {
            return start_failure(&event, &log_file(settings, event.name));
        }
    }
    std::future::pending().await
}

/// Why a role cannot start: the error that it ended with, or the end of its log if it was killed.
fn start_failure(event: &RoleEvent, log: &Path) -> Failure {
    let failure = match event.errors.is_empty() {
        false => Failure::from_stderr(&event.errors),
        true => Failure::new(format!("it {}\n{}", event.ended, trace::tail(log, TAIL_LINES))),
    };
    failure
        .within(&format!("cannot start {}", event.name))
        .hint("run `pandastack doctor` to check this machine")
        .hint(format!("the full log is {}", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ended: &str, errors: &str) -> RoleEvent {
        RoleEvent { name: "agent", ended: ended.into(), errors: errors.into() }
    }

    #[test]
    fn a_failed_start_error_contains_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("agent.log");
        std::fs::write(&log, "earlier\nlast words\n").unwrap();
        let errors =
            "{\"error\":\"preparing the network: no nftables\",\"code\":\"failed\",\"hint\":\"modprobe\"}";
        let reason = start_failure(&event("exited with exit status: 1", errors), &log).to_string();
        assert_eq!(reason, "cannot start agent: preparing the network: no nftables");
        let panic = start_failure(&event("exited with exit status: 101", "thread 'main' panicked"), &log);
        assert_eq!(panic.to_string(), "cannot start agent: thread 'main' panicked");
        let killed = start_failure(&event("exited with signal: 9 (SIGKILL)", ""), &log).to_string();
        assert_eq!(killed, "cannot start agent: it exited with signal: 9 (SIGKILL)\nearlier\nlast words");
    }
}
