//! A kernel and an initial ramdisk with the tests' own guest program, made once and kept between runs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Modules that the guest program loads.
const MODULES: &[&str] = &[
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/block/virtio_blk.ko",
    "net/core/failover.ko",
    "drivers/net/net_failover.ko",
    "drivers/net/virtio_net.ko",
    "drivers/char/hw_random/virtio-rng.ko",
    "drivers/char/virtio_console.ko",
];

/// What a machine boots from.
#[derive(Debug, Clone)]
pub struct GuestImage {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

impl GuestImage {
    /// Builds or finds the image; the error says why this host cannot.
    pub fn prepare() -> Result<Self, String> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-image");
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let tree = unpack_kernel(&dir)?;
        let kernel = first(&tree.join("boot"), "vmlinuz-")?;
        let modules = first(&tree.join("lib/modules"), "")?.join("kernel");
        let init = dir.join("init");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/init.c");
        run(Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&init).arg(&source))?;
        let initrd = dir.join(format!("initrd-{}.cpio", std::process::id()));
        write_initrd(&initrd, &init, &modules).map_err(|error| format!("{}: {error}", initrd.display()))?;
        Ok(Self { kernel, initrd })
    }
}

impl Drop for GuestImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.initrd);
    }
}

/// Debian's cloud kernel package, unpacked.
fn unpack_kernel(dir: &Path) -> Result<PathBuf, String> {
    let tree = dir.join("kernel");
    if tree.is_dir() {
        return Ok(tree);
    }
    let output = Command::new("apt-cache").args(["depends", "linux-image-cloud-amd64"]).output();
    let output = output.map_err(|error| format!("apt-cache: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let package = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .ok_or("no cloud kernel package")?;
    run(Command::new("apt-get").current_dir(dir).args(["download", package.trim()]))?;
    let archive = first(dir, "linux-image-")?;
    let beside = dir.join("kernel.new");
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&beside))?;
    fs::rename(&beside, &tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    Ok(tree)
}

fn first(dir: &Path, prefix: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut names = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    names
        .next()
        .map(|entry| entry.path())
        .ok_or_else(|| format!("nothing named {prefix}* in {}", dir.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn write_initrd(path: &Path, init: &Path, modules: &Path) -> std::io::Result<()> {
    let mut archive = Vec::new();
    add(&mut archive, "init", 0o100_755, &fs::read(init)?)?;
    add(&mut archive, "dev", 0o040_755, &[])?;
    add(&mut archive, "modules", 0o040_755, &[])?;
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        add(&mut archive, &format!("modules/{name}"), 0o100_644, &fs::read(modules.join(module))?)?;
    }
    add(&mut archive, "TRAILER!!!", 0, &[])?;
    fs::write(path, archive)
}

/// One entry of a `newc` archive.
fn add(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
    let fields =
        [archive.len() as u32, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    archive.write_all(b"070701")?;
    for field in fields {
        write!(archive, "{field:08x}")?;
    }
    archive.write_all(name.as_bytes())?;
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.write_all(content)?;
    archive.resize(archive.len().next_multiple_of(4), 0);
    Ok(())
}
