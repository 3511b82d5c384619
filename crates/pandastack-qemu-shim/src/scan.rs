//! Listing `/proc/self/fd` and `/proc/self/task` without allocating.
//!
//! A confined process has no `/proc` in its root. It keeps a descriptor of a detached, own-processes-only mount of it
//! instead: a mount without a parent, so `..` leads nowhere, and resolved per call, so a child sees itself.

use core::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

use crate::exclusive::Exclusive;
use crate::sys;

/// Directory entries read per call.
const BATCH_BYTES: usize = 16 * 1024;
/// Offset of the record length in `struct linux_dirent64`.
const RECORD_LEN_AT: usize = 16;
/// Offset of the name in `struct linux_dirent64`.
const NAME_AT: usize = 19;

static PROC_FD: AtomicI32 = AtomicI32::new(-1);
static BATCH: Exclusive<[u8; BATCH_BYTES]> = Exclusive::new([0; BATCH_BYTES]);

/// Remembers the descriptor of the process file system.
pub(crate) fn set_proc_fd(fd: c_int) {
    PROC_FD.store(fd, Ordering::Relaxed);
}

/// The descriptor of the process file system.
pub(crate) fn proc_fd() -> c_int {
    PROC_FD.load(Ordering::Relaxed)
}

/// Calls `visit` with every number that names an entry of `directory` (relative to the process file system,
/// NUL-terminated), except the descriptor this listing itself uses. Control thread only.
pub(crate) fn for_each_number<E>(
    directory: &[u8],
    mut visit: impl FnMut(c_int) -> Result<(), E>,
) -> sys::Result<Result<(), E>> {
    let fd = sys::open_at(proc_fd(), directory, libc::O_RDONLY | libc::O_DIRECTORY)?;
    // SAFETY: control thread, and `visit` never lists a directory itself.
    let batch = unsafe { BATCH.get() };
    let outcome = loop {
        let filled = match sys::getdents(fd, batch) {
            Ok(0) => break Ok(Ok(())),
            Ok(filled) => filled,
            Err(errno) => break Err(errno),
        };
        let stop =
            numbers(&batch[..filled]).filter(|&number| number != fd).find_map(|number| visit(number).err());
        if let Some(error) = stop {
            break Ok(Err(error));
        }
    };
    sys::close(fd);
    outcome
}

/// The numeric names in a batch of `struct linux_dirent64`.
fn numbers(mut batch: &[u8]) -> impl Iterator<Item = c_int> {
    core::iter::from_fn(move || {
        loop {
            let len = batch.get(RECORD_LEN_AT..RECORD_LEN_AT + 2)?;
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            // A record is never shorter than its header; a shorter length would loop forever.
            let (record, rest) = batch.split_at_checked(len.max(NAME_AT))?;
            batch = rest;
            if let Some(number) = record.get(NAME_AT..).and_then(parse_number) {
                return Some(number);
            }
        }
    })
}

/// The decimal number a NUL-terminated name consists of.
fn parse_number(name: &[u8]) -> Option<c_int> {
    let end = name.iter().position(|&byte| byte == 0)?;
    let digits = &name[..end];
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0 as c_int, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| c_int::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn record(name: &str) -> Vec<u8> {
        let len = (NAME_AT + name.len() + 1).next_multiple_of(8);
        let mut bytes = std::vec![0; len];
        bytes[RECORD_LEN_AT..RECORD_LEN_AT + 2].copy_from_slice(&(len as u16).to_le_bytes());
        bytes[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
        bytes
    }

    #[test]
    fn only_numeric_names_are_listed() {
        let batch = [".", "..", "0", "self", "2147483647", "2147483648", "12x", "307"].map(record).concat();
        assert_eq!(numbers(&batch).collect::<Vec<_>>(), [0, 2_147_483_647, 307]);
    }

    #[test]
    fn a_truncated_batch_ends_the_listing() {
        let mut batch = ["7", "8"].map(record).concat();
        batch.truncate(batch.len() - 1);
        assert_eq!(numbers(&batch).collect::<Vec<_>>(), [7]);
        assert_eq!(numbers(&[0; 32]).count(), 0);
    }
}
