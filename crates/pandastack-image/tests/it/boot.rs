//! A built `base` really boots: kernel, initramfs, modules, root filesystem, under software emulation.
//!
//! Slow on first use (it builds `base` into the shared cache), seconds afterwards.

use std::path::Path;
use std::process::{Command, Stdio};

use pandastack_image::{ImageBuilder, Initramfs, Kernel, Store, default_cache_dir, find};
use rustix::process::PidfdFlags;

use crate::require_host;

const BOOT_SECONDS_MAX: i64 = 180;

#[test]
fn base_boots_and_runs_what_it_promises() {
    require_host!("base_boots_and_runs_what_it_promises");
    if !has_qemu() {
        eprintln!("SKIPPED base_boots_and_runs_what_it_promises: qemu-system-x86_64 is not installed");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let kernel = Kernel::ensure(&default_cache_dir(), &|_| {}).unwrap();
    let image = ImageBuilder::new(default_cache_dir()).ensure(find("base").unwrap(), &|_| {}).unwrap();
    let init = compile_init(scratch.path());
    let initramfs = scratch.path().join("initramfs");
    Initramfs::build(&kernel, &std::fs::read(init).unwrap(), &initramfs).unwrap();
    let store = Store::open(&scratch.path().join("data")).unwrap();
    let disk = store.root().join("disk");
    store.import_file(&image.path, &disk).unwrap();

    let console = boot(&kernel.vmlinuz, &initramfs, &disk, scratch.path());
    store.unmount().unwrap();
    for expected in [
        "net true",
        "ports true",
        "`python -c 'print(2 ** 10)'` -> 1024",
        "`node -e 'console.log(6 * 7)'` -> 42",
        "grep -w overlay /proc/filesystems` -> nodev overlay",
        "`su user -c 'sudo -n id -un'` -> root",
        "|| echo empty` -> empty",
    ] {
        assert!(console.contains(expected), "no {expected:?} on the console:\n{console}");
    }
}

fn has_qemu() -> bool {
    let qemu = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    qemu.is_ok_and(|status| status.success())
}

fn compile_init(into: &Path) -> std::path::PathBuf {
    let init = into.join("init");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition=2024", "-O", "-C", "target-feature=+crt-static", "-C", "strip=symbols", "-o"])
        .arg(&init)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/boot_init.rs"))
        .status();
    assert!(status.unwrap().success(), "the test's init does not compile");
    init
}

/// Runs the machine until it powers itself off; returns its console.
fn boot(kernel: &Path, initramfs: &Path, disk: &Path, scratch: &Path) -> String {
    let console = scratch.join("console");
    let mut qemu = Command::new("qemu-system-x86_64")
        .args(["-M", "q35,sata=off,smbus=off,usb=off,vmport=off", "-accel", "tcg,thread=multi", "-m", "512M"])
        .args(["-cpu", "Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off,enforce", "-smp", "1"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args([
            "-append",
            "console=ttyS0 reboot=t panic=-1 quiet tsc=reliable clocksource=tsc mitigations=off",
        ])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .arg("-drive")
        .arg(format!("id=d0,file={},format=raw,if=none", disk.display()))
        .args([
            "-device",
            "virtio-blk-pci,drive=d0,ioeventfd=off",
            "-device",
            "virtio-serial-pci,max_ports=2",
        ])
        .args(["-netdev", "hubport,id=n0,hubid=0", "-device", "virtio-net-pci,netdev=n0,romfile="])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .spawn()
        .expect("qemu starts");
    let watch =
        rustix::process::pidfd_open(rustix::process::Pid::from_child(&qemu), PidfdFlags::empty()).unwrap();
    let mut exit = [rustix::event::PollFd::new(&watch, rustix::event::PollFlags::IN)];
    let deadline = rustix::event::Timespec { tv_sec: BOOT_SECONDS_MAX, tv_nsec: 0 };
    let ended = rustix::event::poll(&mut exit, Some(&deadline)).unwrap() > 0;
    if !ended {
        qemu.kill().unwrap();
    }
    let status = qemu.wait().unwrap();
    let text = String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned();
    assert!(status.success(), "qemu ended with {status}; console:\n{text}");
    eprintln!("{text}");
    text
}
