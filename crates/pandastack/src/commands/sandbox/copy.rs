//! `pandastack sandbox cp`: copies files and directories to or from a sandbox.
//!
//! `ID:/path` is a path in a sandbox; any other path is local. As with `cp -r`, a target that is a
//! directory or ends in `/` receives the source under its own name; any other target becomes the
//! copy. A single file is streamed through the file API. A directory is sent as one archive, which
//! preserves permissions and links and needs one call only.
//!
//! Archives from a sandbox are not trusted: the unpacker rejects entries outside the target and
//! drops set-uid bits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use pandastack_client::{Client, FileBytes};
use pandastack_types::SandboxId;
use pandastack_types::api::SetAttributes;
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use super::resolve::resolve;
use crate::failure::Failure;
use crate::output::{Output, size};
use crate::progress::Progress;

/// Bytes read from a local file at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Source: a local path or `ID:/path`
    source: String,
    /// Destination: a local path or `ID:/path`
    target: String,
}

/// Source or destination of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    Local(PathBuf),
    Remote { sandbox: String, path: String },
}

impl Location {
    /// A colon marks a sandbox path, unless a slash precedes it.
    fn parse(text: &str) -> Location {
        match text.split_once(':') {
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
                Location::Remote { sandbox: sandbox.to_owned(), path: path.to_owned() }
            }
            _ => Location::Local(PathBuf::from(text)),
        }
    }
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    match (Location::parse(&args.source), Location::parse(&args.target)) {
        (Location::Local(source), Location::Remote { sandbox, path }) => {
            let id = resolve(client, &sandbox).await?;
            upload(client, &id, &source, &path).await?;
        }
        (Location::Remote { sandbox, path }, Location::Local(target)) => {
            let id = resolve(client, &sandbox).await?;
            download(client, &id, &path, &target).await?;
        }
        _ => {
            let failure = Failure::new("exactly one of SOURCE and TARGET must be a sandbox path");
            return Err(failure.hint("write a sandbox path as ID:/path, such as 3f2b:/srv/out").into());
        }
    }
    output.line("")?;
    Ok(ExitCode::SUCCESS)
}

async fn upload(client: &Client, id: &SandboxId, source: &Path, target: &str) -> Result<()> {
    let metadata = std::fs::metadata(source).with_context(|| format!("cannot read {}", source.display()))?;
    let name = source
        .canonicalize()
        .ok()
        .and_then(|path| path.file_name().map(|n| n.to_string_lossy().into_owned()));
    let target = remote_target(client, id, target, name.as_deref().unwrap_or("copy")).await?;
    if metadata.is_dir() {
        return upload_directory(client, id, source, &target).await;
    }
    let bytes = upload_file(client, id, source, &target).await?;
    if is_executable(&metadata) {
        let mode = SetAttributes { mode: Some("0755".to_owned()), ..Default::default() };
        client.set_attributes(id, &target, &mode).await?;
    }
    eprintln!("copied {} to {id}:{target}", size(bytes));
    Ok(())
}

/// Path of the uploaded copy: inside an existing directory under the source's name, or exactly `target`.
async fn remote_target(client: &Client, id: &SandboxId, target: &str, name: &str) -> Result<String> {
    if !target.starts_with('/') {
        let failure = Failure::new(format!("invalid sandbox path `{target}`: it must be absolute"));
        return Err(failure.hint("write a sandbox path as ID:/path, such as 3f2b:/srv/out").into());
    }
    let inside = target.ends_with('/')
        || match client.stat_file(id, target).await {
            Ok(entry) => entry.is_dir,
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(error.into()),
        };
    Ok(if inside { format!("{}/{name}", target.trim_end_matches('/')) } else { target.to_owned() })
}

async fn upload_file(client: &Client, id: &SandboxId, source: &Path, target: &str) -> Result<u64> {
    let body = counted(source, target).await?;
    Ok(client.write_file(id, target, body).await?.bytes)
}

/// A local file as a request body with a progress display.
async fn counted(source: &Path, target: &str) -> Result<reqwest::Body> {
    let file =
        tokio::fs::File::open(source).await.with_context(|| format!("cannot open {}", source.display()))?;
    let total = file.metadata().await?.len();
    let progress = Progress::bytes(format!("Uploading to {target}"), total);
    let counted = ReaderStream::with_capacity(file, CHUNK_BYTES)
        .inspect_ok(move |chunk| progress.advance(chunk.len() as u64));
    Ok(reqwest::Body::wrap_stream(counted))
}

async fn upload_directory(client: &Client, id: &SandboxId, source: &Path, target: &str) -> Result<()> {
    let archive = tempfile::NamedTempFile::new().context("cannot create a temporary archive")?;
    let (file, from) = (archive.reopen()?, source.to_owned());
    tokio::task::spawn_blocking(move || pack(file, &from)).await??;
    let body = counted(archive.path(), target).await?;
    let written = client.write_archive(id, target, body).await?;
    eprintln!("copied {} to {id}:{target}", size(written.bytes));
    Ok(())
}

async fn download(client: &Client, id: &SandboxId, source: &str, target: &Path) -> Result<()> {
    let entry = client.stat_file(id, source).await?;
    let inside = target.is_dir() || target.to_string_lossy().ends_with('/');
    let target = if inside { target.join(&entry.name) } else { target.to_owned() };
    if entry.is_dir {
        return download_directory(client, id, source, &target).await;
    }
    let bytes = download_file(client, id, source, &target, entry.size).await?;
    eprintln!("copied {} to {}", size(bytes), target.display());
    Ok(())
}

async fn download_file(
    client: &Client,
    id: &SandboxId,
    source: &str,
    target: &Path,
    total: u64,
) -> Result<u64> {
    let bytes = client.read_file(id, source).await?;
    save(bytes, source, target, total).await
}

/// Writes a stream to a local file and returns its size.
async fn save(mut bytes: FileBytes, source: &str, target: &Path, total: u64) -> Result<u64> {
    let create = || format!("cannot create {}", target.display());
    let mut file = tokio::fs::File::create(target).await.with_context(create)?;
    let progress = Progress::bytes(format!("Downloading {source}"), total);
    let mut written = 0;
    while let Some(chunk) = bytes.next().await? {
        file.write_all(&chunk).await.with_context(|| format!("cannot write {}", target.display()))?;
        progress.advance(chunk.len() as u64);
        written += chunk.len() as u64;
    }
    file.flush().await.with_context(|| format!("cannot write {}", target.display()))?;
    Ok(written)
}

async fn download_directory(client: &Client, id: &SandboxId, source: &str, target: &Path) -> Result<()> {
    let archive = tempfile::NamedTempFile::new().context("cannot create a temporary archive")?;
    let bytes = client.read_archive(id, source).await?;
    // The size of an archive is not known in advance.
    let bytes = save(bytes, source, archive.path(), 0).await?;
    let (file, to) = (archive.reopen()?, target.to_owned());
    tokio::task::spawn_blocking(move || unpack(file, &to)).await??;
    eprintln!("copied {} to {}", size(bytes), target.display());
    Ok(())
}

fn is_executable(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

fn pack(file: std::fs::File, source: &Path) -> Result<()> {
    let mut archive = tar::Builder::new(std::io::BufWriter::new(file));
    archive.follow_symlinks(false);
    archive.append_dir_all(".", source).with_context(|| format!("cannot pack {}", source.display()))?;
    archive.into_inner()?.into_inner().context("cannot write the archive")?;
    Ok(())
}

fn unpack(file: std::fs::File, target: &Path) -> Result<()> {
    std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
    let mut archive = tar::Archive::new(std::io::BufReader::new(file));
    archive.unpack(target).with_context(|| format!("cannot unpack into {}", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_marks_a_sandbox_path() {
        let remote =
            |sandbox: &str, path: &str| Location::Remote { sandbox: sandbox.into(), path: path.into() };
        assert_eq!(Location::parse("3f2b:/srv/out"), remote("3f2b", "/srv/out"));
        assert_eq!(Location::parse("./a:b"), Location::Local("./a:b".into()));
        assert_eq!(Location::parse(":x"), Location::Local(":x".into()));
        assert_eq!(Location::parse("plain"), Location::Local("plain".into()));
    }

    #[test]
    fn a_directory_survives_packing() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(from.path().join("empty")).unwrap();
        std::fs::write(from.path().join("tool"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(from.path().join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink("tool", from.path().join("link")).unwrap();
        let archive = tempfile::NamedTempFile::new().unwrap();
        pack(archive.reopen().unwrap(), from.path()).unwrap();
        unpack(archive.reopen().unwrap(), to.path()).unwrap();
        assert!(to.path().join("empty").is_dir());
        assert!(is_executable(&std::fs::metadata(to.path().join("tool")).unwrap()));
        assert_eq!(std::fs::read_link(to.path().join("link")).unwrap(), Path::new("tool"));
    }

    #[test]
    fn an_archive_cannot_leave_its_target() {
        let archive = tempfile::NamedTempFile::new().unwrap();
        let mut builder = tar::Builder::new(archive.reopen().unwrap());
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..9].copy_from_slice(b"../evil.x");
        header.set_size(1);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, b"x".as_slice()).unwrap();
        builder.finish().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let _ = unpack(archive.reopen().unwrap(), &target);
        assert!(!dir.path().join("evil.x").exists());
    }
}
