//! `pandastack doctor`: checks whether this machine can run PandaStack and suggests fixes.
//!
//! Each check ends with `ok`, `warn` (works with limitations) or `fail` (sandboxes will not run).
//! The exit code is 1 if a check failed. Every finding that is not `ok` has a remedy.

mod checks;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::output::Output;
use crate::progress::Progress;
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The check passed.
    Ok,
    /// Works with limitations.
    Warn,
    /// Sandboxes will not run.
    Fail,
}

/// Outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub name: String,
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// A check that passed.
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::Ok, detail: detail.into(), remedy: None }
    }

    /// A check that found a limitation.
    pub fn warn(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name: name.to_owned(), verdict: Verdict::Warn, detail: detail.into(), remedy }
    }

    /// A check that failed.
    pub fn fail(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, detail, remedy) }
    }
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &ControlArgs::default(), &AgentArgs::default())?;
    let progress = Progress::start("Checking this machine");
    let findings = checks::all(&settings);
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
    fn a_finding_that_is_not_ok_has_a_remedy() {
        assert_eq!(line(&Finding::ok("memory", "8 GiB")), "ok    memory: 8 GiB");
        let fail = Finding::fail("nftables", "no such device", "modprobe nf_tables");
        assert_eq!(line(&fail), "FAIL  nftables: no such device\n      -> modprobe nf_tables");
    }
}
