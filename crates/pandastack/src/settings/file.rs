//! The settings file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pandastack_control::{AuditSink, DatabaseUrl, TenancyMode};
use serde::Deserialize;

use super::{Backups, CONFIG_PATH, Engine};
use crate::failure::Failure;
use crate::frozen_settings::FrozenSection;
use crate::guest_settings::GuestSection;
use crate::login_settings::OidcSection;
use crate::network_settings::NetworkSection;

/// Contents of the settings file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) data_dir: Option<PathBuf>,
    pub(super) runtime_dir: Option<PathBuf>,
    pub(super) run_as: Option<String>,
    pub(super) otlp_endpoint: Option<String>,
    pub(super) control: ControlSection,
    pub(super) agent: AgentSection,
    pub(super) network: NetworkSection,
    pub(super) guests: GuestSection,
    pub(super) oidc: OidcSection,
    pub(super) frozen: FrozenSection,
}

/// Table `control`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ControlSection {
    pub(super) listen: Option<SocketAddr>,
    pub(super) database_url: Option<DatabaseUrl>,
    pub(super) requests_per_second: Option<u32>,
    pub(super) schedules_private_targets: bool,
    pub(super) tenancy: Option<TenancyMode>,
    pub(super) allow_emulated_machines_between_tenants: bool,
    pub(super) postgres_listen: Option<SocketAddr>,
    pub(super) postgres_domain: Option<String>,
    pub(super) backups: Option<Backups>,
    pub(super) audit_sink: Option<AuditSink>,
    pub(super) backup_retention_days: Option<u16>,
    pub(super) domains: Vec<String>,
    pub(super) api_names: Vec<String>,
    pub(super) challenge_resolver: Option<SocketAddr>,
}

/// Table `agent`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AgentSection {
    pub(super) cache_dir: Option<PathBuf>,
    pub(super) subnet: Option<String>,
    pub(super) net_prefix: Option<String>,
    pub(super) resolver: Option<SocketAddr>,
    pub(super) connections_max: Option<u32>,
    pub(super) connections_per_minute: Option<u32>,
    pub(super) destinations_per_minute: Option<u32>,
    pub(super) bandwidth_mbit: Option<u32>,
    pub(super) cpu_percent: Option<u32>,
    pub(super) slots_ready: Option<usize>,
    pub(super) memory_limit_mb: Option<u64>,
    pub(super) memory_promised_percent: Option<u32>,
    pub(super) light_sleep_seconds: Option<u64>,
    pub(super) engine: Option<Engine>,
    pub(super) zygotes: Option<bool>,
    pub(super) warm_templates: Vec<String>,
}

/// Reads the file that is given, or the usual one if it exists.
pub(super) fn read_file(given: Option<&Path>) -> Result<File> {
    let path = given.unwrap_or(Path::new(CONFIG_PATH));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && given.is_none() => {
            return Ok(File::default());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read the settings file {}", path.display()));
        }
    };
    toml::from_str(&text).map_err(|error| {
        let failure = Failure::new(format!("invalid settings file {}: {}", path.display(), error.message()));
        failure.hint("see docs/reference/configuration.md for all settings").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings file that packages install: every key in it is a comment.
    const PACKAGED: &str = include_str!("../../../../deploy/pandastack.toml");

    #[test]
    fn every_key_of_the_packaged_config_is_valid() {
        let is_key = |line: &&str| line.strip_prefix("# ").is_some_and(|rest| rest.contains(" = "));
        assert!(PACKAGED.lines().filter(is_key).count() >= 8);
        let uncommented: Vec<&str> = PACKAGED
            .lines()
            .map(|line| if is_key(&line) { line.trim_start_matches("# ") } else { line })
            .collect();
        toml::from_str::<File>(PACKAGED).unwrap();
        toml::from_str::<File>(&uncommented.join("\n")).unwrap();
    }
}
