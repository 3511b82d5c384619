//! Published advisories about crates that we link, by `cargo deny check advisories`.
//!
//! The other parts of that program are in [`super::dependencies`], which needs neither it nor a network.

use anyhow::{Context, Result};

use crate::program::cargo;

/// Result of the check.
#[derive(Debug, PartialEq, Eq)]
pub enum Advisories {
    /// No advisory applies.
    Clean,
    /// Output of `cargo deny` on each advisory.
    Found(String),
    /// The check could not run here; the reason.
    Skipped(String),
}

/// Runs the check where the program is installed and its database can be fetched.
pub fn check() -> Result<Advisories> {
    let skipped = |reason: &str| Ok(Advisories::Skipped(format!("advisories: {reason}")));
    if !succeeds(&["deny", "--version"])? {
        return skipped("cargo-deny is not installed; run `cargo install --locked cargo-deny`");
    }
    if !succeeds(&["deny", "fetch", "db"])? {
        return skipped("the database of advisories cannot be fetched");
    }
    let output = cargo(&["deny", "check", "--disable-fetch", "advisories"]).output();
    let output = output.context("start cargo deny")?;
    if output.status.success() {
        return Ok(Advisories::Clean);
    }
    Ok(Advisories::Found(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn succeeds(args: &[&str]) -> Result<bool> {
    Ok(cargo(args).output().with_context(|| format!("start cargo {}", args.join(" ")))?.status.success())
}
