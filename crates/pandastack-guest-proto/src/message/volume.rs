//! Durable disks.

use serde::{Deserialize, Serialize};

use super::{RawPath, is_false};

/// A disk and its mount path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Serial number of the disk.
    pub serial: String,
    /// Mount path; created if it is missing.
    pub path: RawPath,
    /// Whether the mount is read-only: the guest writes nothing, not even to repair the file
    /// system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
}
