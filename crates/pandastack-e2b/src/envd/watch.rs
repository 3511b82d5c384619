//! `WatchDir`: changes of a directory as they happen.

use std::collections::VecDeque;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use pandastack_types::api::{ChangeKind, FileChange};
use pandastack_types::chain;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::connect::{self, Pace, sleep_until};
use super::entry::entry;
use super::filesystem::{check_directory, stat_file};
use crate::error::{RpcCode, RpcError, RpcResult};
use crate::native_paths as paths;
use crate::session::Session;
use crate::sse::Events;

/// Request body of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WatchRequest {
    path: String,
    recursive: bool,
    /// Describe the file of each event.
    #[serde(alias = "include_entry")]
    include_entry: bool,
}

/// A started native watch, and its directory.
pub(super) struct Watch {
    pub(super) events: Events,
    directory: String,
    /// Describes the files of events, if the client wants that.
    describe: Option<Session>,
}

impl Watch {
    /// Starts to watch; when it returns, no later change is missed.
    pub(super) async fn begin(
        session: &Session,
        headers: &HeaderMap,
        wanted: &WatchRequest,
    ) -> RpcResult<Self> {
        let user = session.user(headers).await?;
        let directory = user.absolute(&wanted.path);
        check_directory(session, &directory).await?;
        let path = paths::watch_files(&session.sandbox, &directory, wanted.recursive);
        let mut events = Events::new(session.native.open(&path).await?.into_body());
        let broken = |why: String| RpcError::new(RpcCode::Unavailable, why);
        match events.next().await {
            Ok(Some(_watching)) => {
                let describe = wanted.include_entry.then(|| session.clone());
                Ok(Self { events, directory, describe })
            }
            Ok(None) => Err(broken("the watch ended before it started".to_owned())),
            Err(error) => Err(broken(chain(&error))),
        }
    }

    /// The next changes: a rename is the old name's and the new one's. `None` at the end.
    pub(super) async fn next(&mut self) -> RpcResult<Option<Vec<Value>>> {
        let broken = |why: String| RpcError::new(RpcCode::Unavailable, why);
        let Some(event) = self.events.next().await.map_err(|error| broken(chain(&error)))? else {
            return Ok(None);
        };
        if event.name == "error" {
            return Err(broken(event.data["error"].as_str().unwrap_or("the watch failed").to_owned()));
        }
        let change = serde_json::from_value::<FileChange>(event.data);
        let mut events = change.map_or_else(|_| Vec::new(), |change| translate(&self.directory, &change));
        if let Some(session) = &self.describe {
            for event in &mut events {
                describe(session, &self.directory, event).await;
            }
        }
        Ok(Some(events))
    }
}

/// Adds the file's entry to an event, unless the file is gone.
async fn describe(session: &Session, directory: &str, event: &mut Value) {
    if GONE.iter().any(|kind| event["type"] == *kind) {
        return;
    }
    let path = format!("{directory}/{}", event["name"].as_str().unwrap_or_default());
    let found = stat_file(session, &path).await.ok();
    if let Some(entry) = found.as_ref().and_then(entry) {
        event["entry"] = entry;
    }
}

/// Events after which the file no longer has that name.
const GONE: [&str; 2] = ["EVENT_TYPE_REMOVE", "EVENT_TYPE_RENAME"];

fn translate(directory: &str, change: &FileChange) -> Vec<Value> {
    let named = |path: &str, kind: &str| {
        let below = path.strip_prefix(directory).unwrap_or(path).trim_start_matches('/');
        json!({ "name": below, "type": kind })
    };
    let kind = match change.kind {
        ChangeKind::Created => "EVENT_TYPE_CREATE",
        ChangeKind::Modified => "EVENT_TYPE_WRITE",
        ChangeKind::Removed => "EVENT_TYPE_REMOVE",
        ChangeKind::Attributes => "EVENT_TYPE_CHMOD",
        ChangeKind::Renamed => {
            let created = change.to.as_deref().map(|to| named(to, "EVENT_TYPE_CREATE"));
            return std::iter::once(named(&change.path, "EVENT_TYPE_RENAME")).chain(created).collect();
        }
        // E2B has no event type for an overflow; report a write to the directory itself.
        ChangeKind::Overflow => "EVENT_TYPE_WRITE",
    };
    vec![named(&change.path, kind)]
}

struct Stream {
    watch: Watch,
    pace: Pace,
    deadline: Option<Instant>,
    queue: VecDeque<Bytes>,
    is_over: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.queue.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            tokio::select! {
                changes = self.watch.next() => self.take(changes),
                () = tokio::time::sleep(self.pace.keepalive) => {
                    self.queue.push_back(connect::message(&json!({ "keepalive": {} })));
                }
                () = sleep_until(self.deadline) => {
                    self.end(Err(RpcError::new(RpcCode::DeadlineExceeded, "the watch deadline has passed")));
                }
            }
        }
    }

    fn take(&mut self, changes: RpcResult<Option<Vec<Value>>>) {
        match changes {
            Ok(Some(changes)) => {
                let frames =
                    changes.into_iter().map(|change| connect::message(&json!({ "filesystem": change })));
                self.queue.extend(frames);
            }
            Ok(None) => self.end(Ok(())),
            Err(error) => self.end(Err(error)),
        }
    }

    fn end(&mut self, result: RpcResult<()>) {
        self.is_over = true;
        self.queue.push_back(connect::end(result));
    }
}

/// Watches a directory until the client disconnects.
pub(super) async fn watch_dir(session: Session, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match begin(&session, &parts.headers, body).await {
        Ok(stream) => connect::stream(futures::stream::unfold(stream, |mut stream| async move {
            Some((stream.next().await?, stream))
        })),
        Err(error) => connect::refused(error),
    }
}

async fn begin(session: &Session, headers: &HeaderMap, body: Body) -> RpcResult<Stream> {
    let wanted: WatchRequest = connect::read_first(body).await?;
    let watch = Watch::begin(session, headers, &wanted).await?;
    let pace = Pace::of(headers);
    let deadline = pace.timeout.map(|timeout| Instant::now() + timeout);
    let queue = VecDeque::from([connect::message(&json!({ "start": {} }))]);
    Ok(Stream { watch, pace, deadline, queue, is_over: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: ChangeKind, path: &str, to: Option<&str>, expect: &[(&str, &str)]) {
        let change =
            FileChange { sequence: 1, kind, path: path.into(), to: to.map(str::to_owned), is_dir: false };
        let expect: Vec<_> =
            expect.iter().map(|(name, kind)| json!({ "name": name, "type": kind })).collect();
        assert_eq!(translate("/home/user", &change), expect);
    }

    #[test]
    fn watch_events_have_paths_relative_to_the_directory() {
        check(ChangeKind::Created, "/home/user/a", None, &[("a", "EVENT_TYPE_CREATE")]);
        check(ChangeKind::Modified, "/home/user/d/b", None, &[("d/b", "EVENT_TYPE_WRITE")]);
        check(
            ChangeKind::Renamed,
            "/home/user/a",
            Some("/home/user/b"),
            &[("a", "EVENT_TYPE_RENAME"), ("b", "EVENT_TYPE_CREATE")],
        );
    }
}
