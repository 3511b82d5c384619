//! Builds the preloaded library, so that the engine can carry it inside itself.
//!
//! A nested cargo with a target directory of its own: the outer one holds the lock of the shared directory while it
//! waits for us. Same lock file, no network.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libpandastack_qemu_shim.so";

fn main() {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let shim = manifest_dir.join("../pandastack-qemu-shim");
    for input in ["src", "Cargo.toml", "build.rs"] {
        println!("cargo::rerun-if-changed={}", shim.join(input).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let target_dir = PathBuf::from(variable("OUT_DIR")).join("shim-target");
    build(&shim.join("Cargo.toml"), &target_dir);
    let library = target_dir.join("release").join(LIBRARY);
    assert!(library.is_file(), "cargo did not leave {}", library.display());
    println!("cargo::rustc-env=PANDASTACK_SHIM_LIBRARY={}", library.display());
}

fn build(manifest: &Path, target_dir: &Path) {
    let mut cargo = Command::new(variable("CARGO"));
    // Variables that the outer cargo sets for its children (wrappers such as clippy's, flags,
    // targets) must not reach this build.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("RUST") && !text.starts_with("RUSTUP")
            || text.starts_with("CARGO_") && text != "CARGO_HOME"
        {
            cargo.env_remove(&name);
        }
    }
    cargo
        .args(["rustc", "--release", "--offline", "--lib", "--crate-type", "cdylib", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(target_dir)
        .args(["--", "--cfg", "pandastack_preload", "-C", "strip=debuginfo"]);
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("building the preloaded library ended with {status}: see its messages above"),
        Err(error) => panic!("cannot run cargo for the preloaded library: {error}"),
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}
