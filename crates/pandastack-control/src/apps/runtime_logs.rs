//! What the live version prints, over HTTP.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use pandastack_types::{ErrorBody, SandboxId};
use serde::Deserialize;

use super::machine::Machine;
use super::output::{Events, Lines, OutputEvent};
use super::routes::OfApp;
use super::serve::SERVE_TAG;
use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::extract::Query;
use crate::routes::events::is_set;
use crate::routes::sse;

/// Lines without a `tail`.
const TAIL_DEFAULT: usize = 1_000;
/// Most lines of one answer.
const TAIL_MAX: usize = 20_000;

#[derive(Deserialize)]
pub(crate) struct Args {
    follow: Option<String>,
    tail: Option<usize>,
    search: Option<String>,
    instance: Option<SandboxId>,
}

/// What the live version printed, as server-sent events, a line each; with `follow=1`, also what it prints from now on. The
/// machine wakes for it.
#[utoipa::path(get, path = "/v1/apps/{id}/runtime-logs", tag = "apps",
    params(("id" = String, Path), ("follow" = Option<String>, Query), ("tail" = Option<usize>, Query),
        ("search" = Option<String>, Query, description = "Only lines that contain this"),
        ("instance" = Option<String>, Query, description = "The machine, of several that serve; the first when absent")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub(crate) async fn runtime_logs(
    State(app): State<Arc<App>>,
    caller: Caller,
    of: OfApp,
    Query(args): Query<Args>,
) -> ApiResult<Response> {
    let record = of.find(&app, &caller).await?;
    let none =
        || ApiError::conflict(format!("app `{}` has no version that serves; deploy it first", record.name));
    let live = app.store.deployment(&record.id, record.active.as_ref().ok_or_else(none)?).await?;
    let mut machines = live.spec.machines();
    let id = match &args.instance {
        Some(wanted) => machines
            .find(|id| *id == wanted)
            .ok_or_else(|| ApiError::not_found("instance", wanted.as_str()))?,
        None => machines.next().ok_or_else(none)?,
    };
    let machine = Machine::open(&app, &record, id).await?;
    let process = machine.processes().await?.into_iter().rfind(|one| one.tag.as_deref() == Some(SERVE_TAG));
    let process = process.ok_or_else(none)?;
    let matches =
        move |line: &String| args.search.as_ref().is_none_or(|search| line.contains(search.as_str()));
    if !is_set(args.follow.as_deref()) {
        let tail = args.tail.unwrap_or(TAIL_DEFAULT).min(TAIL_MAX);
        let lines = machine.last_lines(process.id, tail, matches).await?;
        let mut frames: String = lines.iter().map(|line| sse::line_frame(line)).collect();
        frames.push_str("event: done\ndata: end\n\n");
        return Ok(sse::respond(futures::stream::iter([frames])));
    }
    let body = machine.output(process.id).await?;
    let follower = Follower { app, body, events: Events::default(), lines: Lines::default(), ended: false };
    let frames = futures::stream::unfold((follower, matches), |(mut follower, matches)| async move {
        let lines = follower.next().await?;
        let frames =
            lines.iter().filter(|line| matches(line)).map(|line| sse::line_frame(line)).collect::<String>();
        let frames = match (frames.is_empty(), follower.ended) {
            (_, true) => frames + "event: done\ndata: end\n\n",
            (true, false) => sse::COMMENT.to_owned(),
            (false, false) => frames,
        };
        Some((frames, (follower, matches)))
    });
    Ok(sse::respond(frames))
}

struct Follower {
    app: Arc<App>,
    body: Incoming,
    events: Events,
    lines: Lines,
    ended: bool,
}

impl Follower {
    /// The next lines, none of them as a sign of life; `None` after the end.
    async fn next(&mut self) -> Option<Vec<String>> {
        if self.ended {
            return None;
        }
        let frame = tokio::select! {
            frame = tokio::time::timeout(sse::COMMENT_EVERY, self.body.frame()) => match frame {
                Ok(frame) => frame,
                Err(_) => return Some(Vec::new()),
            },
            () = self.app.shutdown.cancelled() => return None,
        };
        let mut lines = Vec::new();
        match frame {
            Some(Ok(frame)) => {
                let sound = frame.into_data().is_ok_and(|bytes| self.events.push(&bytes));
                self.ended = !sound;
            }
            _ => self.ended = true,
        }
        while let Some(event) = self.events.next() {
            match event {
                OutputEvent::Text(text) => lines.extend(self.lines.push(&text)),
                OutputEvent::Exit(_) | OutputEvent::Failed(_) => self.ended = true,
            }
        }
        if self.ended {
            lines.extend(self.lines.rest());
        }
        Some(lines)
    }
}
