//! The product's kernel, and an initial ramdisk with the tests' own guest program.
//!
//! The kernel comes from [`Kernel::ensure`]: pinned, with a fallback when the archive dropped the
//! pinned version, and with the modules in the order of `modules.dep`. It is fetched once and kept
//! between runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pandastack_image::{ImageError, Initramfs, Kernel, KernelSet};

use crate::missing::Missing;

/// Set by `cargo xtask test --only drift`.
const NEWEST: &str = "PANDASTACK_TEST_NEWEST_KERNEL";

/// Boot files of a machine.
#[derive(Debug, Clone)]
pub struct GuestImage {
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

impl GuestImage {
    /// Builds or finds the image. Panics when that fails for another reason than what this host lacks.
    pub fn prepare() -> Result<Self, Missing> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-image");
        fs::create_dir_all(&dir).unwrap();
        let kernel = match kernel(&dir) {
            Err(ImageError::NoMirror) => return Err(Missing::Archive),
            kernel => kernel.expect("a kernel from Debian's archive"),
        };
        let init = dir.join(format!("init-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/init.c");
        let compiled =
            Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&init).arg(&source).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let program = fs::read(&init).unwrap();
        let _ = fs::remove_file(&init);
        let initrd = dir.join(format!("initrd-{}.cpio", std::process::id()));
        Initramfs::build(&kernel, &program, &initrd).unwrap();
        Ok(Self { kernel: kernel.vmlinuz, initrd })
    }
}

/// The product's kernel, or the archive's newest if a run requests it.
fn kernel(dir: &Path) -> Result<KernelSet, ImageError> {
    if std::env::var_os(NEWEST).is_none() {
        return Kernel::ensure(dir, &|_| ());
    }
    let pin = Kernel::current_pin(dir)?;
    println!("with the newest kernel: {} {}", pin.package, pin.version);
    Kernel::ensure_pin(&pin, dir, &|_| ())
}

impl Drop for GuestImage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.initrd);
    }
}
