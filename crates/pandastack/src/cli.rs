//! The command line: every command, and where it is carried out.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[cfg(feature = "server")]
use crate::commands::{
    agent, ca, control, doctor, down, edge, host_packages, image, join_secret, kvm_probe, openapi, up,
};
use crate::commands::{
    app, audit, bench, completion, db, forward, function, host, mcp, quota, run, sandbox, schedule, snapshot,
    template, token, usage, volume, whoami, workspace,
};
use crate::output::Output;

/// Sandboxes with a kernel of their own, on your machines.
#[derive(Debug, Parser)]
#[command(name = "pandastack", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of tables and lines
    #[arg(long, global = true)]
    pub json: bool,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the platform on this machine and keep it running
    #[cfg(feature = "server")]
    Up(up::Args),
    /// Stop the platform that `up` started
    #[cfg(feature = "server")]
    Down(down::Args),
    /// Check what this machine can do, and say what to change
    #[cfg(feature = "server")]
    Doctor(doctor::Args),
    /// Run one command in a fresh sandbox, then delete it
    Run(run::Args),
    /// Make, use and delete sandboxes
    #[command(subcommand, visible_alias = "sb")]
    Sandbox(sandbox::Command),
    /// Deploy and run apps
    #[command(subcommand)]
    App(app::Command),
    /// Lead ports of this machine to ports of a sandbox
    Forward(forward::Args),
    /// Make, use and delete databases
    #[command(subcommand)]
    Db(db::Command),
    /// Deploy and call functions
    #[command(subcommand, name = "fn", visible_alias = "function")]
    Function(function::Command),
    /// List and delete snapshots
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Durable disks that outlive sandboxes
    #[command(subcommand)]
    Volume(volume::Command),
    /// List and build templates
    #[command(subcommand)]
    Template(template::Command),
    /// Run something at certain times
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Make, list and delete API keys
    #[command(subcommand)]
    Token(token::Command),
    /// Show and set what the workspace may have
    #[command(subcommand)]
    Quota(quota::Command),
    /// Show and set what the workspace gives to new sandboxes
    #[command(subcommand)]
    Workspace(workspace::Command),
    /// Show the hosts that run sandboxes
    #[command(subcommand)]
    Host(host::Command),
    /// Show the server and the key that this client uses
    Whoami,
    /// Show what the workspace used
    Usage(usage::Args),
    /// Show who changed what
    Audit(audit::Args),
    /// Measure how fast this server makes, uses and copies sandboxes
    Bench(bench::Args),
    /// Offer sandboxes as tools to agents, by the Model Context Protocol
    Mcp(mcp::Args),
    /// Print what a shell needs to complete these commands
    Completion(completion::Args),
    /// Run the control server alone
    #[cfg(feature = "server")]
    Control(control::Args),
    /// Run the agent of this host alone
    #[cfg(feature = "server")]
    Agent(agent::Args),
    /// Serve what runs inside sandboxes to the outside, apart from control
    #[cfg(feature = "server")]
    Edge(edge::Args),
    /// The certificate authority of this installation
    #[cfg(feature = "server")]
    #[command(subcommand)]
    Ca(ca::Command),
    /// Print a fresh secret for the link between control and agents
    #[cfg(feature = "server")]
    #[command(hide = true)]
    JoinSecret,
    /// The child of the KVM probe
    #[cfg(feature = "server")]
    #[command(hide = true)]
    KvmProbe,
    /// Print the API's OpenAPI description
    #[cfg(feature = "server")]
    #[command(hide = true)]
    Openapi,
    /// Print the Debian packages that this host lacks
    #[cfg(feature = "server")]
    #[command(hide = true)]
    HostPackages,
    /// Build the catalogue's root file systems without a server
    #[cfg(feature = "server")]
    #[command(subcommand, hide = true)]
    Image(image::Command),
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        #[cfg(feature = "server")]
        if matches!(self, Command::Up(_) | Command::Control(_) | Command::Agent(_) | Command::Image(_)) {
            // Machines run as users of their own and reach their files through our directories, and template builds
            // take the mask over into the guests' trees. What is secret says so itself, with a mode of its own.
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        }
        #[cfg(feature = "server")]
        if matches!(self, Command::Control(_) | Command::Agent(_) | Command::Edge(_)) {
            crate::supervise::descriptors::allow_many();
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

/// Whether `--json` is in a command line that could not be read. What follows `--` is another program's.
pub fn asks_for_json() -> bool {
    std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        <super::Cli as clap::CommandFactory>::command().debug_assert();
    }
}
