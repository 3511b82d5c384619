//! Bundles: the uploaded code of a function, validated before it is used.
//!
//! Invariant: a valid bundle holds only files, directories and links that stay inside it, and
//! unpacks to no more than its limits, however small it is packed. The guest unpacks it beneath one
//! directory and would refuse the same; a refusal here costs no machine and reaches the client at
//! once.

use std::io::{Cursor, Read};
use std::path::{Component, Path};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pandastack_types::api::Runtime;
use pandastack_types::limits::{BUNDLE_ENTRIES_MAX, BUNDLE_UNPACKED_BYTES_MAX};
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use crate::requirements::{self, PYPROJECT, REQUIREMENTS, Requirements};
use crate::zip_bundle;

/// Maximum size of a dependency file. Beyond it: refused.
const MANIFEST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Dependency files, by runtime.
const PYTHON_MANIFESTS: [&str; 2] = [REQUIREMENTS, PYPROJECT];
const NODE_MANIFESTS: [&str; 3] = ["package.json", "package-lock.json", "npm-shrinkwrap.json"];
/// Bytes of headers and padding beside the files themselves.
const TAR_OVERHEAD_BYTES_MAX: u64 = 2048 * BUNDLE_ENTRIES_MAX as u64;

/// Reason why a bundle is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BundleRefused {
    #[error("the bundle is neither a gzip-compressed tar archive nor a zip archive: {0}")]
    NotAnArchive(String),
    #[error("the bundle contains `{0}`; paths must be relative and must not contain `..`")]
    Outside(String),
    #[error("the bundle contains the link `{0}`, which points outside of it")]
    LinkOutside(String),
    #[error("the bundle contains `{0}`, which is not a file, directory or link")]
    Special(String),
    #[error("the bundle unpacks to more than {BUNDLE_UNPACKED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the bundle has more than {BUNDLE_ENTRIES_MAX} entries")]
    TooMany,
    #[error("the bundle has no file `{0}`, but the entrypoint names it")]
    NoEntrypoint(String),
    #[error("the bundle's pyproject.toml is invalid: {0}")]
    Pyproject(String),
    #[error("`code` is not valid base64: {0}")]
    NotBase64(String),
}

/// A bundle that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedBundle {
    /// SHA-256 of its bytes, in hex.
    pub(crate) sha256: String,
    /// Names of its files.
    pub(crate) files: Vec<String>,
    /// Dependency files, with their contents.
    pub(crate) manifests: Vec<(String, Vec<u8>)>,
}

impl CheckedBundle {
    /// Requirements for pip.
    pub(crate) fn requirements(&self) -> Result<Option<Requirements>, BundleRefused> {
        requirements::of(&self.manifests)
    }

    /// Key of the dependencies on a machine of that kind; `None` when there are none to install.
    pub(crate) fn layer_key(&self, runtime: Runtime, machine: &str) -> Result<Option<String>, BundleRefused> {
        let manifests: Vec<(&str, Vec<u8>)> = match runtime {
            Runtime::Python => {
                let needed = self.requirements()?;
                needed.iter().map(|needed| (REQUIREMENTS, needed.content().to_vec())).collect()
            }
            Runtime::Nodejs => {
                let known = self.manifests.iter().filter(|(name, _)| NODE_MANIFESTS.contains(&name.as_str()));
                known.map(|(name, content)| (name.as_str(), content.clone())).collect()
            }
            Runtime::Custom => Vec::new(),
        };
        if manifests.is_empty() {
            return Ok(None);
        }
        let mut hasher = Sha256::new();
        hasher.update(format!("1 {} {machine}\n", runtime.as_str()));
        for (name, content) in &manifests {
            hasher.update(format!("{name} {}\n", content.len()));
            hasher.update(content);
        }
        // Dependencies may come from the bundle itself.
        if manifests.iter().any(|(_, content)| names_local_files(content)) {
            hasher.update(&self.sha256);
        }
        Ok(Some(HEXLOWER.encode(&hasher.finalize())))
    }

    /// Refuses an entrypoint that names no file of the bundle.
    pub(crate) fn check_entrypoint(&self, runtime: Runtime, entrypoint: &str) -> Result<(), BundleRefused> {
        let file = entrypoint.split(':').next().unwrap_or_default();
        let names_a_file = runtime == Runtime::Custom
            || [".py", ".js", ".mjs", ".cjs"].iter().any(|end| file.ends_with(end));
        if names_a_file && !self.files.iter().any(|known| known == file) {
            return Err(BundleRefused::NoEntrypoint(file.to_owned()));
        }
        Ok(())
    }
}

fn names_local_files(manifest: &[u8]) -> bool {
    let text = String::from_utf8_lossy(manifest);
    let local = |line: &str| {
        let line = line.trim();
        ["-e", "-r", "-c", "./", "../", "/"].iter().any(|start| line.starts_with(start))
            || line.ends_with(".whl")
            || line.contains("file:")
    };
    text.lines().any(local)
}

/// Converts an upload to the stored form, a gzip-compressed tar archive.
pub(crate) fn kept(bytes: Vec<u8>) -> Result<Vec<u8>, BundleRefused> {
    if zip_bundle::is_zip(&bytes) { zip_bundle::to_tar(&bytes) } else { Ok(bytes) }
}

/// Checks a bundle.
pub(crate) fn check(bytes: &[u8]) -> Result<CheckedBundle, BundleRefused> {
    let broken = |error: std::io::Error| BundleRefused::NotAnArchive(error.to_string());
    let limit = BUNDLE_UNPACKED_BYTES_MAX + TAR_OVERHEAD_BYTES_MAX;
    let mut archive = Archive::new(GzDecoder::new(bytes).take(limit + 1));
    let mut checked = CheckedBundle {
        sha256: HEXLOWER.encode(&Sha256::digest(bytes)),
        files: Vec::new(),
        manifests: Vec::new(),
    };
    let (mut entries, mut unpacked) = (0, 0_u64);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        entries += 1;
        if entries > BUNDLE_ENTRIES_MAX {
            return Err(BundleRefused::TooMany);
        }
        unpacked = unpacked.saturating_add(entry.size());
        if unpacked > BUNDLE_UNPACKED_BYTES_MAX {
            return Err(BundleRefused::TooLarge);
        }
        let path = entry.path().map_err(broken)?.into_owned();
        let name = clean(&path).ok_or_else(|| BundleRefused::Outside(shown(&path)))?;
        check_kind(&entry, &name)?;
        if entry.header().entry_type() == EntryType::Regular {
            if PYTHON_MANIFESTS.iter().chain(&NODE_MANIFESTS).any(|known| *known == name) {
                let mut content = Vec::new();
                entry.by_ref().take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut content).map_err(broken)?;
                if content.len() as u64 > MANIFEST_BYTES_MAX {
                    return Err(BundleRefused::TooLarge);
                }
                checked.manifests.push((name.clone(), content));
            }
            checked.files.push(name);
        }
    }
    checked.manifests.sort();
    Ok(checked)
}

pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(200).collect()
}

/// A path without `.`; `None` when it leads out.
pub(crate) fn clean(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(parts.join("/"))
}

fn check_kind<R: Read>(entry: &tar::Entry<'_, R>, name: &str) -> Result<(), BundleRefused> {
    let outside = || BundleRefused::LinkOutside(name.to_owned());
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Directory | EntryType::Continuous => Ok(()),
        kind @ (EntryType::Symlink | EntryType::Link) => {
            let target = entry.link_name().ok().flatten().ok_or_else(outside)?;
            // Hard links are named from the root of the archive, others from where they are.
            let from = if kind == EntryType::Link { 0 } else { name.matches('/').count() };
            let stays = stays_inside(from, &target);
            if stays { Ok(()) } else { Err(outside()) }
        }
        EntryType::XGlobalHeader => Ok(()),
        _ => Err(BundleRefused::Special(name.to_owned())),
    }
}

/// Returns whether a relative path never climbs above the root from `depth` directories below it.
pub(crate) fn stays_inside(depth: usize, target: &Path) -> bool {
    let mut depth = depth;
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return false,
        }
    }
    true
}

/// A bundle of one file: inline source, plain or gzip.
pub(crate) fn of_source(entrypoint: &str, base64: &str) -> Result<Option<Vec<u8>>, BundleRefused> {
    use base64::Engine;
    let code = base64::engine::general_purpose::STANDARD.decode(base64.trim());
    let code = code.map_err(|error| BundleRefused::NotBase64(error.to_string()))?;
    if code.is_empty() {
        return Ok(None);
    }
    let source = if code.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        let limit = BUNDLE_UNPACKED_BYTES_MAX;
        let read = GzDecoder::new(&code[..]).take(limit + 1).read_to_end(&mut plain);
        read.map_err(|error| BundleRefused::NotAnArchive(error.to_string()))?;
        if plain.len() as u64 > limit {
            return Err(BundleRefused::TooLarge);
        }
        plain
    } else {
        code
    };
    let name = entrypoint.split(':').next().unwrap_or_default();
    pack(&[(name.to_owned(), source, 0o755)]).map(Some)
}

/// A bundle of some files.
pub(crate) fn pack(files: &[(String, Vec<u8>, u32)]) -> Result<Vec<u8>, BundleRefused> {
    let broken = |error: std::io::Error| BundleRefused::NotAnArchive(error.to_string());
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        archive.append_data(&mut header, name, Cursor::new(content)).map_err(broken)?;
    }
    archive.into_inner().and_then(GzEncoder::finish).map_err(broken)
}

/// Compresses a file.
pub(crate) fn gzip(content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    std::io::Write::write_all(&mut encoder, content)?;
    encoder.finish()
}

/// The content of one file of a bundle.
pub(crate) fn read_file(bytes: &[u8], wanted: &str) -> Option<Vec<u8>> {
    let mut archive = Archive::new(GzDecoder::new(bytes));
    for entry in archive.entries().ok()? {
        let mut entry = entry.ok()?;
        if entry.path().ok().and_then(|path| clean(&path)).as_deref() == Some(wanted) {
            let mut content = Vec::new();
            entry.by_ref().take(BUNDLE_UNPACKED_BYTES_MAX).read_to_end(&mut content).ok()?;
            return Some(content);
        }
    }
    None
}

/// A bundle as a plain tar archive, made while it is sent.
pub(crate) fn unpacked(bytes: Vec<u8>) -> axum::body::Body {
    /// Bytes of a part.
    const PART_BYTES: usize = 256 * 1024;
    let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(4);
    tokio::task::spawn_blocking(move || {
        let mut reader = GzDecoder::new(Cursor::new(bytes));
        loop {
            let mut part = Vec::with_capacity(PART_BYTES);
            let read = reader.by_ref().take(PART_BYTES as u64).read_to_end(&mut part);
            let done = !matches!(read, Ok(count) if count > 0);
            let sent = match read {
                Ok(0) => return,
                Ok(_) => sender.blocking_send(Ok(part.into())),
                Err(error) => sender.blocking_send(Err(error)),
            };
            if done || sent.is_err() {
                return;
            }
        }
    });
    let parts = futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|part| (part, receiver))
    });
    axum::body::Body::from_stream(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(fill: impl FnOnce(&mut tar::Builder<GzEncoder<Vec<u8>>>)) -> Vec<u8> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        fill(&mut builder);
        builder.into_inner().unwrap().finish().unwrap()
    }

    /// An entry with an arbitrary header.
    fn entry(path: &str, kind: EntryType, link: &str, size: u64) -> Vec<u8> {
        archive(|builder| {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_cksum();
            builder.append(&header, std::io::repeat(0).take(size)).unwrap();
        })
    }

    #[test]
    fn entries_outside_the_bundle_are_rejected() {
        let outside = |path: &str| BundleRefused::Outside(path.to_owned());
        assert_eq!(check(&entry("../x", EntryType::Regular, "", 1)), Err(outside("../x")));
        assert_eq!(check(&entry("/etc/x", EntryType::Regular, "", 1)), Err(outside("/etc/x")));
        let link = |path: &str| Err(BundleRefused::LinkOutside(path.to_owned()));
        assert_eq!(check(&entry("a", EntryType::Symlink, "/etc/passwd", 0)), link("a"));
        assert_eq!(check(&entry("a", EntryType::Symlink, "../x", 0)), link("a"));
        assert_eq!(check(&entry("d/a", EntryType::Symlink, "../../x", 0)), link("d/a"));
        assert_eq!(check(&entry("d/a", EntryType::Link, "../x", 0)), link("d/a"));
        assert_eq!(
            check(&entry("./a", EntryType::Symlink, "../x", 0)),
            link("a"),
            "`.` is no directory to climb from"
        );
        assert!(check(&entry("d/a", EntryType::Symlink, "../x", 0)).is_ok());
        assert!(check(&entry("d/a", EntryType::Link, "x", 0)).is_ok());
    }

    #[test]
    fn devices_bombs_and_malformed_bundles_are_refused() {
        let special = Err(BundleRefused::Special("a".to_owned()));
        for kind in [EntryType::Block, EntryType::Char, EntryType::Fifo] {
            assert_eq!(check(&entry("a", kind, "", 0)), special, "{kind:?}");
        }
        let bomb = entry("a", EntryType::Regular, "", BUNDLE_UNPACKED_BYTES_MAX + 1);
        assert!(bomb.len() < 4 * 1024 * 1024);
        assert_eq!(check(&bomb), Err(BundleRefused::TooLarge));
        assert!(matches!(check(b"hello"), Err(BundleRefused::NotAnArchive(_))));
        let many = archive(|builder| {
            for n in 0..=BUNDLE_ENTRIES_MAX {
                let mut header = tar::Header::new_gnu();
                header.set_size(0);
                builder.append_data(&mut header, format!("f{n}"), std::io::empty()).unwrap();
            }
        });
        assert_eq!(check(&many), Err(BundleRefused::TooMany));
    }

    #[test]
    fn the_layer_key_covers_manifests_and_referenced_files() {
        let with = |requirements: &str, code: &str| {
            let files = [
                ("requirements.txt".to_owned(), requirements.into(), 0o644),
                ("main.py".to_owned(), code.into(), 0o644),
            ];
            check(&pack(&files).unwrap()).unwrap().layer_key(Runtime::Python, "base").unwrap()
        };
        assert_eq!(with("six\n", "a"), with("six\n", "b"));
        assert_ne!(with("six\n", "a"), with("six==1\n", "a"));
        assert_ne!(with("./x.whl\n", "a"), with("./x.whl\n", "b"));
        let plain = check(&pack(&[("main.py".to_owned(), b"x".to_vec(), 0o644)]).unwrap()).unwrap();
        assert_eq!(plain.layer_key(Runtime::Python, "base"), Ok(None));
    }

    #[test]
    fn inline_source_round_trips_through_a_bundle() {
        use base64::Engine;
        let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
        let bundle = of_source("main.py", &encode(b"print(1)")).unwrap().unwrap();
        assert_eq!(read_file(&bundle, "main.py").unwrap(), b"print(1)");
        let checked = check(&bundle).unwrap();
        assert!(checked.check_entrypoint(Runtime::Python, "main.py").is_ok());
        assert!(checked.check_entrypoint(Runtime::Python, "other.py").is_err());
        assert!(checked.check_entrypoint(Runtime::Custom, "bootstrap").is_err());
        assert_eq!(of_source("main.py", ""), Ok(None));
        assert!(of_source("main.py", "%%%").is_err());
    }
}
