//! Isolation and confinement of forks, checked from outside, in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::task::Poll;
use std::time::Duration;

use pandastack_engine::conformance::{Fixture, Question};
use pandastack_engine::{Confinement, MachineFiles, MachineRecord, SaveTarget};

use tokio::time::timeout;

use crate::fixture::QemuFixture;

/// Forks in a row that must leave no trace in the parent.
const FORKS_MANY: usize = 40;

/// Name of each open descriptor of a process.
fn descriptors(pid: u32) -> BTreeMap<u32, String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    let named = entries.filter_map(|entry| {
        let name = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        Some((entry.file_name().to_string_lossy().parse().ok()?, name))
    });
    named.collect()
}

fn status(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn info(pid: u32, fd: u32, key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// Descriptors that mean the same in two processes, without those known to carry no state.
fn shared(one: u32, two: u32) -> Vec<String> {
    let (first, second) = (descriptors(one), descriptors(two));
    let mut shared = Vec::new();
    for (fd, name) in &first {
        let Some(other) = second.get(fd) else { continue };
        // Match path suffixes: paths are longer when a process has its own root.
        let stateless = ["/dev/null", "/dev/urandom"].iter().any(|end| name.ends_with(end)) || name == "/";
        let same = match name.as_str() {
            "anon_inode:[eventfd]" => info(one, *fd, "eventfd-id") == info(two, *fd, "eventfd-id"),
            "anon_inode:[signalfd]" => false,
            "/dev/net/tun" => info(one, *fd, "iff") == info(two, *fd, "iff"),
            _ => name == other,
        };
        if same && !stateless {
            shared.push(format!("{fd} -> {name}"));
        }
    }
    shared
}

/// Files and sockets that both processes have open, under any descriptor number.
fn common_names(one: u32, two: u32) -> BTreeSet<String> {
    let names = |pid| {
        descriptors(pid)
            .into_values()
            .filter(|name| !name.starts_with("anon_inode:"))
            .collect::<BTreeSet<_>>()
    };
    names(one).intersection(&names(two)).cloned().collect()
}

fn assert_locked_in(record: &MachineRecord) {
    let Confinement::Full { uid, gid } = record.confinement else { panic!("not confined") };
    let pid = record.pid;
    assert_eq!(status(pid, "Uid"), [uid; 4].map(|id| id.to_string()).join(" "));
    assert_eq!(status(pid, "Gid"), [gid; 4].map(|id| id.to_string()).join(" "));
    assert_eq!(status(pid, "Groups"), "");
    assert_eq!(status(pid, "CapEff"), "0000000000000000");
    assert_eq!(status(pid, "NoNewPrivs"), "1");
    assert_eq!(status(pid, "THP_enabled"), "0", "what it translates takes large pages of its own");
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let text = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(text.contains("\nSeccomp:\t2\n"), "a thread without filter");
        assert!(text.contains(&format!("\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")), "a thread of another user");
    }
    // Looked into through the process: seen from inside another root the link's text leads nowhere.
    let root = format!("/proc/{pid}/root/");
    let name = fs::read_link(root.trim_end_matches('/')).unwrap();
    let is_empty = fs::read_dir(&root).unwrap().count() == 0;
    assert!(name.ends_with("empty") && is_empty, "root is {}", name.display());
    let session = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = session.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(3).unwrap().to_owned();
    assert_eq!(session, pid.to_string(), "session of its own");
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "300");
    for namespace in ["net", "mnt", "ipc", "uts"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
        assert_ne!(of(&pid.to_string()), of("self"), "{namespace} namespace");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_share_only_guest_memory_and_are_confined() {
    let fixture = match QemuFixture::prepare(Some(Confinement::Zygote)).await {
        Ok(fixture) => fixture,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let zygote = fixture.booted().await;
    zygote.pause().await.unwrap();
    let before = (descriptors(zygote.record().pid), threads(zygote.record().pid));
    let places = [fixture.place_beside(&*zygote).await, fixture.place_beside(&*zygote).await];
    let mut machines: Vec<_> =
        zygote.fork(places.into()).await.unwrap().into_iter().map(Result::unwrap).collect();
    let place = fixture.place_beside(&*machines[0]).await;
    machines.extend(machines[0].fork(vec![place]).await.unwrap().into_iter().map(Result::unwrap));
    let ram = fs::metadata(&zygote.record().base_memory).unwrap().ino();
    for machine in &machines {
        assert_locked_in(machine.record());
        assert_eq!(threads(machine.record().pid), before.1, "threads of a fork");
    }
    let pids: Vec<u32> = machines.iter().chain([&zygote]).map(|machine| machine.record().pid).collect();
    for (index, one) in pids.iter().enumerate() {
        for two in &pids[index + 1..] {
            let shared: Vec<_> =
                shared(*one, *two).into_iter().filter(|name| !name.contains("memory-")).collect();
            assert!(shared.is_empty(), "{one} and {two} share {shared:?}");
            let common = common_names(*one, *two);
            let memory = common.iter().find(|name| name.contains("memory-")).expect("guest memory");
            assert_eq!(fs::metadata(memory).unwrap().ino(), ram);
            assert!(
                common
                    .iter()
                    .all(|name| name.contains("memory-") || name.starts_with("/dev/") || name == "/"),
                "{common:?}"
            );
        }
    }
    assert_eq!(
        (descriptors(zygote.record().pid), threads(zygote.record().pid)),
        before,
        "traces in the zygote"
    );
    for machine in machines.iter().chain([&zygote]) {
        machine.kill().await.unwrap();
    }
}

/// A tap in a network of its own.
fn tap() -> OwnedFd {
    let open = || {
        // SAFETY: descriptors stay shared with the other threads; only the network changes.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
        let tap = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
        // SAFETY: an all-zero request is valid, and an empty name asks the kernel for one.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            request.ifr_ifru.ifru_flags =
                (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
            assert_eq!(libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request), 0);
        }
        OwnedFd::from(tap)
    };
    std::thread::scope(|scope| scope.spawn(open).join()).unwrap()
}

fn header_bytes(tap: &OwnedFd) -> libc::c_int {
    const TUNGETVNETHDRSZ: libc::c_ulong = 0x8004_54d7;
    let mut bytes = 0;
    // SAFETY: the call writes one integer.
    assert_eq!(unsafe { libc::ioctl(tap.as_raw_fd(), TUNGETVNETHDRSZ, &raw mut bytes) }, 0);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forks_tap_is_configured_like_its_parents() {
    let fixture = match QemuFixture::prepare(None).await {
        Ok(fixture) => fixture,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let parent = fixture.booted().await;
    parent.pause().await.unwrap();
    let taps = [tap(), tap()];
    let before = header_bytes(&taps[0]);
    let mut places = Vec::new();
    for tap in &taps {
        let tap = Some(tap.try_clone().unwrap());
        places.push(MachineFiles { tap, ..fixture.place_beside(&*parent).await });
    }
    let children: Vec<_> = parent.fork(places).await.unwrap().into_iter().map(Result::unwrap).collect();
    for (child, tap) in children.iter().zip(&taps) {
        // The guest's driver negotiated the longer header of mergeable buffers.
        assert_eq!((before, header_bytes(tap)), (10, 12));
        child.kill().await.unwrap();
    }
    parent.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_forks_leak_no_resources() {
    let fixture = match QemuFixture::prepare(Some(Confinement::Zygote)).await {
        Ok(fixture) => fixture,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let zygote = fixture.booted().await;
    zygote.pause().await.unwrap();
    let before = (descriptors(zygote.record().pid), threads(zygote.record().pid));
    let mut children = Vec::new();
    let mut places = Vec::new();
    for _ in 0..FORKS_MANY {
        places.push(fixture.place_beside(&*zygote).await);
    }
    for (number, child) in zygote.fork(places).await.unwrap().into_iter().enumerate() {
        let child = child.unwrap();
        child.resume().await.unwrap();
        assert_eq!(fixture.ask_machine(&*child, Question::Remember(number as u64)).await, number as u64);
        children.push(child);
    }
    for (number, child) in children.iter().enumerate() {
        assert_eq!(fixture.ask_machine(&**child, Question::Recall).await, number as u64);
        child.kill().await.unwrap();
    }
    assert_eq!(
        (descriptors(zygote.record().pid), threads(zygote.record().pid)),
        before,
        "traces in the zygote"
    );
    // After the fork, the zygote is still a machine that can be saved.
    let target = SaveTarget {
        state: fixture.fresh_path("state"),
        memory: fixture.clone_memory(&zygote.record().base_memory).await,
        base: zygote.record().base_memory.clone(),
    };
    zygote.save(target).await.unwrap();
    zygote.kill().await.unwrap();
    assert_eq!(fixture.living(), 0);
}

/// Drops a future after `polls` polls, unless it has completed.
async fn given_up_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_work_leaves_no_process() {
    let fixture = match QemuFixture::prepare(Some(Confinement::Zygote)).await {
        Ok(fixture) => fixture,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let boot = fixture.boot().await;
    let given_up = timeout(Duration::from_millis(5), fixture.engine().boot(boot)).await;
    assert!(given_up.is_err(), "a boot within 5 ms");
    fixture.wait_until_living(0).await;
    let zygote = fixture.booted().await;
    zygote.pause().await.unwrap();
    for polls in 1..=5 {
        let place = fixture.place_beside(&*zygote).await;
        // The first poll cannot finish a fork, which is another process's work. Later ones may.
        let Some(forked) = given_up_after(polls, zygote.fork(vec![place])).await else { continue };
        assert!(polls > 1, "a fork that was over at once");
        for machine in forked.unwrap() {
            machine.unwrap().kill().await.unwrap();
        }
    }
    fixture.wait_until_living(1).await;
    zygote.kill().await.unwrap();
}

/// Moments at which a fork is cut off, from its first step to after its end.
const CUTS: u32 = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_killed_during_its_fork_leaves_no_process() {
    let fixture = match QemuFixture::prepare(Some(Confinement::Zygote)).await {
        Ok(fixture) => fixture,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    for cut in 0..CUTS {
        let place = fixture.place_beside(&*booted).await;
        let zygote = booted.fork(vec![place]).await.unwrap().remove(0).unwrap();
        let place = fixture.place_beside(&*zygote).await;
        let fork = zygote.fork(vec![place]);
        // The kill is what is timed, not a condition that is waited for.
        if let Ok(forked) = timeout(Duration::from_micros(400) * cut, fork).await {
            // The fork was faster: its caller has the child, and ends it.
            forked.unwrap().remove(0).unwrap().kill().await.unwrap();
        }
        zygote.kill().await.unwrap();
        fixture.wait_until_living(1).await;
    }
    booted.kill().await.unwrap();
    fixture.wait_until_living(0).await;
}
