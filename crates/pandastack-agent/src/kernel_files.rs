//! The kernel and initial ramdisk that machines boot from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_engine::KernelFormat;
use pandastack_image::{Initramfs, Kernel, KernelSet, Progress};

use crate::blocking::blocking;
use crate::embedded::GUEST_PROGRAM;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;

/// Name of the kernel image in a boot directory.
const KERNEL: &str = "kernel";
/// Name of the initial ramdisk in a boot directory.
const INITRD: &str = "initrd";

/// A kernel, and the initial ramdisk that carries the guest program.
pub(crate) struct BootFiles {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Hash that identifies both.
    pub key: String,
}

/// Makes the boot files for the host's engine on first use.
pub(crate) fn ensure_boot_files(host: &HostResources, kernel: &KernelSet) -> Result<BootFiles> {
    let format = host.engine.capabilities().kernel_format;
    let key = boot_key(kernel, format);
    let dir = host.layout.boot(&key);
    if !dir.exists() {
        let image = match format {
            KernelFormat::Bzimage => kernel.vmlinuz.clone(),
            KernelFormat::Elf => kernel.vmlinux()?,
        };
        let staging = host.store.stage()?;
        host.store.import_file(&image, &staging.path().join(KERNEL))?;
        Initramfs::build(kernel, GUEST_PROGRAM, &staging.path().join(INITRD))?;
        world_readable(staging.path(), &[KERNEL, INITRD])?;
        publish_once(staging, &dir)?;
    }
    Ok(BootFiles { kernel: dir.join(KERNEL), initrd: dir.join(INITRD), key })
}

/// The kernel and initial ramdisk of a machine.
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
        let BootFiles { kernel: image, initrd, .. } = ensure_boot_files(&host, &kernel)?;
        Ok(KernelFiles { kernel: image, initrd, args: kernel_args(), release: kernel.release })
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

fn world_readable(dir: &Path, names: &[&str]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(AgentError::io("set permissions of", path))
    };
    set(dir, 0o711)?;
    names.iter().try_for_each(|name| set(&dir.join(name), 0o444))
}

/// Hashes the kernel, its format, its modules and the guest program.
fn boot_key(kernel: &KernelSet, format: KernelFormat) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(match format {
        KernelFormat::Bzimage => b"bzimage",
        KernelFormat::Elf => b"elf",
    });
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
