//! `pandastack app domains`: custom domains of an app.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use crate::commands::each::each;
use crate::output::Output;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List custom domains
    #[command(visible_alias = "ls")]
    List {
        /// App name or ID
        app: String,
    },
    /// Add a custom domain, or check its proof of ownership again
    Add {
        /// App name or ID
        app: String,
        /// Domain, such as www.example.com
        domain: String,
    },
    /// Remove custom domains
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// App name or ID
        app: String,
        /// Domains to remove
        #[arg(required = true)]
        domains: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::List { app } => {
                let domains = client.app_domains(&app).await?;
                output
                    .table(&domains, ["DOMAIN", "STATUS"], |one| [one.domain.clone(), one.status.clone()])?;
            }
            Command::Add { app, domain } => {
                let added = client.add_app_domain(&app, &domain).await?;
                for record in &added.records {
                    eprintln!("create this DNS record: {} {} {}", record.name, record.kind, record.value);
                }
                if let Some(note) = &added.dns_note {
                    eprintln!("{}: {note}", added.status);
                }
                output.value(&added, |added| added.domain.clone())?;
            }
            Command::Rm { app, domains } => {
                let remove = async |domain: &str| {
                    client.remove_app_domain(&app, domain).await?;
                    Ok(domain.to_owned())
                };
                return each(&domains, output, remove).await;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
