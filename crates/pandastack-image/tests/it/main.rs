//! Tests of this crate with a real host: mounts, loop devices, package mirrors, an emulated
//! machine.
//!
//! Tests that need root or a missing program print what is missing and pass.
#![allow(clippy::unwrap_used)] // in tests a panic is the report

mod boot;
mod build;
mod store;

/// Reason why tests that mount file systems cannot run here, if so.
fn skip_reason() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting images needs root".into());
    }
    let missing: Vec<&str> =
        pandastack_image::missing_host_programs().iter().map(|host| host.package).collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(" ")))
}

/// Ends the test with a printed reason if it cannot run here.
macro_rules! require_host {
    ($test:literal) => {
        if let Some(reason) = crate::skip_reason() {
            eprintln!("SKIPPED {}: {reason}", $test);
            return;
        }
    };
}
pub(crate) use require_host;

/// Mounts and loop devices of this host that mention `path`.
fn traces_of(path: &std::path::Path) -> Vec<String> {
    let needle = path.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut traces: Vec<String> =
        mounts.lines().filter(|line| line.contains(&needle)).map(str::to_owned).collect();
    for device in std::fs::read_dir("/sys/block").unwrap().filter_map(Result::ok) {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if backing.contains(&needle) {
            traces.push(backing);
        }
    }
    traces
}
