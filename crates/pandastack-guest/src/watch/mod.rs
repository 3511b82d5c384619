//! Watches: changes below a path, numbered and kept for readers that reconnect.
//!
//! ```text
//! kernel --inotify--> watch thread --translates--> ring --wake--> event loop --> followers
//! ```
//!
//! Watches live in the guest, because there they survive the agent, a sleep and a snapshot.
//!
//! Invariants:
//! - A watch outlives its follower and its connection, so a host that was restarted, or a machine
//!   that slept, continues where it stopped. Sequence numbers have no gaps; lost changes are
//!   reported as a change of kind overflow.
//! - Memory is bounded: [`WATCHES_MAX`] rings of [`RING_BYTES_MAX`], [`DIRECTORIES_MAX`]
//!   directories each. A new watch may replace one without a follower.
//! - The thread does all work that may wait for a disk; the event loop only reads rings.

mod ring;
mod tree;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use pandastack_guest_proto::message::{Change, ErrorBody, ErrorCode, FileWatch};

use crate::files::{absolute, refusal};
use ring::Ring;
use tree::Tree;

/// Watches at once.
const WATCHES_MAX: usize = 32;
/// Directories of one recursive watch.
const DIRECTORIES_MAX: usize = 16 * 1024;
/// Bytes of changes that a watch keeps; older ones go.
const RING_BYTES_MAX: usize = 256 * 1024;
/// Time for which a watch without a follower is not replaced.
const KEPT: Duration = Duration::from_secs(60);
/// Stack of a watch's thread.
const STACK_BYTES: usize = 128 * 1024;

/// One watch, as the event loop sees it.
pub(crate) struct Watch {
    path: PathBuf,
    recursive: bool,
    shared: Arc<Shared>,
    followed_at: Instant,
}

struct Shared {
    ring: Mutex<Ring>,
    /// Wakes the event loop.
    wake: Arc<EventFd>,
    /// Stops the thread.
    stop: EventFd,
}

impl Shared {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        // Every change of a ring is complete before anything can panic.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails only when the counter is full, and then the thread is awake anyway.
        let _ = self.shared.stop.write(1);
    }
}

impl Watch {
    /// Starts watching. Reads whole trees: for a worker.
    pub(crate) fn start(request: &FileWatch, wake: Arc<EventFd>) -> Result<Self, ErrorBody> {
        let path = absolute(&request.path)?;
        let fail = |error: &io::Error| match error.raw_os_error() {
            Some(libc::ENOSPC) => ErrorBody::new(
                ErrorCode::TooMany,
                format!(
                    "{} has more than {DIRECTORIES_MAX} directories, or more than the kernel watches; watch less",
                    path.display()
                ),
            ),
            _ => refusal("watch", &path, error),
        };
        let tree = Tree::open(&path, request.recursive, DIRECTORIES_MAX).map_err(|error| fail(&error))?;
        let stop =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).map_err(|errno| fail(&errno.into()))?;
        let shared = Arc::new(Shared { ring: Mutex::new(Ring::new(RING_BYTES_MAX)), wake, stop });
        let thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("watch".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || follow(tree, &thread))
            .map_err(|error| fail(&error))?;
        Ok(Self { path, recursive: request.recursive, shared, followed_at: Instant::now() })
    }
}

/// The thread: from the kernel's events to the ring, until stopped or until the path is gone.
fn follow(mut tree: Tree, shared: &Shared) {
    loop {
        let mut ready = [
            PollFd::new(tree.inotify(), PollFlags::POLLIN),
            PollFd::new(shared.stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => break,
            Ok(_) if ready[1].any().unwrap_or(true) => return,
            Ok(_) => {}
        }
        let (changes, gone) = tree.read();
        let mut ring = shared.ring();
        for change in changes {
            ring.push(change);
        }
        ring.ended |= gone;
        drop(ring);
        let _ = shared.wake.write(1);
        if gone {
            return;
        }
    }
    shared.ring().ended = true;
    let _ = shared.wake.write(1);
}

/// A page of a watch's changes.
pub(crate) struct Page {
    pub(crate) changes: Vec<Change>,
    /// Whether the path is gone and every change was read.
    pub(crate) ended: bool,
}

/// All watches of the machine.
pub(crate) struct Watches {
    watches: HashMap<u64, Watch>,
    last_id: u64,
    wake: Arc<EventFd>,
}

impl Watches {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        Ok(Self { watches: HashMap::new(), last_id: 0, wake })
    }

    /// TemporaryKind readable when any watch has news.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// A handle for [`Watch::start`].
    pub(crate) fn wake(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    /// The news were taken.
    pub(crate) fn clear_wake(&self) {
        // An empty read means that an earlier call consumed the wake-up.
        let _ = self.wake.read();
    }

    /// Returns whether the request's earlier watch still exists and is of that path.
    pub(crate) fn can_resume(&self, request: &FileWatch) -> bool {
        let Some(resume) = request.resume else { return false };
        let Ok(path) = absolute(&request.path) else { return false };
        self.watches.get(&resume.watch).is_some_and(|watch| {
            watch.path == path
                && watch.recursive == request.recursive
                && watch.shared.ring().has(resume.sequence)
        })
    }

    /// Adds a started watch. If the table is full, it replaces a watch for which `followed` returns
    /// false.
    pub(crate) fn enter(&mut self, watch: Watch, followed: impl Fn(u64) -> bool) -> Result<u64, ErrorBody> {
        if self.watches.len() >= WATCHES_MAX {
            let oldest = self
                .watches
                .iter()
                .filter(|(id, watch)| !followed(**id) && watch.followed_at.elapsed() >= KEPT)
                .min_by_key(|(_, watch)| watch.followed_at)
                .map(|(&id, _)| id);
            let Some(oldest) = oldest else {
                let message = format!("{WATCHES_MAX} watches are open in this machine; close some first");
                return Err(ErrorBody::new(ErrorCode::TooMany, message));
            };
            self.watches.remove(&oldest);
        }
        self.last_id += 1;
        self.watches.insert(self.last_id, watch);
        Ok(self.last_id)
    }

    /// The changes of a watch after a sequence number, at most `bytes_max` of JSON; `None` if the
    /// watch does not exist.
    pub(crate) fn page(&mut self, id: u64, after: u64, bytes_max: usize) -> Option<Page> {
        let watch = self.watches.get_mut(&id)?;
        watch.followed_at = Instant::now();
        let mut ring = watch.shared.ring();
        let changes = ring.changes_after(after, bytes_max);
        let ended = ring.ended && changes.is_empty();
        drop(ring);
        if ended {
            self.watches.remove(&id);
        }
        Some(Page { changes, ended })
    }
}
