//! `cargo xtask template`: the catalogue's root file systems, without a server.

use std::process::ExitCode;

use anyhow::Result;

use crate::host::{as_root, give_back};
use crate::program::run as run_program;
use crate::{tree, up};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the templates, and what of each is built
    List,
    /// Regenerate templates/NAME/lock.toml from the current registries
    Lock {
        /// Template, or `kernel`
        name: String,
    },
    /// Build one into the cache
    Build {
        /// Template
        name: String,
        /// Fail when Debian's archive no longer has a locked version
        #[arg(long)]
        locked: bool,
    },
}

/// Carries it out.
pub fn run(command: Command) -> Result<ExitCode> {
    up::build_product()?;
    let mut product = as_root(tree::pandastack());
    product.arg("image");
    let templates = tree::root().join("templates");
    let locks = matches!(command, Command::Lock { .. });
    match command {
        Command::List => product.arg("list"),
        Command::Lock { name } => product.args(["lock", &name]).arg(&templates),
        Command::Build { name, locked } => product.args(["build", &name]).args(locked.then_some("--locked")),
    };
    run_program(product)?;
    if locks {
        give_back(&templates)?;
    }
    Ok(ExitCode::SUCCESS)
}
