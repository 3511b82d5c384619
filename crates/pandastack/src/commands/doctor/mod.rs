//! `pandastack doctor`: what this machine can do, tried for real, and what to change.
//!
//! Three verdicts: `ok`, `warn` (works, but slower or weaker than it could) and `fail` (sandboxes will not run). Only a
//! `fail` makes the exit code 1. Every line that is not `ok` says what to do.

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

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but could be better.
    Warn,
    /// Sandboxes will not run.
    Fail,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub name: String,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), verdict: Verdict::Ok, detail: detail.into(), remedy: None }
    }

    /// Could be better.
    pub fn warn(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name: name.to_owned(), verdict: Verdict::Warn, detail: detail.into(), remedy }
    }

    /// Will not do.
    pub fn fail(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, detail, remedy) }
    }
}

/// Carries it out.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    let settings = Settings::resolve(&args.common, &ControlArgs::default(), &AgentArgs::default())?;
    let progress = Progress::start("Looking at this machine");
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
    fn a_line_that_is_not_ok_says_what_to_do() {
        assert_eq!(line(&Finding::ok("memory", "8 GiB")), "ok    memory: 8 GiB");
        let fail = Finding::fail("nftables", "no such device", "modprobe nf_tables");
        assert_eq!(line(&fail), "FAIL  nftables: no such device\n      -> modprobe nf_tables");
    }
}
