//! `pandastack app domains`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use crate::output::Output;

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List names
    #[command(visible_alias = "ls")]
    List {
        /// The app's name or id
        app: String,
    },
    /// Give an app another name
    Add {
        /// The app's name or id
        app: String,
        /// Such as www.example.com
        domain: String,
    },
    /// Take a name away
    Rm {
        /// The app's name or id
        app: String,
        /// The name
        domain: String,
    },
}

impl Command {
    /// Carries it out.
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
                    eprintln!("make this entry in DNS: {} {} {}", record.name, record.kind, record.value);
                }
                output.value(&added, |added| added.domain.clone())?;
            }
            Command::Rm { app, domain } => {
                client.remove_app_domain(&app, &domain).await?;
                output.value(&[&domain], |_| domain.clone())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
