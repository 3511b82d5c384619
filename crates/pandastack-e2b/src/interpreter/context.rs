//! Code contexts for E2B's clients.

use axum::Json;
use axum::body::Body;
use axum::extract::RawPathParams;
use http::Method;
use pandastack_types::api::{CodeContext, CreateContext, Items};
use serde_json::{Value, json};

use super::json::{empty_object, read_json};
use crate::error::RestResult;
use crate::native::encode;
use crate::session::Session;

/// The native path of a sandbox's contexts, or of one of them.
pub(super) fn path(session: &Session, context: Option<&str>) -> String {
    match context {
        Some(id) => session.path(&format!("repl/sessions/{}", encode(id))),
        None => session.path("repl/sessions"),
    }
}

fn show(context: &CodeContext) -> Value {
    json!({ "id": context.id, "language": context.language, "cwd": context.cwd })
}

/// Makes a context.
pub(super) async fn create(session: Session, body: Body) -> RestResult<Json<Value>> {
    let wanted: CreateContext = read_json(body).await?;
    let made: CodeContext = session.native.json(Method::POST, &path(&session, None), Some(&wanted)).await?;
    Ok(Json(show(&made)))
}

/// Contexts that there are.
pub(super) async fn list(session: Session) -> RestResult<Json<Vec<Value>>> {
    let list: Items<CodeContext> = session.native.get(&path(&session, None)).await?;
    Ok(Json(list.items.iter().map(show).collect()))
}

/// Ends a context and begins it anew, without what it knew.
pub(super) async fn restart(session: Session, params: RawPathParams) -> RestResult<Json<Value>> {
    let path = format!("{}/restart", path(&session, Some(&named(&params))));
    session.native.call(Method::POST, &path, None::<&()>).await?;
    Ok(empty_object())
}

/// Ends a context.
pub(super) async fn remove(session: Session, params: RawPathParams) -> RestResult<Json<Value>> {
    session.native.call(Method::DELETE, &path(&session, Some(&named(&params))), None::<&()>).await?;
    Ok(empty_object())
}

fn named(params: &RawPathParams) -> String {
    params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()
}
