//! Clippy in place of the compiler.
//!
//! `cargo clippy` checks all crates and their dependencies beside the build, which took nine minutes without
//! caches. Its driver is a whole compiler, so the build of the tests uses it for the crates of the workspace:
//! one pass compiles and lints.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::program;

/// `-D warnings`, as `cargo clippy` passes it to its driver.
const DENY_WARNINGS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Variables with which cargo compiles the workspace with Clippy. Without Clippy, none.
pub fn while_compiling() -> Vec<(&'static str, OsString)> {
    match driver() {
        Some(driver) => {
            vec![("RUSTC_WORKSPACE_WRAPPER", driver.into_os_string()), ("CLIPPY_ARGS", DENY_WARNINGS.into())]
        }
        None => {
            eprintln!("clippy is not installed, so nothing is linted; run `rustup component add clippy`");
            Vec::new()
        }
    }
}

/// The driver beside the compiler that cargo uses.
fn driver() -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "sysroot"]);
    let sysroot = program::read(rustc).ok()?;
    let driver = PathBuf::from(sysroot.trim()).join("bin/clippy-driver");
    driver.is_file().then_some(driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_of_the_toolchain_is_found() {
        assert!(driver().is_some(), "rust-toolchain.toml lists clippy");
    }
}
