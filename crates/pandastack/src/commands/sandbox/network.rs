//! `pandastack sandbox network`: what it may reach.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::network::{Egress, NetworkPolicy, Preset, Target};

use super::resolve;
use crate::failure::Failure;
use crate::output::{Output, fields};

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show what it may reach
    Get {
        /// The sandbox's id
        id: String,
    },
    /// Change what it may reach, at once
    Set {
        /// The sandbox's id
        id: String,
        #[command(flatten)]
        policy: PolicyArgs,
    },
}

/// A policy on the command line.
#[derive(Debug, clap::Args)]
pub struct PolicyArgs {
    /// Start from `all` (the public internet) or `none` [default: none with --allow or --preset, else all]
    #[arg(long = "network", value_name = "all|none", value_parser = parse_egress)]
    egress: Option<Egress>,
    /// Allow an address, network or name, such as 10.0.0.0/8:5432, api.example.com or *.example.com:443
    #[arg(long, value_name = "TARGET", value_delimiter = ' ')]
    allow: Vec<Target>,
    /// Deny one, also where --allow allows it
    #[arg(long, value_name = "TARGET", value_delimiter = ' ')]
    deny: Vec<Target>,
    /// Allow a list kept by the platform: `package-registries`
    #[arg(long, value_name = "NAME", value_parser = parse_preset)]
    preset: Vec<Preset>,
}

fn parse_egress(text: &str) -> Result<Egress, String> {
    match text {
        "all" => Ok(Egress::All),
        "none" => Ok(Egress::None),
        _ => Err("say `all` or `none`".to_owned()),
    }
}

fn parse_preset(text: &str) -> Result<Preset, String> {
    match text {
        "package-registries" => Ok(Preset::PackageRegistries),
        _ => Err("the only one is `package-registries`".to_owned()),
    }
}

impl PolicyArgs {
    /// The policy, if any of it was given.
    pub fn policy(self) -> Result<Option<NetworkPolicy>> {
        let PolicyArgs { egress, allow, deny, preset } = self;
        if egress.is_none() && allow.is_empty() && deny.is_empty() && preset.is_empty() {
            return Ok(None);
        }
        // Checked as the server would, by the same code.
        let mut draft = serde_json::json!({ "allow": allow, "deny": deny, "presets": preset });
        if let Some(egress) = egress {
            draft["egress"] = serde_json::json!(egress);
        }
        Ok(Some(serde_json::from_value(draft).map_err(|error| Failure::new(error.to_string()))?))
    }
}

/// Carries it out.
pub async fn run(client: &Client, command: Command, output: Output) -> Result<ExitCode> {
    let policy = match command {
        Command::Get { id } => client.get_network(&resolve(client, &id).await?).await?,
        Command::Set { id, policy } => {
            let nothing = || {
                Failure::new("nothing to change".to_owned())
                    .hint("give --network all or none, --allow, --deny or --preset; all of it is replaced")
            };
            let policy = policy.policy()?.ok_or_else(nothing)?;
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
