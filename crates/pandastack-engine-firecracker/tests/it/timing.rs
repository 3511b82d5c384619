//! Time for the engine to create a machine from a snapshot, beside the same steps by hand.
//!
//! By hand means: spawn the jailer, link the files into its root, load and resume by two requests, with
//! nothing of this crate. Both are done in turns, so that a busy host slows both.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pandastack_engine::MachineFiles;
use pandastack_engine::conformance::Fixture;
use pandastack_engine_firecracker::Launcher;

use crate::fixture::{FirecrackerFixture, Snapshot};
use crate::lifecycle::fixture;
use crate::network::tap;

const ROUNDS: usize = 40;
/// User of processes that are started by hand.
const USER: u32 = 70_999;
const START_MAX: Duration = Duration::from_secs(30);

/// A jailed process that was started by hand, and its machine is running.
struct ByHand {
    jailer: Child,
    root: PathBuf,
}

impl ByHand {
    /// Spawn, jail, load, resume.
    fn start(base: &Path, snapshot: &Snapshot, disk: &Path, namespace: &OwnedFd) -> io::Result<Self> {
        let root = base.join("firecracker/hand/root");
        let programs = FirecrackerFixture::programs();
        let mut command = Command::new(&programs.1);
        command.args(["--id", "hand", "--exec-file"]).arg(&programs.0);
        command.args(["--uid", &USER.to_string(), "--gid", &USER.to_string(), "--new-pid-ns"]);
        command.arg("--chroot-base-dir").arg(base);
        command.arg("--netns").arg(format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd()));
        command.args(["--", "--api-sock", "api.sock"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let jailer = command.spawn()?;
        let api = connect(&root.join("api.sock"))?;
        fs::hard_link(&snapshot.state, root.join("state"))?;
        fs::hard_link(&snapshot.memory, root.join("memory"))?;
        fs::hard_link(disk, root.join("disk"))?;
        for volume in ["volume0", "volume1", "volume2", "volume3"] {
            fs::write(root.join(volume), "")?;
        }
        for name in ["disk", "volume0", "volume1", "volume2", "volume3"] {
            std::os::unix::fs::chown(root.join(name), Some(USER), Some(USER))?;
        }
        let load = r#"{"snapshot_path":"state","mem_backend":{"backend_type":"File","backend_path":"memory"},
            "track_dirty_pages":true,"resume_vm":true,
            "network_overrides":[{"iface_id":"eth0","host_dev_name":"hand0"}]}"#;
        call(api, "PUT", "/snapshot/load", load)?;
        Ok(Self { jailer, root })
    }

    fn end(mut self) -> io::Result<()> {
        let pid = fs::read_to_string(self.root.join("firecracker.pid"))?;
        let pid = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the jailer wrote no process id"))?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        self.jailer.wait()?;
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "nothing tells when another process listens")]
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let deadline = Instant::now() + START_MAX;
    loop {
        match UnixStream::connect(socket) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(100)),
            outcome => return outcome,
        }
    }
}

fn call(mut api: UnixStream, method: &str, path: &str, body: &str) -> io::Result<()> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json");
    write!(api, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = [0; 512];
    let read = api.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..read]);
    if answer.starts_with("HTTP/1.1 204") { Ok(()) } else { Err(io::Error::other(answer.into_owned())) }
}

/// Percentiles in milliseconds.
fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1_000.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, decides nothing"]
async fn timing_of_creates_compared_with_manual_steps() {
    let fixture = fixture!(Launcher::Jailer);
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    booted.kill().await.unwrap();
    for file in [&template.state, &template.memory] {
        // The engine makes these files readable for machines; machines started by hand need it too.
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let (mut by_hand, mut by_engine, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut ahead = Vec::new();
    for round in 0..ROUNDS {
        let (device, namespace) = tap("hand0");
        pandastack_engine::tap::keep_for(std::os::fd::AsFd::as_fd(&device), USER).unwrap();
        drop(device);
        let (base, disk) = (fixture.fresh_path("jail"), fixture.place(&template.disk).await.disk);
        fs::create_dir(&base).unwrap();
        let began = Instant::now();
        let hand = ByHand::start(&base, &template, &disk, &namespace).unwrap();
        by_hand.push(began.elapsed());
        hand.end().unwrap();

        let (device, _namespace) = tap("engine0");
        let place = MachineFiles { tap: Some(device), ..fixture.place(&template.disk).await };
        let began = Instant::now();
        let machine = fixture.restored_in(&template, place).await;
        machine.resume().await.unwrap();
        by_engine.push(began.elapsed());
        assert_eq!(fixture.ask_for(&*machine, "recall").await, 1, "round {round}");
        answers.push(began.elapsed());
        machine.kill().await.unwrap();

        let (device, _namespace) = tap("ahead0");
        let place = fixture.with_spare(fixture.place(&template.disk).await, device).await;
        let began = Instant::now();
        let machine = fixture.restored_in(&template, place).await;
        machine.resume().await.unwrap();
        ahead.push(began.elapsed());
        machine.kill().await.unwrap();
    }
    for (what, times) in [
        ("spawn, jail, load and resume by hand", &mut by_hand),
        ("the same through the engine", &mut by_engine),
        ("through the engine, to the guest's first answer", &mut answers),
        ("load and resume in a process that was started ahead", &mut ahead),
    ] {
        let [p50, p90] = [50, 90].map(|percent| percentile(times, percent));
        println!("measured: {what}: p50 {p50:.1} ms, p90 {p90:.1} ms ({ROUNDS} rounds, toy guest)");
    }
    let added = percentile(&mut by_engine, 50) - percentile(&mut by_hand, 50);
    println!("measured: the engine adds {added:.1} ms to the median");
    let ratio = percentile(&mut ahead, 50) / percentile(&mut by_hand, 50);
    println!(
        "measured: with processes started ahead a copy takes {ratio:.2} of spawn, jail, load and resume"
    );
}
