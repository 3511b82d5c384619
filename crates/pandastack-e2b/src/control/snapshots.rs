//! Snapshots, which E2B's clients treat as templates.

use axum::Json;
use axum::body::Body;
use axum::extract::RawQuery;
use axum::response::Response;
use http::{Method, StatusCode};
use pandastack_types::SnapshotId;
use pandastack_types::api::{CreateSnapshot, Snapshot, SnapshotKind, SnapshotList};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Authenticated, SandboxPath};
use super::json::read_json;
use super::paging::page;
use super::query::pairs;
use crate::error::{RestError, RestResult};
use crate::native::Caller;
use crate::native_paths as paths;

#[derive(Debug, Default, Deserialize)]
struct NewSnapshot {
    name: Option<String>,
    memory: Option<bool>,
}

fn show(snapshot: &Snapshot) -> Value {
    json!({ "snapshotID": snapshot.id, "names": snapshot.name.iter().collect::<Vec<_>>() })
}

/// Take a snapshot; the sandbox runs on.
pub(super) async fn create(
    Authenticated(caller): Authenticated,
    SandboxPath(id): SandboxPath,
    body: Body,
) -> RestResult<(StatusCode, Json<Value>)> {
    let wanted: NewSnapshot = read_json(body).await?;
    if wanted.memory == Some(false) {
        return Err(RestError::unsupported("snapshots without memory are"));
    }
    let request = CreateSnapshot { name: wanted.name, replace_name: true, ..CreateSnapshot::default() };
    let snapshot: Snapshot = caller.json(Method::POST, &paths::take_snapshot(&id), Some(&request)).await?;
    Ok((StatusCode::CREATED, Json(show(&snapshot))))
}

/// Snapshots that users took, newest first.
pub(super) async fn list(
    Authenticated(caller): Authenticated,
    RawQuery(query): RawQuery,
) -> RestResult<Response> {
    let (mut sandbox, mut name, mut limit, mut token) = (None, None, None, None);
    for (key, value) in pairs(query.as_deref().unwrap_or_default()) {
        match key.as_str() {
            "sandboxID" => sandbox = Some(value),
            "name" => name = Some(value),
            "limit" => {
                let wrong = |_| RestError::bad_request("`limit` must be a number");
                limit = Some(value.parse().map_err(wrong)?);
            }
            "nextToken" => token = Some(value),
            _ => {}
        }
    }
    let path = sandbox.map_or_else(|| paths::SNAPSHOTS.to_owned(), |id| paths::snapshots_of(&id));
    let found: SnapshotList = caller.get(&path).await?;
    let wanted = |snapshot: &&Snapshot| {
        snapshot.kind == SnapshotKind::Manual && (name.is_none() || snapshot.name == name)
    };
    let shown = found.snapshots.iter().filter(wanted);
    page(shown.map(|snapshot| (snapshot.id.to_string(), show(snapshot))).collect(), limit, token.as_deref())
}

/// Delete a snapshot, by id or by name.
pub(super) async fn delete(caller: &Caller, name: &str) -> RestResult<()> {
    let id = find(caller, name).await?;
    Ok(caller.call(Method::DELETE, &paths::snapshot(&id), None::<&()>).await?)
}

async fn find(caller: &Caller, name: &str) -> RestResult<SnapshotId> {
    let list: SnapshotList = caller.get(paths::SNAPSHOTS).await?;
    let found = list
        .snapshots
        .into_iter()
        .find(|snapshot| snapshot.id.as_str() == name || snapshot.name.as_deref() == Some(name));
    found.map(|snapshot| snapshot.id).ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        RestError::new(StatusCode::NOT_FOUND, format!("snapshot `{shown}` not found"))
    })
}
