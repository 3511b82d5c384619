//! `pandastack template export`: writes a version of a template to a file.
//!
//! A sandbox of the version boots from its disk, so that no process changes the files while they are read.
//! They stream into the file; no server keeps a copy. The memory of the template's machine is not exported:
//! it only fits hosts of the same kind.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use bytes::Bytes;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{CreateSandbox, ImageConfig, Keep, OnTimeout, Template};
use serde::Serialize;
use tokio::sync::mpsc;

use super::image_file::{self, ImageFile};
use super::labels;
use crate::commands::create::create;
use crate::commands::wait::or_interrupt;
use crate::failure::Failure;
use crate::output::{Output, size};
use crate::progress::Progress;

/// Pieces between the connection and the file.
const PIECES: usize = 16;
/// Lifetime of the sandbox if this program is killed.
const TTL_SECONDS: u64 = 2 * 3600;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Template name, with a tag to export another version than `latest`
    #[arg(value_name = "NAME[:TAG]")]
    name: String,
    /// File to write: an OCI image layout as a tar archive
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// What was exported.
#[derive(Serialize)]
struct Exported {
    template: String,
    file: PathBuf,
    #[serde(flatten)]
    image: ImageFile,
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let Args { name, file, force } = args;
    if !force && file.symlink_metadata().is_ok() {
        let failure = Failure::new(format!("{} exists", file.display()));
        return Err(failure.hint("replace it with --force").into());
    }
    let template = client.get_template(&name).await?;
    if template.volume.is_some() {
        return Err(Failure::new(format!(
            "template `{name}` has a volume, which an exported template cannot have"
        ))
        .into());
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", file.display());
    // Removed when it is dropped, until it gets its name.
    let target = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
    let request = CreateSandbox {
        template: Some(name.clone()),
        ttl_seconds: Some(TTL_SECONDS),
        on_timeout: Some(OnTimeout::Kill),
        ..CreateSandbox::default()
    };
    let sandbox = create(client, &request).await?;
    let id: SandboxId = sandbox.id;
    let exported =
        or_interrupt("no file was written", export(client, &id, &name, &template, target.reopen()?)).await;
    let deleted = client.delete_sandbox(&id).await;
    let image = exported?;
    match force {
        true => target.persist(&file).map_err(|error| error.error),
        false => target.persist_noclobber(&file).map_err(|error| error.error),
    }
    .with_context(cannot)?;
    deleted.with_context(|| {
        let file = file.display();
        format!("{file} is complete, but its sandbox is left; run `pandastack sandbox delete {id}`")
    })?;
    let exported = Exported { template: name, file, image };
    output.value(&exported, |one| {
        let bytes = size(one.image.size_bytes);
        format!("exported template {} to {} ({bytes})", one.template, one.file.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn export(
    client: &Client,
    id: &SandboxId,
    name: &str,
    template: &Template,
    mut file: std::fs::File,
) -> Result<ImageFile> {
    let progress = Progress::bytes(format!("Exporting template {name}"), 0);
    progress.step(format!("booting template {name} from its disk"));
    client.hibernate_sandbox(id, Keep::Disk).await?;
    client.wake_sandbox(id).await?;
    progress.step(format!("reading the files of template {name}"));
    let mut files = client.read_archive(id, "/").await?;
    let (pieces, received) = mpsc::channel::<Bytes>(PIECES);
    let (name, config) = (image_name(name), config(template)?);
    let writer = tokio::task::spawn_blocking(move || {
        image_file::write(&mut file, Pieces { received, rest: Bytes::new() }, &name, &config)
    });
    let mut broken = None;
    loop {
        match files.next().await {
            Ok(Some(piece)) => {
                progress.advance(piece.len() as u64);
                if pieces.send(piece).await.is_err() {
                    // The writer failed, which it says below.
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
    }
    drop(pieces);
    let written = writer.await?;
    match broken {
        Some(error) => Err(error.into()),
        None => written,
    }
}

/// The name of the image, as Docker shows it: names of images have no capitals.
fn image_name(template: &str) -> String {
    let name = template.rsplit('/').next().unwrap_or(template).to_lowercase().replace('@', ":");
    if name.contains(':') { name } else { format!("{name}:latest") }
}

/// The settings of the version, with labels for what images do not have.
fn config(template: &Template) -> Result<ImageConfig> {
    let version = template.version.clone().unwrap_or_default();
    let mut config = version.config;
    labels::add(&mut config.labels, template)?;
    Ok(config)
}

/// The pieces of a stream, for a thread that reads them.
struct Pieces {
    received: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.rest.is_empty() {
            match self.received.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_have_no_workspace_and_no_capitals() {
        assert_eq!(image_name("acme/My-App"), "my-app:latest");
        assert_eq!(image_name("my-app:v1"), "my-app:v1");
        assert_eq!(image_name("my-app@0a1b"), "my-app:0a1b");
    }

    #[test]
    fn pieces_of_a_stream_are_read_in_order() {
        let (pieces, received) = mpsc::channel(3);
        for piece in ["ab", "", "cde"] {
            pieces.try_send(Bytes::from(piece)).unwrap();
        }
        drop(pieces);
        let mut text = String::new();
        Pieces { received, rest: Bytes::new() }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abcde");
    }
}
