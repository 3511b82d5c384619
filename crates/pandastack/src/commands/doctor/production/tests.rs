//! Results of each check on hosts simulated by files in a directory.

use super::*;
use crate::commands::doctor::finding::Verdict;

/// The document that explains the checks.
const GUIDE: &str = include_str!("../../../../../../docs/how-to/production-host.md");

/// A host with nothing to complain about.
const GOOD: [(&str, &str); 20] = [
    ("dev/kvm", ""),
    ("proc/cpuinfo", "flags : fpu vmx sse\nmicrocode\t: 0xb000040\n"),
    ("sys/devices/system/cpu/smt/active", "0\n"),
    ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
    ("sys/devices/system/cpu/vulnerabilities/mds", "Mitigation: Clear CPU buffers; SMT disabled\n"),
    ("sys/kernel/mm/ksm/run", "0\n"),
    ("proc/swaps", "Filename Type Size Used Priority\n"),
    ("proc/sys/vm/nr_hugepages", "0\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/module/kvm_intel/parameters/nested", "N\n"),
    ("proc/mounts", GOOD_MOUNTS),
    ("proc/sys/kernel/printk", "1\t4\t1\t7\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("proc/sys/net/ipv4/neigh/default/gc_thresh3", "65536\n"),
    ("proc/sys/kernel/pid_max", "4194304\n"),
    ("proc/sys/fs/file-max", "9223372036854775807\n"),
    ("proc/sys/fs/inotify/max_user_instances", "8192\n"),
    ("proc/sys/net/ipv4/ip_forward", "1\n"),
    ("sys/block/sda/queue/rotational", "1\n"),
    ("sys/block/vda/queue/rotational", "1\n"),
];
const GOOD_MOUNTS: &str = "/dev/sda1 / ext4 rw 0 0\n\
    cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,favordynmods 0 0\n\
    /dev/nvme0n1 /var/lib/pandastack xfs rw 0 0\n";
const DATA: &str = "/var/lib/pandastack";

/// The findings on a good host with other contents of some files; `None` removes a file.
fn on(changes: &[(&str, Option<&str>)]) -> Vec<Finding> {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    GOOD.iter().for_each(|(path, text)| write(path, text));
    for (path, text) in changes {
        match text {
            Some(text) => write(path, text),
            None => fs::remove_file(dir.path().join(path)).unwrap(),
        }
    }
    all(&HostFiles { root: dir.path().to_owned() }, Path::new(DATA))
}

#[test]
fn a_good_host_passes_every_check() {
    let bad: Vec<Finding> = on(&[]).into_iter().filter(|found| found.verdict != Verdict::Ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn each_host_check_detects_its_problem() {
    let ext4 = "/dev/sda1 / ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,favordynmods 0 0\n";
    let looped = format!("{GOOD_MOUNTS}/dev/loop0 {DATA}/store xfs rw 0 0\n");
    let slow = GOOD_MOUNTS.replace(",favordynmods", "");
    let v1 = GOOD_MOUNTS.replace("cgroup2 /sys/fs/cgroup cgroup2", "tmpfs /sys/fs/cgroup tmpfs");
    let many = GOOD_MOUNTS.to_owned() + &"tmpfs /mnt tmpfs rw 0 0\n".repeat(MOUNTS_MAX);
    let virtio = GOOD_MOUNTS.replace("/dev/nvme0n1", "/dev/vda");
    let (warn, fail) = (Verdict::Warn, Verdict::Fail);
    let cases: [(&str, &str, Option<&str>, Verdict); 26] = [
        ("virtualization", "dev/kvm", None, fail),
        ("virtualization", "proc/cpuinfo", Some("flags : fpu\nmicrocode : 0x1\n"), fail),
        ("virtualization", "proc/cpuinfo", Some("flags : vmx hypervisor\nmicrocode : 0x1\n"), warn),
        ("SMT", "sys/devices/system/cpu/smt/active", Some("1\n"), warn),
        ("SMT", "sys/devices/system/cpu/smt/active", None, warn),
        ("side channels", "sys/devices/system/cpu/vulnerabilities/mds", Some("Vulnerable: no\n"), fail),
        ("microcode", "proc/cpuinfo", Some("flags : svm\n"), warn),
        ("KSM", "sys/kernel/mm/ksm/run", Some("1\n"), fail),
        ("swap", "proc/swaps", Some("Filename\n/dev/sda2 partition 1 0 -2\n"), fail),
        ("huge pages", "proc/sys/vm/nr_hugepages", Some("512\n"), warn),
        ("huge pages", "sys/kernel/mm/transparent_hugepage/enabled", Some("[always] never\n"), warn),
        ("nested virtualization", "sys/module/kvm_intel/parameters/nested", Some("Y\n"), warn),
        ("cgroups", "proc/mounts", Some(&slow), warn),
        ("cgroups", "proc/mounts", Some(&v1), warn),
        ("mounts", "proc/mounts", Some(&many), warn),
        ("file system", "proc/mounts", Some(ext4), warn),
        ("file system", "proc/mounts", Some(&looped), warn),
        ("data disk", "proc/mounts", Some(ext4), fail),
        ("data disk", "proc/mounts", Some(&virtio), warn),
        ("kernel console", "proc/sys/kernel/printk", Some("7\t4\t1\t7\n"), warn),
        (
            "clock source",
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            Some("hpet\n"),
            warn,
        ),
        (
            "net.ipv4.neigh.default.gc_thresh3",
            "proc/sys/net/ipv4/neigh/default/gc_thresh3",
            Some("1024"),
            warn,
        ),
        ("kernel.pid_max", "proc/sys/kernel/pid_max", Some("32768\n"), warn),
        ("fs.file-max", "proc/sys/fs/file-max", Some("65536\n"), warn),
        ("fs.inotify.max_user_instances", "proc/sys/fs/inotify/max_user_instances", Some("128"), warn),
        ("net.ipv4.ip_forward", "proc/sys/net/ipv4/ip_forward", Some("0\n"), warn),
    ];
    for (name, path, text, verdict) in cases {
        let found = on(&[(path, text)]);
        let found = found.iter().find(|finding| finding.name == name).unwrap();
        assert_eq!(found.verdict, verdict, "{path} {text:?}: {found:?}");
        assert!(found.remedy.is_some(), "{found:?}");
    }
    let tried: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.0).collect();
    for finding in on(&[]) {
        assert!(tried.contains(finding.name.as_str()), "nothing shows that {} can fail", finding.name);
    }
}

#[test]
fn the_guide_has_a_row_for_each_check() {
    for finding in on(&[]) {
        let row = format!("| {} |", finding.name);
        assert!(GUIDE.contains(&row), "docs/how-to/production-host.md lacks {row}");
    }
}

#[test]
fn a_control_server_running_as_root_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("control.sock");
    assert_eq!(service_user(&socket).verdict, Verdict::Ok, "none is running");
    fs::write(&socket, "").unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can give files away");
    }
    assert_eq!(service_user(&socket).verdict, Verdict::Fail);
    std::os::unix::fs::chown(&socket, Some(4711), Some(4711)).unwrap();
    assert_eq!(service_user(&socket).verdict, Verdict::Ok);
}
