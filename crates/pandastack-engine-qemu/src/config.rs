//! Settings of the engine.

use std::path::PathBuf;

/// Settings of a [`crate::QemuEngine`].
#[derive(Debug, Clone)]
pub struct QemuConfig {
    /// The emulator; `None` looks for `qemu-system-x86_64` on the path.
    pub binary: Option<PathBuf>,
    /// Directory of the engine's own: the preloaded library, an empty root directory, the verdict of the fork test.
    /// Created if missing; short, because it is a path in messages of limited length.
    pub library_dir: PathBuf,
    /// Whether KVM runs guests on this host, as found by executing instructions. The engine emulates otherwise.
    pub kvm_usable: bool,
    /// Human-readable reason why KVM is or is not usable.
    pub kvm_reason: String,
}
