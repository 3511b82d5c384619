//! A built `base` really boots: kernel, initramfs, modules, root filesystem, under software emulation.
//!
//! Slow on first use (it builds `base` into the shared cache), seconds afterwards.

use std::path::Path;
use std::process::{Command, Stdio};

use pandastack_image::{ImageBuilder, Initramfs, Kernel, Store, default_cache_dir, find};
use rustix::process::PidfdFlags;

use crate::require_host;

const BOOT_SECONDS_MAX: i64 = 500;

/// Commands to run inside, each with its expected output. No double quotes and no `|`: they go
/// through the kernel's command line.
type Checks = &'static [(&'static str, &'static str)];

const BASE: Checks = &[
    ("python -c 'print(2 ** 10)'", "1024"),
    ("node -e 'console.log(6 * 7)'", "42"),
    ("modprobe overlay && grep -w overlay /proc/filesystems", "nodev overlay"),
    ("su user -c 'sudo -n id -un'", "root"),
    ("test -s /etc/machine-id && echo baked; echo checked", "checked"),
];

/// polars needs an x86-64-v3 CPU, so it fails first if the machine's CPU model is wrong.
const CODE_INTERPRETER: Checks = &[
    ("python -c 'import polars; print(polars.DataFrame(dict(a=[20, 22])).sum().item())'", "42"),
    ("python -c 'import pandas; print(pandas.Series([20, 22]).sum())'", "42"),
];

#[test]
fn the_base_template_boots_and_runs_its_programs() {
    require_host!("the_base_template_boots_and_runs_its_programs");
    check("base", "512M", BASE);
}

#[test]
fn code_interpreter_computes_on_the_emulated_cpu() {
    require_host!("code_interpreter_computes_on_the_emulated_cpu");
    check("code-interpreter", "1024M", CODE_INTERPRETER);
}

fn check(template: &str, memory: &str, checks: Checks) {
    if !has_qemu() {
        eprintln!("SKIPPED the boot of {template}: qemu-system-x86_64 is not installed");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let kernel = Kernel::ensure(&default_cache_dir(), &|_| {}).unwrap();
    let image = ImageBuilder::new(default_cache_dir()).ensure(find(template).unwrap(), &|_| {}).unwrap();
    let init = compile_init(scratch.path());
    let initramfs = scratch.path().join("initramfs");
    Initramfs::build(&kernel, &std::fs::read(init).unwrap(), &initramfs).unwrap();
    let store = Store::open(&scratch.path().join("data")).unwrap();
    let disk = store.root().join("disk");
    store.import_file(&image.path, &disk).unwrap();

    let commands: Vec<&str> = checks.iter().map(|(command, _)| *command).collect();
    let machine = Machine { kernel: &kernel.vmlinuz, initramfs: &initramfs, disk: &disk, memory };
    let console = machine.run(&commands.join("|"), scratch.path());
    store.unmount().unwrap();
    assert!(
        console.contains("net true") && console.contains("ports true"),
        "a driver is missing:\n{console}"
    );
    for (command, expected) in checks {
        let line = format!("`{command}` -> {expected}");
        assert!(console.contains(&line), "no {line:?} on the console:\n{console}");
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

struct Machine<'a> {
    kernel: &'a Path,
    initramfs: &'a Path,
    disk: &'a Path,
    memory: &'a str,
}

impl Machine<'_> {
    /// Runs until it powers itself off; returns its console.
    fn run(&self, commands: &str, scratch: &Path) -> String {
        let console = scratch.join("console");
        let mut qemu = Command::new("qemu-system-x86_64")
        .args(["-M", "q35,sata=off,smbus=off,usb=off,vmport=off", "-accel", "tcg,thread=multi", "-m", self.memory])
        .args(["-cpu", "Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off,enforce", "-smp", "1"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .arg("-append")
        .arg(format!("console=ttyS0 reboot=t panic=-1 quiet tsc=reliable clocksource=tsc mitigations=off commands=\"{commands}\""))
        .arg("-kernel")
        .arg(self.kernel)
        .arg("-initrd")
        .arg(self.initramfs)
        .arg("-drive")
        .arg(format!("id=d0,file={},format=raw,if=none", self.disk.display()))
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
        let watch = rustix::process::pidfd_open(rustix::process::Pid::from_child(&qemu), PidfdFlags::empty())
            .unwrap();
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
}
