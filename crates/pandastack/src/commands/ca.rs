//! `pandastack ca`: the local certificate authority.

use std::path::Path;
use std::process::{Command as Program, ExitCode};

use anyhow::{Context, Result};
use pandastack_edge::tls::LocalAuthority;

use crate::failure::Failure;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};

/// Path of the authority's certificate, among the additional trusted certificates of Debian-based systems.
const TRUSTED: &str = "/usr/local/share/ca-certificates/pandastack.crt";

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print the authority's certificate
    Print(CommonArgs),
    /// Trust the authority on this machine; needs root
    Install(CommonArgs),
}

impl Command {
    /// Runs the command. Creates the authority if it does not exist.
    pub fn run(self) -> Result<ExitCode> {
        let (common, install) = match self {
            Command::Print(common) => (common, false),
            Command::Install(common) => (common, true),
        };
        let settings = Settings::resolve(&common, &ControlArgs::default(), &AgentArgs::default())?;
        LocalAuthority::open(&settings.data_dir)?;
        let path = LocalAuthority::certificate_path(&settings.data_dir);
        if install {
            return trust(&path);
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        print!("{text}");
        Ok(ExitCode::SUCCESS)
    }
}

fn trust(certificate: &Path) -> Result<ExitCode> {
    std::fs::copy(certificate, TRUSTED).with_context(|| format!("cannot write {TRUSTED}; run as root"))?;
    let updated = Program::new("update-ca-certificates").status();
    if !updated.is_ok_and(|status| status.success()) {
        let failure = Failure::new(format!("wrote {TRUSTED}, but `update-ca-certificates` failed"));
        return Err(failure.hint("install the package ca-certificates and run this command again").into());
    }
    eprintln!(
        "this machine now trusts {}; import it into browsers that have their own certificate store",
        certificate.display()
    );
    Ok(ExitCode::SUCCESS)
}
