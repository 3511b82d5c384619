//! Computes what an archive can restore from its contents. Pure, but for [`Catalog::read`].
//!
//! ```text
//!   base A ====log====log==== base B ==log====      ====log====> (no base: of no use)
//!          |<-------------- restorable ------->|gap|
//! ```
//!
//! Must hold: a time is called restorable only if there is a base that was complete before it, and
//! every byte of the log from that base's start to beyond that time. Deleted objects are never
//! needed by a kept base.

mod chain;
mod retention;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use pandastack_types::chain;
use serde::{Deserialize, Serialize};

use crate::archive::{Archive, ArchiveError, ArchivedObject};
use crate::layout::{Entry, Piece};
use crate::position::{Lsn, Segment, Timeline};

pub use chain::Chain;
pub(crate) use chain::cover;
#[cfg(feature = "fuzz")]
pub(crate) use chain::parent as parent_of;

/// Attempts to read a listing that changes during the read.
const READ_TRIES: usize = 5;

/// A base backup, as described in the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseBackup {
    /// Label of the base.
    pub label: String,
    /// Version of the server, such as `16.14`.
    pub server_version: String,
    /// The server's number. Copies of a server share it.
    pub system_id: String,
    /// Line of history.
    pub timeline: Timeline,
    /// Position from which the log is needed.
    pub start: Lsn,
    /// Up to where, at least.
    pub stop: Lsn,
    /// When it was begun.
    pub started_at: Timestamp,
    /// When it was complete: the earliest time that can be restored from it.
    pub stopped_at: Timestamp,
    /// Parts of the tar.
    pub parts: u32,
    /// Bytes of the tar.
    pub tar_bytes: u64,
}

/// The contents of an archive.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// Oldest first.
    pub(crate) bases: Vec<BaseBackup>,
    pub(crate) listed: Vec<ArchivedObject>,
    /// Pieces by segment, and whole segments.
    pub(crate) log: BTreeMap<Segment, Vec<Entry>>,
    /// Origin of each timeline: parent, and position.
    pub(crate) parents: BTreeMap<Timeline, (Timeline, Lsn)>,
    /// Time up to which the log is complete with an object: only for objects that end a chain.
    pub(crate) complete_until: BTreeMap<Entry, Timestamp>,
}

/// The restorable periods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Base backups, oldest first.
    pub bases: Vec<BaseBackup>,
    /// Times from, to. More than one where the log has gaps.
    pub restorable: Vec<(Timestamp, Timestamp)>,
    /// Gaps in the log.
    pub gaps: Vec<Gap>,
    /// End of the log.
    pub end: Option<(Timeline, Lsn)>,
}

impl Window {
    /// The earliest time that can be restored.
    pub fn earliest(&self) -> Option<Timestamp> {
        self.restorable.first().map(|(from, _)| *from)
    }

    /// The latest.
    pub fn latest(&self) -> Option<Timestamp> {
        self.restorable.last().map(|(_, to)| *to)
    }
}

/// Log that is missing: nothing after it can be restored from a base before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Line of history.
    pub timeline: Timeline,
    /// First missing byte.
    pub from: Lsn,
    /// First byte after the gap.
    pub to: Lsn,
}

/// The point to restore to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The latest state.
    Latest,
    /// The state at an instant.
    At(Timestamp),
}

/// Steps of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The base.
    pub base: BaseBackup,
    /// The log after it.
    pub chain: Chain,
    /// Target of the restore.
    pub target: Target,
}

/// Reason why a time cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No base is complete.
    #[error("the first base backup is not complete yet; try again in a minute")]
    NoBase,
    /// Before the first base.
    #[error("{target} is before the earliest time that can be restored, {earliest}")]
    TooEarly {
        /// Requested.
        target: Timestamp,
        /// Possible.
        earliest: Timestamp,
    },
    /// Not yet in the archive, or no longer.
    #[error(
        "{target} is after the latest time that can be restored, {latest}; restore to the latest instead"
    )]
    TooLate {
        /// Requested.
        target: Timestamp,
        /// Possible.
        latest: Timestamp,
    },
    /// Log is missing.
    #[error(
        "the WAL from {} to {} is missing, so {target} cannot be restored; the last time before the gap is {before}",
        gap.from, gap.to
    )]
    Gap {
        /// Requested.
        target: Timestamp,
        /// The gap.
        gap: Gap,
        /// Possible.
        before: Timestamp,
    },
}

impl Catalog {
    /// Reads an archive's contents: its listing, the descriptions of its bases, and the ends of its
    /// log.
    pub async fn read(archive: &Archive) -> Result<Self, ArchiveError> {
        for _ in 1..READ_TRIES {
            match Self::read_once(archive).await {
                // The archiver has merged a piece since the listing.
                Err(error) if error.is_missing() => {}
                read => return read,
            }
        }
        Self::read_once(archive).await
    }

    async fn read_once(archive: &Archive) -> Result<Self, ArchiveError> {
        let mut catalog = Self::of_listing(archive.list().await?);
        for listed in catalog.listed.clone() {
            match &listed.entry {
                entry @ Entry::Base { .. } => {
                    match serde_json::from_slice(&archive.get(entry).await?.plain) {
                        Ok(base) => catalog.bases.push(base),
                        Err(error) => {
                            tracing::warn!(
                                error = %chain(&error), name = entry.name(),
                                "ignoring a base backup with an unknown format"
                            )
                        }
                    }
                }
                entry @ Entry::History(timeline) => {
                    let history = archive.get(entry).await?.plain;
                    catalog.parents.extend(chain::parent(&history).map(|parent| (*timeline, parent)));
                }
                _ => {}
            }
        }
        catalog.bases.sort_by_key(|base| base.stopped_at);
        let ends: BTreeSet<_> = catalog.bases.iter().filter_map(|base| catalog.chain(base).last).collect();
        for end in ends {
            let until = archive.get(&end).await?.time;
            catalog.complete_until.insert(end, until);
        }
        Ok(catalog)
    }

    /// Records that the log is complete up to a time, as reported by [`Status`](crate::Status) or
    /// by a sleeping machine: a database without commits writes no log that would show it. No
    /// effect if the log does not end at `end`.
    pub fn extend(&mut self, end: (Timeline, Lsn), until: Timestamp) {
        let chains = self.bases.iter().map(|base| self.chain(base));
        let lasts: Vec<_> = chains
            .filter(|chain| (chain.timeline, chain.end) >= end)
            .filter_map(|chain| chain.last)
            .collect();
        for last in lasts {
            self.complete_until.entry(last).and_modify(|known| *known = until.max(*known));
        }
    }

    fn of_listing(listed: Vec<ArchivedObject>) -> Self {
        let mut log: BTreeMap<Segment, Vec<Entry>> = BTreeMap::new();
        for ArchivedObject { entry, .. } in &listed {
            match entry {
                Entry::Segment(segment) | Entry::Piece(Piece { segment, .. }) => {
                    log.entry(*segment).or_default().push(entry.clone());
                }
                _ => {}
            }
        }
        Self { listed, log, ..Self::default() }
    }

    /// The restorable periods.
    pub fn window(&self) -> Window {
        let mut window =
            Window { bases: self.bases.clone(), restorable: Vec::new(), gaps: Vec::new(), end: None };
        for (base, chain, until) in self.usable() {
            window.gaps.extend(chain.gap.filter(|gap| !window.gaps.contains(gap)));
            window.end = window.end.max(Some((chain.timeline, chain.end)));
            match window.restorable.last_mut() {
                Some((_, to)) if base.stopped_at <= *to => *to = until.max(*to),
                _ => window.restorable.push((base.stopped_at, until)),
            }
        }
        window
    }

    /// Plans the restore of a target. `At` times in the future of the archive are refused.
    pub fn plan_restore(&self, target: Target) -> Result<Plan, PlanError> {
        let usable: Vec<_> = self.usable().collect();
        let (Some(first), Some(last)) = (usable.first(), usable.last()) else {
            return Err(PlanError::NoBase);
        };
        let at = match target {
            Target::Latest => return Ok(Plan { base: last.0.clone(), chain: last.1.clone(), target }),
            Target::At(at) => at,
        };
        let Some((base, chain, until)) = usable.iter().rfind(|(base, ..)| base.stopped_at <= at) else {
            return Err(PlanError::TooEarly { target: at, earliest: first.0.stopped_at });
        };
        match chain.gap {
            _ if at <= *until => Ok(Plan { base: (*base).clone(), chain: chain.clone(), target }),
            Some(gap) => Err(PlanError::Gap { target: at, gap, before: *until }),
            None => Err(PlanError::TooLate { target: at, latest: *until }),
        }
    }

    /// Bases whose log is complete, each with its log and the log's end time. Oldest first.
    fn usable(&self) -> impl Iterator<Item = (&BaseBackup, Chain, Timestamp)> {
        self.bases.iter().filter_map(|base| {
            let chain = self.chain(base);
            let until = self.complete_until.get(chain.last.as_ref()?)?;
            // A base is complete at its stop time: the time known at the end of the log may be
            // older.
            (chain.end >= base.stop).then(|| (base, chain, (*until).max(base.stopped_at)))
        })
    }
}

#[cfg(test)]
mod tests;
