//! The product's kernel, and an initial ramdisk with the tests' own guest program.
//!
//! The kernel comes from [`Kernel::ensure`]: pinned, with a fallback when the archive dropped the pinned version, and
//! with the modules in the order `modules.dep` asks for. It is fetched once and kept between runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pandastack_image::{Initramfs, Kernel};

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
        let kernel = Kernel::ensure(&dir, &|_| ()).map_err(|error| error.to_string())?;
        let init = dir.join(format!("init-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/init.c");
        run(Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&init).arg(&source))?;
        let program = fs::read(&init).map_err(|error| format!("{}: {error}", init.display()))?;
        let _ = fs::remove_file(&init);
        let initrd = dir.join(format!("initrd-{}.cpio", std::process::id()));
        Initramfs::build(&kernel, &program, &initrd).map_err(|error| error.to_string())?;
        Ok(Self { kernel: kernel.vmlinuz, initrd })
    }
}

impl Drop for GuestImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.initrd);
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
