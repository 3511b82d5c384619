//! Confinement of a machine's process.

use std::collections::BTreeSet;
use std::fs;

use pandastack_engine::Confinement;
use pandastack_engine_firecracker::Launcher;

use crate::fixture::FirecrackerFixture;
use crate::lifecycle::fixture;

/// Everything that is in a root besides device files: the program, sockets, and the machine's own files.
const ROOT: &[&str] = &[
    "api.sock",
    "console",
    "dev",
    "disk",
    "firecracker",
    "firecracker.pid",
    "initrd",
    "kernel",
    "metrics",
    "run",
    "v.sock",
    "volume0",
    "volume1",
    "volume2",
    "volume3",
];

fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim_start_matches(':').split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jailed_process_sees_only_its_own_files() {
    let fixture = fixture!(Launcher::Jailer);
    let mounts_before = fs::read_to_string("/proc/self/mounts").unwrap();
    let machine = fixture.booted().await;
    let pid = machine.record().pid;
    let Confinement::Full { uid, gid } = machine.record().confinement else { panic!("not confined") };
    assert_eq!(status(pid, "Uid"), format!("{uid} {uid} {uid} {uid}"));
    assert_eq!(status(pid, "Gid"), format!("{gid} {gid} {gid} {gid}"));
    assert_eq!(status(pid, "Groups"), "", "no groups but its own");
    assert_eq!(status(pid, "CapEff"), "0000000000000000");
    assert_eq!(status(pid, "Seccomp"), "2", "system calls are filtered");
    assert!(status(pid, "NSpid").ends_with(" 1"), "first in a process namespace of its own");
    for kind in ["mnt", "pid", "net", "ipc", "uts"] {
        let link = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        assert_ne!(link(&pid.to_string()), link("self"), "{kind} is shared with the host");
    }
    let listing = fs::read_dir(format!("/proc/{pid}/root")).unwrap();
    let names: BTreeSet<_> = listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected: BTreeSet<_> = ROOT.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names, expected);
    assert_eq!(fs::read_to_string("/proc/self/mounts").unwrap(), mounts_before, "a jail left mounts");
    machine.kill().await.unwrap();
    let left: Vec<_> = fs::read_dir(&machine.record().runtime_dir).unwrap().collect();
    println!("{left:?}");
    assert!(left.iter().all(|entry| entry.as_ref().unwrap().file_type().unwrap().is_file()));
}
