//! The API of databases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode, header};
use pandastack_postgres::{
    Bounds, Endpoint, Entrance, Outcome, Session, Statement, json_of, parameter, type_name,
};
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_types::agent_api::{ExecQuery, endpoints};
use pandastack_types::api::{
    CloneDatabase, CreateDatabase, Database, DatabaseColumn, DatabaseConnection, DatabaseQuery, DatabaseRows,
    DatabaseStats, DatabaseStatus, DatabaseWaking, ExecRequest, Items, PatchDatabase, Scope,
};
use pandastack_types::limits::{DATABASE_QUERY_MS_MAX, DATABASE_ROWS_MAX};
use pandastack_types::{DatabaseId, Error, ErrorBody, ErrorCode, Result};

use super::credentials::{DATABASE, is_broker_token, tenant};
use super::{StoredDatabases, backups, ops, reset, server, view};
use crate::service::ManagedDatabases;
use pandastack_sandboxes::ops::on;
use pandastack_store::databases::DatabaseRecord;

/// How long a query may take that does not say.
const QUERY_MS_DEFAULT: u64 = 60_000;
/// How long a host may take to read a log.
const LOG_WAIT: Duration = Duration::from_secs(60);
/// The end of the newest log of the server.
const LOG_COMMAND: &str = "tail -c 262144 \"$(ls -t /var/log/postgresql/postgresql-*.log | head -n 1)\"";

/// The routes, with their state.
pub fn routes<S>(databases: &Arc<ManagedDatabases>) -> Router<S> {
    Router::new()
        .route("/databases", get(list).post(create))
        .route("/databases/{id}", get(look).patch(change).delete(delete))
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
pub fn broker<S>(databases: &Arc<ManagedDatabases>) -> Router<S> {
    Router::new()
        .route("/v1/databases/{id}/proxy/v1/query", post(broker_query))
        .route("/v1/databases/{id}/proxy/v1/exec", post(broker_query))
        .route("/v1/databases/{id}/proxy/v1/health", get(broker_health))
        .with_state(Arc::clone(databases))
}

async fn find(app: &ManagedDatabases, caller: &Caller, id: &DatabaseId) -> Result<DatabaseRecord> {
    Ok(app.store.database(Some(&caller.workspace), id).await?)
}

/// Make a database. It answers when a query succeeded.
#[utoipa::path(post, path = "/v1/databases", tag = "databases", request_body = CreateDatabase, responses(
    (status = 201, body = Database), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 503, description = "Retry-After says when to try again", body = ErrorBody)))]
pub async fn create(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateDatabase>,
) -> ApiResult<(StatusCode, Json<Database>)> {
    let record = ops::create(&app, caller.workspace, request).await?;
    Ok((StatusCode::CREATED, Json(view::shown(&app, &headers, record).await?)))
}

/// All databases of the workspace, oldest first, without credentials.
#[utoipa::path(get, path = "/v1/databases", tag = "databases", responses((status = 200, body = Items<Database>)))]
pub async fn list(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
) -> ApiResult<Json<Items<Database>>> {
    let mut items = Vec::new();
    for record in app.store.databases(&caller.workspace).await? {
        items.push(view::listed(&app, record).await?);
    }
    Ok(Json(Items { items }))
}

/// One database; with how to connect, for keys that may change things. Never wakes it.
#[utoipa::path(get, path = "/v1/databases/{id}", tag = "databases", params(("id" = DatabaseId, Path)), responses(
    (status = 200, body = Database), (status = 404, body = ErrorBody)))]
pub async fn look(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<Database>> {
    let record = find(&app, &caller, &id).await?;
    Ok(Json(match caller.scope > Scope::Read {
        true => view::shown(&app, &headers, record).await?,
        false => view::listed(&app, record).await?,
    }))
}

/// Change a database's label, whether it sleeps, and whether it can be deleted.
#[utoipa::path(patch, path = "/v1/databases/{id}", tag = "databases", params(("id" = DatabaseId, Path)),
    request_body = PatchDatabase, responses((status = 200, body = Database), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn change(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
    JsonBody(request): JsonBody<PatchDatabase>,
) -> ApiResult<Json<Database>> {
    let record = find(&app, &caller, &id).await?;
    let record = ops::change(&app, record, request).await?;
    Ok(Json(view::shown(&app, &headers, record).await?))
}

/// Delete a database and everything in it.
#[utoipa::path(delete, path = "/v1/databases/{id}", tag = "databases", params(("id" = DatabaseId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, description = "It is protected", body = ErrorBody)))]
pub async fn delete(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<StatusCode> {
    let record = find(&app, &caller, &id).await?;
    ops::delete(&app, record).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How to connect to a database.
#[utoipa::path(get, path = "/v1/databases/{id}/connection", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseConnection), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn connection(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseConnection>> {
    caller.require(Scope::Sandboxes)?;
    let record = find(&app, &caller, &id).await?;
    ops::ready(&record)?;
    let none = || {
        Error::new(
            ErrorCode::Unavailable,
            "this server does not accept database connections; start it with --postgres-listen",
        )
    };
    Ok(view::connection(&app, &headers, &record).await.map(Json).ok_or_else(none)?)
}

/// Run one statement and return its rows.
#[utoipa::path(post, path = "/v1/databases/{id}/query", tag = "databases", params(("id" = DatabaseId, Path)),
    request_body = DatabaseQuery, responses((status = 200, body = DatabaseRows),
    (status = 400, description = "The statement failed, or the request is malformed", body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 413, description = "The result is too large", body = ErrorBody),
    (status = 503, description = "The server is stopped, starts, or has no connection left", body = ErrorBody)))]
pub async fn query(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
    JsonBody(request): JsonBody<DatabaseQuery>,
) -> ApiResult<Json<DatabaseRows>> {
    let record = find(&app, &caller, &id).await?;
    Ok(run_query(&app, &record, request).await.map(Json)?)
}

/// Runs one statement as the owner of a database and answers its rows.
pub async fn run_query(
    app: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    request: DatabaseQuery,
) -> Result<DatabaseRows> {
    ops::ready(record)?;
    let wait_ms = request.timeout_ms.unwrap_or(QUERY_MS_DEFAULT);
    if !(1..=DATABASE_QUERY_MS_MAX).contains(&wait_ms) {
        return Err(Error::bad_request(format!("`timeout_ms` must be 1 to {DATABASE_QUERY_MS_MAX}")));
    }
    let rows_max = request.max_rows.unwrap_or(DATABASE_ROWS_MAX);
    if !(1..=DATABASE_ROWS_MAX).contains(&rows_max) {
        return Err(Error::bad_request(format!("`max_rows` must be 1 to {DATABASE_ROWS_MAX}")));
    }
    if request.sql.trim().is_empty() {
        return Err(Error::bad_request("`sql` is empty; give a statement to run"));
    }
    let began = Instant::now();
    let databases = StoredDatabases(Arc::clone(app));
    let endpoint = Endpoint { database: record.id.to_string(), entrance: Entrance::Direct };
    let login = tenant(&app.sandboxes.link, record, request.database.as_deref().unwrap_or(DATABASE));
    let parameters = request.params.into_iter().map(parameter).collect();
    let statement = Statement { sql: request.sql, parameters };
    let mut session = Session::open(&databases, &endpoint, &login).await.map_err(server::refusal)?;
    let bounds = Bounds { rows_max, wait: Duration::from_millis(wait_ms) };
    let outcomes = session.run(&databases, &endpoint, &[statement], None, bounds).await;
    session.close().await;
    let outcome = outcomes.map_err(server::run_refusal)?.into_iter().next().unwrap_or_default();
    Ok(rows(outcome, began.elapsed()))
}

fn rows(outcome: Outcome, took: Duration) -> DatabaseRows {
    let types: Vec<u32> = outcome.columns.iter().map(|column| column.type_oid).collect();
    let cell = |(value, oid): (Option<String>, &u32)| {
        value.map_or(serde_json::Value::Null, |text| json_of(&text, *oid))
    };
    // Of a truncated change only the rows that came back are known.
    let unknown = if outcome.truncated { outcome.rows.len() as u64 } else { 0 };
    let (command, count) = (outcome.command().to_owned(), outcome.row_count().unwrap_or(unknown));
    let column = |column: pandastack_postgres::Column| DatabaseColumn {
        name: column.name,
        type_name: type_name(column.type_oid),
    };
    DatabaseRows {
        rows: outcome.rows.into_iter().map(|row| row.into_iter().zip(&types).map(cell).collect()).collect(),
        columns: outcome.columns.into_iter().map(column).collect(),
        count,
        command,
        truncated: outcome.truncated,
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Copy a database as it is now, while it runs; or, with `target_time`, begin to restore it from its backups as it was then. The copy has
/// credentials of its own.
#[utoipa::path(post, path = "/v1/databases/{id}/clone", tag = "databases", params(("id" = DatabaseId, Path)),
    request_body = CloneDatabase, responses((status = 201, body = Database),
    (status = 202, description = "It is being restored: its `status` says when it is ready", body = Database),
    (status = 400, description = "Among others: that instant cannot be restored", body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 501, description = "This server makes no backups", body = ErrorBody)))]
pub async fn clone(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
    JsonBody(request): JsonBody<CloneDatabase>,
) -> ApiResult<(StatusCode, Json<Database>)> {
    let record = find(&app, &caller, &id).await?;
    let status = request.target_time.map_or(StatusCode::CREATED, |_| StatusCode::ACCEPTED);
    let copy = ops::branch(&app, record, request).await?;
    Ok((status, Json(view::shown(&app, &headers, copy).await?)))
}

/// Give a database a new password. The old one works no more; open sessions stay.
#[utoipa::path(post, path = "/v1/databases/{id}/reset-credentials", tag = "databases",
    params(("id" = DatabaseId, Path)), responses((status = 200, body = Database), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn reset_credentials(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<Database>> {
    let record = find(&app, &caller, &id).await?;
    let record = reset::reset_credentials(&app, record).await?;
    Ok(Json(view::shown(&app, &headers, record).await?))
}

/// Put a database to sleep. The next connection wakes it.
#[utoipa::path(post, path = "/v1/databases/{id}/pause", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseWaking), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn pause(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseWaking>> {
    let record = find(&app, &caller, &id).await?;
    ops::go(&app, &record, false).await?;
    Ok(Json(DatabaseWaking { id, status: DatabaseStatus::Hibernated }))
}

/// Wake a database; it is awake when the call returns.
#[utoipa::path(post, path = "/v1/databases/{id}/wake", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseWaking), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn wake(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseWaking>> {
    let record = find(&app, &caller, &id).await?;
    ops::go(&app, &record, true).await?;
    Ok(Json(DatabaseWaking { id, status: DatabaseStatus::Running }))
}

/// What a database does. Wakes it.
#[utoipa::path(get, path = "/v1/databases/{id}/stats", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseStats), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn stats(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseStats>> {
    let record = find(&app, &caller, &id).await?;
    let sandbox = ops::ready(&record)?;
    let mut stats = server::stats(&app, &record, sandbox).await?;
    (stats.storage_bytes, stats.storage_used_bytes) = ops::storage(&app, &record).await?;
    Ok(Json(stats))
}

/// The end of the server's log. Wakes it.
#[utoipa::path(get, path = "/v1/databases/{id}/logs", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, content_type = "text/plain", body = String), (status = 404, body = ErrorBody)))]
pub async fn logs(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Response> {
    let record = find(&app, &caller, &id).await?;
    let (machine, client) = ops::machine(&app, &record).await?;
    let command = ExecRequest { cmd: Some(LOG_COMMAND.to_owned()), ..ExecRequest::default() };
    let call = endpoints::Exec::new(machine.id.clone(), ExecQuery::default());
    let output = client.call(call, on(&machine, LOG_WAIT), &command).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], output.stdout).into_response())
}

/// Let a copy that is restored from the backups take over from a database whose host does not answer. It keeps its id, address and
/// password; what was not archived, some seconds, is lost.
#[utoipa::path(post, path = "/v1/databases/{id}/failover", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, body = Database), (status = 404, body = ErrorBody),
    (status = 409, description = "Its host answers", body = ErrorBody),
    (status = 501, description = "This server makes no backups", body = ErrorBody)))]
pub async fn failover(
    State(app): State<Arc<ManagedDatabases>>,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<Database>> {
    let record = find(&app, &caller, &id).await?;
    let record = backups::fail_over(&app, record).await?;
    Ok(Json(view::shown(&app, &headers, record).await?))
}

/// The database that a path and a bearer token mean.
async fn broker_record(
    app: &ManagedDatabases,
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
    let record = app.store.database(None, id).await.map_err(|_| refused())?;
    if is_broker_token(&app.sandboxes.link, &record, given) { Ok(record) } else { Err(refused()) }
}

async fn broker_query(
    State(app): State<Arc<ManagedDatabases>>,
    Id(id): Id<DatabaseId>,
    request: Request,
) -> ApiResult<Json<DatabaseRows>> {
    let (parts, body) = request.into_parts();
    let record = broker_record(&app, &id, &parts.headers).await?;
    let request = pandastack_rest::extract::parse_json(&pandastack_rest::extract::read_body(body).await?)?;
    Ok(run_query(&app, &record, request).await.map(Json)?)
}

async fn broker_health(
    State(app): State<Arc<ManagedDatabases>>,
    Id(id): Id<DatabaseId>,
    headers: HeaderMap,
) -> ApiResult<Json<serde_json::Value>> {
    let record = broker_record(&app, &id, &headers).await?;
    ops::ready(&record)?;
    Ok(Json(serde_json::json!({ "status": "ok" })))
}
