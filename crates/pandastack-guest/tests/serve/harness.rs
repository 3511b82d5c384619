//! A guest program per test.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pandastack_guest_proto::client::{CollectedOutput, GuestClient, ProcessEvent, ProcessStream};
use pandastack_guest_proto::message::{ExitStatus, OutputStream, ProcessSpec};
use tokio::net::UnixStream;

/// Longest that any single step of a test may take.
pub(crate) const STEP: Duration = Duration::from_secs(20);
/// Enough for every output of these tests.
pub(crate) const ALL: usize = 64 << 20;

/// A running guest program.
pub(crate) struct Guest {
    child: Child,
    directory: tempfile::TempDir,
    cgroup: Option<PathBuf>,
}

impl Guest {
    /// A guest without control groups, as an unprivileged user can run it.
    pub(crate) fn start() -> Self {
        Self::start_in(None)
    }

    /// A guest with control groups of its own, or `None` with the reason printed.
    pub(crate) fn start_with_cgroup(test: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let mount = mounts
            .lines()
            .find(|line| line.split(' ').nth(2) == Some("cgroup2"))
            .and_then(|line| line.split(' ').nth(1));
        let Some(mount) = mount else {
            eprintln!("skipped: {test} (no cgroup2 is mounted)");
            return None;
        };
        let directory = Path::new(mount).join(format!("pandastack-guest-test-{}-{test}", std::process::id()));
        match std::fs::create_dir(&directory) {
            Ok(()) => Some(Self::start_in(Some(directory))),
            // Not root, or in a container with read-only control groups.
            Err(error)
                if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
            {
                eprintln!("skipped: {test} (cannot make {}: {error})", directory.display());
                None
            }
            Err(error) => panic!("cannot make {}: {error}", directory.display()),
        }
    }

    fn start_in(cgroup: Option<PathBuf>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pandastack-guest"));
        command
            .arg("--serve")
            .arg(directory.path().join("s"))
            .arg("--root")
            .arg(directory.path().join("root"));
        if let Some(cgroup) = &cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        let guest = Self { child: command.spawn().unwrap(), directory, cgroup };
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(guest.socket()).is_err() {
            assert!(begun.elapsed() < STEP, "the guest program does not listen");
            std::thread::yield_now();
        }
        guest
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// A directory of the test's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A raw connection.
    pub(crate) async fn dial(&self) -> UnixStream {
        UnixStream::connect(self.socket()).await.unwrap()
    }

    /// A client.
    pub(crate) async fn connect(&self) -> GuestClient {
        GuestClient::connect(self.dial().await, STEP).await.unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            let _ = std::fs::write(cgroup.join("user/cgroup.freeze"), "0");
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(cgroup) = &self.cgroup {
            let begun = Instant::now();
            while remove_cgroups(cgroup).is_err() && begun.elapsed() < STEP {
                std::thread::yield_now();
            }
        }
    }
}

fn remove_cgroups(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove_cgroups(&entry.path())?;
    }
    std::fs::remove_dir(path)
}

/// Waits for a condition, with a deadline.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < STEP, "not within {STEP:?}: {what}");
        tokio::task::yield_now().await;
    }
}

/// Runs a shell line to its end.
pub(crate) async fn sh(client: &GuestClient, line: &str) -> CollectedOutput {
    run(client, ProcessSpec::shell(line)).await
}

/// Runs a process to its end.
pub(crate) async fn run(client: &GuestClient, spec: ProcessSpec) -> CollectedOutput {
    let stream = client.exec(spec).await.unwrap();
    tokio::time::timeout(STEP, stream.collect(ALL)).await.expect("the process ends").unwrap()
}

/// Standard output as text.
pub(crate) fn text(output: &CollectedOutput) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Reads a stream to its end: standard output with its first offset, gaps, exit.
pub(crate) async fn drain(stream: &mut ProcessStream) -> (Vec<u8>, Vec<(u64, u64)>, ExitStatus) {
    let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
    loop {
        match tokio::time::timeout(STEP, stream.next()).await.expect("the process ends").unwrap() {
            Some(ProcessEvent::Output { stream: OutputStream::Stdout, bytes: more, .. }) => {
                bytes.extend_from_slice(&more)
            }
            Some(ProcessEvent::Output { .. }) => {}
            Some(ProcessEvent::Gap { from, to, .. }) => gaps.push((from, to)),
            Some(ProcessEvent::Exit(exit)) => return (bytes, gaps, exit),
            None => panic!("the stream ended without an exit"),
        }
    }
}
