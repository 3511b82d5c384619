//! The last changes of a watch.

use std::collections::VecDeque;

use pandastack_guest_proto::message::{Change, ChangeKind, RawPath};

/// Worst growth of a byte in JSON (`\u0001`).
const JSON_GROWTH_MAX: usize = 6;
/// The fixed part of a change in JSON.
const CHANGE_BYTES: usize = 100;

/// A change that has no number yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewChange {
    pub(super) kind: ChangeKind,
    pub(super) path: RawPath,
    pub(super) to: Option<RawPath>,
    pub(super) is_directory: bool,
}

impl NewChange {
    /// A change that represents missed ones.
    pub(super) fn overflow() -> Self {
        Self { kind: ChangeKind::Overflow, path: RawPath::default(), to: None, is_directory: false }
    }
}

/// Changes in a bounded number of bytes, numbered without gaps.
#[derive(Debug)]
pub(super) struct Ring {
    changes: VecDeque<Change>,
    bytes: usize,
    bytes_max: usize,
    last: u64,
    /// The last change that any follower got.
    read: u64,
    /// Whether no more changes follow.
    pub(super) ended: bool,
}

fn cost(change: &Change) -> usize {
    let text = change.path.as_bytes().len() + change.to.as_ref().map_or(0, |to| to.as_bytes().len());
    CHANGE_BYTES + text * JSON_GROWTH_MAX
}

impl Ring {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { changes: VecDeque::new(), bytes: 0, bytes_max, last: 0, read: 0, ended: false }
    }

    /// Adds a change. Repeated writes to a file are one change until a follower has read it.
    pub(super) fn push(&mut self, new: NewChange) {
        let NewChange { kind, path, to, is_directory } = new;
        let repeats = matches!(kind, ChangeKind::Modified | ChangeKind::Attributes | ChangeKind::Overflow);
        if repeats
            && self.last > self.read
            && self.changes.back().is_some_and(|last| last.kind == kind && last.path == path)
        {
            return;
        }
        self.last += 1;
        let change = Change { sequence: self.last, kind, path, to, is_directory };
        self.bytes += cost(&change);
        self.changes.push_back(change);
        while self.bytes > self.bytes_max
            && let Some(old) = self.changes.pop_front()
        {
            self.bytes -= cost(&old);
        }
    }

    /// Returns whether a follower that saw that change can continue. A follower that is ahead saw
    /// another watch.
    pub(super) fn has(&self, sequence: u64) -> bool {
        sequence <= self.last
    }

    /// Changes after one, at most about `bytes_max` of JSON. Dropped changes become an overflow,
    /// numbered as the last of them.
    pub(super) fn changes_after(&mut self, sequence: u64, bytes_max: usize) -> Vec<Change> {
        let first_kept = self.changes.front().map_or(self.last + 1, |change| change.sequence);
        let (mut page, mut bytes) = (Vec::new(), 0);
        if sequence + 1 < first_kept {
            let NewChange { kind, path, to, is_directory } = NewChange::overflow();
            page.push(Change { sequence: first_kept - 1, kind, path, to, is_directory });
        }
        let start = self.changes.partition_point(|change| change.sequence <= sequence);
        for change in self.changes.range(start..) {
            bytes += cost(change);
            if bytes > bytes_max && !page.is_empty() {
                break;
            }
            page.push(change.clone());
        }
        self.read = self.read.max(page.last().map_or(0, |change| change.sequence));
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: ChangeKind, path: &str) -> NewChange {
        NewChange { kind, path: path.into(), to: None, is_directory: false }
    }

    fn sequences(ring: &mut Ring, after: u64) -> Vec<(u64, ChangeKind)> {
        ring.changes_after(after, usize::MAX).iter().map(|change| (change.sequence, change.kind)).collect()
    }

    #[test]
    fn repeated_writes_are_coalesced_until_read() {
        use ChangeKind::{Created, Modified};
        let mut ring = Ring::new(10_000);
        ring.push(change(Created, "a"));
        ring.push(change(Modified, "a"));
        ring.push(change(Modified, "a"));
        assert_eq!(sequences(&mut ring, 0), [(1, Created), (2, Modified)]);
        ring.push(change(Modified, "a"));
        assert_eq!(sequences(&mut ring, 2), [(3, Modified)]);
        assert_eq!(sequences(&mut ring, 3), []);
        assert!(ring.has(3) && !ring.has(4));
    }

    #[test]
    fn dropped_changes_are_reported_as_overflow() {
        let mut ring = Ring::new(3 * (CHANGE_BYTES + JSON_GROWTH_MAX));
        for name in ["1", "2", "3", "4", "5"] {
            ring.push(change(ChangeKind::Created, name));
        }
        use ChangeKind::{Created, Overflow};
        assert_eq!(sequences(&mut ring, 0), [(2, Overflow), (3, Created), (4, Created), (5, Created)]);
        assert_eq!(sequences(&mut ring, 2), [(3, Created), (4, Created), (5, Created)]);
        assert_eq!(ring.changes_after(3, 1).len(), 1, "a page has at least one change");
    }
}
