//! Runs other programs: prints the command, measures its time, and names it in errors.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};

use crate::tree;

/// Set by Ctrl-C. The terminal sends it to every program we started as well; we must outlive them
/// to see their end.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Ignores Ctrl-C in this process; it ends the programs that we run.
pub fn outlive_interrupts() -> Result<()> {
    let flag = Arc::clone(&INTERRUPTED);
    signal_hook::flag::register(signal_hook::consts::SIGINT, flag).context("watch for Ctrl-C")?;
    Ok(())
}

/// Returns whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// A program to run in the clone's root.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(tree::root());
    command
}

/// Cargo, building where [`tree::target_dir`] says. Variables by which the outer cargo describes
/// this program's own package are removed: build scripts watch them, so that a person's builds and
/// ours would undo each other's work.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).env("CARGO_TARGET_DIR", tree::target_dir());
    for (name, _) in std::env::vars_os() {
        let about_us = [b"CARGO_PKG_".as_slice(), b"CARGO_MANIFEST_"];
        if about_us.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// npm, in a directory of the clone or anywhere.
pub fn npm(dir: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut npm = program("npm");
    npm.current_dir(tree::root().join(dir)).args(args).args(["--no-audit", "--no-fund"]);
    npm.env("npm_config_cache", tree::cache_dir().join("npm"));
    npm
}

/// A command as a person would type it.
pub fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let short = |word: &OsStr| {
        let is_path = word.as_encoded_bytes().first() == Some(&b'/');
        let name = if is_path { Path::new(word).file_name().unwrap_or(word) } else { word };
        name.to_string_lossy().into_owned()
    };
    words.map(short).collect::<Vec<_>>().join(" ")
}

/// Runs to the end; anything but success is an error.
pub fn run(mut command: Command) -> Result<()> {
    let line = line_of(&command);
    let status = command.status().with_context(|| format!("start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs to the end and returns the standard output.
pub fn read(mut command: Command) -> Result<String> {
    let line = line_of(&command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` ended with {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what `{line}` printed"))
}
