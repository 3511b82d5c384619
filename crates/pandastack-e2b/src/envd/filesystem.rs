//! `filesystem.Filesystem`, apart from watches.

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use http::{HeaderMap, Method, StatusCode};
use pandastack_types::api::{DirectoryListing, FileEntry, FileKind, RenameFile};
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect;
use super::entry::entry;
use crate::error::{RpcCode, RpcError, RpcResult};
use crate::native::NativeResult;
use crate::native_paths as paths;
use crate::session::Session;
use crate::user::User;

#[derive(Debug, Default, Deserialize)]
struct PathRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

#[derive(Debug, Deserialize)]
struct MoveRequest {
    source: String,
    destination: String,
}

/// The request, its absolute path and its user.
async fn read(session: &Session, request: Request) -> RpcResult<(PathRequest, String, User)> {
    let (parts, body) = request.into_parts();
    let wanted: PathRequest = connect::read_unary(body).await?;
    let user = session.user(&parts.headers).await?;
    let path = user.absolute(&wanted.path);
    Ok((wanted, path, user))
}

pub(super) async fn stat_file(session: &Session, path: &str) -> NativeResult<FileEntry> {
    session.native.get(&paths::stat_file(&session.sandbox, path)).await
}

async fn shown(session: &Session, path: &str) -> RpcResult<Json<Value>> {
    let file = stat_file(session, path).await?;
    let entry = entry(&file)
        .ok_or_else(|| RpcError::invalid(format!("`{path}` is neither a file nor a directory")))?;
    Ok(Json(json!({ "entry": entry })))
}

/// Describes a file.
pub(super) async fn stat(session: Session, request: Request) -> RpcResult<Json<Value>> {
    let (_, path, _) = read(&session, request).await?;
    shown(&session, &path).await
}

/// Creates a directory and its parents; an existing directory is an error.
pub(super) async fn make_dir(session: Session, request: Request) -> RpcResult<Json<Value>> {
    let (_, path, user) = read(&session, request).await?;
    match stat_file(&session, &path).await {
        Ok(file) if file.is_dir => {
            return Err(RpcError::new(RpcCode::AlreadyExists, format!("directory already exists: {path}")));
        }
        Ok(_) => {
            return Err(RpcError::invalid(format!("path already exists but it is not a directory: {path}")));
        }
        Err(error) if error.is_missing_file() => {}
        Err(error) => return Err(error.into()),
    }
    let made = paths::make_directory(&session.sandbox, &path, &user.name);
    session.native.call(Method::POST, &made, None::<&()>).await?;
    shown(&session, &path).await
}

/// Renames a file, making the parents of its new path.
pub(super) async fn rename(session: Session, headers: HeaderMap, body: Body) -> RpcResult<Json<Value>> {
    let wanted: MoveRequest = connect::read_unary(body).await?;
    let user = session.user(&headers).await?;
    let (from, to) = (user.absolute(&wanted.source), user.absolute(&wanted.destination));
    let rename = RenameFile { from, to: to.clone(), make_parents: true };
    session.native.call(Method::POST, &paths::rename_file(&session.sandbox), Some(&rename)).await?;
    shown(&session, &to).await
}

/// Lists a directory.
pub(super) async fn list_dir(session: Session, request: Request) -> RpcResult<Json<Value>> {
    let (wanted, path, _) = read(&session, request).await?;
    let listed = paths::list_directory(&session.sandbox, &path, wanted.depth.max(1));
    let listing: DirectoryListing = session.native.get(&listed).await.map_err(|error| {
        let not_a_directory = error.status == StatusCode::BAD_REQUEST;
        if not_a_directory {
            RpcError::invalid(format!("path is not a directory: {path}"))
        } else {
            error.into()
        }
    })?;
    if listing.truncated {
        let what = format!(
            "`{path}` has more than {} entries at that depth; list fewer levels",
            listing.entries.len()
        );
        return Err(RpcError::new(RpcCode::ResourceExhausted, what));
    }
    Ok(Json(json!({ "entries": listing.entries.iter().filter_map(entry).collect::<Vec<_>>() })))
}

/// Removes a file, or a directory with all in it. Removing an absent file succeeds.
pub(super) async fn remove(session: Session, request: Request) -> RpcResult<Json<Value>> {
    let (_, path, _) = read(&session, request).await?;
    match session.native.call(Method::DELETE, &paths::file(&session.sandbox, &path), None::<&()>).await {
        Err(error) if !error.is_missing_file() => Err(error.into()),
        _ => Ok(Json(json!({}))),
    }
}

/// Refuses to watch a path that is not a directory.
pub(super) async fn check_directory(session: &Session, path: &str) -> RpcResult<()> {
    let file = stat_file(session, path).await?;
    match file.is_dir || file.kind == FileKind::Directory {
        true => Ok(()),
        false => Err(RpcError::invalid(format!("path is not a directory: {path}"))),
    }
}
