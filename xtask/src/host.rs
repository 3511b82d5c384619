//! What the host must have installed, and installing it.
//!
//! The product's own needs are listed by the product (`pandastack host-packages`); here are only those of the
//! developer commands.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use nix::unistd::Uid;

use crate::program::{program, read, run};
use crate::tree;

/// What is needed by name of program, with its Debian package.
type Need = (&'static str, &'static str);

/// To run the Python SDK.
const PYTHON: &[Need] = &[("python3", "python3")];
/// To run the TypeScript SDK.
const NODE: &[Need] = &[("node", "nodejs"), ("npm", "npm")];

/// Variables that reach commands run through `sudo`.
const KEPT_BY_SUDO: [&str; 9] = [
    "PANDASTACK_API",
    "PANDASTACK_API_KEY",
    "PANDASTACK_API_URL",
    "PANDASTACK_BIN",
    "PANDASTACK_CACHE_DIR",
    "PANDASTACK_DATA_DIR",
    "PANDASTACK_LOG",
    "PANDASTACK_TOKEN",
    "PYTHONDONTWRITEBYTECODE",
];

/// A command with root's rights.
pub fn as_root(name: impl AsRef<std::ffi::OsStr>) -> Command {
    if Uid::effective().is_root() {
        return program(name);
    }
    let mut command = program("sudo");
    command.arg(format!("--preserve-env={}", KEPT_BY_SUDO.join(","))).arg(name);
    command
}

/// Installs what the product and the Python SDK need. The `pandastack` program is built by now.
pub fn install_for_product() -> Result<()> {
    let listed = read(with_args(program(tree::pandastack()), &["host-packages"]))?;
    let mut packages: Vec<String> = listed.lines().map(str::to_owned).collect();
    packages.extend(missing(PYTHON));
    if !has_venv() {
        packages.push("python3-venv".to_owned());
    }
    install(packages)
}

/// Installs what only tests need.
pub fn install_for_tests() -> Result<()> {
    install(missing(NODE).collect())
}

fn missing(needs: &[Need]) -> impl Iterator<Item = String> + use<'_> {
    needs.iter().filter(|(name, _)| !is_on_path(name)).map(|(_, package)| (*package).to_owned())
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin"]);
    dirs.filter(|dir| !dir.is_empty()).any(|dir| Path::new(dir).join(name).is_file())
}

/// Debian splits `venv` from Python: the module is there, what it needs is not.
fn has_venv() -> bool {
    let output = with_args(program("python3"), &["-c", "import ensurepip, venv"]).output();
    output.is_ok_and(|output| output.status.success())
}

fn install(mut packages: Vec<String>) -> Result<()> {
    packages.sort();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("Installing {}", packages.join(" "));
    // A bare machine may have no package lists, or old ones; fresh ones are fetched only when they are needed.
    if run(apt_install(&packages)).is_ok() {
        return Ok(());
    }
    run(with_args(apt_get(), &["update", "-q"])).context("refresh the package lists")?;
    run(apt_install(&packages)).context("install packages")
}

fn apt_install(packages: &[String]) -> Command {
    let mut command = with_args(apt_get(), &["install", "-y", "-q", "--no-install-recommends"]);
    command.args(packages);
    command
}

fn apt_get() -> Command {
    let mut command = as_root("env");
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}

fn with_args(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}
