//! `pandastack doctor`: checks whether this machine can run PandaStack and suggests fixes.
//!
//! Each check ends with `ok`, `warn` (works with limitations) or `fail` (sandboxes will not run).
//! The exit code is 1 if a check failed. Every finding that is not `ok` has a remedy. `--production` adds
//! checks of a host that isolates tenants who distrust each other.

mod checks;
mod finding;
mod guests;
mod production;

use std::process::ExitCode;

use anyhow::Result;

use crate::guest_settings::GuestArgs;
use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use finding::{Finding, Verdict};
use production::HostFiles;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also check the settings of a production host: see docs/how-to/production-host.md
    #[arg(long)]
    production: bool,
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    guests: GuestArgs,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let agent = AgentArgs { guests: args.guests, ..AgentArgs::default() };
    let settings = Settings::resolve(&args.common, &ControlArgs::default(), &agent)?;
    let progress = Progress::start("Checking this machine");
    let mut findings = checks::all(&settings);
    findings.extend(guests::all(&settings)?);
    if args.production {
        findings.extend(production::all(&HostFiles::real(), &settings.data_dir));
        findings.push(production::service_user(&settings.control_socket()));
    }
    drop(progress);
    output.value(&findings, |findings| findings.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn line(finding: &Finding) -> String {
    let mark = match finding.verdict {
        Verdict::Ok => "ok  ",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let remedy = finding.remedy.as_ref().map(|remedy| format!("\n      -> {remedy}")).unwrap_or_default();
    format!("{mark}  {}: {}{remedy}", finding.name, finding.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_prints_a_remedy() {
        assert_eq!(line(&Finding::ok("memory", "8 GiB")), "ok    memory: 8 GiB");
        let fail = Finding::fail("nftables", "no such device", "modprobe nf_tables");
        assert_eq!(line(&fail), "FAIL  nftables: no such device\n      -> modprobe nf_tables");
    }
}
