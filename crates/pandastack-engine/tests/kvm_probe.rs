//! The real probe, on this host's KVM: this program starts itself as the child, as `pandastack`
//! does.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use pandastack_engine::kvm_probe::{CHILD_SUBCOMMAND, PROBE_DEADLINE, probe_with, run_child};

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(CHILD_SUBCOMMAND) {
        return run_child();
    }
    let Ok(program) = std::env::current_exe() else {
        eprintln!("the test cannot find its own program");
        return ExitCode::FAILURE;
    };
    let started = Instant::now();
    let verdict = probe_with(&program, PROBE_DEADLINE);
    let took = started.elapsed();
    println!("measured: {} ({} ms)", verdict.reason, took.as_millis());
    assert!(took < PROBE_DEADLINE + Duration::from_secs(5), "the deadline was not kept");
    assert!(!verdict.usable || std::path::Path::new("/dev/kvm").exists(), "usable without a device");
    assert_eq!(verdict.usable, verdict.reason.starts_with("KVM ran"), "{}", verdict.reason);
    println!("test the_probe_gives_a_verdict_in_time ... ok");
    ExitCode::SUCCESS
}
