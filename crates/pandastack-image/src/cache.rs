//! The content-addressed cache: finished artifacts by key, outside any source tree or data directory.
//!
//! ```text
//! <cache>/images/<key>.ext4      a sealed root filesystem
//! <cache>/images/<key>.json      its manifest; written last, so its presence means "complete"
//! <cache>/kernels/<key>/         vmlinuz, modules, manifest.json
//! <cache>/work/<key>/            a build in progress; the lock holder may delete remains of a dead one
//! <cache>/locks/<key>            flock: one build of a key at a time, across processes
//! ```
//!
//! A key is a hash of everything that goes into an artifact. Artifacts are never changed once published, so readers
//! need no lock.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use pandastack_types::chain;
use rustix::fs::FlockOperation;

use crate::error::ImageError;

/// Directory of cached artifacts: `PANDASTACK_CACHE_DIR`, or `/var/cache/pandastack`.
pub fn default_cache_dir() -> PathBuf {
    std::env::var_os("PANDASTACK_CACHE_DIR").map_or_else(|| "/var/cache/pandastack".into(), PathBuf::from)
}

#[derive(Debug, Clone)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(crate) fn at(dir: &Path) -> Cache {
        Cache { dir: dir.to_path_buf() }
    }

    pub(crate) fn image(&self, key: &str) -> PathBuf {
        self.dir.join("images").join(format!("{key}.ext4"))
    }

    pub(crate) fn image_manifest(&self, key: &str) -> PathBuf {
        self.dir.join("images").join(format!("{key}.json"))
    }

    pub(crate) fn kernel(&self, key: &str) -> PathBuf {
        self.dir.join("kernels").join(key)
    }

    /// Takes the exclusive lock for creating `key`, waiting for another holder; `on_wait` is called before
    /// waiting.
    pub(crate) fn lock(&self, key: &str, on_wait: impl FnOnce()) -> Result<CacheLock, ImageError> {
        let dir = self.dir.join("locks");
        std::fs::create_dir_all(&dir).map_err(ImageError::io("create", &dir))?;
        let path = dir.join(key);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(ImageError::io("open", &path))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            on_wait();
            rustix::fs::flock(&file, FlockOperation::LockExclusive)
                .map_err(|error| ImageError::io("lock", &path)(error.into()))?;
        }
        Ok(CacheLock { _file: file })
    }

    /// An empty directory to build `key` in, deleted when dropped. Needs the key's lock.
    pub(crate) fn work_dir(&self, key: &str, _held: &CacheLock) -> Result<WorkDir, ImageError> {
        let path = self.dir.join("work").join(key);
        remove_dir(&path)?;
        std::fs::create_dir_all(&path).map_err(ImageError::io("create", &path))?;
        Ok(WorkDir { path })
    }
}

/// Released when dropped, also by a killed process.
#[derive(Debug)]
pub(crate) struct CacheLock {
    _file: File,
}

#[derive(Debug)]
pub(crate) struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.path) {
            tracing::warn!(
                error = %chain(&error),
                "cannot remove a build directory; the next build of this key does"
            );
        }
    }
}

fn remove_dir(path: &Path) -> Result<(), ImageError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ImageError::io("delete", path)(error))
        }
        _ => Ok(()),
    }
}

/// Moves a finished file or directory of the same file system to its final path, durably.
pub(crate) fn publish(from: &Path, to: &Path) -> Result<(), ImageError> {
    let parent = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).map_err(ImageError::io("create", parent))?;
    let synced = File::open(from).and_then(|file| file.sync_all());
    synced.map_err(ImageError::io("make durable", from))?;
    std::fs::rename(from, to).map_err(ImageError::io("publish", to))?;
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(ImageError::io("make durable", parent))
}

/// Hashes parts so that no two different lists of parts give the same key.
#[derive(Debug)]
pub(crate) struct KeyHasher(blake3::Hasher);

impl KeyHasher {
    /// `purpose` names the artifact kind and its format version.
    pub(crate) fn new(purpose: &str) -> KeyHasher {
        KeyHasher(blake3::Hasher::new()).add(purpose)
    }

    pub(crate) fn add(mut self, part: &str) -> KeyHasher {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part.as_bytes());
        self
    }

    /// 32 hexadecimal digits: 128 bits of the hash.
    pub(crate) fn key(self) -> String {
        self.0.finalize().to_hex()[..32].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_when_parts_are_split_differently() {
        let one = KeyHasher::new("test").add("ab").add("c").key();
        let two = KeyHasher::new("test").add("a").add("bc").key();
        assert_ne!(one, two);
        assert_eq!(one.len(), 32);
    }

    #[test]
    fn a_work_dir_starts_empty_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let leftover = dir.path().join("work/k/leftover");
        std::fs::create_dir_all(&leftover).unwrap();
        let lock = cache.lock("k", || panic!("nobody else holds it")).unwrap();
        let work = cache.work_dir("k", &lock).unwrap();
        assert!(!leftover.exists());
        let path = work.path().to_path_buf();
        drop(work);
        assert!(!path.exists());
    }

    #[test]
    fn a_second_builder_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let first = cache.lock("k", || {}).unwrap();
        let (waiting, told) = std::sync::mpsc::channel();
        let other = cache.clone();
        let second = std::thread::spawn(move || other.lock("k", || waiting.send(()).unwrap()).unwrap());
        told.recv_timeout(std::time::Duration::from_secs(10)).expect("the second says that it waits");
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap();
    }
}
