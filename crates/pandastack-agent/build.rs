//! Builds the guest program, static, and leaves it where `embedded.rs` includes it.
//!
//! A nested cargo with a target directory of its own: the guest needs flags that nothing else in the workspace may
//! have, and the outer build holds the lock of the shared directory.

use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Read at run time, not at compile time: in a copied target directory this must build the guest
    // of its own clone.
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let crates = here.join("..");
    for part in ["pandastack-guest", "pandastack-guest-proto", "pandastack-function-proto"] {
        println!("cargo::rerun-if-changed={}", crates.join(part).join("src").display());
        println!("cargo::rerun-if-changed={}", crates.join(part).join("Cargo.toml").display());
    }
    println!("cargo::rerun-if-changed=build.rs");

    let target_dir = out_dir.join("guest-target");
    let cargo = std::env::var_os("CARGO").expect("cargo sets CARGO");
    let status = Command::new(cargo)
        .current_dir(&crates)
        .args([
            "build",
            "--release",
            "--locked",
            "--package",
            "pandastack-guest",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&target_dir)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_LTO", "true")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_INCREMENTAL", "false")
        .status()
        .expect("cargo can be started again");
    assert!(status.success(), "the guest program does not build; see the messages above");
    let built = target_dir.join(TARGET).join("release/pandastack-guest");
    std::fs::copy(&built, out_dir.join("pandastack-guest")).expect("the guest program was just built");
}
