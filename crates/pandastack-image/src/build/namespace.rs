//! A mount namespace that lives exactly as long as one build.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::error::ImageError;

/// Runs `work` on a thread whose mounts, and whose children's mounts, nobody else sees.
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
        let handle = handle.map_err(|source| ImageError::Spawn {
            program: "a build thread".into(),
            purpose: format!("build {name}"),
            source,
        })?;
        handle.join().unwrap_or_else(|_| Err(ImageError::Panicked(name.to_owned())))
    })
}

fn leave_mount_namespace() -> Result<(), ImageError> {
    const PURPOSE: &str = "mount the image being built";
    let refused = |error: nix::Error| ImageError::NotRoot { purpose: PURPOSE, source: error.into() };
    unshare(CloneFlags::CLONE_NEWNS).map_err(refused)?;
    // Otherwise mounts made here would still propagate to the host.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(refused)
}
