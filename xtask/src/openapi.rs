//! `cargo xtask openapi`: the committed description of the API, regenerated from the types that serve it.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::program::{program, read};
use crate::{tree, up};

/// Carries it out.
pub fn run() -> Result<ExitCode> {
    up::build_product()?;
    let mut command = program(tree::pandastack());
    command.arg("openapi");
    let text = read(command)?;
    let path = tree::root().join("openapi/pandastack-v1.json");
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(ExitCode::SUCCESS)
}
