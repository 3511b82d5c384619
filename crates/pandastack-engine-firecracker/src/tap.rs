//! The tap of a machine. Firecracker opens it by name in its network namespace, so the process is
//! given the namespace instead of a descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use pandastack_engine::{EngineError, Result, tap};

/// Name of a tap that leads nowhere.
const UNCONNECTED: &str = "tap0";

/// A tap that is ready to be opened by one user.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) name: String,
    /// Network namespace that it is in.
    pub(crate) namespace: OwnedFd,
}

impl Tap {
    /// Makes the caller's tap ready to be opened by that user. It is closed here, since only one
    /// may have it open.
    pub(crate) fn hand_over(given: OwnedFd, uid: u32) -> Result<Self> {
        let name = tap::check(given.as_fd())?;
        let failed = || EngineError::io("hand over the machine's tap", tap::DEVICE);
        tap::keep_for(given.as_fd(), uid).map_err(failed())?;
        let namespace = tap::namespace(given.as_fd()).map_err(failed())?;
        Ok(Self { name, namespace })
    }

    /// A tap in an empty network: every machine has a network device, since a snapshot restores
    /// only into the same devices.
    pub(crate) fn unconnected(uid: u32) -> Result<Self> {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let made = tap::create(UNCONNECTED)?;
            tap::keep_for(made.as_fd(), uid)?;
            tap::namespace(made.as_fd())
        };
        // Namespaces belong to threads: change it in a temporary thread.
        let namespace = thread::scope(|scope| scope.spawn(make).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
            .map_err(EngineError::io("make a tap that leads nowhere", tap::DEVICE))?;
        Ok(Self { name: UNCONNECTED.to_owned(), namespace })
    }
}
