//! The handler's process: started once, monitored, and killed when a call times out.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddrV4;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::calls::Calls;
use super::output::Output;

/// The first process to be killed when memory runs out: the runtime must survive to report it.
const OOM_SCORE_ADJ: &str = "1000";

/// The handler's process.
#[derive(Debug)]
pub(super) struct Handler {
    pid: Pid,
    child: Mutex<Option<Child>>,
}

impl Handler {
    /// Starts the program, with its output going to `output`.
    pub(super) fn start(command: &[OsString], api: SocketAddrV4, output: &Output) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut starting = Command::new(program);
        starting
            .args(arguments)
            .env("AWS_LAMBDA_RUNTIME_API", api.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // SAFETY: the closure is one system call, which neither allocates nor takes a lock.
        unsafe {
            // Without its runtime a handler could not be called, and would never be ended.
            starting.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
        }
        let mut child = starting.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
        let score = std::fs::write(format!("/proc/{pid}/oom_score_adj"), OOM_SCORE_ADJ);
        score.unwrap_or_else(|error| eprintln!("pandastack-guest function: oom_score_adj: {error}"));
        output.follow(child.stdout.take(), child.stderr.take())?;
        Ok(Self { pid, child: Mutex::new(Some(child)) })
    }

    /// Waits for its end, and kills the processes that it leaves.
    pub(super) fn watch(&self, calls: &Calls, output: &Output) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut child) = child else { return };
        let status = child.wait();
        // The last output explains why the handler ended.
        output.drain();
        let (message, exit_code) = match status {
            Ok(status) => (describe_exit(status), Some(exit_code(status))),
            Err(error) => (format!("the handler's process was lost: {error}"), None),
        };
        calls.end(&message, exit_code);
    }

    /// Kills it and everything in its group.
    pub(super) fn kill(&self) {
        let _ = killpg(self.pid, Signal::SIGKILL);
    }

    /// Most memory that it had so far, in KiB.
    pub(super) fn memory_peak_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak.and_then(|text| text.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or_default()
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(9)) => "the handler's process was killed; it probably used all memory".to_owned(),
        (_, Some(signal)) => format!("the handler's process was ended by signal {signal}"),
        (Some(0), _) => "the handler's process exited before it responded".to_owned(),
        (code, _) => format!("the handler's process exited with {}", code.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_exit_is_described_in_a_sentence() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        assert!(describe_exit(exited(0)).contains("before it responded"));
        assert!(describe_exit(exited(3)).contains("exited with 3"));
        assert!(describe_exit(ExitStatus::from_raw(9)).contains("memory"));
        assert!(describe_exit(ExitStatus::from_raw(11)).contains("signal 11"));
        assert_eq!((exit_code(exited(3)), exit_code(ExitStatus::from_raw(9))), (3, 137));
    }
}
