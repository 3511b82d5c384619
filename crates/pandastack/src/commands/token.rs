//! `pandastack token`: API keys.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::api::{CreateToken, Scope};

use super::each::each;
use super::runtime::with_client;
use crate::output::{Output, age};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create an API key and print it; it is shown only once
    Create {
        /// Human-readable label
        #[arg(long)]
        label: Option<String>,
        /// Days until the key expires [default: never]
        #[arg(long, value_name = "DAYS")]
        expires_in: Option<u32>,
        /// Permissions of the key: `read`, `sandboxes` or `admin`
        #[arg(long, default_value_t)]
        scope: Scope,
    },
    /// List API keys, without their secrets
    #[command(visible_alias = "ls")]
    List,
    /// Revoke API keys
    Rm {
        /// Key prefixes, as shown by `pandastack token list`
        #[arg(required = true)]
        prefixes: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::Create { label, expires_in, scope } => {
                    let request = CreateToken { label, expires_in_days: expires_in, scope: Some(scope) };
                    let created = client.create_token(&request).await?;
                    output.value(&created, |created| created.token.clone())?;
                    if !output.is_json() {
                        eprintln!("save this key now: it is not shown again");
                    }
                }
                Command::List => {
                    let tokens = client.list_tokens().await?;
                    let now = Timestamp::now();
                    output.table(&tokens, ["PREFIX", "LABEL", "SCOPE", "AGE", "EXPIRES"], |token| {
                        let expires =
                            token.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
                        [
                            token.prefix.clone(),
                            token.label.clone(),
                            token.scope.to_string(),
                            age(token.created_at, now),
                            expires,
                        ]
                    })?;
                }
                Command::Rm { prefixes } => {
                    let delete = async |prefix: &str| {
                        client.delete_token(prefix).await?;
                        Ok(prefix.to_owned())
                    };
                    return each(&prefixes, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
