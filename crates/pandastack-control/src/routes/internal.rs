//! Routes for agents and edges. Signed, never with an API key.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use http::header;
use http::request::Parts;
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use pandastack_apps::names;
use pandastack_edge::{AppRoute, Instances};
use pandastack_rest::{ApiResult, Id, switching};
use pandastack_sandboxes::EventNotice;
use pandastack_sandboxes::in_flight::Marks;
use pandastack_types::agent_api::{
    DATABASE_UPGRADE, EdgeName, EdgeRoute, HostReport, NAMES_CHANGED, ReportAnswer,
};
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::{Error, ErrorCode, HostId, Result, SandboxId, SandboxState};
use tokio::sync::broadcast::error::RecvError;

use crate::preview_routes::suspended;
use crate::services::Services;

/// Largest report: thousands of sandboxes at about a kilobyte each.
const REPORT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Interval at which a silent stream of changes shows that it is alive.
const SIGN_OF_LIFE: std::time::Duration = std::time::Duration::from_secs(10);

/// The host that signed a request.
pub(crate) fn signer(link: &LinkKey, parts: &Parts) -> Result<HostId> {
    let header = parts.headers.get(LINK_HEADER).and_then(|value| value.to_str().ok());
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let (method, at) = (parts.method.as_str(), jiff::Timestamp::now().as_second());
    let signer = link.verify(Direction::AgentToControl, header, method, path, at);
    signer.map_err(|refused| Error::new(ErrorCode::Unauthorized, refused.to_string()))
}

/// Serves an edge's lookup of a sandbox's route.
pub(crate) async fn route(
    State(services): State<Arc<Services>>,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Json<EdgeRoute>> {
    signer(&services.link, &request.into_parts().0)?;
    let record = services.store.sandbox(None, &id).await?;
    if matches!(record.state, SandboxState::Stopping | SandboxState::Deleted) {
        return Err(Error::not_found("sandbox", id.as_str()).into());
    }
    let agent_address = services.hosts.address(&record.host)?;
    let closed = services.sandboxes.why_closed(&record.workspace).await?.map(|_| suspended(&id));
    Ok(Json(EdgeRoute {
        closed,
        agent_address,
        host: record.host,
        incarnation: record.incarnation,
        visibility: record.spec.visibility,
        preview_revision: record.spec.preview_revision,
        host_header: record.spec.host_header,
    }))
}

/// Serves an edge's lookup of a host name.
pub(crate) async fn name(
    State(services): State<Arc<Services>>,
    Id(name): Id<String>,
    request: Request,
) -> ApiResult<Json<EdgeName>> {
    signer(&services.link, &request.into_parts().0)?;
    let domains = services.apps.domains();
    let found = names::find(services.store.as_ref(), services.store.as_ref(), domains, &name).await;
    let found = found.map_err(|error| Error::new(ErrorCode::Unavailable, error.to_string()))?;
    match found.ok_or_else(|| Error::not_found("name", &name))? {
        AppRoute::Serving(Instances { sandboxes, always, port, own_domain }) => {
            let mut sandboxes = sandboxes.iter().cloned();
            let sandbox = sandboxes.next().ok_or_else(|| Error::not_found("name", &name))?;
            let more = sandboxes.collect();
            Ok(Json(EdgeName::Serving { sandbox, port, more, always, own_domain }))
        }
        AppRoute::NotServing(why) => Ok(Json(EdgeName::NotServing { why, suspended: false })),
        AppRoute::Suspended(why) => Ok(Json(EdgeName::NotServing { why, suspended: true })),
    }
}

/// Serves a connection of a machine to its databases, forwarded by its host.
pub(crate) async fn database(
    State(services): State<Arc<Services>>,
    Id(id): Id<SandboxId>,
    mut request: Request,
) -> ApiResult<Response> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let host = signer(&services.link, &parts)?;
    if parts.headers.get(header::UPGRADE).is_none_or(|asked| asked != DATABASE_UPGRADE) {
        return Err(Error::bad_request(format!(
            "this request needs the header `Upgrade: {DATABASE_UPGRADE}`"
        ))
        .into());
    }
    let machine = services.store.sandbox(None, &id).await?;
    if machine.host != host {
        let message = format!("host `{host}` cannot act for a machine of host `{}`", machine.host);
        return Err(Error::new(ErrorCode::Forbidden, message).into());
    }
    services.background.tasks.clone().spawn(async move {
        let Ok(stream) = upgrade.await else { return };
        pandastack_apps::database_connector::serve(Arc::clone(&services.apps), id, TokioIo::new(stream))
            .await;
    });
    Ok(switching(DATABASE_UPGRADE))
}

/// An edge follows changes: a sandbox's id per line, an empty line now and then.
pub(crate) async fn route_changes(
    State(services): State<Arc<Services>>,
    request: Request,
) -> ApiResult<Body> {
    let edge = signer(&services.link, &request.into_parts().0)?;
    tracing::info!(%edge, "an edge connected");
    let (events, names) = (services.sandboxes.subscribe(), services.names.subscribe());
    let lines =
        futures::stream::unfold((services, events, names), |(services, mut events, mut names)| async move {
            let line = tokio::select! {
                event = tokio::time::timeout(SIGN_OF_LIFE, events.recv()) => match event {
                    Ok(Ok(EventNotice::Event { event, .. })) => format!("{}\n", event.sandbox_id),
                    // The edge reads everything again when it does not understand.
                    Ok(Ok(EventNotice::Missed) | Err(RecvError::Lagged(_))) => "*\n".to_owned(),
                    Ok(Err(RecvError::Closed)) => return None,
                    Err(_) => "\n".to_owned(),
                },
                changed = names.recv() => match changed {
                    Ok(()) | Err(RecvError::Lagged(_)) => format!("{NAMES_CHANGED}\n"),
                    Err(RecvError::Closed) => return None,
                },
                () = services.background.shutdown.cancelled() => return None,
            };
            Some((Ok::<_, std::convert::Infallible>(line), (services, events, names)))
        });
    Ok(Body::from_stream(lines))
}

/// Serves another replica's query for operations in progress here.
pub(crate) async fn marks(State(services): State<Arc<Services>>, request: Request) -> ApiResult<Json<Marks>> {
    signer(&services.link, &request.into_parts().0)?;
    Ok(Json(services.sandboxes.marks()))
}

/// A host reports.
pub(crate) async fn report(
    State(services): State<Arc<Services>>,
    request: Request,
) -> ApiResult<Json<ReportAnswer>> {
    let (mut parts, body) = request.into_parts();
    let signer = signer(&services.link, &parts)?;
    let pandastack_rest::extract::Id(host) =
        pandastack_rest::extract::Id::<HostId>::from_request_parts(&mut parts, &()).await?;
    let bytes = Limited::new(body, REPORT_BYTES_MAX).collect().await;
    let bytes = bytes.map_err(|error| Error::bad_request(format!("the report cannot be read: {error}")))?;
    let report: HostReport = serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        Error::bad_request(format!("the report is invalid ({error}); run the same version on both sides"))
    })?;
    if signer != host || report.host != host {
        let message = format!("`{signer}` cannot report for `{}` as `{host}`", report.host);
        return Err(Error::new(ErrorCode::Forbidden, message).into());
    }
    Ok(Json(pandastack_sandboxes::report::take(&services.sandboxes, report).await?))
}
