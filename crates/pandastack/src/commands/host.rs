//! `pandastack host`: the hosts of the installation.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use pandastack_client::Client;
use pandastack_types::HostId;
use pandastack_types::api::{CreateHostToken, Host, MigrateHosts};
use pandastack_types::host_identity::HostRole;

use super::runtime::with_client;
use super::token::duration;
use crate::output::{Output, age, size};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List hosts
    #[command(visible_alias = "ls")]
    List,
    /// Create a token with which one host can join once, and print it; it is shown only once
    Token(TokenArgs),
    /// Move hosts from the shared join secret to certificates; sandboxes keep running
    Migrate(MigrateArgs),
    /// Remove a host: close its connections and refuse its certificate
    #[command(visible_alias = "rm")]
    Remove {
        /// ID of the host, as shown by `pandastack host list`
        host: HostId,
    },
}

/// A new join token.
#[derive(Debug, clap::Args)]
pub struct TokenArgs {
    /// How long the token can be used, such as `15m`; at most `24h`
    #[arg(long, default_value = "15m", value_name = "DURATION", value_parser = duration)]
    ttl: SignedDuration,
    /// The only host that may use the token; required for a host that joined or reported before
    #[arg(long, value_name = "ID")]
    host: Option<HostId>,
    /// Let the host join as an edge proxy instead of an agent
    #[arg(long)]
    edge: bool,
}

/// A migration to certificates.
#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// Stop waiting for hosts after this many seconds
    #[arg(long = "timeout", default_value_t = 60, value_name = "SECONDS")]
    wait_seconds: u32,
    /// Refuse the shared secret even if some hosts still use it
    #[arg(long)]
    force: bool,
}

/// Pause between two looks at the progress of a migration.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

async fn migrate(client: &Client, args: &MigrateArgs, output: Output) -> Result<ExitCode> {
    let until = Timestamp::now().saturating_add(SignedDuration::from_secs(args.wait_seconds.into()))?;
    let mut progress = client.migrate_hosts(&MigrateHosts::default()).await?;
    while !progress.pending.is_empty() && Timestamp::now() < until {
        tokio::time::sleep(LOOK_AGAIN).await;
        progress = client.migrate_hosts(&MigrateHosts::default()).await?;
    }
    progress = client.migrate_hosts(&MigrateHosts { finish: true, force: args.force }).await?;
    output.value(&progress, |progress| {
        let pending: Vec<&str> = progress.pending.iter().map(HostId::as_str).collect();
        match progress.finished {
            true => "all hosts use certificates; the shared secret is refused over TCP".to_owned(),
            false => format!("still on the shared secret: {}", pending.join(", ")),
        }
    })?;
    if !progress.finished {
        output.note("start these hosts with this version and run the command again, or use --force");
        return Ok(ExitCode::FAILURE);
    }
    output.note("rotate the secret, which hosts still have in a file: `pandastack secrets rotate`");
    Ok(ExitCode::SUCCESS)
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::List => {
                    let (hosts, now) = (client.list_hosts().await?, Timestamp::now());
                    list(&hosts, now, output)?;
                }
                Command::Token(args) => {
                    let request = CreateHostToken {
                        role: Some(if args.edge { HostRole::Edge } else { HostRole::Agent }),
                        host: args.host,
                        ttl_seconds: Some(u32::try_from(args.ttl.as_secs()).context("--ttl is too long")?),
                    };
                    let token = client.create_host_token(&request).await?;
                    output.value(&token, |token| token.token.clone())?;
                    let start = match token.role {
                        HostRole::Edge => "pandastack edge --join TOKEN --control https://ADDRESS:PORT",
                        _ => {
                            "pandastack agent --join TOKEN --control https://ADDRESS:PORT --advertise ADDRESS"
                        }
                    };
                    output.note(&format!("until {}, start one host with `{start}`", token.expires_at));
                }
                Command::Migrate(args) => return migrate(&client, &args, output).await,
                Command::Remove { host } => {
                    client.remove_host(host.as_str()).await?;
                    output.note(&format!("removed host {host}"));
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn list(hosts: &[Host], now: Timestamp, output: Output) -> Result<()> {
    let columns =
        ["ID", "STATUS", "LINK", "ENGINE", "ISOLATION", "SANDBOXES", "FREE MEMORY", "FREE DISK", "VERSION"];
    let more = ["ROLE", "LAST SEEN", "CERTIFICATE"];
    let row = |host: &Host| {
        [
            host.id.to_string(),
            if host.reachable { "reachable" } else { "unreachable" }.to_owned(),
            host.link.as_str().replace('_', " "),
            host.engine.clone(),
            host.isolation.clone(),
            host.sandboxes.to_string(),
            format!("{} MiB", host.memory_free_mb),
            size(host.disk_free_bytes),
            host.version.clone(),
        ]
    };
    let more_of = |host: &Host| {
        let until = host.certificate_expires_at.map(|at| format!("until {at}"));
        [host.role.to_string(), age(host.last_seen_at, now), until.unwrap_or_default()]
    };
    output.wide_table(hosts, columns, row, more, more_of)
}
