//! Packages that the host must have installed, and their installation.
//!
//! The product's own needs are listed by the product (`pandastack host-packages`); here are only those of the
//! developer commands.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;

use crate::program::{program, read, run};
use crate::tree;

/// A program, with its Debian package.
type Requirement = (&'static str, &'static str);

/// To run the Python SDK.
const PYTHON: &[Requirement] = &[("python3", "python3")];
/// Programs that tests use: databases, networks, repositories, certificates.
const TOOLS: &[Requirement] = &[
    ("psql", "postgresql-client"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("git", "git"),
    ("openssl", "openssl"),
    ("update-ca-certificates", "ca-certificates"),
    ("ssh-keygen", "openssh-client"),
    ("R", "r-base-core"),
    ("javac", "default-jdk-headless"),
];
/// Browser that opens pages of apps.
const BROWSER: &[Requirement] = &[("chromium", "chromium")];
/// To run the TypeScript SDK.
const NODE: &[Requirement] = &[("node", "nodejs"), ("npm", "npm")];

/// To package and sign a release.
const PACKAGING: &[Requirement] =
    &[("tar", "tar"), ("dpkg-deb", "dpkg"), ("strip", "binutils"), ("minisign", "minisign")];

/// Variables that reach commands run through `sudo`.
const KEPT_BY_SUDO: [&str; 18] = [
    "PANDASTACK_API",
    "PANDASTACK_API_KEY",
    "PANDASTACK_API_URL",
    "PANDASTACK_BIN",
    "PANDASTACK_CA",
    "PANDASTACK_CACHE_DIR",
    "PANDASTACK_DATA_DIR",
    "PANDASTACK_E2B_INTERPRETER_REPO",
    "PANDASTACK_E2B_REPO",
    "PANDASTACK_LOG",
    "PANDASTACK_TEST_AZURITE",
    "PANDASTACK_TEST_FULL",
    "PANDASTACK_TEST_NEWEST_KERNEL",
    "PANDASTACK_TEST_POSTGRES_BIN",
    "PANDASTACK_TEST_SLEEPS",
    "PANDASTACK_TEST_STORE",
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

/// Build output, packages, two templates and the first sandboxes, with some air.
const DISK_BYTES_FIRST: u64 = 15 << 30;

/// Checks in a second for problems that would otherwise show only after the build: privileges, and
/// space for a first run.
pub fn require_rights_and_space() -> Result<()> {
    if !Uid::effective().is_root() {
        ensure!(
            is_on_path("sudo"),
            "making machines and networks needs root, and there is no `sudo`: install it and allow this user to use \
             it, or run this as root"
        );
        // Prompt for the password now, if needed, while the user is still present.
        run(with_args(program("sudo"), &["true"]))
            .context("this user may not use `sudo`; run this as root")?;
    }
    if !tree::pandastack().exists() {
        for dir in [tree::root(), Path::new("/var")] {
            let space = statvfs(dir).with_context(|| format!("measure {}", dir.display()))?;
            let free = space.blocks_available() * space.fragment_size();
            if free < DISK_BYTES_FIRST {
                let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
                let (dir, free, first) = (dir.display(), gib(free), gib(DISK_BYTES_FIRST));
                eprintln!("warning: {free:.1} GiB free in {dir}; a first run takes up to {first:.0} GiB");
            }
        }
    }
    Ok(())
}

/// Changes the owner of files below `path` that programs of root wrote to the owner of the clone.
pub fn give_back(path: &Path) -> Result<()> {
    if tree::root().metadata().context("read the owner of the tree")?.uid() == 0 {
        // Another suite may be deleting files there, and chown fails on those.
        return Ok(());
    }
    let mut chown = as_root("chown");
    chown.args(["--recursive", "--reference"]).arg(tree::root()).arg(path);
    run(chown)
}

/// Installs packages that the product and the Python SDK need. The `pandastack` program must be built.
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
    install(missing(NODE).chain(missing(TOOLS)).collect())
}

/// Installs the tools that package a release.
pub fn install_for_dist() -> Result<()> {
    install(missing(PACKAGING).chain(missing(NODE)).collect())
}

/// Installs the tools that build the web console.
pub fn install_node() -> Result<()> {
    install(missing(NODE).collect())
}

/// Installs the browser that opens pages of apps.
pub fn install_browser() -> Result<()> {
    install(missing(BROWSER).collect())
}

fn missing(needs: &[Requirement]) -> impl Iterator<Item = String> + use<'_> {
    needs.iter().filter(|(name, _)| !is_on_path(name)).map(|(_, package)| (*package).to_owned())
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin"]);
    dirs.filter(|dir| !dir.is_empty()).any(|dir| Path::new(dir).join(name).is_file())
}

/// Debian splits `venv` from Python: the module exists, but not its dependencies.
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
    let names = packages.join(" ");
    if !is_on_path("apt-get") {
        bail!(
            "install these first, by whatever names this system has for them: {names} (there is no apt-get here)"
        );
    }
    eprintln!("Installing {names} with what they need");
    // A bare machine may have no package lists, or old ones; fresh ones are fetched only when they
    // are needed.
    if is_known_to_apt(&packages) && run(apt_install(&packages)).is_ok() {
        return Ok(());
    }
    run(with_args(apt_get(), &["update", "-q"])).context("refresh the package lists")?;
    run(apt_install(&packages)).with_context(|| format!("install the Debian packages {names}"))
}

/// Checked first, so that a machine without package lists does not start with a page of errors.
fn is_known_to_apt(packages: &[String]) -> bool {
    let mut simulated = with_args(program("apt-get"), &["install", "--simulate", "--no-install-recommends"]);
    let simulated = simulated.args(packages).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    simulated.status().is_ok_and(|status| status.success())
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
