//! Prebuilt artifacts: a host installs an image or a kernel from an archive instead of building it.
//!
//! ```text
//! <archives>/<key>.tar.zst
//!   archive.json     format, key, and for each file its path, size and hash
//!   <files>          `image.ext4` and `manifest.json` of an image; the directory of a kernel
//! ```
//!
//! A release ships these archives. An archive is found by the key of the missing artifact, so an
//! archive of another version is never used.
//!
//! - Files are unpacked into a work directory and checked before anything is published.
//! - Nothing is written beyond what `archive.json` announces, and holes of an image stay holes.
//! - Equal artifacts give equal archives, byte for byte.
//!
//! A user who can write the archive directory is trusted like one who can write the cache:
//! checksums detect damage, and a release's signature covers its archives.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::ImageError;

/// Version of the layout above.
const FORMAT: u32 = 1;
const INDEX: &str = "archive.json";
/// A longer index is refused. A kernel's has a few hundred files.
const INDEX_BYTES_MAX: u64 = 4 << 20;
/// More bytes of files, holes included, are refused. The largest image of the catalogue has 16 GiB.
const CONTENT_BYTES_MAX: u64 = 64 << 30;
/// Blocks of zeros become holes, and count for nothing in the hash.
const BLOCK_BYTES: usize = 64 << 10;
/// A compromise: three times as fast as the densest, a tenth larger.
const COMPRESSION_LEVEL: i32 = 12;

#[derive(Debug, Serialize, Deserialize)]
struct Index {
    format: u32,
    key: String,
    files: Vec<IndexedFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct IndexedFile {
    path: PathBuf,
    bytes: u64,
    /// BLAKE3 of every block that is not zero, each after its offset.
    hash: String,
}

/// Directory of prebuilt artifacts: `PANDASTACK_IMAGES_DIR`, or `/usr/share/pandastack/images`.
pub fn default_archives_dir() -> PathBuf {
    std::env::var_os("PANDASTACK_IMAGES_DIR")
        .map_or_else(|| "/usr/share/pandastack/images".into(), PathBuf::from)
}

/// The archive of a key, if this host has it.
pub(crate) fn find(key: &str) -> Option<PathBuf> {
    Some(path(&default_archives_dir(), key)).filter(|path| path.is_file())
}

fn path(dir: &Path, key: &str) -> PathBuf {
    dir.join(format!("{key}.tar.zst"))
}

/// Writes the archive of `key` with these files, named as they shall be unpacked. Returns its path.
pub(crate) fn write(dir: &Path, key: &str, files: &[(PathBuf, PathBuf)]) -> Result<PathBuf, ImageError> {
    let target = path(dir, key);
    let failed = ImageError::io("write", &target);
    let mut index = Index { format: FORMAT, key: key.to_owned(), files: Vec::new() };
    for (name, source) in files {
        let (bytes, hash) = hash_file(source).map_err(ImageError::io("read", source))?;
        index.files.push(IndexedFile { path: name.clone(), bytes, hash });
    }
    fs::create_dir_all(dir).map_err(ImageError::io("create", dir))?;
    // Renamed when it is complete. The name's suffix keeps it from being found before.
    let staged = tempfile::NamedTempFile::new_in(dir).map_err(ImageError::io("write in", dir))?;
    let packed = pack(staged.as_file(), &index, files);
    packed.and_then(|()| staged.as_file().sync_all()).map_err(failed)?;
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(staged.path(), readable).map_err(ImageError::io("set the mode of", staged.path()))?;
    staged.persist(&target).map_err(|error| ImageError::io("publish", &target)(error.error))?;
    Ok(target)
}

fn pack(file: &File, index: &Index, files: &[(PathBuf, PathBuf)]) -> std::io::Result<()> {
    let mut encoder = zstd::Encoder::new(file, COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    let mut tar = tar::Builder::new(encoder);
    tar.mode(tar::HeaderMode::Deterministic);
    let text = serde_json::to_vec(index)?;
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, INDEX, text.as_slice())?;
    for (name, source) in files {
        tar.append_file(name, &mut File::open(source)?)?;
    }
    tar.into_inner()?.finish()?;
    Ok(())
}

/// Unpacks the archive of `key` into the empty directory `into` and checks every file.
pub(crate) fn unpack(archive: &Path, key: &str, into: &Path) -> Result<(), ImageError> {
    let damaged = |why| ImageError::DamagedArchive { path: archive.to_path_buf(), why };
    let read = |error: std::io::Error| damaged(error.to_string());
    let file = File::open(archive).map_err(ImageError::io("open", archive))?;
    let mut tar = tar::Archive::new(zstd::Decoder::new(file).map_err(read)?);
    let mut entries = tar.entries().map_err(read)?;
    let first = entries.next().ok_or_else(|| damaged("it is empty".to_owned()))?.map_err(read)?;
    let index = read_index(first).map_err(damaged)?;
    check_index(&index, key).map_err(damaged)?;
    let mut expected = index.files.iter();
    for entry in entries {
        let mut entry = entry.map_err(read)?;
        let announced =
            expected.next().ok_or_else(|| damaged("it has more files than announced".to_owned()))?;
        let is_it = entry.path().is_ok_and(|path| *path == *announced.path);
        let is_file =
            matches!(entry.header().entry_type(), tar::EntryType::Regular | tar::EntryType::GNUSparse);
        if !is_it || !is_file {
            return Err(damaged(format!(
                "it has something else in the place of {}",
                announced.path.display()
            )));
        }
        let target = into.join(&announced.path);
        let parent = target.parent().unwrap_or(into);
        fs::create_dir_all(parent).map_err(ImageError::io("create", parent))?;
        match unpack_file(&mut entry, &target, announced.bytes) {
            Ok(hash) if hash == announced.hash => {}
            Ok(_) => return Err(damaged(format!("{} differs from its hash", announced.path.display()))),
            Err(UnpackError::Archive(error)) => return Err(read(error)),
            Err(UnpackError::Target(error)) => return Err(ImageError::io("write", &target)(error)),
        }
    }
    match expected.next() {
        Some(missing) => Err(damaged(format!("it ends before {}", missing.path.display()))),
        None => Ok(()),
    }
}

fn read_index(entry: tar::Entry<'_, impl Read>) -> Result<Index, String> {
    if !entry.path().is_ok_and(|path| path.as_os_str() == INDEX) {
        return Err(format!("it does not begin with {INDEX}"));
    }
    let mut text = Vec::new();
    entry.take(INDEX_BYTES_MAX).read_to_end(&mut text).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| format!("{INDEX}: {error}"))
}

fn check_index(index: &Index, key: &str) -> Result<(), String> {
    if index.format != FORMAT {
        return Err(format!("it has format {}, and this version reads format {FORMAT}", index.format));
    }
    if index.key != key {
        return Err(format!("it has the key {}", index.key));
    }
    let total = index.files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.bytes));
    if total.is_none_or(|total| total > CONTENT_BYTES_MAX) {
        return Err(format!("it announces more than {} GiB", CONTENT_BYTES_MAX >> 30));
    }
    let is_plain = |path: &Path| {
        path.components().next().is_some()
            && path.components().all(|part| matches!(part, Component::Normal(_)))
    };
    match index.files.iter().find(|file| !is_plain(&file.path)) {
        Some(file) => Err(format!("{} leads out of the archive", file.path.display())),
        None => Ok(()),
    }
}

enum UnpackError {
    Archive(std::io::Error),
    Target(std::io::Error),
}

/// Writes exactly `bytes` bytes to a new file, and returns their hash.
fn unpack_file(source: &mut impl Read, target: &Path, bytes: u64) -> Result<String, UnpackError> {
    let file = File::create_new(target).map_err(UnpackError::Target)?;
    file.set_len(bytes).map_err(UnpackError::Target)?;
    let (mut hasher, mut block) = (BlockHasher::default(), vec![0; BLOCK_BYTES]);
    let mut at = 0;
    // One byte more than announced shows that the entry is longer.
    let mut source = source.take(bytes.saturating_add(1));
    loop {
        let read = read_block(&mut source, &mut block).map_err(UnpackError::Archive)?;
        let end = at + read as u64;
        if end > bytes || read == 0 && at < bytes {
            let error = std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "a file has another length than announced",
            );
            return Err(UnpackError::Archive(error));
        }
        if read == 0 {
            return Ok(hasher.finish());
        }
        let content = &block[..read];
        if hasher.add(at, content) {
            file.write_all_at(content, at).map_err(UnpackError::Target)?;
        }
        at = end;
    }
}

/// Fills the block, unless the source ends before.
fn read_block(source: &mut impl Read, block: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match source.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Length and hash of a file.
fn hash_file(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut block, mut at) = (BlockHasher::default(), vec![0; BLOCK_BYTES], 0);
    loop {
        let read = read_block(&mut file, &mut block)?;
        if read == 0 {
            return Ok((at, hasher.finish()));
        }
        hasher.add(at, &block[..read]);
        at += read as u64;
    }
}

#[derive(Default)]
struct BlockHasher(blake3::Hasher);

impl BlockHasher {
    /// Adds a block, unless it is zero. Returns whether it counted.
    fn add(&mut self, offset: u64, block: &[u8]) -> bool {
        let counts = block.iter().any(|byte| *byte != 0);
        if counts {
            self.0.update(&offset.to_le_bytes());
            self.0.update(&(block.len() as u64).to_le_bytes());
            self.0.update(block);
        }
        counts
    }

    fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests;
