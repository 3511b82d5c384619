//! Settings of the engine.

use std::path::{Path, PathBuf};

use crate::install;

/// Environment variable with the path of Firecracker, used when the configuration has none.
pub const BINARY_VARIABLE: &str = "PANDASTACK_FIRECRACKER";
/// Environment variable with the path of the jailer, used when the configuration has none.
pub const JAILER_VARIABLE: &str = "PANDASTACK_JAILER";

/// Settings of a [`crate::FirecrackerEngine`].
#[derive(Debug, Clone, Default)]
pub struct FirecrackerConfig {
    /// The Firecracker program; `None` takes `PANDASTACK_FIRECRACKER`, else `firecracker` on the path.
    pub binary: Option<PathBuf>,
    /// The jailer; `None` takes `PANDASTACK_JAILER`, else `jailer` beside the program or on the path.
    pub jailer: Option<PathBuf>,
    /// Launcher of processes.
    pub launcher: Launcher,
    /// Reason why KVM is usable, for the log.
    pub kvm_reason: String,
}

impl FirecrackerConfig {
    /// Settings that prefer the program installed in the data directory, unless the environment names
    /// one.
    pub fn installed(data_dir: &Path, kvm_reason: String) -> Self {
        let is_named = std::env::var_os(BINARY_VARIABLE).is_some_and(|value| !value.is_empty());
        let binary = install::installed(data_dir).filter(|_| !is_named);
        Self { binary, kvm_reason, ..Self::default() }
    }
}

/// Launcher of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Launcher {
    /// Through the jailer: own user, own root, own namespaces. Needs root.
    #[default]
    Jailer,
    /// As the agent's own user, without a jail. For tests only: no tenant code may run like that.
    Direct,
}
