//! A template in a file: an archive with a container image as an OCI layout, which Docker and Podman read,
//! too.
//!
//! ```text
//!  blobs/sha256/DIGEST   the only layer: all files, compressed
//!  blobs/sha256/DIGEST   its configuration, with what images do not have as labels
//!  blobs/sha256/DIGEST   the manifest
//!  index.json            leads to the manifest
//!  oci-layout            the version of the format
//!  manifest.json         the same for Docker before version 25
//! ```
//!
//! The layer is written while it arrives. Its name and size are known only then, so its header is written
//! last.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::write::GzEncoder;
use pandastack_types::api::ImageConfig;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use crate::failure::Failure;

/// Everything in an archive is a multiple of this.
const BLOCK_BYTES: u64 = 512;
/// Longest name of a file that is exported. Linux allows 4,096 bytes.
const NAME_BYTES_MAX: u64 = 64 * 1024;
/// Files of the sandbox itself, and of the platform, which no image has.
const LEFT_OUT: [&str; 6] =
    ["etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf", "lost+found", "pandastack-mounts"];
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A finished image.
#[derive(Debug, Serialize)]
pub struct ImageFile {
    /// Digest of its manifest.
    pub digest: String,
    /// Size of the file.
    pub size_bytes: u64,
}

/// Counts and sums what passes.
struct Summed<W> {
    inner: W,
    sum: Sha256,
    bytes: u64,
}

impl<W> Summed<W> {
    fn new(inner: W) -> Self {
        Self { inner, sum: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes an image with the files of an archive, which is read to its end.
pub fn write(file: &mut File, files: impl Read, name: &str, config: &ImageConfig) -> Result<ImageFile> {
    file.seek(SeekFrom::Start(BLOCK_BYTES))?;
    let Layer { diff_id, digest, bytes } = write_layer(&mut *file, files)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(blob_header(&blob_path(&digest), bytes)?.as_bytes())?;
    let end = (BLOCK_BYTES + bytes).next_multiple_of(BLOCK_BYTES);
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;

    let config = serde_json::to_vec(&image_config(config, &diff_id))?;
    let config_digest = digest_of(&config);
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": config_digest, "size": config.len()},
        "layers": [{"mediaType": LAYER_TYPE, "digest": digest, "size": bytes}],
    }))?;
    let manifest_digest = digest_of(&manifest);
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": MANIFEST_TYPE,
            "digest": manifest_digest,
            "size": manifest.len(),
            "platform": {"os": "linux", "architecture": "amd64"},
            "annotations": {"org.opencontainers.image.ref.name": name},
        }],
    });
    let docker = json!([{
        "Config": blob_path(&config_digest),
        "RepoTags": [name],
        "Layers": [blob_path(&digest)],
    }]);
    let mut archive = tar::Builder::new(BufWriter::new(&mut *file));
    for (path, content) in [
        (blob_path(&config_digest), config),
        (blob_path(&manifest_digest), manifest),
        ("index.json".to_owned(), serde_json::to_vec(&index)?),
        ("oci-layout".to_owned(), serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?),
        ("manifest.json".to_owned(), serde_json::to_vec(&docker)?),
    ] {
        archive.append(&blob_header(&path, content.len() as u64)?, content.as_slice())?;
    }
    archive.into_inner()?.flush()?;
    Ok(ImageFile { digest: manifest_digest, size_bytes: file.stream_position()? })
}

/// A written layer.
struct Layer {
    /// Digest of the uncompressed archive.
    diff_id: String,
    digest: String,
    bytes: u64,
}

fn write_layer(file: &mut File, files: impl Read) -> Result<Layer> {
    let compressed = Summed::new(BufWriter::new(file));
    let layer = Summed::new(GzEncoder::new(compressed, Compression::fast()));
    let Summed { inner: encoder, sum, .. } = copy_files(files, layer)?;
    let mut compressed = encoder.finish()?;
    compressed.flush()?;
    Ok(Layer { diff_id: text_of(sum), bytes: compressed.bytes, digest: text_of(compressed.sum) })
}

fn text_of(sum: Sha256) -> String {
    format!("sha256:{}", HEXLOWER.encode(&sum.finalize()))
}

/// Digest of a part of an image.
pub(super) fn digest_of(bytes: &[u8]) -> String {
    text_of(Sha256::new_with_prefix(bytes))
}

/// Path of a part of an image in the archive.
pub(super) fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn blob_header(path: &str, bytes: u64) -> Result<Header> {
    let mut header = Header::new_gnu();
    header.set_path(path)?;
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(bytes);
    header.set_cksum();
    Ok(header)
}

/// Copies the entries of an archive that belong to the template, unchanged.
fn copy_files<W: Write>(files: impl Read, to: W) -> Result<W> {
    let mut from = tar::Archive::new(files);
    let mut layer = tar::Builder::new(to);
    // Headers before an entry, such as that with its long name.
    let mut before: Vec<(Header, Vec<u8>)> = Vec::new();
    let mut long_name = None;
    let mut count = 0_u64;
    for entry in from.entries()?.raw(true) {
        let mut entry = entry.context("the files of the template broke off")?;
        let header = entry.header().clone();
        let kind = header.entry_type();
        if matches!(kind, EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader) {
            let mut content = Vec::new();
            entry.by_ref().take(NAME_BYTES_MAX).read_to_end(&mut content)?;
            if kind == EntryType::GNULongName {
                long_name = Some(content.strip_suffix(b"\0").unwrap_or(&content).to_vec());
            }
            before.push((header, content));
            continue;
        }
        let name = long_name.take().unwrap_or_else(|| header.path_bytes().into_owned());
        let extensions = std::mem::take(&mut before);
        if is_left_out(&name) {
            continue;
        }
        for (header, content) in extensions {
            layer.append(&header, content.as_slice())?;
        }
        layer.append(&header, &mut entry).context("the files of the template broke off")?;
        count += 1;
    }
    if count == 0 {
        return Err(Failure::new("the template has no files").into());
    }
    Ok(layer.into_inner()?)
}

fn is_left_out(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"./").unwrap_or(name);
    let below = |path: &&str| {
        name.strip_prefix(path.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    LEFT_OUT.iter().any(below)
}

/// The configuration of an image with one layer.
fn image_config(config: &ImageConfig, diff_id: &str) -> Value {
    let env: Vec<String> = config.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let set = |names: &[String]| -> BTreeMap<String, Value> {
        names.iter().map(|name| (name.clone(), json!({}))).collect()
    };
    let mut made = json!({"Env": env, "Labels": config.labels});
    let optional = [
        ("User", json!(config.user)),
        ("WorkingDir", json!(config.workdir)),
        ("Entrypoint", json!(config.entrypoint)),
        ("Cmd", json!(config.cmd)),
        ("StopSignal", json!(config.stop_signal)),
        ("Shell", json!(Some(&config.shell).filter(|shell| !shell.is_empty()))),
        ("ExposedPorts", json!(Some(set(&config.ports)).filter(|ports| !ports.is_empty()))),
        ("Volumes", json!(Some(set(&config.volumes)).filter(|paths| !paths.is_empty()))),
        ("Healthcheck", json!(config.healthcheck.as_ref().map(|words| health_check(words)))),
    ];
    for (name, value) in optional.into_iter().filter(|(_, value)| !value.is_null()) {
        made[name] = value;
    }
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": made,
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created_by": "pandastack template export"}],
    })
}

fn health_check(words: &[String]) -> Value {
    let test: Vec<&str> = std::iter::once("CMD").chain(words.iter().map(String::as_str)).collect();
    json!({"Test": test})
}

#[cfg(test)]
mod tests {
    use super::super::labels::of_file as labels;
    use super::*;

    /// An archive as a sandbox packs its root directory.
    fn packed(names: &[&str]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = Header::new_gnu();
            header.set_size(name.len() as u64);
            header.set_mode(0o4755);
            header.set_uid(7);
            builder.append_data(&mut header, name, name.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn exported(names: &[&str], config: &ImageConfig) -> (tempfile::NamedTempFile, ImageFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let written = write(file.as_file_mut(), packed(names).as_slice(), "mine:v1", config).unwrap();
        (file, written)
    }

    #[test]
    fn an_exported_image_is_read_again() {
        let long = format!("{}/long", "d".repeat(150));
        let names = ["bin/tool", "etc/hosts", "etc/hostsfile", &long, "lost+found/x"];
        let config = ImageConfig {
            env: [("A".to_owned(), "1".to_owned())].into(),
            user: Some("app".to_owned()),
            labels: [("pandastack.template.ready".to_owned(), "x".to_owned())].into(),
            healthcheck: Some(vec!["true".to_owned()]),
            ..ImageConfig::default()
        };
        let (file, written) = exported(&names, &config);
        assert_eq!(labels(file.path()).unwrap(), config.labels);
        assert_eq!(written.size_bytes, file.path().metadata().unwrap().len());
        let mut archive = tar::Archive::new(File::open(file.path()).unwrap());
        let mut layers = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if let Some(hex) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(digest_of(&content), format!("sha256:{hex}"));
            }
            if content.starts_with(&[0x1f, 0x8b]) {
                layers.push(content);
            }
        }
        let [layer] = layers.as_slice() else { panic!("{} layers", layers.len()) };
        let mut layer = tar::Archive::new(flate2::read::GzDecoder::new(layer.as_slice()));
        let mut found = Vec::new();
        for entry in layer.entries().unwrap() {
            let entry = entry.unwrap();
            assert_eq!((entry.header().mode().unwrap(), entry.header().uid().unwrap()), (0o4755, 7));
            found.push(entry.path().unwrap().to_str().unwrap().to_owned());
        }
        assert_eq!(found, ["bin/tool", "etc/hostsfile", long.as_str()]);
    }

    #[test]
    fn a_changed_file_is_refused() {
        let config = ImageConfig { user: Some("original".to_owned()), ..ImageConfig::default() };
        let (file, _) = exported(&["a"], &config);
        let mut bytes = std::fs::read(file.path()).unwrap();
        let at = bytes.windows(8).position(|window| window == b"original").unwrap();
        bytes[at..at + 8].copy_from_slice(b"changed!");
        std::fs::write(file.path(), &bytes).unwrap();
        assert!(labels(file.path()).unwrap_err().to_string().contains("was changed"));
        for bytes in [&b"not an archive"[..], &packed(&["a"]), b""] {
            std::fs::write(file.path(), bytes).unwrap();
            assert!(labels(file.path()).unwrap_err().to_string().contains("is not an exported template"));
        }
    }

    #[test]
    fn files_that_break_off_are_no_template() {
        let whole = packed(&["a", "b"]);
        let mut file = tempfile::tempfile().unwrap();
        let error = write(&mut file, &whole[..700], "mine", &ImageConfig::default()).unwrap_err();
        assert!(error.to_string().contains("broke off"), "{error}");
        assert!(write(&mut file, &packed(&[])[..], "mine", &ImageConfig::default()).is_err());
    }
}
