//! `pandastack engine`: installs virtualization engines on this host.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_engine::host::program_on_path;
use pandastack_engine_firecracker::install;

use crate::failure::Failure;
use crate::output::Output;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Install an engine into the data directory
    Install {
        /// Engine to install
        engine: Installable,
        /// Program to install; its helpers must be in the same directory [default: the one on the PATH]
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        #[command(flatten)]
        common: CommonArgs,
    },
}

/// Engines that can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Installable {
    /// Firecracker and its jailer
    Firecracker,
}

/// The installed engine.
#[derive(Debug, serde::Serialize)]
struct Installed {
    /// Name of the engine.
    engine: &'static str,
    /// Its version.
    version: &'static str,
    /// The program.
    path: String,
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        let Command::Install { engine: Installable::Firecracker, from, common } = self;
        let settings = Settings::resolve(&common, &ControlArgs::default(), &AgentArgs::default())?;
        let from = from.or_else(|| program_on_path("firecracker")).ok_or_else(|| {
            Failure::new("firecracker is not on the PATH; set its path with --from".to_owned())
        })?;
        let installed = install::install(&from, &settings.data_dir)
            .with_context(|| format!("cannot install Firecracker {}", install::PINNED_VERSION))?;
        let installed = Installed {
            engine: "firecracker",
            version: install::PINNED_VERSION,
            path: installed.display().to_string(),
        };
        output.value(&installed, |installed| installed.path.clone())?;
        Ok(ExitCode::SUCCESS)
    }
}
