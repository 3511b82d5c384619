//! `pandastack host`: the hosts that run sandboxes.

use std::process::ExitCode;

use anyhow::Result;

use super::runtime::with_client;
use crate::output::{Output, size};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List hosts
    #[command(visible_alias = "ls")]
    List,
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            let Command::List = self;
            let hosts = client.list_hosts().await?;
            let columns =
                ["ID", "STATUS", "ENGINE", "ISOLATION", "SANDBOXES", "FREE MEMORY", "FREE DISK", "VERSION"];
            output.table(&hosts, columns, |host| {
                [
                    host.id.to_string(),
                    if host.reachable { "reachable" } else { "unreachable" }.to_owned(),
                    host.engine.clone(),
                    host.isolation.clone(),
                    host.sandboxes.to_string(),
                    format!("{} MiB", host.memory_free_mb),
                    size(host.disk_free_bytes),
                    host.version.clone(),
                ]
            })?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
