//! `pandastack whoami`: the server, workspace and API key in use.

use std::process::ExitCode;

use anyhow::Result;

use super::runtime::with_client;
use crate::output::{Output, fields};

/// Runs the command.
pub fn run(output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let me = client.me().await?;
        output.value(&me, |me| {
            fields(&[
                ("server", client.api_url().to_owned()),
                ("workspace", me.workspace.to_string()),
                ("key", format!("{} ({})", me.token_prefix, me.token_label)),
                ("role", if me.operator { "operator".to_owned() } else { me.token_role.to_string() }),
            ])
        })?;
        Ok(ExitCode::SUCCESS)
    })
}
