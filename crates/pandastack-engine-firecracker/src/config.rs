//! Settings of the engine.

use std::path::PathBuf;

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
    /// How processes are started.
    pub launcher: Launcher,
    /// Why KVM is usable, for the log.
    pub kvm_reason: String,
}

/// How processes are started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Launcher {
    /// Through the jailer: own user, own root, own namespaces. Needs root.
    #[default]
    Jailer,
    /// As the agent's own user, without a jail. For tests only: no tenant code may run like that.
    Direct,
}
