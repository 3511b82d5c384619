//! `pandastack sandbox`: make, use and delete sandboxes.

pub mod attach;
pub mod copy;
pub mod create;
mod describe;
pub mod events;
pub mod exec;
pub mod files;
pub mod fork;
pub mod keep_awake;
pub mod lifecycle;
pub mod logs;
mod moves;
pub mod network;
pub mod processes;
pub mod promote;
mod raw_terminal;
pub mod rollback;
pub mod snapshot;
mod stats;
pub mod tree;

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::Keep;

use crate::failure::Failure;
use crate::output::Output;

/// Length of a full random id: shorter texts are looked up as the beginning of one.
const FULL_ID_CHARS: usize = 36;

/// Its commands. `ID` may be the beginning of an id, where that names one sandbox only.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a sandbox and print its id
    Create(create::Args),
    /// List sandboxes
    List,
    /// Show one sandbox
    Get(One),
    /// Run a command, stream its output, pass its exit code on
    Exec(exec::Args),
    /// Open the user's shell on a terminal
    Shell(attach::ShellArgs),
    /// List processes
    Ps(One),
    /// Send a signal to a process
    Kill(processes::KillArgs),
    /// Follow a process and type into it; Ctrl-] leaves it running
    Attach(attach::AttachArgs),
    /// Copy files or directories in and out (`ID:/path` names the sandbox's side)
    Cp(copy::Args),
    /// List a directory, or without one the sandboxes
    Ls(files::ListArgs),
    /// Print a file
    Cat(files::Place),
    /// Find files by name
    Find(files::FindArgs),
    /// Find lines in text files
    Grep(files::GrepArgs),
    /// Print changes of files as they happen
    Watch(files::Place),
    /// Print a URL that reads or writes one file without a key
    Sign(files::SignArgs),
    /// Copy a running sandbox, memory and all, and print the copies' ids
    Fork(fork::Args),
    /// Save a sandbox and print the snapshot's id
    Snapshot(snapshot::Args),
    /// Return to one of its snapshots; id, labels and lifetime stay
    Rollback(rollback::Args),
    /// Keep one child of a fork
    Promote(promote::Args),
    /// Draw who was forked from whom
    Tree(tree::Args),
    /// Put to sleep on disk; the next call wakes it
    Hibernate(Hibernate),
    /// Keep from counting as idle, for work in the background
    KeepAwake(keep_awake::Args),
    /// Wake from sleep
    Wake(Many),
    /// Stop the processors
    Pause(Many),
    /// Run the processors again
    Resume(Many),
    /// Delete sandboxes
    Rm(Many),
    /// Print the console log, or what a process wrote
    Logs(logs::Args),
    /// Print what happened
    Events(events::Args),
    /// Print what it uses now
    Stats(One),
    /// Print the ports that something listens on
    Ports(One),
    /// Show or change what it may reach
    #[command(subcommand)]
    Network(network::Command),
    /// Show or change how long it lives and when it sleeps
    Lifecycle(lifecycle::Args),
}

/// One sandbox.
#[derive(Debug, clap::Args)]
pub struct One {
    /// The sandbox's id
    id: String,
}

/// Several sandboxes, to sleep.
#[derive(Debug, clap::Args)]
pub struct Hibernate {
    #[command(flatten)]
    many: Many,
    /// Keep the disk and drop the memory; it wakes by booting
    #[arg(long)]
    disk_only: bool,
}

/// Several sandboxes.
#[derive(Debug, clap::Args)]
pub struct Many {
    /// The sandboxes' ids
    #[arg(required = true)]
    ids: Vec<String>,
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        super::with_client(|client| async move {
            match self {
                Command::Create(args) => create::run(&client, args, output).await,
                Command::List => describe::list(&client, output).await,
                Command::Get(one) => describe::get(&client, &one.id, output).await,
                Command::Exec(args) => exec::run(&client, args, output).await,
                Command::Shell(args) => attach::shell(&client, args, output).await,
                Command::Ps(one) => processes::list(&client, &one.id, output).await,
                Command::Kill(args) => processes::kill(&client, args).await,
                Command::Attach(args) => attach::attach(&client, args, output).await,
                Command::Cp(args) => copy::run(&client, args, output).await,
                Command::Fork(args) => fork::run(&client, args, output).await,
                Command::Snapshot(args) => snapshot::run(&client, args, output).await,
                Command::Rollback(args) => rollback::run(&client, args, output).await,
                Command::Promote(args) => promote::run(&client, args, output).await,
                Command::Tree(args) => tree::run(&client, args, output).await,
                Command::KeepAwake(args) => keep_awake::run(&client, args, output).await,
                Command::Hibernate(Hibernate { many, disk_only }) => {
                    let keep = if disk_only { Keep::Disk } else { Keep::Memory };
                    moves::run(&client, moves::Move::Hibernate(keep), many, output).await
                }
                Command::Wake(many) => moves::run(&client, moves::Move::Wake, many, output).await,
                Command::Pause(many) => moves::run(&client, moves::Move::Pause, many, output).await,
                Command::Resume(many) => moves::run(&client, moves::Move::Resume, many, output).await,
                Command::Rm(many) => moves::run(&client, moves::Move::Delete, many, output).await,
                Command::Logs(args) => logs::run(&client, args, output).await,
                Command::Ls(args) => files::list(&client, args, output).await,
                Command::Cat(place) => files::cat(&client, place, output).await,
                Command::Find(args) => files::find(&client, args, output).await,
                Command::Grep(args) => files::grep(&client, args, output).await,
                Command::Watch(place) => files::watch(&client, place, output).await,
                Command::Sign(args) => files::sign(&client, args, output).await,
                Command::Events(args) => events::events(&client, args, output).await,
                Command::Stats(one) => stats::run(&client, &one.id, output).await,
                Command::Ports(one) => events::ports(&client, &one.id, output).await,
                Command::Network(command) => network::run(&client, command, output).await,
                Command::Lifecycle(args) => lifecycle::run(&client, args, output).await,
            }
        })
    }
}

/// The sandbox a person means: a full id as it is, else the one sandbox whose id begins so.
pub async fn resolve(client: &Client, text: &str) -> Result<SandboxId> {
    let id: SandboxId = text.parse().map_err(|error| Failure::new(format!("{error}")).hint(LIST_HINT))?;
    if text.len() >= FULL_ID_CHARS {
        return Ok(id);
    }
    let sandboxes = client.list_sandboxes().await?;
    let mut matching =
        sandboxes.into_iter().map(|sandbox| sandbox.id).filter(|id| id.as_str().starts_with(text));
    match (matching.next(), matching.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(Failure::new(format!("several sandboxes begin with `{text}`"))
            .hint("give more of the id")
            .into()),
        (None, _) => Err(Failure::new(format!("no sandbox begins with `{text}`")).hint(LIST_HINT).into()),
    }
}

const LIST_HINT: &str = "`pandastack sandbox list` shows the ids";
