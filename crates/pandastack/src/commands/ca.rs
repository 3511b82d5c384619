//! `pandastack ca`: the certificate authority of this installation.

use std::path::Path;
use std::process::{Command as Program, ExitCode};

use anyhow::{Context, Result};
use pandastack_edge::tls::LocalAuthority;

use crate::failure::Failure;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};

/// Where Debian and its like look for authorities of the machine.
const TRUSTED: &str = "/usr/local/share/ca-certificates/pandastack.crt";

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print the authority's certificate, to be trusted elsewhere
    Print(CommonArgs),
    /// Make this machine trust it
    Install(CommonArgs),
}

impl Command {
    /// Carries it out. Makes the authority if there is none yet.
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
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        print!("{text}");
        Ok(ExitCode::SUCCESS)
    }
}

fn trust(certificate: &Path) -> Result<ExitCode> {
    std::fs::copy(certificate, TRUSTED).with_context(|| format!("write {TRUSTED} (run as root)"))?;
    let updated = Program::new("update-ca-certificates").status();
    if !updated.is_ok_and(|status| status.success()) {
        let failure = Failure::new(format!("{TRUSTED} is there, but `update-ca-certificates` failed"));
        return Err(failure.hint("install the package ca-certificates, and run it again").into());
    }
    eprintln!(
        "this machine trusts {}; browsers with a store of their own need it too",
        certificate.display()
    );
    Ok(ExitCode::SUCCESS)
}
