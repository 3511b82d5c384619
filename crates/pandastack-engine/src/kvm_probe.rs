//! Tests whether KVM on this host runs guest code.
//!
//! A device node, successful ioctls and capability bits prove nothing: there are hosts where all of those are right
//! and a stock kernel still dies on its first `cmpxchg16b`, because guest code goes through an instruction emulator.
//! So the probe runs a program in a vCPU and believes only its result:
//!
//! ```text
//!  long mode, identity pages -> 2^20 turns of a loop -> lock cmpxchg16b, result checked -> out MAGIC -> hlt
//! ```
//!
//! Invariant: a verdict of usable means that the magic value and the halt both arrived before the
//! deadline. Everything else, silence included, is unusable with the reason.
//!
//! A vCPU that hangs cannot be interrupted safely from a thread, and a broken KVM may take its
//! process down. Therefore [`probe_with`] runs the probe in a child process and kills it at the
//! deadline; the program it runs calls [`run_child`] in a hidden subcommand. Callers keep the
//! verdict for as long as the host is up.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Subcommand that makes the `pandastack` program call [`run_child`].
pub const CHILD_SUBCOMMAND: &str = "kvm-probe";

/// Ends a probe that hangs. It allows for the start of the child on a loaded host; whether guest code is fast enough
/// is judged by the processor time that it took.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// Most of a child's output that is read: one sentence.
const REASON_BYTES_MAX: u64 = 4096;

/// The child's entire output when KVM works.
const CHILD_OK: &str = "ok";

/// Verdict on KVM, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvmVerdict {
    /// Whether guest code ran and gave the right result in time.
    pub usable: bool,
    /// One sentence for `doctor`.
    pub reason: String,
}

impl KvmVerdict {
    fn usable(reason: impl Into<String>) -> Self {
        KvmVerdict { usable: true, reason: reason.into() }
    }

    fn unusable(reason: impl fmt::Display) -> Self {
        KvmVerdict { usable: false, reason: format!("KVM is not usable: {reason}") }
    }
}

/// Runs `program kvm-probe` and waits for its verdict, at most until the deadline. Blocks.
pub fn probe_with(program: &Path, deadline: Duration) -> KvmVerdict {
    let mut command = Command::new(program);
    command.arg(CHILD_SUBCOMMAND);
    probe_command(command, deadline)
}

/// Body of the hidden subcommand: probes in this process and prints the outcome for [`probe_with`].
pub fn run_child() -> ExitCode {
    match run_guest_program() {
        Ok(()) => {
            println!("{CHILD_OK}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn probe_command(mut command: Command, deadline: Duration) -> KvmVerdict {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return KvmVerdict::unusable(format_args!("the probe could not be started: {error}")),
    };
    match wait_until(&child, deadline) {
        Ok(true) => read_verdict(&mut child, started),
        Ok(false) => {
            end(child);
            let limit_ms = deadline.as_millis();
            KvmVerdict::unusable(format_args!("guest code did not finish within {limit_ms} ms"))
        }
        Err(error) => {
            end(child);
            KvmVerdict::unusable(format_args!("the probe could not be watched: {error}"))
        }
    }
}

/// Returns whether the child ended before the deadline.
fn wait_until(child: &Child, deadline: Duration) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec {
        tv_sec: i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: deadline.subsec_nanos().into(),
    };
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    Ok(poll(&mut polled, Some(&timeout))? > 0)
}

fn read_verdict(child: &mut Child, started: Instant) -> KvmVerdict {
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        // Unreadable output counts as none.
        let _ = stdout.take(REASON_BYTES_MAX).read_to_string(&mut said);
    }
    match (child.wait(), said.trim()) {
        (Ok(status), CHILD_OK) if status.success() => KvmVerdict::usable(format!(
            "KVM ran guest code correctly in {} ms",
            started.elapsed().as_millis()
        )),
        (Ok(status), "") => KvmVerdict::unusable(format_args!("the probe ended with {status}")),
        (Ok(_), reason) => KvmVerdict::unusable(reason),
        (Err(error), _) => KvmVerdict::unusable(format_args!("the probe could not be collected: {error}")),
    }
}

/// Kills the child and reaps it in the background: a child that is stuck in the kernel may take
/// long to die, and the verdict does not depend on it.
fn end(mut child: Child) {
    if child.kill().is_ok() {
        let _ = thread::Builder::new().name("kvm-probe-reaper".to_owned()).spawn(move || child.wait());
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run_guest_program() -> Result<(), String> {
    Err("this processor architecture is not supported yet".to_owned())
}

#[cfg(target_arch = "x86_64")]
use x86_64::run_guest_program;

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_usable_probe_prints_ok_and_exits_cleanly() {
        for (script, usable, reason) in [
            ("echo ok", true, "correctly"),
            ("echo ok; exit 1", false, "ok"),
            ("echo oh no; exit 1", false, "oh no"),
            ("exit 3", false, "exit status: 3"),
            ("kill -SEGV $$", false, "signal"),
            ("true", false, "exit status: 0"),
        ] {
            let verdict = probe_command(shell(script), Duration::from_secs(30));
            assert_eq!(verdict.usable, usable, "{script}: {verdict:?}");
            assert!(verdict.reason.contains(reason), "{script}: {verdict:?}");
        }
    }

    #[test]
    fn a_silent_probe_is_unusable_at_the_deadline() {
        let started = Instant::now();
        let verdict = probe_command(shell("exec sleep 60"), Duration::from_millis(50));
        assert!(!verdict.usable && verdict.reason.contains("within 50 ms"), "{verdict:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_missing_kvm_probe_reports_kvm_unusable() {
        let verdict = probe_with(Path::new("/nonexistent/pandastack"), Duration::from_secs(1));
        assert!(!verdict.usable && verdict.reason.contains("could not be started"), "{verdict:?}");
    }
}
