//! Routes for agents and edges, which [`crate::fleet::caller`] identified. Never with an API key.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use http::{StatusCode, header};
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
use pandastack_types::api::HostLink;
use pandastack_types::host_identity::HostRole;
use pandastack_types::preview::PreviewKey;
use pandastack_types::{Error, ErrorCode, HostId, SandboxId, SandboxState};
use tokio::sync::broadcast::error::RecvError;

use crate::fleet::audit;
use crate::link_caller::LinkCaller;
use crate::preview_routes::suspended;
use crate::services::Services;

/// Largest report: thousands of sandboxes at about a kilobyte each.
const REPORT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Interval at which a silent stream of changes shows that it is alive.
const SIGN_OF_LIFE: std::time::Duration = std::time::Duration::from_secs(10);

/// Serves an edge's lookup of a sandbox's route.
pub(crate) async fn route(
    State(services): State<Arc<Services>>,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Json<EdgeRoute>> {
    let parts = request.into_parts().0;
    let caller = LinkCaller::of(&parts.extensions)?;
    caller.in_role(HostRole::Edge)?;
    let record = services.store.sandbox(None, &id).await?;
    if matches!(record.state, SandboxState::Stopping | SandboxState::Deleted) {
        return Err(Error::not_found("sandbox", id.as_str()).into());
    }
    let agent_address = services.hosts.address(&record.host)?;
    let closed = services.sandboxes.why_closed(&record.workspace).await?.map(|_| suspended(&id));
    let revision = record.spec.preview_revision;
    let membership = services.fleet.memberships.membership(HostRole::Agent, &record.host);
    Ok(Json(EdgeRoute {
        closed,
        agent_address,
        membership: membership.unwrap_or_default(),
        // An edge with the join secret derives it.
        preview_key: matches!(caller, LinkCaller::Member(_))
            .then(|| PreviewKey::new(&services.link, &id, revision)),
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
    LinkCaller::of(request.extensions())?.in_role(HostRole::Edge)?;
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
    let host = LinkCaller::of(&parts.extensions)?.in_role(HostRole::Agent)?;
    if parts.headers.get(header::UPGRADE).is_none_or(|asked| asked != DATABASE_UPGRADE) {
        return Err(Error::bad_request(format!(
            "this request needs the header `Upgrade: {DATABASE_UPGRADE}`"
        ))
        .into());
    }
    let machine = services.store.sandbox(None, &id).await?;
    if machine.host != *host {
        let message = format!("host `{host}` cannot act for a machine of host `{}`", machine.host);
        audit::refused(&services, &parts, host.as_str(), StatusCode::FORBIDDEN).await;
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
    let edge = LinkCaller::of(request.extensions())?.in_role(HostRole::Edge)?;
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
    LinkCaller::of(request.extensions())?.with_secret()?;
    Ok(Json(services.sandboxes.marks()))
}

/// A host reports.
pub(crate) async fn report(
    State(services): State<Arc<Services>>,
    request: Request,
) -> ApiResult<Json<ReportAnswer>> {
    let (mut parts, body) = request.into_parts();
    let caller = LinkCaller::of(&parts.extensions)?.clone();
    let signer = caller.in_role(HostRole::Agent)?;
    let pandastack_rest::extract::Id(host) =
        pandastack_rest::extract::Id::<HostId>::from_request_parts(&mut parts, &()).await?;
    let bytes = Limited::new(body, REPORT_BYTES_MAX).collect().await;
    let bytes = bytes.map_err(|error| Error::bad_request(format!("the report cannot be read: {error}")))?;
    let report: HostReport = serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        Error::bad_request(format!("the report is invalid ({error}); run the same version on both sides"))
    })?;
    if *signer != host || report.host != host {
        let message = format!("`{signer}` cannot report for `{}` as `{host}`", report.host);
        audit::refused(&services, &parts, signer.as_str(), StatusCode::FORBIDDEN).await;
        return Err(Error::new(ErrorCode::Forbidden, message).into());
    }
    // A certificate would be of no use if the way back were plain.
    let is_member = matches!(caller, LinkCaller::Member(_));
    if is_member != (HostLink::of(&report.address) == HostLink::Certificate) {
        let message = format!(
            "host `{host}` reports the address `{}`, which does not fit how it joined; restart its agent",
            report.address
        );
        return Err(Error::bad_request(message).into());
    }
    let address = report.address.clone();
    let answer = pandastack_sandboxes::report::take(&services.sandboxes, report).await?;
    let uses_secret = HostLink::of(&address) == HostLink::SharedSecret;
    let migrate = services.fleet.offer(&services.link).filter(|_| uses_secret);
    Ok(Json(ReportAnswer { edges: services.fleet.edges(), migrate, ..answer }))
}
