//! The command line: every command and its dispatch.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[cfg(feature = "server")]
use crate::commands::{
    agent, ca, control, doctor, down, edge, engine, host_packages, image, join_secret, kvm_probe, openapi, up,
};
use crate::commands::{
    app, audit, bench, completion, db, forward, function, host, mcp, quota, run, sandbox, schedule, snapshot,
    template, token, usage, volume, whoami, workspace,
};
use crate::output::Output;

/// Run sandboxes, apps, functions and databases in microVMs on your own machines
#[derive(Debug, Parser)]
#[command(name = "pandastack", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of human-readable output
    #[arg(long, global = true)]
    pub json: bool,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start PandaStack on this machine
    #[cfg(feature = "server")]
    Up(up::Args),
    /// Stop PandaStack on this machine
    #[cfg(feature = "server")]
    Down(down::Args),
    /// Check whether this machine can run PandaStack and suggest fixes
    #[cfg(feature = "server")]
    Doctor(doctor::Args),
    /// Run a command in a new sandbox, then delete the sandbox
    Run(run::Args),
    /// Manage sandboxes
    #[command(subcommand, visible_alias = "sb")]
    Sandbox(sandbox::Command),
    /// Manage apps
    #[command(subcommand)]
    App(app::Command),
    /// Forward local ports to a sandbox
    Forward(forward::Args),
    /// Manage databases
    #[command(subcommand)]
    Db(db::Command),
    /// Manage functions
    #[command(subcommand, name = "fn", visible_alias = "function")]
    Function(function::Command),
    /// Manage snapshots
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Manage volumes
    #[command(subcommand)]
    Volume(volume::Command),
    /// Manage templates
    #[command(subcommand)]
    Template(template::Command),
    /// Manage schedules
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Manage API keys
    #[command(subcommand)]
    Token(token::Command),
    /// Show or change workspace quotas
    #[command(subcommand)]
    Quota(quota::Command),
    /// Manage workspaces and defaults for new sandboxes
    #[command(subcommand)]
    Workspace(workspace::Command),
    /// Show hosts
    #[command(subcommand)]
    Host(host::Command),
    /// Show the server and API key in use
    Whoami,
    /// Show workspace usage
    Usage(usage::Args),
    /// Show the audit log
    Audit(audit::Args),
    /// Measure create, exec, fork and delete latency
    Bench(bench::Args),
    /// Serve sandboxes as tools over the Model Context Protocol (MCP)
    Mcp(mcp::Args),
    /// Generate shell completions
    Completion(completion::Args),
    /// Run the control server
    #[cfg(feature = "server")]
    Control(control::Args),
    /// Run the agent on this host
    #[cfg(feature = "server")]
    Agent(agent::Args),
    /// Run an edge proxy for sandbox and app traffic
    #[cfg(feature = "server")]
    Edge(edge::Args),
    /// Manage virtualization engines on this host
    #[cfg(feature = "server")]
    #[command(subcommand)]
    Engine(engine::Command),
    /// Manage the local certificate authority
    #[cfg(feature = "server")]
    #[command(subcommand)]
    Ca(ca::Command),
    /// Generate a join secret for control and agents
    #[cfg(feature = "server")]
    #[command(hide = true)]
    JoinSecret,
    /// Run the child process of the KVM probe
    #[cfg(feature = "server")]
    #[command(hide = true)]
    KvmProbe,
    /// Print the OpenAPI document
    #[cfg(feature = "server")]
    #[command(hide = true)]
    Openapi,
    /// List Debian packages missing on this host
    #[cfg(feature = "server")]
    #[command(hide = true)]
    HostPackages,
    /// Build root file systems without a server
    #[cfg(feature = "server")]
    #[command(subcommand, hide = true)]
    Image(image::Command),
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        #[cfg(feature = "server")]
        if matches!(self, Command::Up(_) | Command::Control(_) | Command::Agent(_) | Command::Image(_)) {
            // Machines run as their own users and reach their files through our directories, and
            // template builds inherit the mask for guest files. Secret files set their own,
            // stricter mode.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        }
        #[cfg(feature = "server")]
        if matches!(self, Command::Control(_) | Command::Agent(_) | Command::Edge(_)) {
            crate::supervise::descriptors::raise_limit();
        }
        match self {
            #[cfg(feature = "server")]
            Command::Up(args) => up::run(args, output),
            #[cfg(feature = "server")]
            Command::Down(args) => down::run(args, output),
            #[cfg(feature = "server")]
            Command::Doctor(args) => doctor::run(args, output),
            Command::Run(args) => run::run(args, output),
            Command::Sandbox(command) => command.run(output),
            Command::App(command) => command.run(output),
            Command::Forward(args) => forward::run(args, output),
            Command::Db(command) => command.run(output),
            Command::Function(command) => command.run(output),
            Command::Snapshot(command) => command.run(output),
            Command::Volume(command) => command.run(output),
            Command::Template(command) => command.run(output),
            Command::Schedule(command) => command.run(output),
            Command::Token(command) => command.run(output),
            Command::Quota(command) => command.run(output),
            Command::Workspace(command) => command.run(output),
            Command::Host(command) => command.run(output),
            Command::Whoami => whoami::run(output),
            Command::Usage(args) => usage::run(args, output),
            Command::Audit(args) => audit::run(args, output),
            Command::Bench(args) => bench::run(args, output),
            Command::Mcp(args) => mcp::run(args),
            Command::Completion(args) => completion::run(args, output),
            #[cfg(feature = "server")]
            Command::Control(args) => control::run(args),
            #[cfg(feature = "server")]
            Command::Agent(args) => agent::run(args),
            #[cfg(feature = "server")]
            Command::Edge(args) => edge::run(args),
            #[cfg(feature = "server")]
            Command::Engine(command) => command.run(output),
            #[cfg(feature = "server")]
            Command::Ca(command) => command.run(),
            #[cfg(feature = "server")]
            Command::JoinSecret => join_secret::run(output),
            #[cfg(feature = "server")]
            Command::KvmProbe => kvm_probe::run(),
            #[cfg(feature = "server")]
            Command::Openapi => openapi::run(output),
            #[cfg(feature = "server")]
            Command::HostPackages => host_packages::run(output),
            #[cfg(feature = "server")]
            Command::Image(command) => command.run(output),
        }
    }
}

/// Whether an invalid command line contains `--json`. Arguments after `--` belong to another program.
pub fn json_requested() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        <super::Cli as clap::CommandFactory>::command().debug_assert();
    }
}
