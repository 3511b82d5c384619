//! `pandastack template`: templates that sandboxes are created from.

mod authfile;
mod build;
mod context;
mod debug;
mod export;
mod image_file;
mod import;
mod labels;
mod rebuild;
mod secret;
mod share;
mod source;

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{Build, BuildStatus, PublishTemplate, Template, TemplateStatus};
use pandastack_types::{BuildId, WorkspaceId};

use super::each::{each, show_each};
use super::runtime::with_client;
use super::snapshot;
use crate::output::{Output, size};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List templates
    #[command(visible_alias = "ls")]
    List,
    /// Show templates with their tags
    Get {
        /// Template names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Build a template from a Dockerfile or a container image
    Build(Box<build::Args>),
    /// Build a template again, with fresh images and packages, and show what changed
    Rebuild(rebuild::Args),
    /// Write a template to a file, for another installation or for Docker
    Export(export::Args),
    /// Create a template from an exported file
    Import(import::Args),
    /// Publish a snapshot as a template
    Publish {
        /// Snapshot ID, unique ID prefix or name
        snapshot: String,
        /// Template name
        #[arg(long)]
        name: String,
        /// Tag of this version, besides `latest`; can be repeated
        #[arg(long)]
        tag: Vec<String>,
    },
    /// List template builds
    Builds,
    /// Print the log of a build
    Logs {
        /// Build ID
        build: BuildId,
    },
    /// Cancel a build
    Cancel {
        /// Build ID
        build: BuildId,
    },
    /// Point a tag to a build; tag `latest` to roll back
    Tag {
        /// Template name
        name: String,
        /// Tag
        tag: String,
        /// Build ID
        build: BuildId,
    },
    /// Delete a tag
    Untag {
        /// Template name
        name: String,
        /// Tag
        tag: String,
    },
    /// Share a template with other workspaces
    Share {
        /// Template name
        name: String,
        /// Workspaces that may use the template
        #[arg(value_name = "WORKSPACE", required_unless_present = "public")]
        workspaces: Vec<WorkspaceId>,
        /// Share with all workspaces
        #[arg(long)]
        public: bool,
    },
    /// Stop sharing a template; existing sandboxes are kept
    Unshare {
        /// Template name
        name: String,
        /// Workspaces that may no longer use the template. Default: all
        #[arg(value_name = "WORKSPACE")]
        workspaces: Vec<WorkspaceId>,
        /// Stop sharing with all workspaces, except those it is shared with by name
        #[arg(long)]
        public: bool,
    },
    /// Delete templates with all their versions; sandboxes created from them are kept
    #[command(visible_alias = "rm")]
    Delete {
        /// Template names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::List => list(&client, output).await?,
                Command::Get { names } => {
                    let fetch = async |name: &str| Ok(client.get_template(name).await?);
                    return show_each(&names, output, fetch, details).await;
                }
                Command::Build(args) => return build::run(&client, *args, output).await,
                Command::Rebuild(args) => return rebuild::run(&client, args, output).await,
                Command::Export(args) => return export::run(&client, args, output).await,
                Command::Import(args) => return import::run(&client, args, output).await,
                Command::Publish { snapshot, name, tag } => {
                    let snapshot_id = snapshot::find(&client, &snapshot).await?;
                    let request = PublishTemplate { snapshot_id, name, tags: tag, description: None };
                    let build = client.publish_template(&request).await?;
                    output.value(&build, |build| format!("template {} is ready", build.name))?;
                }
                Command::Builds => builds(&client, output).await?,
                Command::Logs { build } => {
                    let mut logs = client.follow_build(&build).await?;
                    while let Some(line) = logs.next().await? {
                        output.log_line(&line)?;
                    }
                }
                Command::Cancel { build } => client.cancel_build(&build).await?,
                Command::Tag { name, tag, build } => client.set_template_tag(&name, &tag, build).await?,
                Command::Untag { name, tag } => client.delete_template_tag(&name, &tag).await?,
                Command::Share { name, workspaces, public } => {
                    share::add(&client, &name, workspaces, public, output).await?;
                }
                Command::Unshare { name, workspaces, public } => {
                    share::remove(&client, &name, &workspaces, public, output).await?;
                }
                Command::Delete { names } => {
                    let delete = async |name: &str| {
                        client.delete_template(name).await?;
                        Ok(name.to_owned())
                    };
                    return each(&names, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

async fn list(client: &Client, output: Output) -> Result<()> {
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
    })
}

fn details(template: &Template) -> String {
    let mut lines = vec![
        format!("name:    {}", template.name),
        format!("status:  {}", status_word(template.status)),
        format!("base:    {}", template.base),
        format!("size:    {} vCPU, {} MiB", template.cpu, template.memory_mb),
    ];
    lines.extend(share::readers(template).map(|readers| format!("access:  {readers}")));
    if let Some(version) = &template.version {
        lines.push(format!("build:   {}", version.build_id));
        lines.extend(version.tags.iter().map(|tag| format!("tag:     {} -> {}", tag.tag, tag.build_id)));
        lines.extend(version.changes.iter().flat_map(rebuild::details));
    }
    lines.join("\n")
}

async fn builds(client: &Client, output: Output) -> Result<()> {
    let builds = client.list_builds().await?;
    output.table(&builds, ["ID", "TEMPLATE", "STATUS", "STARTED", "CHANGES OR ERROR"], |build: &Build| {
        let status = match build.status {
            BuildStatus::Queued => "queued",
            BuildStatus::Running => "running",
            BuildStatus::Done => "done",
            BuildStatus::Failed => "failed",
        };
        [
            build.id.to_string(),
            build.name.clone(),
            status.to_owned(),
            build.started_at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            build
                .error
                .clone()
                .or_else(|| build.changes.as_ref().map(ToString::to_string))
                .unwrap_or_default(),
        ]
    })
}

fn status_word(status: TemplateStatus) -> &'static str {
    match status {
        TemplateStatus::Unbaked => "unbaked",
        TemplateStatus::Baking => "baking",
        TemplateStatus::Ready => "ready",
        TemplateStatus::Failed => "failed",
    }
}
