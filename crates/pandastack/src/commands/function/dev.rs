//! `pandastack fn dev`: deployed again whenever a file changes, with what it prints.
//!
//! It runs where it will run later, in a machine of the server, so there is no second runtime to behave otherwise.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use pandastack_client::Client;
use tokio::sync::mpsc;

use super::deploy::{self, deploy};

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    deploy: deploy::Args,
}

/// Deploys, shows what is printed, and deploys again after each change, until it is interrupted.
pub async fn run(client: &Client, args: Args) -> Result<ExitCode> {
    let source = args.deploy.source.clone();
    let mut changes = watch(&source).with_context(|| format!("watch {}", source.display()))?;
    loop {
        match deploy(client, &args.deploy).await {
            Ok(function) => {
                eprintln!("version {} at {}", function.version, function.url.unwrap_or_default());
            }
            Err(error) => eprintln!("error: {error:#}"),
        }
        // Whatever changed during the deploy is in the next one.
        if !show_until_changed(client, &args.deploy.name, &mut changes).await? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// `false` when nothing is watched any more.
async fn show_until_changed(client: &Client, name: &str, changes: &mut mpsc::Receiver<()>) -> Result<bool> {
    let Ok(mut lines) = client.follow_function(name).await else {
        return Ok(changes.recv().await.is_some());
    };
    loop {
        tokio::select! {
            change = changes.recv() => return Ok(change.is_some()),
            line = lines.next() => match line? {
                Some((_, text)) => eprint!("{text}"),
                None => return Ok(changes.recv().await.is_some()),
            },
        }
    }
}

/// A message per batch of changes below a directory, or of a file.
fn watch(source: &Path) -> Result<mpsc::Receiver<()>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    watch_tree(&inotify, source)?;
    let (sender, receiver) = mpsc::channel(1);
    let root = source.to_owned();
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        while let Ok(events) = inotify.read_events() {
            let made_directory = events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_ISDIR));
            if made_directory && watch_tree(&inotify, &root).is_err() {
                return;
            }
            // One that waits already covers this change.
            if let Err(mpsc::error::TrySendError::Closed(())) = sender.try_send(()) {
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn watch_tree(inotify: &Inotify, path: &Path) -> Result<()> {
    let flags = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM;
    inotify.add_watch(path, flags)?;
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type()?.is_dir() && !hidden && entry.file_name() != "node_modules" {
                watch_tree(inotify, &entry.path())?;
            }
        }
    }
    Ok(())
}
