//! Trees of files of a sandbox: listing, searching, archives, watching.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use axum::response::sse::Event;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use pandastack_guest_proto::client::{ArchiveReader, WatchStream};
use pandastack_guest_proto::message::{
    self as guest, Change, FileAttributes, FileGrep, FileWalk, FileWatch, WatchPosition,
};
use pandastack_types::api::{
    ChangeKind, FileChange, FileEntry, FileWritten, GrepMatch, GrepResult, SetAttributes,
};
use pandastack_types::limits;
use tokio_util::sync::CancellationToken;

use crate::error::{AgentError, Result};
use crate::files::{answer, check_path, join, keep, parse_mode, pour, stat};
use crate::json_list::List;
use crate::process::events::ascii_json;
use crate::sandbox::handle::GuestLease;

/// Options of a walk.
pub(crate) struct Find<'a> {
    pub path: &'a str,
    pub glob: Option<&'a str>,
    pub depth: Option<u32>,
    pub limit: Option<u32>,
}

/// A number of the query within its limit.
fn limited(name: &str, wanted: Option<u32>, default: u32, max: u32) -> Result<u32> {
    match wanted {
        None => Ok(default),
        Some(wanted) if (1..=max).contains(&wanted) => Ok(wanted),
        Some(_) => Err(AgentError::BadRequest(format!("`{name}` must be 1 to {max}"))),
    }
}

pub(crate) async fn find(lease: &GuestLease, find: Find<'_>) -> Result<Response> {
    let entries_max = limited("limit", find.limit, limits::FILES_FOUND_DEFAULT, limits::FILES_FOUND_MAX)?;
    let depth = find.depth.map(|depth| limited("depth", Some(depth), 1, u32::MAX)).transpose()?;
    let walk = FileWalk { path: find.path.into(), depth, glob: find.glob.map(str::to_owned), entries_max };
    let mut list = List::new(lease.budget.begin()?);
    let keep = |page, bytes| keep(&mut list, find.path, page, bytes);
    let truncated = lease.guest.walk_pages(walk, keep).await?;
    list.items.sort_by(|a: &FileEntry, b| a.path.cmp(&b.path));
    answer(list, find.path, truncated)
}

/// Options of a search.
pub(crate) struct Grep {
    pub path: String,
    pub pattern: String,
    pub glob: Option<String>,
    pub ignore_case: bool,
    pub fixed: bool,
    pub limit: Option<u32>,
}

pub(crate) async fn grep(lease: &GuestLease, grep: Grep) -> Result<Response> {
    let matches_max = limited("limit", grep.limit, limits::GREP_MATCHES_DEFAULT, limits::GREP_MATCHES_MAX)?;
    let Grep { path, pattern, glob, ignore_case, fixed, .. } = grep;
    let request = FileGrep { path: path.as_str().into(), pattern, glob, ignore_case, fixed, matches_max };
    let matched = |found: guest::GrepMatch| {
        let relative = found.path.to_string_lossy();
        let path = if relative.is_empty() { path.clone() } else { join(&path, &relative) };
        GrepMatch { path, line: found.line, text: found.text }
    };
    let mut list = List::new(lease.budget.begin()?);
    let keep = |page: Vec<guest::GrepMatch>, bytes| {
        let has_room = list.has_room(page.len(), bytes, path.len());
        if has_room {
            list.items.extend(page.into_iter().map(&matched));
        }
        has_room
    };
    let truncated = lease.guest.grep_pages(request, keep).await?;
    list.items.sort_by(|a: &GrepMatch, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    let frame = GrepResult { matches: Vec::new(), truncated };
    Ok(list.into_response(&frame, "matches")?)
}

/// Changes attributes and describes the result.
pub(crate) async fn set_attributes(
    lease: &GuestLease,
    path: &str,
    wanted: SetAttributes,
) -> Result<FileEntry> {
    let SetAttributes { mode, user, group, recursive, xattrs } = wanted;
    let mode = mode.as_deref().map(parse_mode).transpose()?;
    if mode.is_none() && user.is_none() && group.is_none() && xattrs.is_empty() {
        let nothing = "give at least one of `mode`, `user`, `group` and `xattrs`";
        return Err(AgentError::BadRequest(nothing.to_owned()));
    }
    let set: Vec<String> =
        xattrs.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.clone()).collect();
    let attributes = FileAttributes { path: path.into(), mode, user, group, recursive, xattrs };
    lease.guest.set_attributes(attributes).await?;
    let entry = stat(lease, path).await?;
    // A guest program from before this field ignored it.
    match set.iter().find(|name| !entry.xattrs.contains_key(*name)) {
        Some(name) => Err(AgentError::Conflict(format!(
            "the guest program of this sandbox did not set `{name}`; create a new sandbox, or remove other \
             extended attributes of the file"
        ))),
        None => Ok(entry),
    }
}

/// A tar archive as a response body.
pub(crate) async fn pack(lease: GuestLease, path: &str) -> Result<Body> {
    let reader = lease.guest.pack(path).await?;
    let state = Some((reader, lease));
    let stream = futures::stream::unfold(state, |state: Option<(ArchiveReader, GuestLease)>| async move {
        let (mut reader, lease) = state?;
        match reader.next().await {
            Ok(Some(bytes)) => Some((Ok::<Bytes, AgentError>(bytes), Some((reader, lease)))),
            Ok(None) => None,
            Err(error) => Some((Err(error.into()), None)),
        }
    });
    Ok(Body::from_stream(stream))
}

/// Unpacks a request body into a directory.
pub(crate) async fn unpack(
    lease: &GuestLease,
    path: &str,
    user: Option<String>,
    body: Body,
) -> Result<FileWritten> {
    pour(body, lease.guest.unpack(path, user).await?, path).await
}

/// A place in a watch, as encoded in `Last-Event-ID`.
pub(crate) fn parse_position(text: &str) -> Result<WatchPosition> {
    let parsed = text.split_once('-').and_then(|(watch, sequence)| {
        Some(WatchPosition { watch: watch.parse().ok()?, sequence: sequence.parse().ok()? })
    });
    parsed.ok_or_else(|| AgentError::BadRequest("Last-Event-ID must be the id of a change".to_owned()))
}

/// Starts or resumes a watch and follows it: `watching`, then `change` events, or `error`. Ends
/// when the path is gone or the agent stops; the client then reconnects with the last id.
pub(crate) async fn watch(
    lease: GuestLease,
    path: &str,
    recursive: bool,
    resume: Option<WatchPosition>,
    stop: CancellationToken,
) -> Result<impl Stream<Item = std::result::Result<Event, Infallible>> + use<>> {
    check_path(path)?;
    let stream = lease.guest.watch(FileWatch { path: path.into(), recursive, resume }).await?;
    let position = stream.position();
    let data = serde_json::json!({ "path": path, "resumed": stream.resumed() });
    let first = event("watching", position, &data);
    let follower = Follower { stream, path: path.to_owned(), watch: position.watch, lease, ended: false };
    let rest = futures::stream::unfold((follower, stop), |(mut follower, stop)| async move {
        let page = tokio::select! {
            () = stop.cancelled() => None,
            page = follower.next() => page,
        }?;
        Some((futures::stream::iter(page.into_iter().map(Ok)), (follower, stop)))
    });
    Ok(futures::stream::iter([Ok(first)]).chain(rest.flatten()))
}

struct Follower {
    stream: WatchStream,
    path: String,
    watch: u64,
    /// Held, not read: a watched sandbox is in use.
    #[expect(dead_code, reason = "held for its drop")]
    lease: GuestLease,
    ended: bool,
}

impl Follower {
    async fn next(&mut self) -> Option<Vec<Event>> {
        if self.ended {
            return None;
        }
        match self.stream.next().await {
            Ok(Some(changes)) => Some(changes.into_iter().map(|change| self.change(change)).collect()),
            Ok(None) => None,
            Err(error) => {
                self.ended = true;
                let data = serde_json::json!({ "error": AgentError::from(error).to_string() });
                Some(vec![Event::default().event("error").data(ascii_json(&data))])
            }
        }
    }

    fn change(&self, change: Change) -> Event {
        let place = |relative: &guest::RawPath| match relative.to_string_lossy() {
            top if top.is_empty() => self.path.clone(),
            relative => join(&self.path, &relative),
        };
        let position = WatchPosition { watch: self.watch, sequence: change.sequence };
        let change = FileChange {
            sequence: change.sequence,
            kind: kind(change.kind),
            path: place(&change.path),
            to: change.to.as_ref().map(place),
            is_dir: change.is_directory,
        };
        event("change", position, &serde_json::to_value(change).unwrap_or_default())
    }
}

fn event(name: &str, WatchPosition { watch, sequence }: WatchPosition, data: &serde_json::Value) -> Event {
    Event::default().id(format!("{watch}-{sequence}")).event(name).data(ascii_json(data))
}

fn kind(kind: guest::ChangeKind) -> ChangeKind {
    match kind {
        guest::ChangeKind::Created => ChangeKind::Created,
        guest::ChangeKind::Modified => ChangeKind::Modified,
        guest::ChangeKind::Removed => ChangeKind::Removed,
        guest::ChangeKind::Renamed => ChangeKind::Renamed,
        guest::ChangeKind::Attributes => ChangeKind::Attributes,
        guest::ChangeKind::Overflow => ChangeKind::Overflow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_positions_are_parsed() {
        assert_eq!(parse_position("3-17").unwrap(), WatchPosition { watch: 3, sequence: 17 });
        for bad in ["", "3", "3-", "-3", "a-b", "3-4-5"] {
            assert!(parse_position(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_outside_their_bounds_are_rejected() {
        assert_eq!(limited("limit", None, 5, 10).unwrap(), 5);
        assert_eq!(limited("limit", Some(10), 5, 10).unwrap(), 10);
        assert!(limited("limit", Some(11), 5, 10).is_err());
        assert!(limited("limit", Some(0), 5, 10).is_err());
    }
}
