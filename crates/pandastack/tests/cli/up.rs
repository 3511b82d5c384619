//! `up` and `down` with the real control and agent, without machines: a role that dies is
//! restarted, and a stopped platform leaves nothing behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::text;

/// A busy host takes its time; a healthy one needs a fraction of this.
const PATIENCE: Duration = Duration::from_secs(60);

/// A platform of one test's own.
struct Installation {
    dir: tempfile::TempDir,
    address: String,
    /// Tests run side by side; two platforms must share neither names nor addresses.
    number: u32,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Installation {
    /// `None`, with a reason, where platforms cannot run.
    fn new() -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("skipped: starting the platform needs root");
            return None;
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        let number = std::process::id() * 4 + NEXT.fetch_add(1, Ordering::Relaxed);
        Some(Self { dir: tempfile::tempdir().unwrap(), address, number })
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pandastack"));
        command.env("HOME", self.dir.path()).env_remove("SUDO_UID").stdin(Stdio::null());
        command.args(args).arg("--data-dir").arg(self.data_dir());
        command.output().unwrap()
    }

    #[track_caller]
    fn up(&self) {
        let number = self.number;
        let (prefix, subnet) =
            (format!("u{}", number % 1_000_000), format!("10.{}.0.0/16", 160 + number % 40));
        let network = ["--net-prefix", &prefix, "--subnet", &subnet, "--slots-ready", "1"];
        let output = self.run(&[&["up", "--detach", "--listen", &self.address], network.as_slice()].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Processes of this platform whose command line has that role.
    fn processes(&self, role: &str) -> Vec<Pid> {
        let mark = self.data_dir().display().to_string();
        let of_entry = |entry: std::fs::DirEntry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<String> = line.split(|byte| *byte == 0).map(text).collect();
            let is_meant = words.get(1).is_some_and(|word| word == role) && words.contains(&mark);
            Pid::from_raw(pid).filter(|_| is_meant)
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(of_entry).collect()
    }

    #[track_caller]
    fn kill(&self, role: &str) -> Pid {
        let [pid] = self.processes(role)[..] else { panic!("one {role} runs: {:?}", self.processes(role)) };
        kill_process(pid, Signal::KILL).unwrap();
        pid
    }

    fn is_ready(&self) -> bool {
        let output = Command::new(env!("CARGO_BIN_EXE_pandastack"))
            .args(["host", "list"])
            .env("HOME", self.dir.path())
            .output();
        output.is_ok_and(|output| text(&output.stdout).contains(" reachable "))
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let output = self.run(&["down", "--purge"]);
        if !std::thread::panicking() {
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }
}

#[track_caller]
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        #[expect(clippy::disallowed_methods, reason = "a test; any condition")]
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn killed_roles_restart_and_a_purge_leaves_nothing() {
    let Some(platform) = Installation::new() else { return };
    platform.up();
    for role in ["agent", "control"] {
        let dead = platform.kill(role);
        let replaced = || matches!(platform.processes(role)[..], [pid] if pid != dead);
        wait_for("a new process", replaced);
        wait_for("the host answers", || platform.is_ready());
    }
    platform.kill("up");
    wait_for("the roles follow their supervisor", || {
        platform.processes("agent").is_empty() && platform.processes("control").is_empty()
    });
    platform.up();
    let output = platform.run(&["down", "--purge"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for role in ["up", "agent", "control"] {
        assert_eq!(platform.processes(role), [], "{role}");
    }
    assert!(!platform.data_dir().exists());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&platform.data_dir().display().to_string()), "{mounts}");
}

#[test]
fn up_configures_the_client_and_explains_startup_failures() {
    let Some(platform) = Installation::new() else { return };
    let taken = std::net::TcpListener::bind(&platform.address).unwrap();
    let output = platform.run(&["up", "--detach", "--listen", &platform.address]);
    let expected = format!(
        "error: cannot listen on {}: Address already in use (os error 98)\nhint: choose another address with \
         --listen, such as 127.0.0.1:8081\n",
        platform.address
    );
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
    drop(taken);
    platform.up();
    assert!(config_in(platform.dir.path()).contains(&platform.address));
    let again = platform.run(&["up", "--listen", &platform.address]);
    assert!(text(&again.stderr).starts_with("PandaStack is already running (PID "), "{again:?}");
}

fn config_in(home: &Path) -> String {
    std::fs::read_to_string(home.join(".config/pandastack/config.json")).unwrap()
}

#[test]
fn several_installations_need_no_flags() {
    let (Some(first), Some(second)) = (Installation::new(), Installation::new()) else { return };
    let urls = [&first, &second].map(|platform| {
        let output = platform.run(&["up", "--detach", "--json", "--slots-ready", "1"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let ready: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        ready["api_url"].as_str().unwrap().to_owned()
    });
    assert_ne!(urls[0], urls[1]);
}

#[test]
fn failed_starts_report_why_and_purge_cleanly() {
    let Some(platform) = Installation::new() else { return };
    let output = platform.run(&["up", "--detach", "--listen", &platform.address, "--subnet", "127.0.0.0/16"]);
    let stderr = text(&output.stderr);
    let reason = "the subnet 127.0.0.0/16 contains the address 127.0.0.1 of interface lo; choose another \
                  with --subnet";
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let first = stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("error: cannot start agent: ") && first.contains(reason), "{stderr}");
    let output = platform.run(&["down", "--purge"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!platform.data_dir().exists());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&platform.data_dir().display().to_string()), "{mounts}");
}

#[test]
fn a_foreign_directory_is_never_purged() {
    let Some(platform) = Installation::new() else { return };
    std::fs::create_dir(platform.data_dir()).unwrap();
    std::fs::write(platform.data_dir().join("precious"), "x").unwrap();
    let output = platform.run(&["down", "--purge"]);
    assert!(text(&output.stderr).starts_with("No PandaStack installation in "), "{output:?}");
    assert!(platform.data_dir().join("precious").exists());
}
