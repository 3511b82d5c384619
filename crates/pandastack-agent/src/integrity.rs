//! Checks that a snapshot's files are still what was written.
//!
//! Two defences, of different cost:
//! - A **seal** per file, in the manifest: length and time of last change. Files of a snapshot never change, so a file that
//!   does not match its seal was tampered with or cut short. Checked whenever a snapshot is opened.
//! - A **checksum** per file, in `checksums.json` beside the manifest: BLAKE3 of the contents,
//!   which detects data that a disk lost or corrupted. Computed in the background after the
//!   snapshot was acknowledged, and checked before the first use after each boot of the host: until
//!   then the pages that were hashed are still those in memory. It carries the seal of the file
//!   that was read: a sleeping sandbox's directory may be replaced by the next sleep's while its
//!   files are hashed, and the sums of one must not be compared with the other. A sum is never
//!   computed twice: corruption in between would be accepted as correct.
//!
//! Invariant: no machine is started from files that fail either. Callers decide what to do instead.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::SeekFrom;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::error::{AgentError, Result};
use crate::record::{read_json, write_json_durably};

/// Name of the file with the checksums.
pub(crate) const CHECKSUMS: &str = "checksums.json";
/// Bytes hashed at a time. Part of the format: chunks of zeros are left out, so that holes need not be read and a copy
/// without holes has the same checksum.
const CHUNK_BYTES: usize = 1 << 20;

/// Priority of background work: the lowest.
const NICENESS: i32 = 19;

/// Properties of a file that are known without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seal {
    bytes: u64,
    modified_ns: i64,
}

/// Seals by file name.
pub(crate) type Seals = BTreeMap<String, Seal>;

/// Contents of a file, and which file that was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sum {
    blake3: String,
    seal: Seal,
}

#[derive(Debug, Serialize, Deserialize)]
struct Checksums {
    /// Sums by file name.
    files: BTreeMap<String, Sum>,
    /// The host's boot in which they were last found right.
    verified_boot: String,
}

/// Names the present boot of this host.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Seals the named files of a directory.
pub(crate) fn seal<S: AsRef<str>>(dir: &Path, names: &[S]) -> Result<Seals> {
    let seal = |name: &S| -> Result<(String, Seal)> {
        let name: &str = name.as_ref();
        Ok((name.to_owned(), read_seal(&dir.join(name))?))
    };
    names.iter().map(seal).collect()
}

fn read_seal(path: &Path) -> Result<Seal> {
    let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => AgentError::damaged(path, "the file is missing"),
        _ => AgentError::io("read", path)(error),
    })?;
    Ok(Seal::of(&meta))
}

impl Seal {
    fn of(meta: &Metadata) -> Self {
        let modified_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        Self { bytes: meta.len(), modified_ns }
    }
}

/// Fails if a file does not match its seal.
pub(crate) fn check_seals(dir: &Path, seals: &Seals) -> Result<()> {
    for (name, seal) in seals {
        let path = dir.join(name);
        let found = read_seal(&path)?;
        if found.bytes != seal.bytes {
            let reason = format!("it has {} bytes instead of {}", found.bytes, seal.bytes);
            return Err(AgentError::damaged(&path, reason));
        }
        if found.modified_ns != seal.modified_ns {
            return Err(AgentError::damaged(&path, "it was changed after it was written"));
        }
    }
    Ok(())
}

/// Returns whether the contents must be read before the files are used: not in the boot in which
/// they were written or verified.
pub(crate) fn needs_verifying(dir: &Path, written_boot: &str) -> bool {
    let now = boot_id();
    if written_boot == now {
        return false;
    }
    read_json::<Checksums>(&dir.join(CHECKSUMS)).is_ok_and(|known| known.verified_boot != now)
}

/// Returns whether all these files have checksums.
pub(crate) fn is_summed(dir: &Path, seals: &Seals) -> bool {
    let Ok(known) = read_json::<Checksums>(&dir.join(CHECKSUMS)) else { return false };
    seals.iter().all(|(name, seal)| known.files.get(name).is_some_and(|sum| sum.seal == *seal))
}

/// Reads the files and compares them with their checksums. Blocking, and as slow as the disk.
pub(crate) fn verify(dir: &Path, stop: &CancellationToken) -> Result<()> {
    let path = dir.join(CHECKSUMS);
    let known: Checksums = read_json(&path)?;
    for (name, expected) in &known.files {
        let path = dir.join(name);
        // Sums of a replaced file do not apply to this one; and a link to a snapshot has its sums,
        // but not the images of its volumes. The seals decide which files must exist.
        if !path.exists() || read_seal(&path)? != expected.seal {
            continue;
        }
        let found = checksum(&path, stop).map_err(AgentError::io("read", &path))?;
        if found != *expected {
            return Err(AgentError::damaged(&path, "its contents do not match their checksum"));
        }
    }
    write_json_durably(&path, &Checksums { verified_boot: boot_id(), ..known })
}

/// Runs work on a thread of its own that gives way to everything else.
pub(crate) async fn run_at_low_priority(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let (report, outcome) = tokio::sync::oneshot::channel();
    let run = move || {
        // Affects this thread only. A failure only means normal priority.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let _ = report.send(work());
    };
    let started = std::thread::Builder::new().name("checksums".to_owned()).spawn(run);
    started.map_err(AgentError::io("start a thread for", Path::new(CHECKSUMS)))?;
    outcome.await.map_err(|_| AgentError::Stopping)?
}

/// Computes and writes down the checksums of the named files that have none yet. Blocking; meant for the background.
pub(crate) fn write_checksums<S: AsRef<str>>(
    dir: &Path,
    names: &[S],
    stop: &CancellationToken,
) -> Result<()> {
    let path = dir.join(CHECKSUMS);
    let nothing = || Checksums { files: BTreeMap::new(), verified_boot: boot_id() };
    let Checksums { mut files, mut verified_boot } = read_json(&path).unwrap_or_else(|_| nothing());
    files.retain(|name, sum| read_seal(&dir.join(name)).is_ok_and(|seal| seal == sum.seal));
    if names.iter().all(|name| files.contains_key(name.as_ref())) {
        return Ok(());
    }
    // A checksum from an earlier boot was verified then, and the file is read again in this boot
    // before it is used.
    if files.is_empty() {
        verified_boot = boot_id();
    }
    for name in names {
        let name: &str = name.as_ref();
        if !files.contains_key(name) {
            let path = dir.join(name);
            let sum = checksum(&path, stop).map_err(AgentError::io("read", &path))?;
            files.insert(name.to_owned(), sum);
        }
    }
    write_json_durably(&path, &Checksums { files, verified_boot })
}

/// BLAKE3 over the file's length, and the position and contents of every chunk that is not all
/// zeros. Memory files stay in the page cache, because machines map them; disk images are dropped
/// from it, because machines use clones.
fn checksum(path: &Path, stop: &CancellationToken) -> io::Result<Sum> {
    let name = path.file_name().and_then(|name| name.to_str());
    let drop_cache = name.is_some_and(crate::layout::snapshot::is_image);
    let file = File::open(path)?;
    let seal = Seal::of(&file.metadata()?);
    let length = seal.bytes;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&length.to_le_bytes());
    let mut buffer = vec![0u8; CHUNK_BYTES];
    let mut at = 0;
    while let Some(chunk_at) = next_data(&file, at, length)? {
        if stop.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = (length - chunk_at).min(CHUNK_BYTES as u64) as usize;
        let chunk = &mut buffer[..len];
        file.read_exact_at(chunk, chunk_at)?;
        if drop_cache {
            // Advice: a kernel that does not take it is only slower elsewhere.
            let _ = rustix::fs::fadvise(
                &file,
                chunk_at,
                std::num::NonZeroU64::new(len as u64),
                rustix::fs::Advice::DontNeed,
            );
        }
        if chunk.iter().any(|byte| *byte != 0) {
            hasher.update(&chunk_at.to_le_bytes()).update(chunk);
        }
        at = chunk_at + len as u64;
    }
    Ok(Sum { blake3: hasher.finalize().to_hex().to_string(), seal })
}

/// Start of the chunk that holds the next data at or after `at`.
fn next_data(file: &File, at: u64, length: u64) -> io::Result<Option<u64>> {
    if at >= length {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data / CHUNK_BYTES as u64 * CHUNK_BYTES as u64)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "memory";
    const SECOND: &str = "disk";

    fn written() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join(NAME)).unwrap();
        file.set_len(5 * CHUNK_BYTES as u64 + 7).unwrap();
        file.write_all_at(&[7; 4096], CHUNK_BYTES as u64 + 4096).unwrap();
        dir
    }

    fn flip_quietly(dir: &Path) {
        let file = File::options().read(true).write(true).open(dir.join(NAME)).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, CHUNK_BYTES as u64 + 5000).unwrap();
        file.write_all_at(&[byte[0] ^ 1], CHUNK_BYTES as u64 + 5000).unwrap();
        file.set_modified(modified).unwrap();
    }

    fn as_of_an_earlier_boot(dir: &Path) {
        let path = dir.join(CHECKSUMS);
        let known: Checksums = read_json(&path).unwrap();
        write_json_durably(&path, &Checksums { verified_boot: "earlier".to_owned(), ..known }).unwrap();
    }

    #[test]
    fn later_checksums_do_not_replace_the_first() {
        let (dir, stop) = (written(), CancellationToken::new());
        std::fs::write(dir.path().join(SECOND), b"disk").unwrap();
        let seals = seal(dir.path(), &[NAME, SECOND]).unwrap();
        write_checksums(dir.path(), &[NAME], &stop).unwrap();
        assert!(!is_summed(dir.path(), &seals));
        as_of_an_earlier_boot(dir.path());
        flip_quietly(dir.path());
        write_checksums(dir.path(), &[NAME, SECOND], &stop).unwrap();
        assert!(is_summed(dir.path(), &seals));
        assert!(needs_verifying(dir.path(), "earlier"));
        assert!(matches!(verify(dir.path(), &stop), Err(AgentError::Damaged { .. })));
        flip_quietly(dir.path());
        verify(dir.path(), &stop).unwrap();
    }

    #[test]
    fn checksums_of_absent_files_are_not_reported_as_damage() {
        let (dir, stop) = (written(), CancellationToken::new());
        std::fs::write(dir.path().join("volume.0"), b"image").unwrap();
        write_checksums(dir.path(), &[NAME, "volume.0"], &stop).unwrap();
        std::fs::remove_file(dir.path().join("volume.0")).unwrap();
        verify(dir.path(), &stop).unwrap();
    }

    #[test]
    fn a_changed_or_missing_file_breaks_the_seal() {
        let dir = written();
        let seals = seal(dir.path(), &[NAME]).unwrap();
        check_seals(dir.path(), &seals).unwrap();
        let file = File::options().write(true).open(dir.path().join(NAME)).unwrap();
        file.write_all_at(&[8], 0).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
        assert!(check_seals(dir.path(), &seals).is_err());
        std::fs::remove_file(dir.path().join(NAME)).unwrap();
        assert!(matches!(check_seals(dir.path(), &seals), Err(AgentError::Damaged { .. })));
    }

    #[test]
    fn a_flipped_bit_on_disk_is_detected() {
        let (dir, stop) = (written(), CancellationToken::new());
        let seals = seal(dir.path(), &[NAME]).unwrap();
        write_checksums(dir.path(), &[NAME], &stop).unwrap();
        verify(dir.path(), &stop).unwrap();
        flip_quietly(dir.path());
        check_seals(dir.path(), &seals).unwrap();
        assert!(matches!(verify(dir.path(), &stop), Err(AgentError::Damaged { .. })));
    }

    #[test]
    fn checksums_of_a_replaced_file_do_not_apply_to_its_replacement() {
        let (dir, stop) = (written(), CancellationToken::new());
        write_checksums(dir.path(), &[NAME], &stop).unwrap();
        flip_quietly(dir.path());
        let file = File::options().write(true).open(dir.path().join(NAME)).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
        verify(dir.path(), &stop).unwrap();
    }

    #[test]
    fn contents_are_verified_once_per_boot() {
        let (dir, stop) = (written(), CancellationToken::new());
        assert!(!needs_verifying(dir.path(), "earlier"), "nothing to compare with");
        write_checksums(dir.path(), &[NAME], &stop).unwrap();
        assert!(!needs_verifying(dir.path(), "earlier"));
        as_of_an_earlier_boot(dir.path());
        assert!(needs_verifying(dir.path(), "earlier"));
        assert!(!needs_verifying(dir.path(), &boot_id()), "written in this boot");
        verify(dir.path(), &stop).unwrap();
        assert!(!needs_verifying(dir.path(), "earlier"));
    }

    #[test]
    fn sparse_and_full_files_have_the_same_checksum() {
        let (dir, stop) = (written(), CancellationToken::new());
        let sparse = checksum(&dir.path().join(NAME), &stop).unwrap();
        let bytes = std::fs::read(dir.path().join(NAME)).unwrap();
        std::fs::write(dir.path().join("full"), bytes).unwrap();
        assert_eq!(checksum(&dir.path().join("full"), &stop).unwrap().blake3, sparse.blake3);
    }
}
