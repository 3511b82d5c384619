//! Code contexts for E2B's clients.

use axum::Json;
use axum::body::Body;
use axum::extract::RawPathParams;
use http::{Method, StatusCode};
use pandastack_types::Language;
use pandastack_types::api::{CONTEXT_DEFAULT, CodeContext, CreateContext, Items};
use serde_json::{Value, json};

use super::json::{empty_object, read_json};
use crate::error::RestResult;
use crate::native::NativeResult;
use crate::native_paths as paths;
use crate::session::Session;

fn show(context: &CodeContext) -> Value {
    json!({ "id": context.id, "language": context.language, "cwd": context.cwd })
}

/// Creates a context.
pub(super) async fn create(session: Session, body: Body) -> RestResult<Json<Value>> {
    let wanted: CreateContext = read_json(body).await?;
    let path = paths::contexts(&session.sandbox);
    let made: CodeContext = session.native.json(Method::POST, &path, Some(&wanted)).await?;
    Ok(Json(show(&made)))
}

/// Existing contexts.
pub(super) async fn list(session: Session) -> RestResult<Json<Vec<Value>>> {
    let list: Items<CodeContext> = session.native.get(&paths::contexts(&session.sandbox)).await?;
    Ok(Json(with_default(&list.items)))
}

/// Existing contexts, and the default one of Python, which its first run creates.
fn with_default(contexts: &[CodeContext]) -> Vec<Value> {
    let mut shown: Vec<Value> = contexts.iter().map(show).collect();
    if contexts.iter().all(|context| context.id != CONTEXT_DEFAULT) {
        shown.insert(0, json!({ "id": CONTEXT_DEFAULT, "language": "python", "cwd": "/home/user" }));
    }
    shown
}

/// Restarts a context without its state.
pub(super) async fn restart(session: Session, params: RawPathParams) -> RestResult<Json<Value>> {
    let path = paths::restart_context(&session.sandbox, &named(&params));
    let restarted = session.native.call(Method::POST, &path, None::<&()>).await;
    unless_not_begun(&params, restarted)
}

/// Ends a context.
pub(super) async fn remove(session: Session, params: RawPathParams) -> RestResult<Json<Value>> {
    let path = paths::context(&session.sandbox, &named(&params));
    let removed = session.native.call(Method::DELETE, &path, None::<&()>).await;
    unless_not_begun(&params, removed)
}

/// A default context that has not started yet has no state to discard.
fn unless_not_begun(params: &RawPathParams, done: NativeResult<()>) -> RestResult<Json<Value>> {
    match done {
        Err(error) if error.status == StatusCode::NOT_FOUND && is_default(params) => {}
        done => done?,
    }
    Ok(empty_object())
}

fn is_default(params: &RawPathParams) -> bool {
    Language::of_default_context(&named(params)).is_some()
}

fn named(params: &RawPathParams) -> String {
    params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_default_context() {
        assert_eq!(with_default(&[])[0]["id"], CONTEXT_DEFAULT);
        let running: CodeContext = serde_json::from_value(json!({
            "id": CONTEXT_DEFAULT, "sandbox_id": "a", "language": "python", "cwd": "/srv",
            "created_at": "2026-01-31T00:00:00Z",
        }))
        .unwrap();
        let shown = with_default(&[running]);
        assert_eq!((shown.len(), &shown[0]["cwd"]), (1, &json!("/srv")));
    }
}
