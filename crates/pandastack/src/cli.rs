//! The command line: every command and its dispatch.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[cfg(feature = "server")]
use crate::commands::{
    agent, ca, control, doctor, down, edge, engine, host_packages, image, join_secret, kvm_probe, openapi,
    secrets, up,
};
use crate::commands::{
    app, audit, bench, completion, config, db, forward, function, host, login, man_pages, mcp, member,
    outdated, quota, run, sandbox, schedule, snapshot, template, token, usage, verify, version, volume,
    webhook, whoami, workspace,
};
use crate::output::{Format, Output};

/// Run sandboxes, apps, functions and databases in microVMs on your own machines
#[derive(Debug, Parser)]
#[command(name = "pandastack", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON instead of human-readable output
    #[arg(long, global = true)]
    json: bool,
    /// Output format; `wide` adds columns to lists
    #[arg(long, short, global = true, value_name = "json|table|wide")]
    output: Option<Format>,
    /// Print only names or IDs, without headers, notes and progress
    #[arg(long, short, global = true)]
    quiet: bool,
}

impl Cli {
    /// The output that the global options select.
    pub fn output(&self) -> Output {
        let format = if self.json { Format::Json } else { self.output.unwrap_or(Format::Table) };
        if self.quiet {
            crate::progress::silence();
        }
        Output::new(format, self.quiet)
    }
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start PandaStack on this machine
    #[cfg(feature = "server")]
    Up(Box<up::Args>),
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
    /// Manage webhooks, which receive events of the workspace
    #[command(subcommand)]
    Webhook(webhook::Command),
    /// Sign in to a server through its login provider
    Login(login::Args),
    /// Sign out and revoke the session of `pandastack login`
    Logout,
    /// Manage members of the workspace and their sessions
    #[command(subcommand)]
    Member(member::Command),
    /// Manage API keys
    #[command(subcommand)]
    Token(token::Command),
    /// Show or change workspace quotas
    #[command(subcommand)]
    Quota(quota::Command),
    /// Manage workspaces and defaults for new sandboxes
    #[command(subcommand)]
    Workspace(workspace::Command),
    /// Manage hosts
    #[command(subcommand)]
    Host(host::Command),
    /// Show the server and API key in use
    Whoami,
    /// Show or change the client configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Show the client and server versions
    Version,
    /// Check the files of a release against its signature
    Verify(verify::Args),
    /// Show workspace usage
    Usage(usage::Args),
    /// Show the audit log
    Audit(audit::Args),
    /// Show sleeping sandboxes, snapshots and templates with outdated components
    Outdated(outdated::Args),
    /// Measure create, exec, fork and delete latency
    Bench(bench::Args),
    /// Serve sandboxes as tools over the Model Context Protocol (MCP)
    Mcp(mcp::Args),
    /// Generate shell completions
    Completion(completion::Args),
    /// Run the control server
    #[cfg(feature = "server")]
    Control(Box<control::Args>),
    /// Run the agent on this host
    #[cfg(feature = "server")]
    Agent(Box<agent::Args>),
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
    /// Show or rotate the join secret
    #[cfg(feature = "server")]
    #[command(subcommand)]
    Secrets(secrets::Command),
    /// Generate a join secret for control and agents
    #[cfg(feature = "server")]
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
    HostPackages(host_packages::Args),
    /// Write a manual page for each command into a directory
    #[command(hide = true)]
    ManPages(man_pages::Args),
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
            Command::Up(args) => up::run(*args, output),
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
            Command::Webhook(command) => command.run(output),
            Command::Login(args) => login::run(args, output),
            Command::Logout => login::sign_out(output),
            Command::Member(command) => command.run(output),
            Command::Token(command) => command.run(output),
            Command::Quota(command) => command.run(output),
            Command::Workspace(command) => command.run(output),
            Command::Host(command) => command.run(output),
            Command::Whoami => whoami::run(output),
            Command::Config(command) => command.run(output),
            Command::Version => version::run(output),
            Command::Verify(args) => verify::run(args, output),
            Command::Usage(args) => usage::run(args, output),
            Command::Audit(args) => audit::run(args, output),
            Command::Outdated(args) => outdated::run(args, output),
            Command::Bench(args) => bench::run(args, output),
            Command::Mcp(args) => mcp::run(args),
            Command::Completion(args) => completion::run(args, output),
            Command::ManPages(args) => man_pages::run(args),
            #[cfg(feature = "server")]
            Command::Control(args) => control::run(*args),
            #[cfg(feature = "server")]
            Command::Agent(args) => agent::run(*args),
            #[cfg(feature = "server")]
            Command::Edge(args) => edge::run(args),
            #[cfg(feature = "server")]
            Command::Engine(command) => command.run(output),
            #[cfg(feature = "server")]
            Command::Ca(command) => command.run(),
            #[cfg(feature = "server")]
            Command::Secrets(command) => command.run(output),
            #[cfg(feature = "server")]
            Command::JoinSecret => join_secret::run(output),
            #[cfg(feature = "server")]
            Command::KvmProbe => kvm_probe::run(),
            #[cfg(feature = "server")]
            Command::Openapi => openapi::run(output),
            #[cfg(feature = "server")]
            Command::HostPackages(args) => host_packages::run(args, output),
            #[cfg(feature = "server")]
            Command::Image(command) => command.run(output),
        }
    }
}

/// The output that an invalid command line selects. Arguments after `--` belong to another program.
pub fn requested_output() -> Output {
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let is_json = words.iter().any(|word| word == "--json" || word == "--output=json" || word == "-ojson");
    let is_pair =
        |pair: &[std::ffi::OsString]| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json";
    let format = if is_json || words.windows(2).any(is_pair) { Format::Json } else { Format::Table };
    Output::new(format, false)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::{Arg, Command, CommandFactory, Parser};

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn release_units_run_existing_commands() {
        let units = [
            include_str!("../../../deploy/systemd/pandastack.service"),
            include_str!("../../../deploy/systemd/pandastack-control.service"),
            include_str!("../../../deploy/systemd/pandastack-agent.service"),
            include_str!("../../../deploy/systemd/pandastack-edge.service"),
        ];
        for unit in units {
            let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/")).unwrap();
            Cli::try_parse_from(line.split(' ')).unwrap();
        }
    }

    /// Options that are a switch in one command and take a value in another, and why.
    const KINDS: [(&str, &str); 4] = [
        ("always-on", "a switch when it is created, a value when it is changed"),
        ("persistent", "a switch when it is created, a value when it is changed"),
        ("protected", "a switch when it is created, a value when it is changed"),
        ("secret", "marks all variables, or names one"),
    ];
    /// Letters with two meanings, and the convention behind each.
    const LETTERS: [(char, &str); 5] = [
        ('t', "--template, and --tty as in docker"),
        ('f', "--follow as in tail, and --file as in docker"),
        ('i', "--interactive as in docker, and --ignore-case as in grep"),
        ('n', "--count and --limit: a number of things"),
        ('d', "--detach: in the background"),
    ];

    fn walk(command: &Command, path: &str, seen: &mut impl FnMut(&str, &Arg)) {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
            seen(path, arg);
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            walk(sub, &format!("{path} {}", sub.get_name()), seen);
        }
    }

    #[test]
    fn one_flag_has_one_meaning() {
        let mut kinds: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let mut letters: BTreeMap<char, BTreeSet<String>> = BTreeMap::new();
        walk(&Cli::command(), "pandastack", &mut |path, arg| {
            let long = arg.get_long().unwrap_or_default().to_owned();
            let takes = arg.get_action().takes_values();
            let kind = if takes { "a value" } else { "a switch" }.to_owned();
            kinds.entry(long.clone()).or_default().insert(kind, path.to_owned());
            if let Some(letter) = arg.get_short() {
                letters.entry(letter).or_default().insert(long);
            }
        });
        for (long, kinds) in kinds {
            let known = KINDS.iter().any(|(name, _)| *name == long);
            assert!(kinds.len() == 1 || known, "--{long} is a switch and takes a value: {kinds:?}");
        }
        for (letter, longs) in letters {
            let known = LETTERS.iter().any(|(one, _)| *one == letter);
            assert!(longs.len() == 1 || known, "-{letter} stands for several options: {longs:?}");
        }
    }
}
