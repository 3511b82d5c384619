//! `pandastack version`: client and server versions.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::{Client, Config};
use serde::Serialize;

use super::runtime::block_on;
use crate::output::{Output, fields};

/// Versions as printed with `--json`.
#[derive(Debug, Serialize)]
struct Versions {
    /// Version of this program.
    client: &'static str,
    /// The configured server.
    server_url: String,
    /// Version of the server; absent if it cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// Version of its API.
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<String>,
    /// Reason if the server's version is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_error: Option<String>,
}

/// Runs the command. It succeeds without a server: the version of this program is known.
pub fn run(output: Output) -> Result<ExitCode> {
    let Config { api_url, .. } = Config::from_environment()?;
    let client = Client::new(Config { api_url: api_url.clone(), token: None })?;
    let (server, error) = match block_on(async { Ok(client.version().await?) }) {
        Ok(version) => (Some(version), None),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    let versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        server_url: api_url,
        server: server.as_ref().map(|server| server.version.clone()),
        api: server.map(|server| server.api),
        server_error: error,
    };
    output.value(&versions, describe)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(versions: &Versions) -> String {
    let server = versions.server.clone().or_else(|| versions.server_error.clone());
    fields(&[
        ("client", versions.client.to_owned()),
        ("server", server.unwrap_or_default()),
        ("api", versions.api.clone().unwrap_or_default()),
        ("url", versions.server_url.clone()),
    ])
}
