//! Events of a sandbox: a page of them, or a stream that can be resumed.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use pandastack_rest::extract::is_set;
use pandastack_rest::{ApiResult, Caller, Id, Query, sse};
use pandastack_sandboxes::EventNotice;
use pandastack_types::api::{Event, EventList};
use pandastack_types::limits::EVENTS_PAGE_MAX;
use pandastack_types::{Error, ErrorBody, SandboxId, WorkspaceId};
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, timeout_at};

use crate::auth::Keys;
use crate::followers::FollowerSlot;
use crate::services::Services;

#[derive(Deserialize)]
pub(crate) struct Args {
    tail: Option<u32>,
    follow: Option<String>,
}

/// List a sandbox's events, oldest first. With `follow=1`, stream them as server-sent events, starting
/// after `Last-Event-ID`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/events", tag = "events",
    params(("id" = SandboxId, Path), ("tail" = Option<u32>, Query), ("follow" = Option<String>, Query),
           ("Last-Event-ID" = Option<i64>, Header)),
    responses((status = 200, body = EventList), (status = 404, body = ErrorBody),
    (status = 429, description = "Too many open event streams", body = ErrorBody)))]
pub(crate) async fn events(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Query(args): Query<Args>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    services.store.sandbox(Some(&caller.workspace), &id).await?;
    let tail = args.tail.unwrap_or(EVENTS_PAGE_MAX).min(EVENTS_PAGE_MAX);
    if !is_set(args.follow.as_deref()) {
        let events = services.store.events_tail(&caller.workspace, &id, tail).await?;
        return Ok(Json(EventList { events }).into_response());
    }
    let place = keys.followers.admit(&caller)?;
    // Subscribe before reading stored events: an event in between is then seen twice and dropped
    // once, never missed.
    let news = services.sandboxes.subscribe();
    let past = match headers.get("last-event-id") {
        Some(value) => {
            let last = value.to_str().ok().and_then(|text| text.parse().ok());
            let last = last.ok_or_else(|| Error::bad_request("Last-Event-ID must be an event id"))?;
            services.store.events_after(&caller.workspace, &id, last, EVENTS_PAGE_MAX).await?
        }
        None => services.store.events_tail(&caller.workspace, &id, tail).await?,
    };
    let follower = Follower {
        services,
        workspace: caller.workspace,
        id,
        news,
        last: 0,
        waiting: past.into(),
        ended: false,
        comment_at: place.comment_at(),
        place,
    };
    Ok(sse::respond(futures::stream::unfold(follower, Follower::next)))
}

/// A client that follows.
struct Follower {
    services: Arc<Services>,
    workspace: WorkspaceId,
    id: SandboxId,
    news: broadcast::Receiver<EventNotice>,
    last: i64,
    waiting: VecDeque<Event>,
    ended: bool,
    /// When a comment is due: only frames that are sent move it.
    comment_at: Instant,
    place: FollowerSlot,
}

impl Follower {
    /// After a frame was sent.
    fn sent(self) -> Self {
        Self { comment_at: self.place.comment_at(), ..self }
    }

    /// The next frame; `None` once the sandbox is deleted or the server stops.
    async fn next(mut self) -> Option<(String, Self)> {
        loop {
            if self.ended {
                return None;
            }
            if let Some(event) = self.waiting.pop_front() {
                if event.id <= self.last {
                    continue;
                }
                self.last = event.id;
                self.ended = event.kind == "deleted";
                return Some((sse::json_frame(event.id, "event", &event).ok()?, self.sent()));
            }
            let shutdown = self.services.background.shutdown.clone();
            let news = tokio::select! {
                () = shutdown.cancelled() => return None,
                news = timeout_at(self.comment_at, self.news.recv()) => news,
            };
            match news {
                Err(_) => return Some((sse::COMMENT.to_owned(), self.sent())),
                Ok(Ok(EventNotice::Event { event, .. })) if event.sandbox_id == self.id => {
                    self.waiting.push_back(event)
                }
                Ok(Ok(EventNotice::Event { .. })) => {}
                Ok(Ok(EventNotice::Missed) | Err(RecvError::Lagged(_))) => {
                    let read = self.services.store.events_after(
                        &self.workspace,
                        &self.id,
                        self.last,
                        EVENTS_PAGE_MAX,
                    );
                    self.waiting = read.await.ok()?.into();
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }
}
