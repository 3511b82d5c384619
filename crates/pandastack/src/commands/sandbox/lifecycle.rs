//! `pandastack sandbox lifecycle`: how long it lives and when it sleeps.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{Lifecycle, OnTimeout, PatchLifecycle};

use super::resolve;
use crate::output::{Output, fields};

/// Arguments. Without options, shows.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// Seconds to live from now
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// No end of life; sleeps when idle
    #[arg(long, value_name = "true|false")]
    persistent: Option<bool>,
    /// Idle seconds before a persistent one sleeps
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// At the end of its life
    #[arg(long, value_name = "kill|hibernate", value_parser = parse_on_timeout)]
    on_timeout: Option<OnTimeout>,
}

fn parse_on_timeout(text: &str) -> Result<OnTimeout, String> {
    match text {
        "kill" => Ok(OnTimeout::Kill),
        "hibernate" => Ok(OnTimeout::Hibernate),
        _ => Err("say `kill` or `hibernate`".to_owned()),
    }
}

/// Carries it out.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let patch = PatchLifecycle {
        ttl_seconds: args.ttl,
        persistent: args.persistent,
        idle_timeout_seconds: args.idle_timeout,
        on_timeout: args.on_timeout,
    };
    let lifecycle = if patch == PatchLifecycle::default() {
        client.get_lifecycle(&id).await?
    } else {
        client.patch_lifecycle(&id, &patch).await?
    };
    output.value(&lifecycle, describe)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(lifecycle: &Lifecycle) -> String {
    let end = match lifecycle.on_timeout {
        OnTimeout::Kill => "deleted",
        OnTimeout::Hibernate => "hibernated",
    };
    let life = if lifecycle.persistent {
        format!("persistent, sleeps after {} s idle", lifecycle.idle_timeout_seconds)
    } else {
        format!("{} s, then {end}", lifecycle.ttl_seconds)
    };
    fields(&[
        ("lifetime", life),
        ("expires", lifecycle.expires_at.map(|at| at.to_string()).unwrap_or_default()),
        ("idle", format!("{} s", lifecycle.idle_seconds)),
    ])
}
