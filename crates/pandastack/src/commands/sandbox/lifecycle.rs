//! `pandastack sandbox lifecycle`: TTL, idle timeout and checkpoints of a sandbox.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{Checkpoints, Lifecycle, OnTimeout, PatchLifecycle};
use pandastack_types::limits::CHECKPOINTS_KEPT_DEFAULT;

use super::resolve::resolve;
use crate::output::{Output, fields};

/// Arguments. Without options, the command shows the current settings.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// New TTL in seconds, from now
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// Never expire; hibernate when idle
    #[arg(long, value_name = "true|false")]
    persistent: Option<bool>,
    /// Hibernate after this many idle seconds
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// Action when the TTL ends
    #[arg(long, value_name = "kill|hibernate", value_parser = parse_on_timeout)]
    on_timeout: Option<OnTimeout>,
    /// Interval between checkpoints (automatic snapshots) of an active sandbox, in seconds; 0 to stop
    #[arg(long, value_name = "SECONDS")]
    checkpoint_every: Option<u64>,
    /// Number of checkpoints to keep [default: 5]
    #[arg(long, value_name = "COUNT", requires = "checkpoint_every")]
    checkpoints_kept: Option<u32>,
}

fn parse_on_timeout(text: &str) -> Result<OnTimeout, String> {
    match text {
        "kill" => Ok(OnTimeout::Kill),
        "hibernate" => Ok(OnTimeout::Hibernate),
        _ => Err("expected `kill` or `hibernate`".to_owned()),
    }
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let patch = PatchLifecycle {
        ttl_seconds: args.ttl,
        persistent: args.persistent,
        idle_timeout_seconds: args.idle_timeout,
        on_timeout: args.on_timeout,
        checkpoints: args.checkpoint_every.map(|every_seconds| Checkpoints {
            every_seconds,
            keep_last: args.checkpoints_kept.unwrap_or(CHECKPOINTS_KEPT_DEFAULT),
        }),
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
        format!("persistent, hibernates after {} s idle", lifecycle.idle_timeout_seconds)
    } else {
        format!("{} s, then {end}", lifecycle.ttl_seconds)
    };
    let hibernation = match lifecycle.sleeps_when_idle && !lifecycle.persistent {
        true => format!("after {} s idle", lifecycle.idle_timeout_seconds),
        false => String::new(),
    };
    let checkpoints = lifecycle
        .checkpoints
        .map_or_else(String::new, |c| format!("every {} s, keep the last {}", c.every_seconds, c.keep_last));
    fields(&[
        ("lifetime", life),
        ("hibernates", hibernation),
        ("kept awake until", lifecycle.awake_until.map(|at| at.to_string()).unwrap_or_default()),
        ("checkpoints", checkpoints),
        ("expires", lifecycle.expires_at.map(|at| at.to_string()).unwrap_or_default()),
        ("idle", format!("{} s", lifecycle.idle_seconds)),
    ])
}
