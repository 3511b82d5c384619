//! One role as a child process that is started again when it dies.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// First wait before a dead child is started again; doubles up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Longest such wait.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A child that lived this long counts as healthy: its next death waits the shortest time again.
const HEALTHY: Duration = Duration::from_secs(30);
/// Time a child has to stop when asked, before it is killed.
const STOP: Duration = Duration::from_secs(20);
/// Reports that may wait to be read.
const EVENTS_MAX: usize = 64;

/// What to run.
#[derive(Debug, Clone)]
pub struct Role {
    /// `control` or `agent`.
    pub name: &'static str,
    /// Arguments of this very program.
    pub args: Vec<OsString>,
    /// Variables that it gets beside this program's own: what must not be read off the list of processes.
    pub env: Vec<(&'static str, OsString)>,
}

/// Something happened to a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleEvent {
    /// Whose child.
    pub name: &'static str,
    /// How it ended.
    pub ended: String,
}

/// A role under supervision.
pub struct Supervisor {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Starts the role and keeps it running.
    pub fn start(role: Role) -> (Self, mpsc::Receiver<RoleEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_running(role, events, stop.clone()));
        (Self { stop, task }, receiver)
    }

    /// Stops the child and returns when it is gone.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!("a supervising task ended badly: {error}");
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
        tracing::warn!("{} {ended}; starting it again in {} ms", role.name, backoff.as_millis());
        // Whoever does not read events does not want them; supervision goes on.
        let _ = events.try_send(RoleEvent { name: role.name, ended });
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

/// How the child ended, or `None` when it was asked to stop.
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
    // Not the path we were started by: an upgrade may have replaced that file, and all parts of one `up` must be of
    // one version.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("pandastack")
        .args(&role.args)
        .envs(role.env.iter().cloned())
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    // A group of its own: Ctrl-C on the terminal is for us, and we stop the children in order.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("start {}", role.name))?;
    // Taken out, because waiting for a child closes the standard input that it still has.
    let lifeline = child.stdin.take();
    Ok((child, lifeline))
}

async fn terminate(child: &mut Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let Some(pid) = pid else { return };
    // The child is not reaped yet, so its number cannot have gone to another process.
    if kill_process(pid, Signal::TERM).is_ok() && tokio::time::timeout(STOP, child.wait()).await.is_ok() {
        return;
    }
    if let Err(error) = child.kill().await {
        tracing::error!("process {pid} cannot be killed: {error}");
    }
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("ended with {status}"),
        Err(error) => format!("cannot be waited for: {error}"),
    }
}

/// A token that is cancelled by SIGINT, SIGTERM, or, when supervised, the end of the supervisor.
pub fn stop_requested(supervised: bool) -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
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
        // A thread, because a read of standard input cannot be cancelled and would hold up the runtime's end.
        std::thread::Builder::new()
            .name("lifeline".to_owned())
            .spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                stop.cancel();
            })
            .context("watch the supervisor")?;
    }
    Ok(token)
}
