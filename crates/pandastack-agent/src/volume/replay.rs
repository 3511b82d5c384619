//! Replays journals of images that their last machine did not unmount: all images that were ever
//! written.
//!
//! A read-only mount skips the journal, because it cannot be written to. But data that a killed
//! machine had synced may exist only in the journal, so it is replayed first, on the host.
//!
//! Must hold: an image is replayed under its exclusive lock, so never while a machine has it open.
//! A guest wrote its contents, so the program that reads it runs as a user of its own, which owns
//! only that one file, and is ended when it takes too long.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pandastack_types::{VolumeId, chain};
use rustix::fs::FlockOperation;

use super::open_locked;
use crate::error::{AgentError, Result};

/// Offset of ext4's superblock, and in it of its magic number and its incompatible features.
const SUPERBLOCK: u64 = 1024;
const MAGIC_AT: usize = 0x38;
const MAGIC: [u8; 2] = 0xef53_u16.to_le_bytes();
const FEATURES_AT: usize = 0x60;
/// The feature of a file system whose journal holds something.
const NEEDS_RECOVERY: u8 = 0x04;

/// Replays the journal of its standard input: with no other user's files, 1 GiB of memory, a minute of processor time.
const REPLAY: [&str; 9] = [
    "--clear-groups",
    "--no-new-privs",
    "--pdeathsig=KILL",
    "prlimit",
    "--as=1073741824",
    "--cpu=60",
    "e2fsck",
    "-pEjournal_only",
    "/proc/self/fd/0",
];
/// Administrative programs are not on every user's path.
const EXTRA_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Longest time for a replay. The largest journal has 1 GiB.
const REPLAY_WAIT: Duration = Duration::from_secs(120);
/// Between two looks whether it has ended.
const REPLAY_LOOK: Duration = Duration::from_millis(5);

static IN_PROGRESS: Mutex<BTreeSet<VolumeId>> = Mutex::new(BTreeSet::new());
static ENDED: Condvar = Condvar::new();

/// Held while a volume is opened for reading: a second reader waits for a replay instead of failing
/// because the volume is in use.
pub(super) struct ReplayGuard(VolumeId);

impl ReplayGuard {
    pub(super) fn take(id: &VolumeId) -> Self {
        let in_progress = IN_PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = ENDED.wait_while(in_progress, |all| all.contains(id));
        free.unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        Self(id.clone())
    }
}

impl Drop for ReplayGuard {
    fn drop(&mut self) {
        IN_PROGRESS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        ENDED.notify_all();
    }
}

/// Replays the journal of an image before it is mounted read-only, as an otherwise unused user.
pub(super) fn replay_left(image: &Path, id: &VolumeId, uid: u32) -> Result<()> {
    let look = OpenOptions::new().read(true).open(image).and_then(|file| needs_replay(&file));
    if !look.map_err(AgentError::io("read the metadata of", image))? {
        return Ok(());
    }
    // If a machine has the image open, it is not replayed: a writer refuses readers anyway, and
    // an additional reader sees the same state as the existing one.
    let Ok(locked) = open_locked(image, false, id) else { return Ok(()) };
    let replayed = replay(&locked, uid);
    // Unlock explicitly instead of closing the descriptor: a process that is just being started may
    // briefly have a copy of it.
    rustix::fs::flock(&locked, FlockOperation::Unlock)
        .map_err(|errno| AgentError::io("unlock", image)(errno.into()))?;
    replayed.map_err(|why| {
        let why = chain(&why);
        tracing::warn!(volume = %id, why, "the journal of a volume cannot be replayed");
        AgentError::Conflict(format!(
            "volume {id} was not unmounted by its last sandbox, and this host cannot replay its journal ({why}): attach it, or a \
             clone of it, once for writing; then it can be read"
        ))
    })
}

fn needs_replay(image: &File) -> io::Result<bool> {
    let mut superblock = [0; FEATURES_AT + 4];
    match image.read_exact_at(&mut superblock, SUPERBLOCK) {
        // Too small to be a file system.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let is_ext4 = superblock[MAGIC_AT..MAGIC_AT + 2] == MAGIC;
    Ok(is_ext4 && superblock[FEATURES_AT] & NEEDS_RECOVERY != 0)
}

/// Reason why a journal was not replayed.
#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error("the image cannot be read")]
    Image(#[source] io::Error),
    #[error("the image cannot be given to another user")]
    Owner(#[source] io::Error),
    #[error("e2fsck cannot be run; install e2fsprogs and util-linux")]
    Run(#[source] io::Error),
    #[error("e2fsck did not end within {} s", REPLAY_WAIT.as_secs())]
    Late,
    #[error("e2fsck: {0}")]
    Failed(ExitStatus),
    #[error("e2fsck left its journal as it was")]
    Unchanged,
}

/// Replays the journal of an image that no other process has open.
fn replay(image: &File, uid: u32) -> Result<(), ReplayError> {
    let before = image.metadata().map_err(ReplayError::Image)?;
    fchown(image, Some(uid), Some(uid)).map_err(ReplayError::Owner)?;
    let ended = run(image, uid);
    let back = fchown(image, Some(before.uid()), Some(before.gid()));
    let status = ended.and_then(|ended| back.map(|()| ended)).map_err(ReplayError::Run)?;
    let status = status.ok_or(ReplayError::Late)?;
    // 1: something was mended.
    if !matches!(status.code(), Some(0 | 1)) {
        return Err(ReplayError::Failed(status));
    }
    match image.sync_all().and_then(|()| needs_replay(image)).map_err(ReplayError::Image)? {
        false => Ok(()),
        true => Err(ReplayError::Unchanged),
    }
}

/// Runs the program on an image; `None` if it had to be ended.
fn run(image: &File, uid: u32) -> io::Result<Option<ExitStatus>> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).args(REPLAY);
    command.env_clear().env("PATH", format!("{path}:{EXTRA_PATH}")).current_dir("/");
    command.stdin(Stdio::from(image.try_clone()?)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let ended = wait(&mut child);
    if !matches!(ended, Ok(Some(_))) {
        // The program may have ended by itself this moment.
        let _ = child.kill();
        child.wait()?;
    }
    ended
}

fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + REPLAY_WAIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        #[expect(clippy::disallowed_methods, reason = "a blocking thread; a wait with a deadline")]
        std::thread::sleep(REPLAY_LOOK);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = crate::host_resources::UID_FIRST;
    /// Longer than the steps of a file system's clock.
    const CLOCK_TICK: Duration = Duration::from_millis(20);

    /// An image, and whether its journal was left with something in it.
    fn image(path: &Path, left: bool) {
        pandastack_image::format_volume(path, 64 << 20).unwrap();
        if left {
            let feature = ["-w", "-R", "feature needs_recovery"];
            let mut debugfs = Command::new("debugfs");
            let set = debugfs.env("PATH", EXTRA_PATH).args(feature).arg(path).output().unwrap();
            assert!(set.status.success(), "{set:?}");
        }
    }

    fn left(path: &Path) -> bool {
        needs_replay(&File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn a_leftover_journal_is_replayed_before_read_only_use() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root gives an image away");
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, id) = (dir.path().join("image"), VolumeId::random());
        image(&path, true);
        assert!(left(&path));
        let reader = open_locked(&path, true, &id).unwrap();
        replay_left(&path, &id, USER).unwrap();
        assert!(left(&path), "not while somebody has it open");
        rustix::fs::flock(&reader, FlockOperation::Unlock).unwrap();
        let owner = std::fs::metadata(&path).unwrap().uid();
        replay_left(&path, &id, USER).unwrap();
        assert!(!left(&path));
        assert_eq!(std::fs::metadata(&path).unwrap().uid(), owner, "it is its owner's again");
    }

    #[test]
    fn an_image_with_an_empty_journal_is_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id) = (dir.path().join("image"), VolumeId::random());
        image(&path, false);
        let state = || {
            let meta = std::fs::metadata(&path).unwrap();
            (meta.uid(), meta.ctime(), meta.ctime_nsec(), std::fs::read(&path).unwrap())
        };
        let before = state();
        #[expect(clippy::disallowed_methods, reason = "the clock moves in steps")]
        std::thread::sleep(CLOCK_TICK);
        // No process has it open: nothing but its empty journal protects it.
        replay_left(&path, &id, USER).unwrap();
        assert!(state() == before, "the image was changed");
    }

    #[test]
    fn an_unreplayable_volume_is_rejected_with_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let (path, id) = (dir.path().join("image"), VolumeId::random());
        let mut bytes = vec![0; 1 << 20];
        bytes[1024 + MAGIC_AT..1024 + MAGIC_AT + 2].copy_from_slice(&MAGIC);
        bytes[1024 + FEATURES_AT] = NEEDS_RECOVERY;
        std::fs::write(&path, bytes).unwrap();
        let refused = replay_left(&path, &id, USER).unwrap_err();
        assert!(matches!(&refused, AgentError::Conflict(why) if why.contains("for writing")), "{refused}");
    }

    #[test]
    fn journal_replays_are_serialized_per_volume() {
        let (id, other) = (VolumeId::random(), VolumeId::random());
        let turn = ReplayGuard::take(&id);
        drop(ReplayGuard::take(&other));
        let (sender, taken) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            let _turn = ReplayGuard::take(&id);
            sender.send(()).unwrap();
        });
        assert!(taken.recv_timeout(Duration::from_millis(50)).is_err());
        drop(turn);
        taken.recv_timeout(Duration::from_secs(10)).unwrap();
        waiting.join().unwrap();
    }
}
