//! `pandastack sandbox create`: creates a sandbox.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{
    AttachVolume, Checkpoints, CreateSandbox, OnTimeout, RequiredIsolation, Sandbox,
};
use pandastack_types::host_header::HostHeader;
use pandastack_types::limits::CHECKPOINTS_KEPT_DEFAULT;
use pandastack_types::preview::Visibility;

use crate::commands::create;
use crate::commands::pairs::pairs;
use crate::commands::snapshot;
use crate::output::{Output, age};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A sandbox is deleted one hour after its creation, unless --ttl or --persistent is given."
)]
pub struct Args {
    /// Template to create from [default: base]
    #[arg(long, short)]
    template: Option<String>,
    /// Snapshot to create from, instead of a template: ID, unique ID prefix or name
    #[arg(long, value_name = "ID", conflicts_with = "template")]
    from_snapshot: Option<String>,
    /// Number of vCPUs [default: from the template]
    #[arg(long, value_name = "COUNT", conflicts_with = "from_snapshot")]
    cpu: Option<u32>,
    /// Memory in MiB, a multiple of 128 [default: from the template]
    #[arg(long, value_name = "MIB", conflicts_with = "from_snapshot")]
    memory: Option<u32>,
    /// Time to live in seconds [default: 3600]
    #[arg(long, value_name = "SECONDS", conflicts_with = "persistent")]
    ttl: Option<u64>,
    /// Never expire; hibernate when idle
    #[arg(long)]
    persistent: bool,
    /// Hibernate after this many idle seconds [default: 300 with --persistent, otherwise never]
    #[arg(long, value_name = "SECONDS")]
    idle_timeout: Option<u64>,
    /// Hibernate the sandbox instead of deleting it when the TTL ends
    #[arg(long)]
    hibernate_on_timeout: bool,
    /// Interval between checkpoints (automatic snapshots) of an active sandbox, in seconds
    #[arg(long, value_name = "SECONDS")]
    checkpoint_every: Option<u64>,
    /// Number of checkpoints to keep
    #[arg(long, value_name = "COUNT", requires = "checkpoint_every", default_value_t = CHECKPOINTS_KEPT_DEFAULT)]
    checkpoints_kept: u32,
    /// Name to use instead of the ID; must be unique in the workspace
    #[arg(long)]
    name: Option<String>,
    /// Metadata label; can be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Environment variable for all commands; can be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    #[command(flatten)]
    network: super::network::PolicyArgs,
    /// Visibility of the sandbox's ports [default: from the workspace]
    #[arg(long, value_name = "unlisted|private|off")]
    visibility: Option<Visibility>,
    /// `Host` header of requests to its ports, such as 'localhost:${PORT}' [default: the client's]
    #[arg(long, value_name = "NAME[:PORT]")]
    host_header: Option<HostHeader>,
    /// Required isolation; `hardware` excludes hosts that use emulation
    #[arg(long, value_name = "any|hardware")]
    isolation: Option<RequiredIsolation>,
    /// Volume to mount, at /volumes/NAME by default; can be repeated
    #[arg(long, value_name = "NAME[:PATH][:ro]", value_parser = parse_volume)]
    volume: Vec<AttachVolume>,
}

/// `data`, `data:/path`, `data:ro`, `data:/path:ro`.
fn parse_volume(text: &str) -> Result<AttachVolume, String> {
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, Some(true)),
        None => (text.strip_suffix(":rw").unwrap_or(text), None),
    };
    let (name, path) = match rest.split_once(':') {
        Some((name, path)) if path.starts_with('/') => (name, Some(path.to_owned())),
        Some(_) => {
            return Err("expected NAME or NAME:/PATH, followed by `:ro` to mount it read-only".to_owned());
        }
        None => (rest, None),
    };
    Ok(AttachVolume { name: name.to_owned(), path, read_only })
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let from_snapshot = match &args.from_snapshot {
        Some(text) => Some(snapshot::find(client, text).await?),
        None => None,
    };
    let request = CreateSandbox {
        template: args.template,
        from_snapshot,
        cpu: args.cpu,
        memory_mb: args.memory,
        name: args.name,
        metadata: pairs(&args.metadata)?,
        env: pairs(&args.env)?,
        ttl_seconds: args.ttl,
        persistent: args.persistent.then_some(true),
        idle_timeout_seconds: args.idle_timeout,
        checkpoints: args
            .checkpoint_every
            .map(|every_seconds| Checkpoints { every_seconds, keep_last: args.checkpoints_kept }),
        on_timeout: args.hibernate_on_timeout.then_some(OnTimeout::Hibernate),
        keep_on_timeout: None,
        network: args.network.policy()?,
        visibility: args.visibility,
        host_header: args.host_header,
        volumes: (!args.volume.is_empty()).then_some(args.volume),
        isolation: args.isolation,
    };
    let sandbox = create::create(client, &request).await?;
    output.value(&sandbox, |sandbox| sandbox.id.to_string())?;
    output.note(&lifetime(&sandbox));
    Ok(ExitCode::SUCCESS)
}

/// How long the sandbox lives, and how to change it.
fn lifetime(sandbox: &Sandbox) -> String {
    let Some(expires) = sandbox.expires_at else {
        return "never expires; hibernates when idle and wakes with the next call".to_owned();
    };
    let left = age(sandbox.created_at, expires);
    format!(
        "expires in {left}; to change that, run `pandastack sandbox lifecycle {} --ttl SECONDS`",
        sandbox.id
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, Option<&str>, bool)>) {
        let parsed = parse_volume(text).ok();
        let shown = parsed
            .as_ref()
            .map(|volume| (volume.name.as_str(), volume.path.as_deref(), volume.read_only.unwrap_or(false)));
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn volume_arguments_accept_a_path_and_a_mode() {
        check("data", Some(("data", None, false)));
        check("data:/var/lib/data", Some(("data", Some("/var/lib/data"), false)));
        check("data:ro", Some(("data", None, true)));
        check("data:/x:ro", Some(("data", Some("/x"), true)));
        check("data:x", None);
    }
}
