//! Computes which objects can be deleted.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::layout::{Entry, Piece};
use crate::limits::UNFINISHED_AGE;
use crate::window::{BaseBackup, Catalog, cover};

impl Catalog {
    /// Entries that are not needed to restore any time since `keep_from`, nor the latest state. The
    /// newest complete base and everything after it stays in any case; without a complete base,
    /// everything does.
    pub fn expired(&self, keep_from: Timestamp, now: Timestamp) -> Vec<Entry> {
        let usable: Vec<&BaseBackup> = self.usable().map(|(base, ..)| base).collect();
        let Some(newest) = usable.last() else { return Vec::new() };
        let oldest =
            usable.iter().rfind(|base| base.stopped_at <= keep_from).or(usable.first()).unwrap_or(newest);
        // Bases older than the oldest kept one are not needed, nor are bases without their log,
        // unless the log is still being archived.
        let kept: BTreeSet<&str> = self
            .bases
            .iter()
            .filter(|base| base.stopped_at >= oldest.stopped_at)
            .map(|base| base.label.as_str())
            .collect();
        let described: BTreeSet<&str> = self.bases.iter().map(|base| base.label.as_str()).collect();
        let unfinished_before = now.checked_sub(UNFINISHED_AGE).unwrap_or(Timestamp::MIN);
        // A kept base may have started before the oldest one and ended after it.
        let first = self
            .bases
            .iter()
            .filter(|base| kept.contains(base.label.as_str()))
            .map(|base| base.start.segment())
            .min();
        let first = first.unwrap_or(0);
        let expired = |entry: &Entry, put_at: Timestamp| match entry {
            Entry::Base { label } | Entry::BasePart { label, .. } | Entry::ServerManifest { label } => {
                let unfinished = !described.contains(label.as_str());
                if unfinished { put_at < unfinished_before } else { !kept.contains(label.as_str()) }
            }
            Entry::Segment(segment) => segment.number < first,
            Entry::Piece(piece) => piece.segment.number < first || self.is_covered(piece),
            Entry::History(_) => false,
        };
        let listed = self.listed.iter().filter(|listed| expired(&listed.entry, listed.put_at));
        // Descriptions are deleted first: an interrupted deletion must not leave a base that has
        // lost its parts.
        let mut expired: Vec<Entry> = listed.map(|listed| listed.entry.clone()).collect();
        expired.sort_by_key(|entry| !matches!(entry, Entry::Base { .. }));
        expired
    }

    /// Returns whether other objects hold a piece's bytes.
    fn is_covered(&self, piece: &Piece) -> bool {
        let Some(found) = self.log.get(&piece.segment) else { return false };
        if found.contains(&Entry::Segment(piece.segment)) {
            return true;
        }
        let pieces: Vec<Piece> = found
            .iter()
            .filter_map(|entry| match entry {
                Entry::Piece(piece) => Some(*piece),
                _ => None,
            })
            .collect();
        let chain = cover(&pieces);
        let end = chain.last().map_or(0, |last| last.to);
        piece.to <= end && !chain.contains(piece)
    }
}
