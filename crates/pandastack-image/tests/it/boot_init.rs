//! PID 1 of the boot test: does what the guest program must do with our initramfs, says what it saw, powers off.
//! Compiled by the test as a program of its own, statically.

use std::ffi::{CString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn mount(s: *const c_char, t: *const c_char, f: *const c_char, flags: c_ulong, d: *const c_void) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn reboot(command: c_int) -> c_int;
    fn sync();
}

const SYS_FINIT_MODULE: c_long = 313;
const POWER_OFF: c_int = 0x4321_fedc;

fn main() {
    mount_at("devtmpfs", "/dev", "devtmpfs");
    let mut console = fs::OpenOptions::new().write(true).open("/dev/ttyS0").expect("a serial console");
    let outcome = std::panic::catch_unwind(check);
    let text = match outcome {
        Ok(lines) => lines.join("\n"),
        Err(_) => "BOOT-TEST panicked".to_owned(),
    };
    let _ = writeln!(console, "\n{text}\nBOOT-TEST end");
    // SAFETY: plain system calls without pointers; PID 1 may power the machine off.
    unsafe {
        sync();
        reboot(POWER_OFF);
    }
}

fn check() -> Vec<String> {
    mount_at("proc", "/proc", "proc");
    mount_at("sysfs", "/sys", "sysfs");
    let list = fs::read_to_string("/lib/pandastack/modules").expect("the module list");
    for path in list.lines() {
        load(path);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while !Path::new("/dev/vda").exists() {
        assert!(Instant::now() < deadline, "no root disk");
        std::thread::yield_now();
    }
    mount_at("/dev/vda", "/sysroot", "ext4");
    copy_tree(Path::new("/lib/modules"), Path::new("/sysroot/lib/modules"));
    mount_at("proc", "/sysroot/proc", "proc");
    mount_at("sysfs", "/sysroot/sys", "sysfs");
    mount_at("devtmpfs", "/sysroot/dev", "devtmpfs");
    let seconds = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let mut report = vec![
        format!("BOOT-TEST mounted-at {}", seconds.split(' ').next().unwrap_or_default()),
        format!("BOOT-TEST net {}", Path::new("/sys/bus/virtio/drivers/virtio_net").exists()),
        format!("BOOT-TEST ports {}", Path::new("/sys/bus/virtio/drivers/virtio_console").exists()),
    ];
    // The kernel hands arguments that it does not know to PID 1 as environment.
    let commands = std::env::var("commands").unwrap_or_default();
    report.extend(commands.split('|').map(run));
    report
}

fn run(command: &str) -> String {
    let output = chrooted(command);
    format!("BOOT-TEST `{command}` -> {output}")
}

fn chrooted(command: &str) -> String {
    use std::os::unix::process::CommandExt;
    let mut child = Command::new("/bin/sh");
    child.args(["-c", command]).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    // SAFETY: chroot and chdir are system calls, allowed between fork and exec.
    unsafe {
        child.pre_exec(|| {
            std::os::unix::fs::chroot("/sysroot")?;
            std::env::set_current_dir("/")
        });
    }
    match child.output() {
        Ok(out) => {
            let text = [out.stdout, out.stderr].concat();
            String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

fn load(path: &str) {
    let file = fs::File::open(path).expect("a listed module");
    // SAFETY: the descriptor is open and the parameter string is NUL-terminated.
    let result = unsafe { syscall(SYS_FINIT_MODULE, file.as_raw_fd() as c_long, c"".as_ptr(), 0 as c_long) };
    assert_eq!(result, 0, "{path}: {}", std::io::Error::last_os_error());
}

fn mount_at(source: &str, target: &str, kind: &str) {
    let [source, target, kind] = [source, target, kind].map(|text| CString::new(text).expect("no NUL"));
    // SAFETY: three NUL-terminated strings that outlive the call, and no data.
    let result = unsafe { mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    assert_eq!(result, 0, "{target:?}: {}", std::io::Error::last_os_error());
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}
