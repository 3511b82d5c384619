//! `pandastack template`: templates that sandboxes are created from.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{Template, TemplateStatus};

use super::create::follow_build;
use super::runtime::with_client;
use crate::output::{Output, size};
use crate::progress::Progress;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List templates
    #[command(visible_alias = "ls")]
    List,
    /// Build a template now instead of on first use
    Build {
        /// Template name
        name: String,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::List => list(&client, output).await,
                Command::Build { name } => build(&client, &name, output).await,
            }
        })
    }
}

async fn list(client: &Client, output: Output) -> Result<ExitCode> {
    let templates = client.list_templates().await?;
    let columns = ["NAME", "STATUS", "CPU", "MEMORY", "SIZE", "DESCRIPTION"];
    output.table(&templates, columns, |template| {
        [
            template.name.clone(),
            status_word(template.status).to_owned(),
            template.cpu.to_string(),
            format!("{} MiB", template.memory_mb),
            if template.size_bytes == 0 { "-".to_owned() } else { size(template.size_bytes) },
            template.description.clone(),
        ]
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn build(client: &Client, name: &str, output: Output) -> Result<ExitCode> {
    let began = Instant::now();
    let mut template = client.get_template(name).await?;
    if template.status != TemplateStatus::Ready {
        let progress = Progress::start(format!("Building template {name}"));
        let build = client.bake_template(name).await?;
        follow_build(client, &build.id, &progress).await?;
        template = client.get_template(name).await?;
    }
    output.value(&template, |template: &Template| {
        format!("template {} is ready ({:.1} s)", template.name, began.elapsed().as_secs_f64())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn status_word(status: TemplateStatus) -> &'static str {
    match status {
        TemplateStatus::Unbaked => "unbaked",
        TemplateStatus::Baking => "baking",
        TemplateStatus::Ready => "ready",
        TemplateStatus::Failed => "failed",
    }
}
