use super::*;

#[test]
fn a_cgroup_v2_host_creates_one_group_with_limits() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
    let cgroups = Cgroups::open_at(root.path(), "test").unwrap();
    let dir = root.path().join("pandastack/test/m1");
    fs::create_dir(&dir).unwrap();
    for file in ["memory.max", "pids.max", "cpu.max", "cpu.weight"] {
        fs::write(dir.join(file), "").unwrap();
    }
    let group = cgroups.create("m1", Some(Shape { vcpus: 1, memory_mib: 512 })).unwrap();
    assert_eq!(fs::read_to_string(dir.join("memory.max")).unwrap(), (1024 * 1024 * 1024).to_string());
    assert_eq!(fs::read_to_string(dir.join("cpu.max")).unwrap(), "200000 100000");
    let capped = cgroups.clone().with_cpu_percent(Some(50));
    capped.create("m1", Some(Shape { vcpus: 3, memory_mib: 512 })).unwrap();
    assert_eq!(fs::read_to_string(dir.join("cpu.max")).unwrap(), "150000 100000");
    assert_eq!(fs::read_to_string(dir.join("cpu.weight")).unwrap(), "300");
    fs::write(dir.join("cpu.stat"), "usage_usec 5000\nuser_usec 1\n").unwrap();
    assert_eq!(group.cpu_ms(), 5);
    fs::write(dir.join("memory.current"), "4096\n").unwrap();
    assert_eq!(group.memory_bytes(), 4096);
    fs::write(dir.join("memory.stat"), "anon 3000\nfile 5000\nshmem 90\nanon_thp 7\n").unwrap();
    assert_eq!(group.own_memory_bytes(), 3090);
    fs::write(dir.join("cgroup.procs"), "17\n18\n").unwrap();
    assert_eq!(group.pid(), Some(17));
    let mut strays = cgroups.pids_outside(&HashSet::from([17]));
    strays.sort_unstable();
    assert_eq!(strays, [18]);
}

#[test]
fn machines_are_placed_in_the_cgroup_of_their_workspace() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
    let cgroups = Cgroups::open_at(root.path(), "test").unwrap();
    let parent = root.path().join("pandastack/test");
    let name = Cgroups::name_in(Some("acme"), "m1");
    let group = cgroups.create(&name, None).unwrap();
    assert_eq!(fs::read_to_string(parent.join("w-acme/cgroup.subtree_control")).unwrap(), "+pids");
    fs::write(parent.join("w-acme/m1/cgroup.procs"), "18\n").unwrap();
    assert_eq!(cgroups.pids_outside(&HashSet::new()), [18]);
    fs::remove_file(parent.join("w-acme/m1/cgroup.procs")).unwrap();
    let second = cgroups.create(&Cgroups::name_in(Some("acme"), "m2"), None).unwrap();
    fs::remove_file(parent.join("w-acme/cgroup.subtree_control")).unwrap();
    group.remove();
    assert!(parent.join("w-acme/m2").exists());
    second.remove();
    assert!(!parent.join("w-acme").exists(), "it goes with its last machine");

    fs::create_dir(parent.join("old")).unwrap();
    let old = cgroups.group(&Cgroups::name_in(Some("acme"), "old"));
    assert_eq!(old.dirs, [parent.join("old")], "where a former agent made it");
}

/// Groups of the kernel's own, where this host has them.
fn real_cgroups(test: &str) -> Option<Cgroups> {
    match Cgroups::open(&format!("test-{}-{test}", std::process::id())) {
        Ok(cgroups) => Some(cgroups),
        // Features that a host or a container may lack. Any other error is ours.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            println!("skipped: {test} ({error})");
            None
        }
        Err(error) => panic!("control groups cannot be made: {error}"),
    }
}

/// A program that spins in a group once its input ends.
fn spinning(group: &Cgroup, script: &str) -> std::process::Child {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("read go; {script}")]).stdin(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    group.add(child.id()).unwrap();
    child
}

/// Five machines that want the same processor, four of them of one workspace.
#[test]
fn a_workspace_gains_no_cpu_share_from_more_machines() {
    let Some(cgroups) = real_cgroups("a_workspace_gains_no_cpu_share_from_more_machines") else { return };
    let machines = [("many", "m1"), ("many", "m2"), ("many", "m3"), ("many", "m4"), ("few", "m5")];
    let spin = "exec taskset -c 0 sh -c 'while :; do :; done'";
    let mut running = Vec::new();
    for (workspace, name) in machines {
        let name = Cgroups::name_in(Some(workspace), name);
        let group = cgroups.create(&name, Some(Shape { vcpus: 1, memory_mib: 64 })).unwrap();
        running.push((workspace, spinning(&group, spin), group));
    }
    running.iter_mut().for_each(|(_, child, _)| drop(child.stdin.take()));
    // The test measures time itself; see below.
    #[expect(clippy::disallowed_methods, reason = "measures over a fixed time")]
    std::thread::sleep(std::time::Duration::from_secs(2));
    let used_ms = |wanted: &str| {
        let groups = running.iter().filter(|(workspace, ..)| *workspace == wanted);
        groups.map(|(_, _, group)| group.cpu_ms()).sum::<u64>()
    };
    let (many_ms, few_ms) = (used_ms("many"), used_ms("few"));
    cgroups.end_outside(&HashSet::new()).unwrap();
    for (_, child, _) in &mut running {
        child.wait().unwrap();
    }
    cgroups.remove();
    println!("four machines of one workspace: {many_ms} ms; one of another: {few_ms} ms");
    // Half of what both got, where shares between machines would give it a fifth.
    assert!(few_ms * 3 > many_ms + few_ms, "{few_ms} ms of {} ms", many_ms + few_ms);
}

/// On the kernel's own groups: what spins gets its share of a processor and no more.
#[test]
fn a_spinning_machine_is_held_to_its_cap() {
    let Some(cgroups) = real_cgroups("a_spinning_machine_is_held_to_its_cap") else { return };
    let cgroups = cgroups.with_cpu_percent(Some(20));
    let group = cgroups.create("m1", Some(Shape { vcpus: 2, memory_mib: 64 })).unwrap();
    // Three threads of execution that want three processors, and may have 2 x 20 percent of one.
    let spin = "for i in 1 2; do (while :; do :; done) & done; while :; do :; done";
    let mut spinning = spinning(&group, spin);
    let began = std::time::Instant::now();
    drop(spinning.stdin.take());
    // The test measures time itself: a processor share is time used over time passed, and twenty
    // periods of the limit are enough to distinguish 40 percent from 100.
    #[expect(clippy::disallowed_methods, reason = "measures over a fixed time")]
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (used_ms, wall_ms) = (group.cpu_ms(), began.elapsed().as_millis() as u64);
    cgroups.end_outside(&HashSet::new()).unwrap();
    spinning.wait().unwrap();
    cgroups.remove();
    assert!(used_ms > wall_ms / 20, "it ran: {used_ms} of {wall_ms} ms");
    assert!(used_ms < wall_ms / 2, "it was held: {used_ms} of {wall_ms} ms, of which it may have 40 %");
}

#[test]
fn a_host_without_cgroups_is_refused() {
    let root = tempfile::tempdir().unwrap();
    assert!(Cgroups::open_at(root.path(), "test").is_err());
}
