//! Azure's object store for tests: Microsoft's own emulator, from npm. It is installed into the cache, not on the host.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::program::{npm, run};
use crate::tree;

/// Later ones ask for a newer Node than 20.
const PACKAGE: &str = "azurite@3.35.0";

/// The program that Node runs.
pub fn ensure() -> Result<PathBuf> {
    let dir = tree::cache_dir().join("azurite").join(PACKAGE);
    let program = dir.join("node_modules/azurite/dist/src/blob/main.js");
    if program.exists() {
        return Ok(program);
    }
    let begun = tree::cache_dir().join("azurite/begun");
    if begun.exists() {
        std::fs::remove_dir_all(&begun).context("remove what an interrupted install left")?;
    }
    std::fs::create_dir_all(&begun).with_context(|| format!("make {}", begun.display()))?;
    // Without a prefix npm would look for a package in the directories above.
    run(npm(&begun, &["install", "--prefix", ".", "--ignore-scripts", PACKAGE]))?;
    std::fs::rename(&begun, &dir).with_context(|| format!("move the emulator to {}", dir.display()))?;
    Ok(program)
}
