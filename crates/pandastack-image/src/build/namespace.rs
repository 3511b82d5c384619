//! A mount namespace that lives exactly as long as one build.

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

use crate::error::ImageError;

/// Runs `work` on a thread whose mounts, and whose children's mounts, are invisible elsewhere.
///
/// A thread can leave its process's mount namespace by itself; programs it starts follow it. When the last of them is
/// gone the kernel undoes every mount, so a killed build leaves none.
pub(super) fn with_private_mounts<T: Send>(
    name: &str,
    work: impl FnOnce() -> Result<T, ImageError> + Send,
) -> Result<T, ImageError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name(format!("build {name}"));
        let handle = builder.spawn_scoped(scope, || {
            leave_mount_namespace()?;
            work()
        });
        let handle = handle.map_err(|reason| ImageError::Spawn {
            program: "a build thread".into(),
            purpose: format!("build {name}"),
            reason,
        })?;
        handle.join().unwrap_or_else(|_| Err(ImageError::Panicked(name.to_owned())))
    })
}

fn leave_mount_namespace() -> Result<(), ImageError> {
    const PURPOSE: &str = "mount the image being built";
    let refused = |reason: std::io::Error| ImageError::NotRoot { purpose: PURPOSE, reason };
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| refused(error.into()))?;
    // Otherwise mounts made here would still propagate to the host.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .map_err(|error| refused(error.into()))
}
