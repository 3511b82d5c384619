//! One sandbox: get, connect, pause, fork, kill.

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use http::{HeaderMap, Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use pandastack_types::api::{
    ForkTree, ForkTreeResult, Hibernate, Keep, Lifecycle, PatchLifecycle, Sandbox, SandboxMetrics,
};
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{SandboxId, SandboxState};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Authenticated, SandboxPath, sandbox_not_found};
use super::json::read_json;
use super::network::{self, Network};
use super::query::pairs;
use super::shape;
use crate::error::{RestError, RestResult};
use crate::limits::{FORK_TIMEOUT_SECONDS_DEFAULT, FORKS_MAX, TIMEOUT_SECONDS_DEFAULT};
use crate::native::{Caller, Native, NativeResult};
use crate::native_paths as paths;
use crate::sandbox_state::{is_paused, is_visible};

#[derive(Debug, Default, Deserialize)]
pub(super) struct Connect {
    timeout: Option<u64>,
    memory: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Timeout {
    timeout: u64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Refresh {
    duration: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Pause {
    memory: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Fork {
    timeout: Option<u64>,
    count: Option<u32>,
}

/// A sandbox that these clients may see.
async fn find(caller: &Caller, id: &SandboxId) -> RestResult<Sandbox> {
    let sandbox: Sandbox = caller.get(&paths::sandbox(id)).await?;
    if is_visible(&sandbox) { Ok(sandbox) } else { Err(sandbox_not_found(id.as_str())) }
}

/// Gets a sandbox without waking it.
pub(super) async fn get(
    State(native): State<Native>,
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    headers: HeaderMap,
) -> RestResult<Json<Value>> {
    let sandbox = find(&caller, &id).await?;
    let lifecycle: Lifecycle = caller.get(&paths::lifecycle(&id)).await?;
    let policy: NetworkPolicy = caller.get(&paths::network(&id)).await?;
    let token = native.token_for(&caller, &id).await?;
    let mut detail = shape::detail(&sandbox, token, lifecycle.on_timeout, &shape::domain(&headers));
    let (is_open, lists) = network::shown(&policy);
    detail["allowInternetAccess"] = is_open.into();
    detail["network"] = lists;
    Ok(Json(detail))
}

/// End a sandbox.
pub(super) async fn kill(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
) -> RestResult<StatusCode> {
    caller.call(Method::DELETE, &paths::sandbox(&id), None::<&()>).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Wake a sandbox if it is paused, and give it at least so long to live.
pub(super) async fn connect(
    State(native): State<Native>,
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    request: Request,
) -> RestResult<(StatusCode, Json<Value>)> {
    let (parts, body) = request.into_parts();
    let wanted: Connect = read_json(body).await?;
    let sandbox = find(&caller, &id).await?;
    let paused = is_paused(&sandbox);
    if paused {
        let is_in_memory = sandbox.status == SandboxState::Paused;
        let path = if is_in_memory { paths::resume(&id) } else { paths::wake(&id) };
        caller.call(Method::POST, &path, None::<&()>).await?;
        if wanted.memory == Some(false) && sandbox.kept != Some(Keep::Disk) {
            // A sandbox boots from its disk only after a sleep that kept only the disk.
            let sleep = Hibernate { keep: Keep::Disk };
            caller.call(Method::POST, &paths::hibernate(&id), Some(&sleep)).await?;
            caller.call(Method::POST, &paths::wake(&id), None::<&()>).await?;
        }
    }
    let seconds = wanted.timeout.unwrap_or(TIMEOUT_SECONDS_DEFAULT).max(1);
    if !sandbox.persistent && (paused || ends_before(&sandbox, seconds)) {
        live_for(&caller, &id, seconds).await?;
    }
    let status = if paused { StatusCode::CREATED } else { StatusCode::OK };
    let token = native.token_for(&caller, &id).await?;
    Ok((status, Json(shape::sandbox(&sandbox, token, &shape::domain(&parts.headers)))))
}

fn ends_before(sandbox: &Sandbox, seconds: u64) -> bool {
    let seconds = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    match (sandbox.expires_at, Timestamp::now().checked_add(seconds)) {
        (Some(end), Ok(wanted)) => end < wanted,
        _ => false,
    }
}

async fn live_for(caller: &Caller, id: &SandboxId, seconds: u64) -> NativeResult<()> {
    let change = PatchLifecycle { ttl_seconds: Some(seconds), ..PatchLifecycle::default() };
    caller.call(Method::PATCH, &paths::lifecycle(id), Some(&change)).await
}

/// Let a sandbox live so long from now.
pub(super) async fn set_timeout(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    body: Body,
) -> RestResult<StatusCode> {
    let wanted: Timeout = read_json(body).await?;
    find(&caller, &id).await?;
    live_for(&caller, &id, wanted.timeout.max(1)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Extend a sandbox's lifetime, for older clients; never shorten it.
pub(super) async fn refresh(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    body: Body,
) -> RestResult<StatusCode> {
    let wanted: Refresh = read_json(body).await?;
    let seconds = wanted.duration.unwrap_or(TIMEOUT_SECONDS_DEFAULT).max(1);
    let sandbox = find(&caller, &id).await?;
    if ends_before(&sandbox, seconds) {
        live_for(&caller, &id, seconds).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Put a sandbox to sleep on disk.
pub(super) async fn pause(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    body: Body,
) -> RestResult<StatusCode> {
    let wanted: Pause = read_json(body).await?;
    if find(&caller, &id).await?.status == SandboxState::Hibernated {
        return Err(RestError::new(StatusCode::CONFLICT, format!("sandbox `{id}` is already paused")));
    }
    let keep = if wanted.memory == Some(false) { Keep::Disk } else { Keep::Memory };
    caller.call(Method::POST, &paths::hibernate(&id), Some(&Hibernate { keep })).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Copy a running sandbox. One element per copy, in order: the sandbox, or why there is none.
pub(super) async fn fork(
    State(native): State<Native>,
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    request: Request,
) -> RestResult<(StatusCode, Json<Vec<Value>>)> {
    let (parts, body) = request.into_parts();
    let wanted: Fork = read_json(body).await?;
    let count = wanted.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(RestError::bad_request(format!("`count` must be 1 to {FORKS_MAX}")));
    }
    find(&caller, &id).await?;
    let tree = ForkTree { count, metadata: None };
    let path = paths::fork_tree(&id);
    let forked: ForkTreeResult = caller.json(Method::POST, &path, Some(&tree)).await?;
    let seconds = wanted.timeout.unwrap_or(FORK_TIMEOUT_SECONDS_DEFAULT).max(1);
    let domain = shape::domain(&parts.headers);
    let mut children = forked.children.into_iter();
    let mut answers = Vec::new();
    for index in 0..count {
        let failed = forked.errors.iter().find(|error| error.index == index);
        answers.push(match (failed, failed.is_none().then(|| children.next()).flatten()) {
            (None, Some(child)) => settle(&native, &caller, &child, seconds, &domain).await,
            (Some(error), _) => failure(&error.err),
            (None, None) => failure("the host did not report this child"),
        });
    }
    Ok((StatusCode::CREATED, Json(answers)))
}

/// Sets a child's own lifetime. If that fails, deletes the child.
async fn settle(native: &Native, caller: &Caller, child: &Sandbox, seconds: u64, domain: &str) -> Value {
    let lives = match live_for(caller, &child.id, seconds).await {
        Ok(()) => native.token_for(caller, &child.id).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.message),
    };
    match lives {
        Ok(token) => json!({ "sandbox": shape::sandbox(child, token, domain) }),
        Err(why) => {
            let path = paths::sandbox(&child.id);
            if let Err(error) = caller.call(Method::DELETE, &path, None::<&()>).await {
                tracing::warn!(sandbox = %child.id, %error, "cannot delete a fork whose lifetime was not set");
            }
            failure(&why)
        }
    }
}

fn failure(message: &str) -> Value {
    json!({ "error": { "code": StatusCode::INTERNAL_SERVER_ERROR.as_u16(), "message": message } })
}

/// Change the network rules; everything that they do not mention is open.
pub(super) async fn set_network(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    body: Body,
) -> RestResult<StatusCode> {
    let wanted: Network = read_json(body).await?;
    let policy = wanted.policy(None)?.unwrap_or_default();
    find(&caller, &id).await?;
    caller.call(Method::PUT, &paths::network(&id), Some(&policy)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Current resource usage of a sandbox. Nothing is recorded over time, so there is one value or,
/// while it sleeps, none.
pub(super) async fn metrics(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    RawQuery(query): RawQuery,
) -> RestResult<Json<Vec<Value>>> {
    find(&caller, &id).await?;
    let seen: SandboxMetrics = caller.get(&paths::metrics(&id)).await?;
    let within =
        pairs(query.as_deref().unwrap_or_default()).all(|(key, value)| match (key.as_str(), value.parse()) {
            ("start", Ok(start)) => seen.at.as_second() >= start,
            // The clocks of two machines may differ by a little.
            ("end", Ok(end)) => seen.at.as_second() <= end + 5,
            _ => true,
        });
    let Some(guest) = seen.guest.filter(|_| within) else { return Ok(Json(Vec::new())) };
    Ok(Json(vec![json!({
        "timestamp": seen.at.to_string(),
        "timestampUnix": seen.at.as_second(),
        "cpuCount": seen.host.cpu_count,
        "cpuUsedPct": seen.host.cpu_used_percent,
        "memUsed": guest.memory_used_bytes,
        "memTotal": guest.memory_total_bytes,
        "memCache": guest.memory_cached_bytes,
        "diskUsed": guest.disk_used_bytes,
        "diskTotal": guest.disk_total_bytes,
    })]))
}
