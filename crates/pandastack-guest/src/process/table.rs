//! The processes that the guest keeps.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use pandastack_guest_proto::message::{
    Command, ErrorBody, ErrorCode, ExitStatus, OutputStream, ProcessId, ProcessInfo, ProcessSpec,
    TerminalSize,
};

use super::cgroup::ProcessCgroup;
use super::input::Input;
use super::output::Output;
use super::spawn::SpawnedChild;
use super::terminal::Terminal;
use crate::poller::{Part, Poller, Token};

/// Processes that may run at once.
pub(crate) const RUNNING_MAX: usize = 1024;
/// Number of ended processes kept for late readers.
const ENDED_MAX: usize = 128;
/// Output bytes kept of all ended processes.
const ENDED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest time that an ended process is kept.
const ENDED_AGE_MAX: Duration = Duration::from_secs(600);
/// Characters of the command shown in listings.
const COMMAND_SHOWN_MAX: usize = 200;

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    pub(crate) pid: i32,
    tag: Option<String>,
    command: String,
    started: Instant,
    deadline: Option<Instant>,
    timed_out: bool,
    cgroup: Option<ProcessCgroup>,
    pub(crate) stdin: Option<Input>,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    exit: Option<(ExitStatus, Instant)>,
    /// Calls that follow it.
    pub(crate) readers: Vec<u32>,
    /// Position of a disconnected follower that may reconnect.
    pub(crate) held: Option<OutputHold>,
    terminal: Option<Terminal>,
}

/// Output is kept as if a reader had read this far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputHold {
    pub(crate) until: Instant,
    pub(crate) stdout_offset: u64,
    pub(crate) stderr_offset: u64,
}

impl Process {
    pub(crate) fn new(
        id: ProcessId,
        spec: &ProcessSpec,
        spawned: SpawnedChild,
        poller: &Poller,
    ) -> io::Result<Self> {
        let token = |part| Token::Process(id, part);
        let started = spawned.asked;
        Ok(Self {
            id,
            pid: spawned.pid,
            tag: spec.tag.clone(),
            command: shown_command(&spec.command),
            started,
            deadline: spec.timeout_ms.and_then(|timeout| started.checked_add(Duration::from_millis(timeout))),
            timed_out: false,
            cgroup: spawned.cgroup,
            stdin: spawned.stdin.map(|pipe| Input::new(pipe, token(Part::Stdin), spawned.terminal.is_some())),
            stdout: Output::new(Some(spawned.stdout), token(Part::Stdout), poller)?,
            stderr: Output::new(spawned.stderr, token(Part::Stderr), poller)?,
            exit: None,
            readers: Vec::new(),
            held: None,
            terminal: spawned.terminal,
        })
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Changes its terminal's size.
    pub(crate) fn resize(&mut self, size: TerminalSize) -> Result<(), ErrorBody> {
        let none = self.no_terminal();
        self.terminal.as_mut().ok_or(none)?.resize(size)
    }

    /// Closes this side of its terminal. The kernel then sends SIGHUP to its session, and a shell that missed the signal
    /// between two reads finds the end of its input.
    pub(crate) fn hang_up(&mut self, poller: &Poller) -> Result<(), ErrorBody> {
        let terminal = self.terminal.take();
        drop(terminal.ok_or_else(|| self.no_terminal())?);
        if let Some(stdin) = &mut self.stdin {
            stdin.close(poller);
        }
        self.stdout.close(poller);
        Ok(())
    }

    fn no_terminal(&self) -> ErrorBody {
        let message = format!("process {} has no terminal, or it was closed", self.id);
        ErrorBody::new(ErrorCode::Invalid, message)
    }

    fn elapsed(&self) -> Duration {
        self.exit.map_or_else(Instant::now, |(_, at)| at).duration_since(self.started)
    }

    pub(crate) fn output(&self, stream: OutputStream) -> &Output {
        match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        }
    }

    pub(crate) fn output_mut(&mut self, stream: OutputStream) -> &mut Output {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// The end, once everything that the process wrote is in the rings.
    pub(crate) fn settled_exit(&self) -> Option<ExitStatus> {
        let (exit, _) = self.exit.as_ref()?;
        let settled = self.stdout.is_settled() && self.stderr.is_settled();
        settled.then(|| ExitStatus {
            stdout_end: self.stdout.ring().end(),
            stderr_end: self.stderr.ring().end(),
            ..*exit
        })
    }

    /// Records that the main process ended with a wait status.
    pub(crate) fn ended(&mut self, status: i32, poller: &Poller) {
        if self.exit.is_some() {
            return;
        }
        if let Some(stdin) = &mut self.stdin {
            stdin.close(poller);
        }
        let now = Instant::now();
        let took = now.duration_since(self.started);
        let exit = ExitStatus {
            code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
            timed_out: self.timed_out,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            duration_us: u64::try_from(took.as_micros()).ok(),
            ..ExitStatus::default()
        };
        self.exit = Some((exit, now));
        self.stdout.begin_drain();
        self.stderr.begin_drain();
    }

    pub(crate) fn is_running(&self) -> bool {
        self.exit.is_none()
    }

    /// Sends a signal; SIGKILL also reaches everything that the process started.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), ErrorBody> {
        let signal = Signal::try_from(signal)
            .map_err(|_| ErrorBody::new(ErrorCode::Invalid, format!("{signal} is not a signal number")))?;
        if signal == Signal::SIGKILL {
            self.kill_tree();
            return Ok(());
        }
        if !self.is_running() {
            return Err(ErrorBody::new(ErrorCode::NotFound, format!("process {} has ended", self.id)));
        }
        nix::sys::signal::killpg(Pid::from_raw(self.pid), signal).map_err(|errno| {
            ErrorBody::new(ErrorCode::Io, format!("cannot signal process {}: {}", self.id, errno.desc()))
        })
    }

    fn kill_tree(&self) {
        let killed = self.cgroup.as_ref().is_some_and(|cgroup| cgroup.kill().is_ok());
        // Without a control group the process's own session is all that can be found. Once the leader is
        // reaped its number may belong to someone else.
        if !killed && self.is_running() {
            let _ = nix::sys::signal::killpg(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }

    /// Removes the control group if it is empty; true when nothing of the process is left.
    fn try_bury(&mut self) -> bool {
        if self.exit.is_none() {
            return false;
        }
        if self.cgroup.as_ref().is_some_and(ProcessCgroup::try_remove) {
            self.cgroup = None;
        }
        if self.cgroup.is_none() {
            self.terminal = None;
        }
        self.cgroup.is_none()
    }

    fn is_lingering(&self) -> bool {
        self.exit.is_some() && (self.cgroup.is_some() || self.stdout.is_open() || self.stderr.is_open())
    }

    fn info(&self) -> ProcessInfo {
        ProcessInfo {
            process: self.id,
            pid: self.pid,
            tag: self.tag.clone(),
            command: self.command.clone(),
            exit: self.settled_exit(),
            lingering: self.is_lingering(),
            stdout_end: self.stdout.ring().end(),
            stderr_end: self.stderr.ring().end(),
            stdin_offset: self.stdin.as_ref().map_or(0, Input::received),
            terminal: self.terminal.as_ref().map(Terminal::size),
            elapsed_ms: Some(u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)),
            stdout_start: Some(self.stdout.ring().start()),
            stderr_start: Some(self.stderr.ring().start()),
        }
    }
}

fn shown_command(command: &Command) -> String {
    let whole = match command {
        Command::Shell(line) => line.clone(),
        Command::Argv(argv) => argv.join(" "),
    };
    whole.chars().take(COMMAND_SHOWN_MAX).collect()
}

/// All processes, by id.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    processes: BTreeMap<ProcessId, Process>,
    last_id: u64,
    /// Spawns in progress on workers.
    starting: usize,
    /// Children that ended before their spawn was reported, while any is in progress.
    early: BTreeMap<i32, i32>,
}

impl ProcessTable {
    /// Reserves an id for a spawn; [`ProcessTable::spawn_done`] must follow.
    pub(crate) fn begin_spawn(&mut self) -> Result<ProcessId, ErrorBody> {
        let running = self.processes.values().filter(|process| process.is_running()).count();
        if running + self.starting >= RUNNING_MAX {
            let message = format!("{RUNNING_MAX} processes are running, which is the limit; end some first");
            return Err(ErrorBody::new(ErrorCode::TooMany, message));
        }
        self.starting += 1;
        self.last_id += 1;
        Ok(ProcessId(self.last_id))
    }

    /// Takes a started process in, if one started.
    pub(crate) fn spawn_done(&mut self, process: Option<Process>, poller: &Poller) -> Option<&mut Process> {
        self.starting = self.starting.saturating_sub(1);
        let entered = process.map(|mut process| {
            if let Some(status) = self.early.remove(&process.pid) {
                process.ended(status, poller);
            }
            let id = process.id;
            self.processes.insert(id, process);
            id
        });
        if self.starting == 0 {
            self.early.clear();
        }
        self.processes.get_mut(&entered?)
    }

    pub(crate) fn get_mut(&mut self, id: ProcessId) -> Result<&mut Process, ErrorBody> {
        self.processes.get_mut(&id).ok_or_else(|| {
            ErrorBody::new(
                ErrorCode::NotFound,
                format!("process {id} is not known; it may have ended long ago"),
            )
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.processes.values_mut()
    }

    pub(crate) fn infos(&self) -> Vec<ProcessInfo> {
        self.processes.values().map(Process::info).collect()
    }

    pub(crate) fn running_count(&self) -> usize {
        self.processes.values().filter(|process| process.is_running()).count()
    }

    /// A child was reaped. Returns the process if it is one of ours; all orphans end here too.
    pub(crate) fn child_ended(&mut self, pid: i32, status: i32, poller: &Poller) -> Option<ProcessId> {
        let found = self.processes.values_mut().find(|process| process.is_running() && process.pid == pid);
        match found {
            Some(process) => {
                process.ended(status, poller);
                Some(process.id)
            }
            None => {
                if self.starting > 0 {
                    self.early.insert(pid, status);
                }
                None
            }
        }
    }

    /// When the next timeout fires or a lost follower has had its time.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let timeouts = |process: &Process| process.deadline.filter(|_| process.is_running());
        let holds = |process: &Process| process.held.map(|held| held.until);
        self.processes.values().flat_map(|process| [timeouts(process), holds(process)]).flatten().min()
    }

    /// Drops followers that did not reconnect in time; returns the processes that may continue.
    pub(crate) fn release_holds(&mut self, now: Instant) -> Vec<ProcessId> {
        let over = |process: &&mut Process| process.held.is_some_and(|held| held.until <= now);
        let release = |process: &mut Process| {
            process.held = None;
            process.id
        };
        self.processes.values_mut().filter(over).map(release).collect()
    }

    /// Kills processes that exceeded their timeout.
    pub(crate) fn fire_timeouts(&mut self, now: Instant) {
        for process in self.processes.values_mut() {
            if process.is_running() && process.deadline.is_some_and(|deadline| deadline <= now) {
                process.deadline = None;
                process.timed_out = true;
                process.kill_tree();
            }
        }
    }

    /// Removes empty control groups and forgets ended processes beyond the limits, oldest first. A
    /// process that still has running children or followers is never forgotten.
    pub(crate) fn prune(&mut self) {
        let now = Instant::now();
        let mut ended: Vec<(Instant, ProcessId, usize)> = Vec::new();
        for process in self.processes.values_mut() {
            let buried = process.try_bury();
            if let Some((_, at)) =
                process.exit.filter(|_| buried && process.readers.is_empty() && process.held.is_none())
            {
                ended.push((at, process.id, process.stdout.ring().len() + process.stderr.ring().len()));
            }
        }
        ended.sort_unstable_by_key(|&(at, ..)| std::cmp::Reverse(at));
        let mut bytes = 0;
        for (index, (at, id, size)) in ended.into_iter().enumerate() {
            bytes += size;
            if index >= ENDED_MAX || bytes > ENDED_BYTES_MAX || now.duration_since(at) > ENDED_AGE_MAX {
                self.processes.remove(&id);
            }
        }
    }
}
