//! Azure's object store for tests: Microsoft's own emulator, from npm. It is installed into the
//! cache, not on the host.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::program::{self, npm, run};
use crate::tree;

/// Later ones ask for a newer Node than 20.
const PACKAGE: &str = "azurite@3.35.0";
/// Date up to which dependencies are taken; otherwise it would change with every release of one.
const BEFORE: &str = "--before=2026-11-01";
/// Major version of Node that packages of the emulator ask for.
const NODE_MIN: u32 = 20;

/// The program that Node runs; `None` where Node is older than it asks for, and tests that need it
/// say that they were skipped.
pub fn ensure() -> Result<Option<PathBuf>> {
    if node_major()? < NODE_MIN {
        return Ok(None);
    }
    let dir = tree::cache_dir().join("azurite").join(PACKAGE);
    let program = dir.join("node_modules/azurite/dist/src/blob/main.js");
    if program.exists() {
        return Ok(Some(program));
    }
    let begun = tree::cache_dir().join("azurite/begun");
    if begun.exists() {
        std::fs::remove_dir_all(&begun).context("remove what an interrupted install left")?;
    }
    std::fs::create_dir_all(&begun).with_context(|| format!("make {}", begun.display()))?;
    // Without a prefix npm would look for a package in the directories above.
    let install = ["install", "--prefix", ".", "--ignore-scripts", PACKAGE];
    if let Err(error) = run(npm(&begun, &[install.as_slice(), &[BEFORE]].concat())) {
        // Not every registry knows when something was published.
        eprintln!("warning: {error:#}; installing the newest versions that fit");
        run(npm(&begun, &install))?;
    }
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("remove an emulator that is not whole")?;
    }
    std::fs::rename(&begun, &dir).with_context(|| format!("move the emulator to {}", dir.display()))?;
    Ok(Some(program))
}

fn node_major() -> Result<u32> {
    let printed = program::program("node").arg("--version").output().context("ask node for its version")?;
    let text = String::from_utf8_lossy(&printed.stdout);
    let major = text.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    major.with_context(|| format!("node says that its version is `{}`", text.trim()))
}
