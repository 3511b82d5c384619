//! Durable disks.

use serde::{Deserialize, Serialize};

use super::{RawPath, is_false};

/// A disk and its mount path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Serial number of the disk.
    pub serial: String,
    /// Where to; made if it is missing.
    pub path: RawPath,
    /// Nothing is written, not even to bring the file system into order.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
}
