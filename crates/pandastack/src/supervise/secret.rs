//! The join secret, shared by control and agents: created once and readable by root only. Its file may have
//! several generations ([`SecretRing`]); processes that use it follow the file.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pandastack_types::chain;
use pandastack_types::link::LinkKey;
use pandastack_types::secret_ring::SecretRing;
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use crate::failure::Failure;

/// Random bytes of a new secret, written as twice as many hexadecimal digits.
const SECRET_BYTES: usize = 32;
/// Pause between attempts to find a file that was removed to be replaced.
const MISSING_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// Name of the file in the data directory.
const FILE: &str = "link-secret";

/// Generates a secret, in hexadecimal.
pub fn generate() -> Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).context("cannot get random bytes")?;
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

/// Path of the secret in a data directory.
pub fn path_in(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Creates the secret of a new data directory. Refuses a data directory that was in use and lost
/// its secret: with another secret, derived passwords are wrong and backups cannot be read.
pub fn ensure(data_dir: &Path, accept_new: bool) -> Result<PathBuf> {
    let path = path_in(data_dir);
    if path.exists() {
        return Ok(path);
    }
    if data_dir.join("control").exists() && !accept_new {
        let failure = Failure::new(format!("the join secret {} is missing", path.display()));
        return Err(failure
            .hint(
                "restore the file from a backup; if it is lost, start once with --accept-new-link-secret: \
                 database backups then stay unreadable, database passwords, deploy keys and access tokens \
                 change, and stored secrets, such as app variables, are removed",
            )
            .into());
    }
    write(&path, &generate()?)?;
    Ok(path)
}

/// Writes the content of a secret's file, keeping its owner and permissions.
pub fn write(path: &Path, text: &str) -> Result<()> {
    // Written to a temporary file and renamed: a crash must not leave a partial secret.
    let fresh = path.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let write = || -> Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        if let Ok(replaced) = std::fs::metadata(path) {
            fchown(&file, Some(replaced.uid()), Some(replaced.gid()))?;
            file.set_permissions(replaced.permissions())?;
        }
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        // The name, too: the database may soon be sealed with the new secret.
        Ok(std::fs::File::open(folder(path))?.sync_all()?)
    };
    write().with_context(|| format!("cannot write the join secret {}", path.display()))
}

/// Held while the file is changed, so that two commands do not both add the next generation.
pub fn lock(path: &Path) -> Result<std::fs::File> {
    let folder = folder(path);
    let lock = || std::fs::File::open(folder).and_then(|file| file.lock().map(|()| file));
    lock().with_context(|| format!("cannot lock {}", folder.display()))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Runs `work`; until it ends, `key` follows the file: new generations apply as soon as it is
/// replaced.
pub async fn following<T>(path: &Path, key: &LinkKey, work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        never = follow(path, key) => match never {},
    }
}

async fn follow(path: &Path, key: &LinkKey) -> Infallible {
    let followed = async {
        let events = events()?;
        loop {
            // First the watch, so that no change is between the two.
            match watch(&events, path) {
                Ok(()) => reload(path, key),
                Err(rustix::io::Errno::NOENT) => {
                    tokio::time::sleep(MISSING_PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            next(&events).await?;
        }
    };
    let ended: std::io::Result<Infallible> = followed.await;
    match ended {
        Err(error) => give_up(path, &error).await,
    }
}

async fn give_up(path: &Path, error: &std::io::Error) -> Infallible {
    let path = path.display();
    tracing::warn!(%path, error = %chain(error), "changes of the join secret need a restart");
    std::future::pending().await
}

fn events() -> std::io::Result<AsyncFd<std::os::fd::OwnedFd>> {
    let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    #[expect(deprecated, reason = "its replacement is unsafe, and this crate has no unsafe code")]
    AsyncFd::new(events)
}

/// Notices when the file is written, replaced or removed, once. Its folder need not be readable.
fn watch(events: &AsyncFd<std::os::fd::OwnedFd>, path: &Path) -> rustix::io::Result<()> {
    use inotify::WatchFlags as Kind;
    let kinds = Kind::CLOSE_WRITE | Kind::ATTRIB | Kind::DELETE_SELF | Kind::MOVE_SELF;
    inotify::add_watch(events.get_ref(), path, kinds).map(drop)
}

async fn next(events: &AsyncFd<std::os::fd::OwnedFd>) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let mut ready = events.readable().await?;
        // The content of the events does not matter: the file is read again.
        match ready.try_io(|events| Ok(rustix::io::read(events.get_ref(), &mut buffer)?)) {
            Ok(read) => return read.map(drop),
            Err(_would_block) => {}
        }
    }
}

fn reload(path: &Path, key: &LinkKey) {
    match read(path) {
        Ok(found) => {
            let ring = found.ring();
            if !found.fingerprints().starts_with(&key.fingerprints()) {
                let path = path.display();
                tracing::error!(%path, "the join secret lacks a generation in use; restore its newest copy");
            } else if ring != key.ring() {
                let generation = ring.current().number;
                key.replace(ring);
                tracing::info!(generation, "the join secret was replaced");
            }
        }
        // A file that is being written is complete soon.
        Err(error) => tracing::error!(error = %format!("{error:#}"), "the join secret cannot be read"),
    }
}

/// Reads a secret.
pub fn read(path: &Path) -> Result<LinkKey> {
    let hint = "run `pandastack join-secret` to generate one";
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(format!("cannot read the join secret {}: {error}", path.display())).hint(hint)
    })?;
    let ring = SecretRing::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())));
    Ok(ring.map_err(|failure| failure.hint(hint))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_created_once_for_root_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure(dir.path(), false).unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        assert_eq!(first.len(), 2 * SECRET_BYTES);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        ensure(dir.path(), false).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        read(&path).unwrap();
    }

    #[test]
    fn a_lost_secret_is_not_regenerated() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure(dir.path(), false).unwrap();
        std::fs::create_dir(dir.path().join("control")).unwrap();
        ensure(dir.path(), false).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(ensure(dir.path(), false).unwrap_err().to_string().contains("is missing"));
        assert!(!path.exists());
        ensure(dir.path(), true).unwrap();
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_process_reloads_a_replaced_secret_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure(dir.path(), false).unwrap();
        let key = read(&path).unwrap();
        let events = events().unwrap();
        watch(&events, &path).unwrap();
        let mut ring = key.ring();
        ring.stage(&[2; 32]).unwrap();
        ring.activate();
        // The mode that control's user needs.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        write(&path, &ring.to_text()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        tokio::time::timeout(std::time::Duration::from_secs(10), next(&events)).await.unwrap().unwrap();
        reload(&path, &key);
        assert_eq!(key.ring(), ring);
        watch(&events, &path).unwrap();
        std::fs::write(&path, "short").unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(10), next(&events)).await.unwrap().unwrap();
        reload(&path, &key);
        assert_eq!(key.ring(), ring, "a damaged file changes nothing");
        write(&path, &generate().unwrap()).unwrap();
        reload(&path, &key);
        assert_eq!(key.ring(), ring, "another secret changes nothing");
    }

    #[test]
    fn a_replaced_secret_stays_readable_for_control() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure(dir.path(), false).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        write(&path, &generate().unwrap()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_weak_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s"), "short").unwrap();
        assert!(read(&dir.path().join("s")).is_err());
    }
}
