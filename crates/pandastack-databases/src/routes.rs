//! The API of databases.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode, header};
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::api::{
    CloneDatabase, CreateDatabase, Database, DatabaseConnection, DatabaseQuery, DatabaseRows, DatabaseStats,
    DatabaseStatus, DatabaseWaking, ExecRequest, Items, PatchDatabase, Role,
};
use pandastack_types::{DatabaseId, Error, ErrorBody, ErrorCode, Result};

use crate::credentials::is_broker_token;
use crate::query::run_query;
use crate::service::ManagedDatabases;
use crate::{backups, machines, ops, reset, server, view};

/// The end of the newest log of the server.
const LOG_COMMAND: &str = "tail -c 262144 \"$(ls -t /var/log/postgresql/postgresql-*.log | head -n 1)\"";

/// The routes, with their state.
pub fn routes(databases: &Arc<ManagedDatabases>) -> Router {
    Router::new()
        .route("/databases", get(list).post(create))
        .route("/databases/{id}", get(describe).patch(change).delete(delete))
        .route("/databases/{id}/connection", get(connection))
        .route("/databases/{id}/query", post(query))
        .route("/databases/{id}/clone", post(clone))
        .route("/databases/{id}/branch", post(clone))
        .route("/databases/{id}/reset-credentials", post(reset_credentials))
        .route("/databases/{id}/pause", post(pause))
        .route("/databases/{id}/wake", post(wake))
        .route("/databases/{id}/stats", get(stats))
        .route("/databases/{id}/logs", get(logs))
        .route("/databases/{id}/failover", post(failover))
        .with_state(Arc::clone(databases))
}

/// The broker, which the database's own token opens instead of a key.
pub fn broker(databases: &Arc<ManagedDatabases>) -> Router {
    Router::new()
        .route("/v1/databases/{id}/proxy/v1/query", post(broker_query))
        .route("/v1/databases/{id}/proxy/v1/exec", post(broker_query))
        .route("/v1/databases/{id}/proxy/v1/health", get(broker_health))
        .with_state(Arc::clone(databases))
}

async fn find(databases: &ManagedDatabases, caller: &Caller, id: &DatabaseId) -> Result<DatabaseRecord> {
    Ok(databases.store.database(Some(&caller.workspace), id).await?)
}

/// Create a database. Returns after the first successful query.
#[utoipa::path(post, path = "/v1/databases", tag = "databases", request_body = CreateDatabase, responses(
    (status = 201, body = Database), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after the time in `Retry-After`", body = ErrorBody)))]
pub async fn create(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateDatabase>,
) -> ApiResult<(StatusCode, Json<Database>)> {
    let record = ops::create(&databases, caller.workspace, request).await?;
    Ok((StatusCode::CREATED, Json(view::details(&databases, &headers, record).await?)))
}

/// List databases, oldest first, without credentials.
#[utoipa::path(get, path = "/v1/databases", tag = "databases", responses((status = 200, body = Items<Database>)))]
pub async fn list(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
) -> ApiResult<Json<Items<Database>>> {
    let mut items = Vec::new();
    for record in databases.store.databases(&caller.workspace).await? {
        items.push(view::summary(&databases, record).await?);
    }
    Ok(Json(Items { items }))
}

/// Get a database. A `viewer` key does not see the connection details. Does not wake it.
#[utoipa::path(get, path = "/v1/databases/{id}", tag = "databases", operation_id = "get_database",
    params(("id" = DatabaseId, Path)), responses(
    (status = 200, body = Database), (status = 404, body = ErrorBody)))]
pub async fn describe(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<Database>> {
    let record = find(&databases, &caller, &id).await?;
    Ok(Json(match caller.role > Role::Viewer {
        true => view::details(&databases, &headers, record).await?,
        false => view::summary(&databases, record).await?,
    }))
}

/// Update a database's label, storage, size, sleep setting or deletion protection.
#[utoipa::path(patch, path = "/v1/databases/{id}", tag = "databases", params(("id" = DatabaseId, Path)),
    request_body = PatchDatabase, responses((status = 200, body = Database), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn change(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
    JsonBody(request): JsonBody<PatchDatabase>,
) -> ApiResult<Json<Database>> {
    let record = find(&databases, &caller, &id).await?;
    let record = ops::change(&databases, record, request).await?;
    Ok(Json(view::details(&databases, &headers, record).await?))
}

/// Delete a database and its data.
#[utoipa::path(delete, path = "/v1/databases/{id}", tag = "databases", params(("id" = DatabaseId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, description = "The database is protected from deletion", body = ErrorBody)))]
pub async fn delete(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<StatusCode> {
    let record = find(&databases, &caller, &id).await?;
    ops::delete(&databases, record).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get a database's connection details.
#[utoipa::path(get, path = "/v1/databases/{id}/connection", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseConnection), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn connection(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseConnection>> {
    caller.require(Role::Developer)?;
    let record = find(&databases, &caller, &id).await?;
    machines::ready(&record)?;
    let none = || {
        Error::new(
            ErrorCode::Unavailable,
            "this server does not accept database connections; start it with --postgres-listen",
        )
    };
    Ok(view::connection(&databases, &headers, &record).await.map(Json).ok_or_else(none)?)
}

/// Run one SQL statement and return its rows.
#[utoipa::path(post, path = "/v1/databases/{id}/query", tag = "databases", params(("id" = DatabaseId, Path)),
    request_body = DatabaseQuery, responses((status = 200, body = DatabaseRows),
    (status = 400, description = "The statement failed, or the request is malformed", body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 413, description = "The result is too large", body = ErrorBody),
    (status = 503, description = "The server is stopped, is starting or has no free connection", body = ErrorBody)))]
pub async fn query(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
    JsonBody(request): JsonBody<DatabaseQuery>,
) -> ApiResult<Json<DatabaseRows>> {
    let record = find(&databases, &caller, &id).await?;
    Ok(run_query(&databases, &record, request).await.map(Json)?)
}

/// Copy a database while it runs. With `target_time`, start a restore of its state at that time from
/// backups. The copy has its own credentials.
#[utoipa::path(post, path = "/v1/databases/{id}/clone", tag = "databases", params(("id" = DatabaseId, Path)),
    request_body = CloneDatabase, responses((status = 201, body = Database),
    (status = 202, description = "The restore has started; `status` shows when the database is ready", body = Database),
    (status = 400, description = "The request is invalid, or that point in time cannot be restored", body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 501, description = "Backups are disabled on this server", body = ErrorBody)))]
pub async fn clone(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
    JsonBody(request): JsonBody<CloneDatabase>,
) -> ApiResult<(StatusCode, Json<Database>)> {
    let record = find(&databases, &caller, &id).await?;
    let status = request.target_time.map_or(StatusCode::CREATED, |_| StatusCode::ACCEPTED);
    let copy = ops::branch(&databases, record, request).await?;
    Ok((status, Json(view::details(&databases, &headers, copy).await?)))
}

/// Set a new password. The old one stops working; open sessions stay connected.
#[utoipa::path(post, path = "/v1/databases/{id}/reset-credentials", tag = "databases",
    params(("id" = DatabaseId, Path)), responses((status = 200, body = Database), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn reset_credentials(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<Database>> {
    let record = find(&databases, &caller, &id).await?;
    let record = reset::reset_credentials(&databases, record).await?;
    Ok(Json(view::details(&databases, &headers, record).await?))
}

/// Put a database to sleep. The next connection wakes it.
#[utoipa::path(post, path = "/v1/databases/{id}/pause", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseWaking), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn pause(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseWaking>> {
    let record = find(&databases, &caller, &id).await?;
    ops::set_awake(&databases, &record, false).await?;
    Ok(Json(DatabaseWaking { id, status: DatabaseStatus::Hibernated }))
}

/// Wake a database. Returns when it is awake.
#[utoipa::path(post, path = "/v1/databases/{id}/wake", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseWaking), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn wake(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseWaking>> {
    let record = find(&databases, &caller, &id).await?;
    ops::set_awake(&databases, &record, true).await?;
    Ok(Json(DatabaseWaking { id, status: DatabaseStatus::Running }))
}

/// Get a database's statistics. Wakes it.
#[utoipa::path(get, path = "/v1/databases/{id}/stats", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseStats), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn stats(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseStats>> {
    let record = find(&databases, &caller, &id).await?;
    let sandbox = machines::ready(&record)?;
    let mut stats = server::stats(&databases, &record, sandbox).await?;
    (stats.storage_bytes, stats.storage_used_bytes) = machines::storage(&databases, &record).await?;
    Ok(Json(stats))
}

/// Get the end of the server's log. Wakes the database.
#[utoipa::path(get, path = "/v1/databases/{id}/logs", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, content_type = "text/plain", body = String), (status = 404, body = ErrorBody)))]
pub async fn logs(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Response> {
    let record = find(&databases, &caller, &id).await?;
    let machine = machines::machine(&databases, &record).await?;
    let command = ExecRequest { cmd: Some(LOG_COMMAND.to_owned()), ..ExecRequest::default() };
    let output = machine.exec(&command).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], output.stdout).into_response())
}

/// Fail over a database whose host does not respond to a copy restored from its backups. The ID, address
/// and password stay the same. Changes that were not archived yet are lost.
#[utoipa::path(post, path = "/v1/databases/{id}/failover", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = Database), (status = 404, body = ErrorBody),
    (status = 409, description = "The host of the database responds", body = ErrorBody),
    (status = 501, description = "Backups are disabled on this server", body = ErrorBody)))]
pub async fn failover(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<Database>> {
    let record = find(&databases, &caller, &id).await?;
    let record = backups::failover::fail_over(&databases, record).await?;
    Ok(Json(view::details(&databases, &headers, record).await?))
}

/// The database that a path and a bearer token mean.
async fn broker_record(
    databases: &ManagedDatabases,
    id: &DatabaseId,
    headers: &HeaderMap,
) -> Result<DatabaseRecord> {
    let bearer =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let refused = || {
        Error::new(
            ErrorCode::Unauthorized,
            "invalid broker token; send `Authorization: Bearer <broker_token>` of this database",
        )
    };
    let given = bearer.ok_or_else(refused)?;
    // An unknown database and a wrong token are the same answer: ids are not told to strangers.
    let record = databases.store.database(None, id).await.map_err(|_| refused())?;
    if is_broker_token(&databases.link, &record, given) { Ok(record) } else { Err(refused()) }
}

async fn broker_query(
    State(databases): State<Arc<ManagedDatabases>>,
    Id(id): Id<DatabaseId>,
    request: Request,
) -> ApiResult<Json<DatabaseRows>> {
    let (parts, body) = request.into_parts();
    let record = broker_record(&databases, &id, &parts.headers).await?;
    let request = pandastack_rest::extract::parse_json(&pandastack_rest::extract::read_body(body).await?)?;
    Ok(run_query(&databases, &record, request).await.map(Json)?)
}

async fn broker_health(
    State(databases): State<Arc<ManagedDatabases>>,
    Id(id): Id<DatabaseId>,
    headers: HeaderMap,
) -> ApiResult<Json<serde_json::Value>> {
    let record = broker_record(&databases, &id, &headers).await?;
    machines::ready(&record)?;
    Ok(Json(serde_json::json!({ "status": "ok" })))
}
