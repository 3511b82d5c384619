//! The kernel and initial ramdisk that machines boot from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_image::{Initramfs, Kernel, KernelSet, Progress};

use crate::blocking::blocking;
use crate::embedded::GUEST_PROGRAM;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;

/// The directory with the kernel and the initial ramdisk that carries the guest program.
pub(crate) fn ensure_boot_dir(host: &HostResources, kernel: &KernelSet) -> Result<PathBuf> {
    let boot_dir = host.layout.boot(&boot_key(kernel));
    if !boot_dir.exists() {
        let staging = host.store.stage()?;
        host.store.import_file(&kernel.vmlinuz, &staging.path().join("vmlinuz"))?;
        Initramfs::build(kernel, GUEST_PROGRAM, &staging.path().join("initrd"))?;
        world_readable(staging.path(), &["vmlinuz", "initrd"])?;
        publish_once(staging, &boot_dir)?;
    }
    Ok(boot_dir)
}

/// What a machine boots from beside its disk.
pub(crate) struct KernelFiles {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Kernel arguments beyond the engine's own.
    pub args: String,
    /// `uname -r` of the kernel.
    pub release: String,
}

/// The kernel of new templates, for a sandbox that wakes by booting.
pub(crate) async fn kernel_files(host: &Arc<HostResources>) -> Result<KernelFiles> {
    let host = host.clone();
    blocking(move || {
        let kernel = Kernel::ensure(&host.config.cache_dir, &|_: Progress<'_>| {})?;
        let dir = ensure_boot_dir(&host, &kernel)?;
        let (args, release) = (kernel_args(), kernel.release);
        Ok(KernelFiles { kernel: dir.join("vmlinuz"), initrd: dir.join("initrd"), args, release })
    })
    .await
}

/// Two bakes of different templates may make the same kernel directory at once; the first one wins.
fn publish_once(staging: pandastack_image::store::Staging, to: &Path) -> Result<()> {
    match staging.publish(to) {
        Err(_) if to.exists() => Ok(()),
        other => Ok(other?),
    }
}

pub(crate) fn world_readable(dir: &Path, names: &[&str]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(AgentError::io("set permissions of", path))
    };
    set(dir, 0o711)?;
    names.iter().try_for_each(|name| set(&dir.join(name), 0o444))
}

/// Stands for the kernel, its modules and the guest program.
pub(crate) fn boot_key(kernel: &KernelSet) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kernel.sha256.as_bytes()).update(GUEST_PROGRAM);
    for module in &kernel.boot_modules {
        hasher.update(module.as_os_str().as_encoded_bytes()).update(b"\n");
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// Kernel arguments beyond the engine's own.
pub(crate) fn kernel_args() -> String {
    format!(
        "pandastack.ip={}/{} pandastack.gateway={}",
        pandastack_net::GUEST_IP,
        pandastack_net::GUEST_PREFIX,
        pandastack_net::GUEST_GATEWAY
    )
}
