//! `pandastack sandbox ls`, `cat`, `find`, `grep`, `watch` and `sign`: reads files of a sandbox.

use std::process::ExitCode;

use anyhow::{Context, Result};
use jiff::Timestamp;
use pandastack_client::{Client, FindFiles, GrepFiles, WatchEvent};
use pandastack_types::SandboxId;
use pandastack_types::api::{ChangeKind, FileChange, FileEntry, SignFile};
use tokio::signal::unix::{SignalKind, signal};

use super::resolve::resolve;
use crate::failure::Failure;
use crate::output::Output;

/// A path in a sandbox.
#[derive(Debug, clap::Args)]
pub struct SandboxPath {
    /// File or directory in a sandbox; `ID` alone is its root directory
    #[arg(value_name = "ID:/PATH")]
    location: String,
}

impl SandboxPath {
    async fn resolve(&self, client: &Client) -> Result<(SandboxId, String)> {
        let (sandbox, path) = self.location.split_once(':').unwrap_or((&self.location, "/"));
        if !path.starts_with('/') {
            let failure = Failure::new(format!("invalid sandbox path `{path}`: it must be absolute"));
            return Err(failure.hint("write a sandbox path as ID:/path, such as 3f2b:/srv/out").into());
        }
        Ok((resolve(client, sandbox).await?, path.to_owned()))
    }
}

/// Arguments of `ls`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Directory in a sandbox; `ID` alone is its root directory; without it, list sandboxes
    #[arg(value_name = "ID:/PATH")]
    location: Option<String>,
    /// List subdirectories recursively
    #[arg(long, short)]
    recursive: bool,
    /// List subdirectories down to this depth
    #[arg(long, conflicts_with = "recursive")]
    depth: Option<u32>,
}

/// Lists a directory.
pub async fn list(client: &Client, args: ListArgs, output: Output) -> Result<ExitCode> {
    let Some(location) = args.location else { return super::describe::list(client, output).await };
    let (id, path) = SandboxPath { location }.resolve(client).await?;
    let listing = if args.recursive || args.depth.is_some() {
        client.find_files(&id, &FindFiles { path, depth: args.depth, ..Default::default() }).await?
    } else {
        client.list_directory(&id, &path).await?
    };
    show(&listing.entries, listing.truncated, args.recursive || args.depth.is_some(), output)
}

/// Arguments of `find`.
#[derive(Debug, clap::Args)]
pub struct FindArgs {
    #[command(flatten)]
    location: SandboxPath,
    /// Glob pattern: `*.rs` matches names, `src/**/*.rs` matches relative paths
    glob: String,
}

/// Finds files by name.
pub async fn find(client: &Client, args: FindArgs, output: Output) -> Result<ExitCode> {
    let (id, path) = args.location.resolve(client).await?;
    let find = FindFiles { path, glob: Some(args.glob), ..Default::default() };
    let found = client.find_files(&id, &find).await?;
    warn_truncated(found.truncated);
    if output.is_json() {
        output.value(&found.entries, |_| String::new())?;
    } else {
        let paths: Vec<&str> = found.entries.iter().map(|entry| entry.path.as_str()).collect();
        output.line(&paths.join("\n"))?;
    }
    Ok(if found.entries.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Arguments of `grep`.
#[derive(Debug, clap::Args)]
pub struct GrepArgs {
    /// Regular expression to search for
    pattern: String,
    #[command(flatten)]
    location: SandboxPath,
    /// Ignore case
    #[arg(long, short)]
    ignore_case: bool,
    /// Treat the pattern as plain text
    #[arg(long, short = 'F')]
    fixed: bool,
    /// Search only files that match this glob pattern
    #[arg(long)]
    glob: Option<String>,
}

/// Searches file contents.
pub async fn grep(client: &Client, args: GrepArgs, output: Output) -> Result<ExitCode> {
    let (id, path) = args.location.resolve(client).await?;
    let GrepArgs { pattern, ignore_case, fixed, glob, .. } = args;
    let grep = GrepFiles { path, pattern, glob, ignore_case, fixed, limit: None };
    let found = client.grep_files(&id, &grep).await?;
    warn_truncated(found.truncated);
    if output.is_json() {
        output.value(&found.matches, |_| String::new())?;
    } else {
        let lines: Vec<String> =
            found.matches.iter().map(|m| format!("{}:{}:{}", m.path, m.line, m.text)).collect();
        output.line(&lines.join("\n"))?;
    }
    Ok(if found.matches.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints a file.
pub async fn cat(client: &Client, location: SandboxPath, output: Output) -> Result<ExitCode> {
    let (id, path) = location.resolve(client).await?;
    let mut bytes = client.read_file(&id, &path).await?;
    while let Some(chunk) = bytes.next().await? {
        output.raw(&chunk)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints changes until Ctrl-C.
pub async fn watch(client: &Client, location: SandboxPath, output: Output) -> Result<ExitCode> {
    let (id, path) = location.resolve(client).await?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut changes = client.watch_files(&id, &path, true).await?;
    loop {
        tokio::select! {
            event = changes.next() => match event? {
                Some(WatchEvent::Changed(change)) if output.is_json() => output.line(&serde_json::to_string(&change)?)?,
                Some(WatchEvent::Changed(change)) => output.line(&describe(&change))?,
                Some(WatchEvent::Watching { .. }) => eprintln!("watching {path}; press Ctrl-C to stop"),
                None => return Ok(ExitCode::SUCCESS),
            },
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Arguments of `sign`.
#[derive(Debug, clap::Args)]
pub struct SignArgs {
    #[command(flatten)]
    location: SandboxPath,
    /// Create a URL for uploading the file instead of downloading it
    #[arg(long)]
    upload: bool,
    /// Seconds until the URL expires
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u64>,
}

/// Prints a signed URL.
pub async fn sign(client: &Client, args: SignArgs, output: Output) -> Result<ExitCode> {
    let (id, path) = args.location.resolve(client).await?;
    let method = Some(if args.upload { "PUT" } else { "GET" }.to_owned());
    let signed =
        client.sign_file(&id, &SignFile { path, method, expires_in_seconds: args.expires_in }).await?;
    output.value(&signed, |signed| signed.url.clone())?;
    Ok(ExitCode::SUCCESS)
}

fn describe(change: &FileChange) -> String {
    let word = match change.kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Removed => "removed",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Attributes => "attributes",
        ChangeKind::Overflow => "overflow",
    };
    match &change.to {
        Some(to) => format!("{word:<10}  {} -> {to}", change.path),
        None => format!("{word:<10}  {}", change.path),
    }
}

fn show(entries: &[FileEntry], truncated: bool, full_path: bool, output: Output) -> Result<ExitCode> {
    warn_truncated(truncated);
    output.table(entries, ["MODE", "OWNER", "SIZE", "MODIFIED", "NAME"], |entry| {
        let owner = entry.owner.clone().unwrap_or_else(|| entry.uid.to_string());
        let name = if full_path { &entry.path } else { &entry.name };
        let name = match &entry.link_target {
            Some(target) => format!("{name} -> {target}"),
            None => name.clone(),
        };
        let modified = Timestamp::from_second(entry.mtime).map(|at| at.to_string()).unwrap_or_default();
        [entry.mode.clone(), owner, entry.size.to_string(), modified, name]
    })?;
    Ok(ExitCode::SUCCESS)
}

fn warn_truncated(truncated: bool) {
    if truncated {
        eprintln!("warning: the output is truncated; narrow the path or the pattern");
    }
}
