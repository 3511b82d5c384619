//! Settings of outdated frozen states: `[frozen]`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use pandastack_control::{AdvisoryFile, CHECK_EVERY, GRACE_DAYS, OutdatedPolicy};
use pandastack_types::api::OutdatedAction;
use serde::Deserialize;

use crate::failure::Failure;

/// Longest grace, in days.
const GRACE_DAYS_MAX: u32 = 3650;

/// Options of outdated frozen states.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FrozenArgs {
    /// What happens when an outdated sleeping sandbox or snapshot is used: `keep`, `refuse` or
    /// `cold-restart` [default: keep]
    #[arg(long, env = "PANDASTACK_OUTDATED", value_name = "ACTION")]
    pub outdated: Option<OutdatedAction>,
    /// Days between telling the owner of an outdated state and the first action [default: 7]
    #[arg(long, env = "PANDASTACK_OUTDATED_GRACE_DAYS", value_name = "DAYS",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(GRACE_DAYS_MAX)))]
    pub outdated_grace_days: Option<u32>,
    /// Act only on states that an advisory names
    #[arg(long, env = "PANDASTACK_OUTDATED_ONLY_ADVISORIES")]
    pub outdated_only_advisories: bool,
    /// TOML file of advisories on guest kernels, guest programs and engines
    #[arg(long, env = "PANDASTACK_ADVISORIES", value_name = "FILE")]
    pub advisories: Option<PathBuf>,
    /// Seconds between two checks of all frozen states [default: 600]
    #[arg(long, env = "PANDASTACK_OUTDATED_CHECK_SECONDS", value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub outdated_check_seconds: Option<u64>,
}

/// Table `frozen` of the settings file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrozenSection {
    outdated: Option<OutdatedAction>,
    grace_days: Option<u32>,
    only_advisories: bool,
    advisories: Option<PathBuf>,
    check_seconds: Option<u64>,
}

/// The settings, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrozenSettings {
    outdated: OutdatedAction,
    grace_days: u32,
    only_advisories: bool,
    /// File of advisories.
    pub advisories: Option<PathBuf>,
    check_every: Duration,
}

impl FrozenSettings {
    /// Flags and variables go before the file.
    pub fn resolve(args: &FrozenArgs, file: FrozenSection) -> Self {
        let check_seconds = args.outdated_check_seconds.or(file.check_seconds);
        Self {
            outdated: args.outdated.or(file.outdated).unwrap_or_default(),
            grace_days: args
                .outdated_grace_days
                .or(file.grace_days)
                .map_or(GRACE_DAYS, |days| days.min(GRACE_DAYS_MAX)),
            only_advisories: args.outdated_only_advisories || file.only_advisories,
            advisories: args.advisories.clone().or(file.advisories),
            check_every: check_seconds.map_or(CHECK_EVERY, |seconds| Duration::from_secs(seconds.max(1))),
        }
    }

    /// The same settings as arguments for the control server.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut set = |flag: &str, value: OsString| arguments.extend([flag.into(), value]);
        set("--outdated", self.outdated.as_str().into());
        set("--outdated-grace-days", self.grace_days.to_string().into());
        set("--outdated-check-seconds", self.check_every.as_secs().to_string().into());
        if let Some(file) = &self.advisories {
            set("--advisories", file.clone().into());
        }
        arguments.extend(self.only_advisories.then(|| "--outdated-only-advisories".into()));
        arguments
    }

    /// Reads the advisories and makes the server's settings.
    pub fn open(&self) -> Result<OutdatedPolicy> {
        let advisories = self.advisories.as_deref().map(AdvisoryFile::open).transpose().map_err(|error| {
            Failure::new(pandastack_types::chain(&error)).hint("correct the file, or unset `advisories`")
        })?;
        Ok(OutdatedPolicy {
            action: self.outdated,
            grace_days: self.grace_days,
            only_advisories: self.only_advisories,
            advisories: advisories.map(Arc::new),
            check_every: self.check_every,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: FrozenArgs,
    }

    #[test]
    fn frozen_settings_round_trip_through_control_arguments() {
        let file =
            "outdated = 'cold-restart'\ngrace_days = 3\nonly_advisories = true\nadvisories = '/a.toml'";
        let of_file = FrozenSettings::resolve(&FrozenArgs::default(), toml::from_str(file).unwrap());
        assert_eq!((of_file.outdated, of_file.grace_days), (OutdatedAction::ColdRestart, 3));
        let line = Line::parse_from([OsString::from("control")].into_iter().chain(of_file.arguments()));
        assert_eq!(FrozenSettings::resolve(&line.args, FrozenSection::default()), of_file);
        assert!(toml::from_str::<FrozenSection>("outdated = 'drop'").is_err());
    }

    #[test]
    fn a_server_with_broken_advisories_does_not_start() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[[advisory]]\nid = 'A-1'").unwrap();
        let args = FrozenArgs { advisories: Some(file.path().to_owned()), ..FrozenArgs::default() };
        let settings = FrozenSettings::resolve(&args, FrozenSection::default());
        let refused = settings.open().unwrap_err().to_string();
        assert!(refused.contains("invalid advisories"), "{refused}");
        std::fs::write(file.path(), "").unwrap();
        assert!(settings.open().is_ok());
    }
}
