//! Templates of the platform, and their bakes: the merged view of all hosts.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use futures::future::join_all;
use http::StatusCode;
use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_rest::{ApiResult, Caller, Id, sse};
use pandastack_types::agent_api::BuildQuery;
use pandastack_types::agent_api::endpoints::{BakeTemplate, ListBuilds, ReadBuild};
use pandastack_types::api::{Build, BuildStatus};
use pandastack_types::{BuildId, Error, ErrorBody, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::service::Templates;

/// Longest time for a host to list its builds.
const ASK_WAIT: Duration = Duration::from_secs(10);
/// Seconds for which a host should hold its response while a build has no news (long poll).
const HOLD_SECONDS: u64 = 10;
/// Shortest time between two such questions, for hosts that answer at once.
const ASK_EVERY_MIN: Duration = Duration::from_millis(500);

/// Build a template before its first use. Joins a build that is in progress.
#[utoipa::path(post, path = "/v1/templates/{name}/bake", tag = "templates",
    params(("name" = String, Path)), responses(
    (status = 202, body = Build), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn bake(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<(StatusCode, Json<Build>)> {
    pandastack_sandboxes::validate::template_name(&name)?;
    let (name, client) = templates.platform.place_bake(&name)?;
    let build = client.call(BakeTemplate::new(name), CallOptions::on_host(ASK_WAIT), ()).await?;
    Ok((StatusCode::ACCEPTED, Json(shown(build, &caller))))
}

/// A bake as a caller sees it: the cause of a failure names files of the host, which are the
/// operator's.
pub(crate) fn shown(build: Build, caller: &Caller) -> Build {
    Build { detail: build.detail.filter(|_| caller.operator), ..build }
}

/// Bakes of all hosts that answer.
pub(crate) async fn bakes(templates: &Templates, caller: &Caller) -> Vec<Build> {
    let agents = templates.platform.agents();
    let asked =
        agents.iter().map(|client| client.call(ListBuilds::new(), CallOptions::on_host(ASK_WAIT), ()));
    join_all(asked).await.into_iter().flatten().flatten().map(|build| shown(build, caller)).collect()
}

/// A bake's log as server-sent events, from a line on.
pub(crate) async fn bake_logs(
    templates: &Templates,
    id: &BuildId,
    first: u64,
    follow: bool,
) -> Result<Response> {
    let (client, build) = find(templates, id).await?;
    let shutdown = templates.background.shutdown.clone();
    let shown = usize::try_from(first).unwrap_or(usize::MAX);
    let log = BuildLog { shutdown, client, build, shown, follow, asked: Instant::now(), ended: false };
    Ok(sse::respond(futures::stream::unfold(log, BuildLog::next)))
}

async fn read_build(
    client: &AgentClient,
    id: &BuildId,
    seen_lines: Option<usize>,
) -> Result<Build, AgentError> {
    let wait_seconds = seen_lines.map(|_| HOLD_SECONDS);
    let wait = ASK_WAIT + Duration::from_secs(wait_seconds.unwrap_or(0));
    let call = ReadBuild::new(id.clone(), BuildQuery { seen_lines, wait_seconds });
    client.call(call, CallOptions::on_host(wait), ()).await
}

/// The host that has a bake, and the bake.
pub(crate) async fn find(templates: &Templates, id: &BuildId) -> Result<(AgentClient, Build)> {
    let agents = templates.platform.agents();
    let asked = agents.into_iter().map(|client| async move {
        let build = read_build(&client, id, None).await;
        build.map(|build| (client, build))
    });
    let mut found = join_all(asked).await.into_iter().flatten();
    found.next().ok_or_else(|| Error::not_found("build", id.as_str()))
}

/// A client that reads a build's log.
struct BuildLog {
    shutdown: CancellationToken,
    client: AgentClient,
    build: Build,
    shown: usize,
    follow: bool,
    asked: Instant,
    ended: bool,
}

impl BuildLog {
    async fn next(mut self) -> Option<(String, Self)> {
        if self.ended {
            return None;
        }
        if let Some(line) = self.build.log.get(self.shown) {
            let frame = sse::line_frame(line);
            self.shown += 1;
            return Some((frame, self));
        }
        if self.build.status != BuildStatus::Running || !self.follow {
            self.ended = true;
            return Some(("event: done\ndata: end\n\n".to_owned(), self));
        }
        let shutdown = self.shutdown.clone();
        let news = async {
            tokio::time::sleep_until(self.asked + ASK_EVERY_MIN).await;
            self.asked = Instant::now();
            read_build(&self.client, &self.build.id, Some(self.shown)).await
        };
        let news = tokio::select! {
            () = shutdown.cancelled() => return None,
            news = news => news,
        };
        // If the host stops answering, the stream ends without its end marker, so the client knows
        // it is incomplete.
        self.build = news.ok()?;
        self.shown = self.shown.min(self.build.log.len());
        Some((sse::COMMENT.to_owned(), self))
    }
}
