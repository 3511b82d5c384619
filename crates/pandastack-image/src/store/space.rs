//! Free space of the store's file system and of the one that contains it.
//!
//! With a loop-mounted store the inner file system believes it owns its whole (sparse) size. When
//! the outer one runs full first, inner writes fail with EIO and XFS shuts itself down, with every
//! machine on it. So both are checked, and the outer one is never used to the end.

use std::io;
use std::path::Path;

/// Bytes kept free on the outer file system for the inner one's metadata and for writes already in progress.
pub const OUTER_RESERVE_BYTES: u64 = 1 << 30;

/// Bytes kept free on the store's own file system.
pub const INNER_RESERVE_BYTES: u64 = 64 << 20;

/// Size and free space of one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// All bytes.
    pub total_bytes: u64,
    /// Bytes that may still be written.
    pub available_bytes: u64,
}

/// Free space as the store sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSpace {
    /// The file system the store's files are on.
    pub inner: FileSystemSpace,
    /// The file system that holds the store's image, when the store is loop-mounted.
    pub outer: Option<FileSystemSpace>,
}

impl StoreSpace {
    /// Bytes that can be written before one of the two refuses, reserves taken off.
    pub fn available_bytes(&self) -> u64 {
        let inner = self.inner.available_bytes.saturating_sub(INNER_RESERVE_BYTES);
        let outer = self.outer.map_or(u64::MAX, |o| o.available_bytes.saturating_sub(OUTER_RESERVE_BYTES));
        inner.min(outer)
    }

    /// Returns whether the outer file system, rather than the store's own, is the limit.
    pub fn outer_limits(&self) -> bool {
        self.outer.is_some_and(|outer| {
            outer.available_bytes.saturating_sub(OUTER_RESERVE_BYTES)
                < self.inner.available_bytes.saturating_sub(INNER_RESERVE_BYTES)
        })
    }
}

pub(super) fn measure(path: &Path) -> io::Result<FileSystemSpace> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(FileSystemSpace {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn space(inner: u64, outer: Option<u64>) -> StoreSpace {
        let of = |available_bytes| FileSystemSpace { total_bytes: 100 * GIB, available_bytes };
        StoreSpace { inner: of(inner), outer: outer.map(of) }
    }

    #[test]
    fn the_smaller_file_system_limits_available_space() {
        assert_eq!(space(10 * GIB, None).available_bytes(), 10 * GIB - INNER_RESERVE_BYTES);
        assert_eq!(space(10 * GIB, Some(5 * GIB)).available_bytes(), 4 * GIB);
        assert_eq!(space(2 * GIB, Some(50 * GIB)).available_bytes(), 2 * GIB - INNER_RESERVE_BYTES);
        assert!(space(10 * GIB, Some(5 * GIB)).outer_limits());
        assert!(!space(2 * GIB, Some(50 * GIB)).outer_limits());
    }

    #[test]
    fn a_nearly_full_outer_file_system_has_no_space() {
        assert_eq!(space(10 * GIB, Some(OUTER_RESERVE_BYTES - 1)).available_bytes(), 0);
    }
}
