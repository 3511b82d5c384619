//! Hosts, for operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use jiff::ToSpan;
use pandastack_fleet::JoinToken;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_store::clock::now;
use pandastack_store::host_identities::{HostIdentityRecord, HostTokenRecord, SharedSecret};
use pandastack_types::api::{CreateHostToken, Host, HostLink, HostMigration, HostToken, Items, MigrateHosts};
use pandastack_types::host_identity::HostRole;
use pandastack_types::{Error, ErrorBody, ErrorCode, HostId, Result};

use crate::services::Services;

/// Lifetime of a join token in seconds.
const TTL_SECONDS: std::ops::RangeInclusive<u32> = 1..=86_400;
const TTL_SECONDS_DEFAULT: u32 = 900;

/// List the hosts of the installation. Requires an operator key.
#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", responses((status = 200, body = Items<Host>), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(State(services): State<Arc<Services>>) -> ApiResult<Json<Items<Host>>> {
    let mut hosts: BTreeMap<HostId, Host> =
        services.hosts.list().into_iter().map(|host| (host.id.clone(), host)).collect();
    for record in services.store.host_identities().await? {
        let connected = services.fleet.memberships.is_connected(&record.identity.host);
        let id = record.identity.host.clone();
        let host = hosts.entry(id).or_insert_with(|| without_report(&record, connected));
        host.role = record.identity.role;
        host.certificate_expires_at = Some(record.expires_at);
        if record.removed_at.is_some() {
            (host.link, host.reachable) = (HostLink::Removed, false);
        }
    }
    Ok(Json(Items { items: hosts.into_values().collect() }))
}

/// An edge, or a host that has joined and not reported yet.
fn without_report(record: &HostIdentityRecord, connected: bool) -> Host {
    Host {
        id: record.identity.host.clone(),
        role: record.identity.role,
        reachable: connected,
        link: HostLink::Certificate,
        certificate_expires_at: None,
        engine: String::new(),
        isolation: String::new(),
        sandboxes: 0,
        memory_free_mb: 0,
        disk_free_bytes: 0,
        version: String::new(),
        last_seen_at: record.joined_at,
    }
}

/// Create a join token, with which one host can join once. Requires an operator key.
#[utoipa::path(post, path = "/v1/hosts/tokens", tag = "hosts", operation_id = "create_host_token",
    request_body = CreateHostToken, responses((status = 201, body = HostToken),
    (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 409,
    description = "The server does not listen for hosts of other machines", body = ErrorBody)))]
pub(crate) async fn create_token(
    State(services): State<Arc<Services>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateHostToken>,
) -> ApiResult<(StatusCode, Json<HostToken>)> {
    let record = new_token(&services, caller, request)?;
    services.store.insert_host_token(&record.1).await?;
    let (token, HostTokenRecord { id, role, host, expires_at, .. }) = record;
    Ok((StatusCode::CREATED, Json(HostToken { token: token.expose(), id, role, host, expires_at })))
}

fn new_token(
    services: &Services,
    caller: Caller,
    request: CreateHostToken,
) -> Result<(JoinToken, HostTokenRecord)> {
    let ttl = request.ttl_seconds.unwrap_or(TTL_SECONDS_DEFAULT);
    if !TTL_SECONDS.contains(&ttl) {
        let (least, most) = (TTL_SECONDS.start(), TTL_SECONDS.end());
        return Err(Error::bad_request(format!("`ttl_seconds` must be {least} to {most}, not {ttl}")));
    }
    let role = request.role.unwrap_or(HostRole::Agent);
    if role == HostRole::Control {
        return Err(Error::bad_request(
            "control servers do not join; start them with the same database and join secret",
        ));
    }
    if !services.fleet.listens {
        let message = "this control server does not listen for other hosts; start it with --agents-listen";
        return Err(Error::new(ErrorCode::Conflict, message));
    }
    let token = JoinToken::random(services.fleet.fingerprint()).map_err(Error::internal)?;
    let created_at = now();
    let record = HostTokenRecord {
        id: token.id().to_owned(),
        hash: JoinToken::hash_of(token.presented()).to_vec(),
        role,
        host: request.host,
        created_by: caller.prefix,
        created_at,
        expires_at: created_at.saturating_add(i64::from(ttl).seconds()).map_err(Error::internal)?,
        used_at: None,
        used_by: None,
    };
    Ok((token, record))
}

/// Remove a host: its connections are closed and its certificate is refused. Its sandboxes become
/// unreachable. Requires an operator key.
#[utoipa::path(delete, path = "/v1/hosts/{id}", tag = "hosts", operation_id = "remove_host",
    params(("id" = String, Path, description = "Host ID")), responses((status = 204, description = "Removed"),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The host has no certificate", body = ErrorBody)))]
pub(crate) async fn remove(
    State(services): State<Arc<Services>>,
    Id(host): Id<HostId>,
) -> ApiResult<StatusCode> {
    if services.store.host_identity(&host).await?.is_none() && services.store.host(&host).await?.is_some() {
        let message = format!(
            "host `{host}` has no certificate that could be refused; to lock it out, rotate the join secret \
             with `pandastack secrets rotate`"
        );
        return Err(Error::new(ErrorCode::Conflict, message).into());
    }
    let removed = services.store.remove_host(&host, now()).await?;
    let role = removed.identity.role;
    services.fleet.apply(removed);
    services.hosts.forget_report(&host);
    if role == HostRole::Edge {
        services.fleet.announce_edges(&services.hosts).await;
    }
    tracing::info!(%host, "removed a host");
    Ok(StatusCode::NO_CONTENT)
}

/// Move hosts that use the shared join secret over to certificates, and refuse the secret once none is left.
/// Sandboxes keep running. Call it again to see the progress. Requires an operator key.
#[utoipa::path(post, path = "/v1/hosts/migrate", tag = "hosts", operation_id = "migrate_hosts",
    request_body = MigrateHosts, responses((status = 200, body = HostMigration),
    (status = 403, body = ErrorBody)))]
pub(crate) async fn migrate(
    State(services): State<Arc<Services>>,
    JsonBody(request): JsonBody<MigrateHosts>,
) -> ApiResult<Json<HostMigration>> {
    let pending: Vec<HostId> = services
        .hosts
        .list()
        .into_iter()
        .filter(|host| host.link == HostLink::SharedSecret && !services.fleet.has_joined(&host.id))
        .map(|host| host.id)
        .collect();
    let (store, fleet) = (services.store.as_ref(), &services.fleet);
    match fleet.shared_secret() {
        SharedSecret::Refused => {}
        _ if request.finish && (pending.is_empty() || request.force) => {
            fleet.set_shared_secret(store, SharedSecret::Refused).await?;
            tracing::info!(?pending, "the shared join secret is not accepted over TCP any more");
        }
        SharedSecret::Accepted => fleet.set_shared_secret(store, SharedSecret::Migrating).await?,
        SharedSecret::Migrating => {}
    }
    let finished = fleet.shared_secret() == SharedSecret::Refused;
    Ok(Json(HostMigration { finished, pending }))
}
