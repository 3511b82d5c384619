//! Programs that run as part of an identity: the image's hooks, and new SSH host keys.
//!
//! They run before user processes are thawed, one after another, within one deadline: a hook that hangs is
//! killed and reported, it does not keep the machine from starting.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pandastack_guest_proto::message::Identity;

use super::warnings::Warnings;
use crate::environment::GuestEnvironment;
use crate::process::{ChildPlan, spawn_child, wait_child};

const HOOKS_MAX: usize = 16;
const HOOKS_WAIT_MAX: Duration = Duration::from_secs(5);
const SSH_KEYS_WAIT_MAX: Duration = Duration::from_secs(20);
const HOOK_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the executables of `/etc/pandastack/identity.d` in the order of their names.
pub(super) fn run_hooks(
    around: &GuestEnvironment,
    identity: &Identity,
    generation: u64,
    warnings: &mut Warnings,
) {
    let Ok(directory) = std::fs::read_dir(around.root.join("etc/pandastack/identity.d")) else { return };
    let executable = |path: &PathBuf| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let mut hooks: Vec<PathBuf> = directory.flatten().map(|entry| entry.path()).filter(executable).collect();
    hooks.sort_unstable();
    let env = [
        HOOK_PATH.to_owned(),
        format!("PANDASTACK_SANDBOX_ID={}", identity.sandbox_id),
        format!("PANDASTACK_GENERATION={generation}"),
    ];
    let give_up = Instant::now() + HOOKS_WAIT_MAX;
    for hook in hooks.iter().take(HOOKS_MAX) {
        let result = run(&[hook.as_os_str().as_bytes()], &env, give_up);
        warnings.note(&format!("run the hook {}", hook.display()), result);
    }
}

/// Replaces every existing host key by a new one.
pub(super) fn regenerate_ssh_host_keys(warnings: &mut Warnings) {
    const KEYGEN: &[u8] = b"/usr/bin/ssh-keygen";
    let give_up = Instant::now() + SSH_KEYS_WAIT_MAX;
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let path = format!("/etc/ssh/ssh_host_{kind}_key");
        if !Path::new(&path).exists() {
            continue;
        }
        // Remove the key first: a machine without a key is safe, a machine with a shared key is
        // not.
        let _ = std::fs::remove_file(&path);
        let _ = std::fs::remove_file(format!("{path}.pub"));
        let argv = [KEYGEN, b"-q", b"-N", b"", b"-t", kind.as_bytes(), b"-f", path.as_bytes()];
        warnings.note(&format!("make a new {kind} host key"), run(&argv, &[HOOK_PATH.to_owned()], give_up));
    }
}

fn run(argv: &[&[u8]], env: &[String], give_up: Instant) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let argv: Vec<CString> = argv.iter().map(|argument| text(argument)).collect::<Result<_, _>>()?;
    let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let plan = ChildPlan {
        program: argv.first().cloned().unwrap_or_default(),
        argv,
        env: env.iter().map(|variable| text(variable.as_bytes())).collect::<Result<_, _>>()?,
        cwd: c"/".to_owned(),
        credentials: None,
        stdio: [null()?, null()?, null()?],
        reset_priority: true,
        terminal: false,
    };
    let pid = spawn_child(&plan, None).map_err(|error| io::Error::from(error.errno))?;
    let ended = wait_until(pid, give_up);
    if ended.is_err() {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    wait_child(pid);
    ended
}

fn wait_until(pid: i32, give_up: Instant) -> io::Result<()> {
    // SAFETY: a system call on numbers; the descriptor it returns is ours alone.
    let pidfd = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        OwnedFd::from_raw_fd(
            i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?,
        )
    };
    loop {
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::other("it took too long and was killed"));
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}
