//! `pandastack token`: API keys.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::api::{CreateToken, Scope};

use crate::output::{Output, age};

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a key; its secret is shown this once
    Create {
        /// Name for people
        #[arg(long)]
        label: Option<String>,
        /// Days until it stops working; never when absent
        #[arg(long, value_name = "DAYS")]
        expires_in: Option<u32>,
        /// What it may do: `read`, `sandboxes` or `admin`
        #[arg(long, default_value_t)]
        scope: Scope,
    },
    /// List keys, without their secrets
    #[command(visible_alias = "ls")]
    List,
    /// Delete keys
    Rm {
        /// Their public prefixes, as `list` shows them
        #[arg(required = true)]
        prefixes: Vec<String>,
    },
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        super::with_client(|client| async move {
            match self {
                Command::Create { label, expires_in, scope } => {
                    let request = CreateToken { label, expires_in_days: expires_in, scope: Some(scope) };
                    let created = client.create_token(&request).await?;
                    output.value(&created, |created| created.token.clone())?;
                    if !output.is_json() {
                        eprintln!("keep it now: it is not shown again");
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
                    return super::each(&prefixes, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
