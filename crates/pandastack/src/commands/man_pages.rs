//! `pandastack man-pages`: manual pages for packages of a release.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::completion::visible_cli;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for the pages
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    let dir = args.dir;
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let write = || clap_mangen::generate_to(visible_cli(), &dir);
    write().with_context(|| format!("cannot write manual pages into {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
