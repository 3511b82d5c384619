//! Code contexts for E2B's clients.

use axum::Json;
use axum::body::Body;
use axum::extract::RawPathParams;
use http::Method;
use pandastack_types::api::{CodeContext, CreateContext, Items};
use serde_json::{Value, json};

use super::json::{empty_object, read_json};
use crate::error::RestResult;
use crate::native_paths as paths;
use crate::session::Session;

fn show(context: &CodeContext) -> Value {
    json!({ "id": context.id, "language": context.language, "cwd": context.cwd })
}

/// Makes a context.
pub(super) async fn create(session: Session, body: Body) -> RestResult<Json<Value>> {
    let wanted: CreateContext = read_json(body).await?;
    let path = paths::contexts(&session.sandbox);
    let made: CodeContext = session.native.json(Method::POST, &path, Some(&wanted)).await?;
    Ok(Json(show(&made)))
}

/// Contexts that there are.
pub(super) async fn list(session: Session) -> RestResult<Json<Vec<Value>>> {
    let list: Items<CodeContext> = session.native.get(&paths::contexts(&session.sandbox)).await?;
    Ok(Json(list.items.iter().map(show).collect()))
}

/// Ends a context and begins it anew, without what it knew.
pub(super) async fn restart(session: Session, params: RawPathParams) -> RestResult<Json<Value>> {
    let path = paths::restart_context(&session.sandbox, &named(&params));
    session.native.call(Method::POST, &path, None::<&()>).await?;
    Ok(empty_object())
}

/// Ends a context.
pub(super) async fn remove(session: Session, params: RawPathParams) -> RestResult<Json<Value>> {
    let path = paths::context(&session.sandbox, &named(&params));
    session.native.call(Method::DELETE, &path, None::<&()>).await?;
    Ok(empty_object())
}

fn named(params: &RawPathParams) -> String {
    params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()
}
