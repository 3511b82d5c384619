//! Events of a whole workspace: a page of them, or a stream that can be resumed.
//!
//! A follower reads the store after a notice of its own workspace, and ignores notices of others.
//! Notices within [`COALESCE`] are read together: a follower reads at most ten times a second.
//! Comments are timed by the last frame alone, so that they reveal nothing about other workspaces.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use pandastack_rest::extract::is_set;
use pandastack_rest::{ApiResult, Caller, Query, sse};
use pandastack_sandboxes::EventNotice;
use pandastack_types::api::{Event, EventList};
use pandastack_types::limits::EVENTS_PAGE_MAX;
use pandastack_types::{Error, ErrorBody, WorkspaceId};
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::auth::Keys;
use crate::followers::FollowerSlot;
use crate::services::Services;

/// Time for which changes are gathered before the store is read.
const COALESCE: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
pub(crate) struct Args {
    tail: Option<u32>,
    follow: Option<String>,
}

/// List events of the workspace's sandboxes, oldest first. With `follow=1`, stream them as server-sent
/// events, starting after `Last-Event-ID`.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(("tail" = Option<u32>, Query), ("follow" = Option<String>, Query),
           ("Last-Event-ID" = Option<i64>, Header)),
    responses((status = 200, body = EventList), (status = 400, body = ErrorBody),
    (status = 429, description = "Too many open event streams", body = ErrorBody)))]
pub(crate) async fn events(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    caller: Caller,
    Query(args): Query<Args>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let tail = args.tail.unwrap_or(EVENTS_PAGE_MAX).min(EVENTS_PAGE_MAX);
    if !is_set(args.follow.as_deref()) {
        let events = services.store.workspace_events_tail(&caller.workspace, tail).await?;
        return Ok(Json(EventList { events }).into_response());
    }
    let place = keys.followers.admit(&caller)?;
    // Subscribed before the first read, so that no event falls in between.
    let news = services.sandboxes.subscribe();
    let (past, last) = match headers.get("last-event-id") {
        Some(value) => {
            let last = value.to_str().ok().and_then(|text| text.parse().ok());
            let last: i64 = last.ok_or_else(|| Error::bad_request("Last-Event-ID must be an event id"))?;
            let past =
                services.store.workspace_events_after(&caller.workspace, last, EVENTS_PAGE_MAX).await?;
            (past, last)
        }
        None => {
            // With an empty tail the stream starts after the newest event.
            let newest = services.store.workspace_events_tail(&caller.workspace, tail.max(1)).await?;
            let last = newest.last().map_or(0, |event| event.id);
            (if tail == 0 { Vec::new() } else { newest }, if tail == 0 { last } else { 0 })
        }
    };
    let follower = Follower {
        services,
        workspace: caller.workspace,
        news,
        last,
        waiting: past.into(),
        comment_at: place.comment_at(),
        place,
    };
    Ok(sse::respond(futures::stream::unfold(follower, Follower::next)))
}

/// A client that follows.
struct Follower {
    services: Arc<Services>,
    workspace: WorkspaceId,
    news: broadcast::Receiver<EventNotice>,
    last: i64,
    waiting: VecDeque<Event>,
    /// When a comment is due: only frames that are sent move it.
    comment_at: Instant,
    place: FollowerSlot,
}

impl Follower {
    /// After a frame was sent.
    fn sent(self) -> Self {
        Self { comment_at: self.place.comment_at(), ..self }
    }

    /// The next frame; `None` when the server stops.
    async fn next(mut self) -> Option<(String, Self)> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.last = event.id;
                return Some((sse::json_frame(event.id, "event", &event).ok()?, self.sent()));
            }
            let shutdown = self.services.background.shutdown.clone();
            let news = tokio::select! {
                () = shutdown.cancelled() => return None,
                news = timeout_at(self.comment_at, self.news.recv()) => news,
            };
            match news {
                Err(_) => return Some((sse::COMMENT.to_owned(), self.sent())),
                Ok(Err(RecvError::Closed)) => return None,
                Ok(Ok(EventNotice::Event { workspace, .. })) if workspace != self.workspace => {}
                Ok(Ok(_) | Err(RecvError::Lagged(_))) => {
                    sleep(COALESCE).await;
                    // Events noticed up to now are already in the store.
                    self.news = self.news.resubscribe();
                    let store = &self.services.store;
                    let read = store.workspace_events_after(&self.workspace, self.last, EVENTS_PAGE_MAX);
                    self.waiting = read.await.ok()?.into();
                }
            }
        }
    }
}
