//! `pandastack sandbox network`: the network policy of a sandbox.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::network::{Egress, NetworkPolicy, Preset, Target};

use super::resolve::resolve;
use crate::failure::Failure;
use crate::output::{Output, fields};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the network policy
    Get {
        /// Sandbox ID, unique ID prefix or name
        id: String,
    },
    /// Replace the network policy; takes effect immediately
    Set {
        /// Sandbox ID, unique ID prefix or name
        id: String,
        #[command(flatten)]
        policy: PolicyArgs,
    },
}

/// Network policy options.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    /// Base policy: `all` allows the public internet, `none` denies all [default: none with --allow
    /// or --preset, else all]
    #[arg(long = "network", value_name = "all|none", value_parser = parse_egress)]
    egress: Option<Egress>,
    /// Address, CIDR or host name to allow, such as 10.0.0.0/8:5432 or *.example.com:443; can be repeated
    #[arg(long, value_name = "TARGET", value_delimiter = ' ')]
    allow: Vec<Target>,
    /// Address, CIDR or host name to deny; takes precedence over --allow; can be repeated
    #[arg(long, value_name = "TARGET", value_delimiter = ' ')]
    deny: Vec<Target>,
    /// Predefined list of hosts to allow: `package-registries`
    #[arg(long, value_name = "NAME", value_parser = parse_preset)]
    preset: Vec<Preset>,
}

fn parse_egress(text: &str) -> Result<Egress, String> {
    match text {
        "all" => Ok(Egress::All),
        "none" => Ok(Egress::None),
        _ => Err("expected `all` or `none`".to_owned()),
    }
}

fn parse_preset(text: &str) -> Result<Preset, String> {
    match text {
        "package-registries" => Ok(Preset::PackageRegistries),
        _ => Err("expected `package-registries`".to_owned()),
    }
}

impl PolicyArgs {
    /// The policy; `None` if no option was given.
    pub fn policy(self) -> Result<Option<NetworkPolicy>> {
        let PolicyArgs { egress, allow, deny, preset } = self;
        if egress.is_none() && allow.is_empty() && deny.is_empty() && preset.is_empty() {
            return Ok(None);
        }
        // Validated by the same code as on the server.
        let mut draft = serde_json::json!({ "allow": allow, "deny": deny, "presets": preset });
        if let Some(egress) = egress {
            draft["egress"] = serde_json::json!(egress);
        }
        Ok(Some(
            serde_json::from_value(draft)
                .map_err(|error| Failure::new(format!("invalid network policy: {error}")))?,
        ))
    }
}

/// Runs the command.
pub async fn run(client: &Client, command: Command, output: Output) -> Result<ExitCode> {
    let policy = match command {
        Command::Get { id } => client.get_network(&resolve(client, &id).await?).await?,
        Command::Set { id, policy } => {
            let missing = || {
                Failure::new("no network policy given").hint(
                    "use --network, --allow, --deny or --preset; the new policy replaces the current one",
                )
            };
            let policy = policy.policy()?.ok_or_else(missing)?;
            client.set_network(&resolve(client, &id).await?, &policy).await?
        }
    };
    output.value(&policy, describe)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(policy: &NetworkPolicy) -> String {
    let list = |targets: &[Target]| targets.iter().map(Target::to_string).collect::<Vec<_>>().join(" ");
    let presets: Vec<_> = policy.presets.iter().map(|preset| preset.as_str()).collect();
    let egress = match policy.egress {
        Egress::All => "all",
        Egress::None => "none",
    };
    fields(&[
        ("network", egress.to_owned()),
        ("presets", presets.join(" ")),
        ("allow", list(&policy.allow)),
        ("deny", list(&policy.deny)),
    ])
}
