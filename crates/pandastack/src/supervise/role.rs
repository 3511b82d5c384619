//! A server role as a child process that is restarted when it exits.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::trace;

/// First delay before a child is restarted; doubles up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest restart delay.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A child that ran this long is healthy: the restart delay is reset.
const HEALTHY: Duration = Duration::from_secs(30);
/// Time that a child has to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Lines of standard error in an event. An error is one line; a panic is a few.
const ERROR_LINES: usize = 15;
/// Capacity of the event channel.
const EVENTS_MAX: usize = 64;

/// A role to run.
#[derive(Debug, Clone)]
pub struct Role {
    /// `control` or `agent`.
    pub name: &'static str,
    /// Arguments to this program.
    pub args: Vec<OsString>,
    /// Extra environment variables: secrets that must not appear in the process list.
    pub env: Vec<(&'static str, OsString)>,
    /// File for its standard error, emptied at each start. Its log is elsewhere: this is why it ended.
    pub errors: PathBuf,
}

/// A child exited or could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleEvent {
    /// The role.
    pub name: &'static str,
    /// Result.
    pub ended: String,
    /// Last lines of standard error; may be empty.
    pub errors: String,
}

/// A role under supervision.
pub struct Supervisor {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Starts the role and restarts it whenever it exits.
    pub fn start(role: Role) -> (Self, mpsc::Receiver<RoleEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_running(role, events, stop.clone()));
        (Self { stop, task }, receiver)
    }

    /// Stops the child and waits until it has exited.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!("supervisor task failed: {error}");
        }
    }
}

async fn keep_running(role: Role, events: mpsc::Sender<RoleEvent>, stop: CancellationToken) {
    let mut backoff = BACKOFF_FIRST;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let ended = match spawn(&role) {
            Ok((child, lifeline)) => match watch(child, lifeline, &stop).await {
                Some(ended) => ended,
                None => return,
            },
            Err(error) => format!("{error:#}"),
        };
        let errors = trace::tail(&role.errors, ERROR_LINES);
        tracing::warn!("{} {ended}; restarting in {} ms: {errors}", role.name, backoff.as_millis());
        // Events are optional: supervision continues without a reader.
        let _ = events.try_send(RoleEvent { name: role.name, ended, errors });
        if began.elapsed() >= HEALTHY {
            backoff = BACKOFF_FIRST;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => {}
            () = stop.cancelled() => return,
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Waits for the child; returns how it ended, or `None` if it was asked to stop.
async fn watch(mut child: Child, lifeline: Option<ChildStdin>, stop: &CancellationToken) -> Option<String> {
    let ended = tokio::select! {
        status = child.wait() => Some(describe(status)),
        () = stop.cancelled() => None,
    };
    if ended.is_none() {
        terminate(&mut child).await;
    }
    drop(lifeline);
    ended
}

fn spawn(role: &Role) -> Result<(Child, Option<ChildStdin>)> {
    // An upgrade may have replaced the file that started this process; all roles of one `up` must
    // have the same version.
    let errors = File::create(&role.errors);
    let errors = errors.with_context(|| format!("cannot create {}", role.errors.display()))?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("pandastack")
        .args(&role.args)
        .envs(role.env.iter().cloned())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(errors);
    // Its own process group: Ctrl-C on the terminal reaches only `up`, which stops the children in order.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", role.name))?;
    // Taken out, because waiting for a child closes its standard input.
    let lifeline = child.stdin.take();
    Ok((child, lifeline))
}

async fn terminate(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    // The child is not reaped yet, so its PID cannot have been reused.
    if kill_process(pid, Signal::TERM).is_ok()
        && tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_ok()
    {
        return;
    }
    if let Err(error) = child.kill().await {
        tracing::error!("cannot kill process {pid}: {error}");
    }
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("exited with {status}"),
        Err(error) => format!("could not be waited for: {error}"),
    }
}

/// A token that is cancelled by SIGINT, by SIGTERM or, if supervised, by the end of the supervisor.
pub fn stop_requested(supervised: bool) -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stop.cancel();
    });
    if supervised {
        let stop = token.clone();
        // A thread, because a read of standard input cannot be cancelled and would block the
        // runtime's shutdown.
        std::thread::Builder::new()
            .name("lifeline".to_owned())
            .spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                stop.cancel();
            })
            .context("cannot watch the supervisor")?;
    }
    Ok(token)
}
