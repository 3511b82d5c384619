//! Prepares the restore of a server to a point in time: a tar, WAL files, and settings.
//!
//! Must hold: all output is in a stock server's format. A time is set as the server's recovery
//! target only if the log has a later transaction, because otherwise the server would fail at the
//! end of the log.
//!
//! Callers provide the machine, and transfer files that the server's `restore_command` requests.

use bytes::{Bytes, BytesMut};
use futures::Stream;
use jiff::Timestamp;

use crate::archive::{Archive, ArchiveError};
use crate::commits::latest_end;
use crate::layout::{Entry, Piece};
use crate::limits::SEGMENT_BYTES;
use crate::log_writer::join;
use crate::position::{Segment, Timeline};
use crate::window::{BaseBackup, Plan, Target, cover};

/// Attempts to find an object while the archiver may be merging it.
const READ_TRIES: usize = 5;

/// Reason why a restore is not possible.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The tar does not match the base's description.
    #[error(
        "the archive of base backup {label} has {found} bytes instead of {expected}; restore from another base backup"
    )]
    TarLength {
        /// Label of the base.
        label: String,
        /// Described.
        expected: u64,
        /// Actual size.
        found: u64,
    },
    /// A command that would be more than one setting.
    #[error("the restore command contains a line break or NUL; write it on one line")]
    Command,
}

/// Files and text that turn an unpacked base into a server that recovers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// An empty file of this name in the data directory makes the server recover.
    pub signal_file: &'static str,
    /// File of the data directory to append the settings to: later settings override inherited
    /// ones.
    pub settings_file: &'static str,
    /// The settings.
    pub settings: String,
}

/// A restore in progress.
#[derive(Debug, Clone)]
pub struct Restore {
    archive: Archive,
    plan: Plan,
    stop_at: Option<Timestamp>,
}

impl Restore {
    /// Prepares a planned restore: reads the end of the log to check whether the target lies before it.
    pub async fn prepare(archive: &Archive, plan: Plan) -> Result<Self, RestoreError> {
        let mut restore = Self { archive: archive.clone(), plan, stop_at: None };
        if let Target::At(target) = restore.plan.target {
            let latest = restore.latest_commit().await?;
            restore.stop_at = latest.is_some_and(|latest| latest > target).then_some(target);
        }
        Ok(restore)
    }

    /// The base it begins with.
    pub fn base(&self) -> &BaseBackup {
        &self.plan.base
    }

    /// Time at which the server will stop; `None` for the end of the log.
    pub fn stop_at(&self) -> Option<Timestamp> {
        self.stop_at
    }

    /// The tar of the base, to be unpacked into an empty data directory of mode 0700.
    pub fn tar(&self) -> impl Stream<Item = Result<Bytes, RestoreError>> + Send + '_ {
        let base = &self.plan.base;
        futures::stream::try_unfold((0, 0_u64), move |(number, before)| async move {
            if number == base.parts {
                let (label, expected, found) = (base.label.clone(), base.tar_bytes, before);
                let whole = expected == found;
                return if whole {
                    Ok(None)
                } else {
                    Err(RestoreError::TarLength { label, expected, found })
                };
            }
            let part = Entry::BasePart { label: base.label.clone(), number };
            let bytes = Bytes::from(self.archive.get(&part).await?.plain);
            let after = before + bytes.len() as u64;
            Ok(Some((bytes, (number + 1, after))))
        })
    }

    /// Names of all files that the server may request (`%f` of its `restore_command`), in the order
    /// in which it needs them.
    pub fn files(&self) -> Vec<String> {
        let chain = &self.plan.chain;
        let histories = chain.histories.iter().map(history_name);
        histories.chain(chain.segments.iter().map(|(segment, _)| segment.to_string())).collect()
    }

    /// A file that the server requests by name. `None` if the file does not exist; the server takes
    /// that as the end of the log.
    pub async fn file(&self, name: &str) -> Result<Option<Bytes>, RestoreError> {
        let chain = &self.plan.chain;
        if let Some(timeline) = chain.histories.iter().find(|timeline| history_name(timeline) == name) {
            return Ok(Some(self.archive.get(&Entry::History(*timeline)).await?.plain.into()));
        }
        let Some((segment, entries)) = chain.segments.iter().find(|(segment, _)| segment.to_string() == name)
        else {
            return Ok(None);
        };
        let mut bytes = self.segment(*segment, entries).await?;
        // Log archived since the plan was made is not part of it.
        let planned = chain.end.0.saturating_sub(segment.start().0).min(SEGMENT_BYTES);
        bytes.truncate(usize::try_from(planned).unwrap_or(usize::MAX));
        // A server takes whole segments only; behind the end it finds nothing and stops.
        bytes.resize(usize::try_from(SEGMENT_BYTES).unwrap_or(usize::MAX), 0);
        Ok(Some(bytes.freeze()))
    }

    /// Recovery settings for the server. `restore_command` fetches the file `%f` to `%p` and fails
    /// if there is none.
    pub fn recovery(&self, restore_command: &str) -> Result<Recovery, RestoreError> {
        if restore_command.contains(['\n', '\r', '\0']) {
            return Err(RestoreError::Command);
        }
        let command = restore_command.replace('\\', "\\\\").replace('\'', "''");
        let (from, to) = (self.plan.base.timeline, self.plan.chain.timeline);
        // With a timeline number the server requests a history file, which a timeline without a
        // switch does not need.
        let timeline = if from == to { "current".to_owned() } else { to.0.to_string() };
        let target =
            self.stop_at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S%.6f+00").to_string()).unwrap_or_default();
        let settings = format!(
            "# Recovery from the archive. Of no effect once it is done.\n\
             restore_command = '{command}'\n\
             recovery_target_timeline = '{timeline}'\n\
             recovery_target = ''\n\
             recovery_target_name = ''\n\
             recovery_target_xid = ''\n\
             recovery_target_lsn = ''\n\
             recovery_target_time = '{target}'\n\
             recovery_target_inclusive = on\n\
             recovery_target_action = 'promote'\n\
             # Not to be inherited: the new server writes into no archive of the old one's.\n\
             archive_mode = off\n\
             archive_command = ''\n\
             archive_cleanup_command = ''\n\
             recovery_end_command = ''\n\
             primary_conninfo = ''\n\
             primary_slot_name = ''\n"
        );
        Ok(Recovery { signal_file: "recovery.signal", settings_file: "postgresql.auto.conf", settings })
    }

    /// When the last transaction of the log ended. Looks from the end backwards, two segments at a time, because a record may lie in both.
    async fn latest_commit(&self) -> Result<Option<Timestamp>, RestoreError> {
        let mut later = BytesMut::new();
        for (segment, entries) in self.plan.chain.segments.iter().rev() {
            let mut log = self.segment(*segment, entries).await?;
            let own_bytes = log.len();
            // A partial segment ends its timeline: no record continues in another segment.
            if own_bytes as u64 == SEGMENT_BYTES {
                log.extend_from_slice(&later);
            }
            let start = segment.start();
            let (latest, mut log) = tokio::task::spawn_blocking(move || (latest_end(&log, start), log))
                .await
                .map_err(|_| ArchiveError::GivenUp(segment.to_string()))?;
            if latest.is_some() {
                return Ok(latest);
            }
            log.truncate(own_bytes);
            later = log;
        }
        Ok(None)
    }

    /// The available part of a segment.
    async fn segment(&self, segment: Segment, entries: &[Entry]) -> Result<BytesMut, RestoreError> {
        let mut entries = entries.to_vec();
        for _ in 1..READ_TRIES {
            match self.read_segment(&entries).await {
                Err(error) if error.is_missing() => entries = self.find_segment(segment).await?,
                read => return Ok(read?),
            }
        }
        Ok(self.read_segment(&entries).await?)
    }

    async fn read_segment(&self, entries: &[Entry]) -> Result<BytesMut, ArchiveError> {
        if let [whole @ Entry::Segment(_)] = entries {
            return Ok(BytesMut::from(&self.archive.get(whole).await?.plain[..]));
        }
        join(&self.archive, &pieces_of(entries)).await
    }

    /// Finds a segment's objects now: its pieces were merged since the plan was made.
    async fn find_segment(&self, segment: Segment) -> Result<Vec<Entry>, ArchiveError> {
        let listed = self.archive.list_wal(segment.timeline).await?;
        let entries: Vec<Entry> = listed.into_iter().map(|listed| listed.entry).collect();
        if entries.contains(&Entry::Segment(segment)) {
            return Ok(vec![Entry::Segment(segment)]);
        }
        let pieces: Vec<Piece> =
            pieces_of(&entries).into_iter().filter(|piece| piece.segment == segment).collect();
        Ok(cover(&pieces).into_iter().map(Entry::Piece).collect())
    }
}

fn pieces_of(entries: &[Entry]) -> Vec<Piece> {
    let piece = |entry: &Entry| match entry {
        Entry::Piece(piece) => Some(*piece),
        _ => None,
    };
    entries.iter().filter_map(piece).collect()
}

fn history_name(timeline: &Timeline) -> String {
    format!("{timeline}.history")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::TryStreamExt;
    use object_store::memory::InMemory;

    use super::*;
    use crate::position::Lsn;
    use crate::seal::Key;
    use crate::window::Chain;

    fn restore(stop_at: Option<&str>, to: Timeline) -> Restore {
        let store = Arc::new(InMemory::new());
        let archive =
            Archive::over(store, object_store::path::Path::default(), "db", Key::new([1; 32])).unwrap();
        let base = BaseBackup {
            label: "b".to_owned(),
            server_version: "16.14".to_owned(),
            system_id: "7".to_owned(),
            timeline: Timeline(1),
            start: Lsn(40),
            stop: Lsn(400),
            started_at: Timestamp::UNIX_EPOCH,
            stopped_at: Timestamp::UNIX_EPOCH,
            parts: 2,
            tar_bytes: 6,
        };
        let (segments, histories) = (Vec::new(), vec![to]);
        let chain = Chain { segments, histories, timeline: to, end: Lsn(400), last: None, gap: None };
        let plan = Plan { base, chain, target: Target::Latest };
        Restore { archive, plan, stop_at: stop_at.map(|at| at.parse().unwrap()) }
    }

    fn setting(restore: &Restore, command: &str, name: &str) -> String {
        let settings = restore.recovery(command).unwrap().settings;
        let line = settings.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap().split_once(" = ").unwrap().1.to_owned()
    }

    #[test]
    fn recovery_settings_are_formatted_for_postgres() {
        let middle = restore(Some("2026-01-02T03:04:05.0000067Z"), Timeline(1));
        assert_eq!(setting(&middle, "x", "recovery_target_time"), "'2026-01-02 03:04:05.000006+00'");
        assert_eq!(setting(&middle, "x", "recovery_target_timeline"), "'current'");
        let latest = restore(None, Timeline(3));
        assert_eq!(setting(&latest, "x", "recovery_target_time"), "''");
        assert_eq!(setting(&latest, "x", "recovery_target_timeline"), "'3'");
        assert_eq!(setting(&latest, r"cp '/a\b'/%f %p", "restore_command"), r"'cp ''/a\\b''/%f %p'");
        for command in ["a\nrestore_command = 'b'", "a\r", "a\0"] {
            assert!(matches!(latest.recovery(command), Err(RestoreError::Command)));
        }
    }

    #[tokio::test]
    async fn an_incomplete_base_tar_is_refused() {
        let restore = restore(None, Timeline(1));
        let part = |number| Entry::BasePart { label: "b".to_owned(), number };
        let put = async |number, bytes: &'static [u8]| {
            restore
                .archive
                .put(&part(number), Timestamp::UNIX_EPOCH, Bytes::from_static(bytes))
                .await
                .unwrap();
        };
        put(0, b"abc").await;
        let all = || async { restore.tar().try_collect::<Vec<_>>().await };
        assert!(matches!(all().await, Err(RestoreError::Archive(error)) if error.is_missing()));
        put(1, b"de").await;
        assert!(matches!(all().await, Err(RestoreError::TarLength { expected: 6, found: 5, .. })));
        restore.archive.remove(&part(1)).await.unwrap();
        put(1, b"def").await;
        assert_eq!(all().await.unwrap().concat(), b"abcdef");
        assert_eq!(restore.file("000000010000000000000009").await.unwrap(), None);
    }
}
