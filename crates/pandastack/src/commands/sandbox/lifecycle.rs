//! `pandastack sandbox lifecycle`: how long it lives and when it sleeps.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{Checkpoints, Lifecycle, OnTimeout, PatchLifecycle};
use pandastack_types::limits::CHECKPOINTS_KEPT_DEFAULT;

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
    /// Idle seconds before it sleeps
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// At the end of its life
    #[arg(long, value_name = "kill|hibernate", value_parser = parse_on_timeout)]
    on_timeout: Option<OnTimeout>,
    /// Take a snapshot every so often while something happens in it; 0 ends that
    #[arg(long, value_name = "SECONDS")]
    checkpoint_every: Option<u64>,
    /// How many of those are kept
    #[arg(long, value_name = "COUNT", requires = "checkpoint_every")]
    checkpoints_kept: Option<u32>,
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
        format!("persistent, sleeps after {} s idle", lifecycle.idle_timeout_seconds)
    } else {
        format!("{} s, then {end}", lifecycle.ttl_seconds)
    };
    let sleep = match lifecycle.sleeps_when_idle && !lifecycle.persistent {
        true => format!("after {} s idle", lifecycle.idle_timeout_seconds),
        false => String::new(),
    };
    let checkpoints = lifecycle
        .checkpoints
        .map_or_else(String::new, |c| format!("every {} s, the last {} kept", c.every_seconds, c.keep_last));
    fields(&[
        ("lifetime", life),
        ("sleeps", sleep),
        ("kept awake until", lifecycle.awake_until.map(|at| at.to_string()).unwrap_or_default()),
        ("checkpoints", checkpoints),
        ("expires", lifecycle.expires_at.map(|at| at.to_string()).unwrap_or_default()),
        ("idle", format!("{} s", lifecycle.idle_seconds)),
    ])
}
