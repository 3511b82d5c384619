//! The WAL after a base backup: which objects contain it, across timelines, and where it ends.

use crate::layout::{Entry, Piece};
use crate::limits::SEGMENT_BYTES;
use crate::position::{Lsn, Segment, Timeline};
use crate::window::{BaseBackup, Catalog, Gap};

/// The log from a base on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Segments in order, each with the objects that hold it from its beginning on.
    pub segments: Vec<(Segment, Vec<Entry>)>,
    /// Histories of the timelines on the way.
    pub histories: Vec<Timeline>,
    /// The timeline it ends on.
    pub timeline: Timeline,
    /// End of the chain.
    pub end: Lsn,
    /// The object that ends it.
    pub last: Option<Entry>,
    /// Gap after the end, if the log continues behind it.
    pub gap: Option<Gap>,
}

impl Catalog {
    /// The log from a base on.
    pub fn chain(&self, base: &BaseBackup) -> Chain {
        let mut chain = Chain {
            segments: Vec::new(),
            histories: self
                .parents
                .contains_key(&base.timeline)
                .then_some(base.timeline)
                .into_iter()
                .collect(),
            timeline: base.timeline,
            end: base.start.segment_start(),
            last: None,
            gap: None,
        };
        let mut from = base.start;
        self.walk(&mut chain);
        while let Some((child, at)) = self.child(chain.timeline, from).filter(|(_, at)| chain.end >= *at) {
            let mut next = Chain { timeline: child, end: at.segment_start(), ..chain.clone() };
            // Log of the old timeline beyond the switch is void: the new timeline's first segment
            // begins with a copy of the part before it.
            next.segments.retain(|(segment, _)| segment.start() <= at);
            next.histories.push(child);
            self.walk(&mut next);
            if next.end < at {
                // The history is archived, but its log is not yet.
                break;
            }
            (chain, from) = (next, at);
        }
        chain.gap = self.after(chain.timeline, chain.end).map(|to| Gap {
            timeline: chain.timeline,
            from: chain.end,
            to,
        });
        chain
    }

    /// Continues while there is log on the chain's timeline.
    fn walk(&self, chain: &mut Chain) {
        loop {
            let segment = Segment::at(chain.timeline, chain.end);
            let Some(found) = self.log.get(&segment) else { return };
            if found.contains(&Entry::Segment(segment)) {
                chain.end = Lsn(segment.start().0 + SEGMENT_BYTES);
                chain.last = Some(Entry::Segment(segment));
                chain.segments.push((segment, vec![Entry::Segment(segment)]));
                continue;
            }
            let pieces: Vec<_> = found.iter().filter_map(piece).collect();
            let pieces = cover(&pieces);
            let Some(last) = pieces.last() else { return };
            chain.end = Lsn(segment.start().0 + u64::from(last.to));
            chain.last = Some(Entry::Piece(*last));
            chain.segments.push((segment, pieces.into_iter().map(Entry::Piece).collect()));
            return;
        }
    }

    /// The latest timeline that branches off at a position or later.
    fn child(&self, parent: Timeline, from: Lsn) -> Option<(Timeline, Lsn)> {
        let mut children = self.parents.iter().rev();
        children.find(|(_, (of, at))| *of == parent && *at >= from).map(|(child, (_, at))| (*child, *at))
    }

    /// Position at which the log of a timeline continues after `end`.
    fn after(&self, timeline: Timeline, end: Lsn) -> Option<Lsn> {
        let later = self
            .log
            .range(Segment::at(timeline, end)..)
            .take_while(|(segment, _)| segment.timeline == timeline);
        let starts = later.flat_map(|(segment, entries)| {
            entries
                .iter()
                .map(|entry| Lsn(segment.start().0 + piece(entry).map_or(0, |piece| u64::from(piece.from))))
        });
        starts.filter(|start| *start > end).min()
    }
}

fn piece(entry: &Entry) -> Option<Piece> {
    match entry {
        Entry::Piece(piece) => Some(*piece),
        _ => None,
    }
}

/// The fewest pieces that hold a segment from its beginning as far as it goes. Pieces may overlap:
/// an interrupted merge leaves such pieces.
pub(crate) fn cover(pieces: &[Piece]) -> Vec<Piece> {
    let mut chain: Vec<Piece> = Vec::new();
    loop {
        let end = chain.last().map_or(0, |piece| piece.to);
        let next =
            pieces.iter().filter(|piece| piece.from <= end && piece.to > end).max_by_key(|piece| piece.to);
        match next {
            Some(next) => chain.push(*next),
            None => return chain,
        }
    }
}

/// The direct parent in a history file: the last line that is not a comment,
/// `parent<TAB>position<TAB>reason`.
pub(crate) fn parent(history: &[u8]) -> Option<(Timeline, Lsn)> {
    let text = std::str::from_utf8(history).ok()?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut fields = lines.next_back()?.split_whitespace();
    Some((Timeline(fields.next()?.parse().ok()?), fields.next()?.parse().ok()?))
}
