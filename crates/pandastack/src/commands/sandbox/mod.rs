//! `pandastack sandbox`: manages sandboxes.

mod actions;
mod args;
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
pub mod network;
pub mod processes;
pub mod promote;
mod raw_terminal;
pub mod resolve;
pub mod rollback;
pub mod snapshot;
mod stats;
pub mod tree;
mod url;

use std::process::ExitCode;

use anyhow::Result;
use pandastack_types::api::Keep;

use self::actions::Action;
use self::args::{HibernateArgs, SandboxArg, SandboxArgs};
use crate::commands::runtime::with_client;
use crate::output::Output;

/// Subcommands. `ID` can be an id, a unique prefix of one, or a name.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a sandbox and print its ID
    Create(create::Args),
    /// List sandboxes
    List,
    /// Show sandboxes
    Get(SandboxArgs),
    /// Run a command, stream its output and return its exit code
    Exec(exec::Args),
    /// Open an interactive shell
    Shell(attach::ShellArgs),
    /// List processes
    Ps(SandboxArg),
    /// Send a signal to a process
    Kill(processes::KillArgs),
    /// Attach to a running process; press Ctrl-] to detach
    Attach(attach::AttachArgs),
    /// Copy files or directories to or from a sandbox
    Cp(copy::Args),
    /// List a directory in a sandbox, or all sandboxes
    Ls(files::ListArgs),
    /// Print a file
    Cat(files::SandboxPath),
    /// Find files by name
    Find(files::FindArgs),
    /// Search file contents
    Grep(files::GrepArgs),
    /// Watch files for changes
    Watch(files::SandboxPath),
    /// Create a signed URL to download or upload a file
    Sign(files::SignArgs),
    /// Fork a running sandbox, including its memory, and print the new IDs
    Fork(fork::Args),
    /// Take a snapshot and print its ID
    Snapshot(snapshot::Args),
    /// Restore a sandbox to one of its snapshots; ID, metadata and TTL are kept
    Rollback(rollback::Args),
    /// Keep one fork and delete its siblings
    Promote(promote::Args),
    /// Show the fork tree
    Tree(tree::Args),
    /// Hibernate sandboxes; the next call wakes them
    Hibernate(HibernateArgs),
    /// Keep a sandbox awake for background work
    KeepAwake(keep_awake::Args),
    /// Wake hibernated sandboxes
    Wake(SandboxArgs),
    /// Pause sandboxes: stop their vCPUs
    Pause(SandboxArgs),
    /// Resume paused sandboxes
    Resume(SandboxArgs),
    /// Delete sandboxes
    #[command(name = "delete", visible_alias = "rm")]
    Rm(SandboxArgs),
    /// Print the console log or the output of a process
    Logs(logs::Args),
    /// Print the events of a sandbox
    Events(events::Args),
    /// Show current resource usage
    Stats(SandboxArg),
    /// List listening ports
    Ports(SandboxArg),
    /// Print the URL of a port; signed if the sandbox is private
    Url(url::Args),
    /// Open the URL of a port in a browser
    Open(url::Args),
    /// Show or change the network policy
    #[command(subcommand)]
    Network(network::Command),
    /// Show or change TTL, idle timeout and checkpoints
    #[command(visible_alias = "update")]
    Lifecycle(lifecycle::Args),
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::Create(args) => create::run(&client, args, output).await,
                Command::List => describe::list(&client, output).await,
                Command::Get(args) => describe::get(&client, &args.ids, output).await,
                Command::Exec(args) => exec::run(&client, args, output).await,
                Command::Shell(args) => attach::shell(&client, args, output).await,
                Command::Ps(args) => processes::list(&client, &args.id, output).await,
                Command::Kill(args) => processes::kill(&client, args).await,
                Command::Attach(args) => attach::attach(&client, args, output).await,
                Command::Cp(args) => copy::run(&client, args, output).await,
                Command::Fork(args) => fork::run(&client, args, output).await,
                Command::Snapshot(args) => snapshot::run(&client, args, output).await,
                Command::Rollback(args) => rollback::run(&client, args, output).await,
                Command::Promote(args) => promote::run(&client, args, output).await,
                Command::Tree(args) => tree::run(&client, args, output).await,
                Command::KeepAwake(args) => keep_awake::run(&client, args, output).await,
                Command::Hibernate(HibernateArgs { sandboxes, disk_only }) => {
                    let keep = if disk_only { Keep::Disk } else { Keep::Memory };
                    actions::run(&client, Action::Hibernate(keep), sandboxes, output).await
                }
                Command::Wake(args) => actions::run(&client, Action::Wake, args, output).await,
                Command::Pause(args) => actions::run(&client, Action::Pause, args, output).await,
                Command::Resume(args) => actions::run(&client, Action::Resume, args, output).await,
                Command::Rm(args) => actions::run(&client, Action::Delete, args, output).await,
                Command::Logs(args) => logs::run(&client, args, output).await,
                Command::Ls(args) => files::list(&client, args, output).await,
                Command::Cat(path) => files::cat(&client, path, output).await,
                Command::Find(args) => files::find(&client, args, output).await,
                Command::Grep(args) => files::grep(&client, args, output).await,
                Command::Watch(path) => files::watch(&client, path, output).await,
                Command::Sign(args) => files::sign(&client, args, output).await,
                Command::Events(args) => events::events(&client, args, output).await,
                Command::Stats(args) => stats::run(&client, &args.id, output).await,
                Command::Ports(args) => events::ports(&client, &args.id, output).await,
                Command::Url(args) => url::print(&client, args, output).await,
                Command::Open(args) => url::open(&client, args, output).await,
                Command::Network(command) => network::run(&client, command, output).await,
                Command::Lifecycle(args) => lifecycle::run(&client, args, output).await,
            }
        })
    }
}
