//! Running programs of the tree: own mount, pid, network and IPC namespaces, no network, nothing of the host's
//! environment.

use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::command::Program;
use crate::error::ImageError;

/// Installers must neither prompt nor contact services.
const ENVIRONMENT: &[&str] = &[
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LANG=C.UTF-8",
    "DEBIAN_FRONTEND=noninteractive",
];

/// A tree whose programs can be run.
pub(super) struct Chroot {
    root: PathBuf,
}

impl Chroot {
    pub(super) fn at(root: &Path) -> Chroot {
        Chroot { root: root.to_path_buf() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Runs a shell command in the tree; `purpose` completes "cannot ...".
    pub(super) fn shell(&self, command: &str, purpose: &str) -> Result<(), ImageError> {
        let proc = format!("--mount-proc={}", self.root.join("proc").display());
        let namespaces = ["--mount", "--net", "--ipc", "--uts", &proc];
        Program::confined("chroot", format!("{purpose} (`{command}`)"), &namespaces)
            .arg(&self.root)
            .args(["/usr/bin/env", "-i"])
            .args(ENVIRONMENT)
            .args(["/bin/sh", "-ec", command])
            .run()
    }

    /// Shows `dir` of the host at `at` (absolute, in the tree) while `work` runs.
    pub(super) fn with_dir<T>(
        &self,
        dir: &Path,
        at: &str,
        work: impl FnOnce() -> Result<T, ImageError>,
    ) -> Result<T, ImageError> {
        let point = self.root.join(at.trim_start_matches('/'));
        std::fs::create_dir_all(&point).map_err(ImageError::io("create", &point))?;
        mount_bind(dir, &point).map_err(|error| ImageError::io("bind", &point)(error.into()))?;
        let outcome = work();
        unmount(&point, UnmountFlags::empty())
            .map_err(|error| ImageError::io("unmount", &point)(error.into()))?;
        std::fs::remove_dir(&point).map_err(ImageError::io("delete", &point))?;
        outcome
    }
}
