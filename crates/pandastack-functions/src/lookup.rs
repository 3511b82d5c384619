//! Finds the function of a request and converts it for clients.

use axum::Json;
use http::HeaderMap;
use pandastack_rest::{ApiError, ApiResult, Caller};
use pandastack_store::functions::FunctionRecord;
use pandastack_types::api::Function;
use pandastack_types::{Error, Result, WorkspaceId};

use crate::functions::Functions;
use crate::view;

/// A function as a client sees it, with its present versions.
pub(crate) async fn view_now(
    functions: &Functions,
    record: FunctionRecord,
    headers: &HeaderMap,
) -> Result<Json<Function>> {
    let versions = functions.store.versions(&record.id).await?;
    Ok(Json(view::function(record, &versions, headers)))
}

/// The function of a path, by id or by name.
pub(crate) async fn find(functions: &Functions, caller: &Caller, text: &str) -> Result<FunctionRecord> {
    find_in(functions, &caller.workspace, text).await
}

/// The function of that id or name in a workspace.
pub async fn find_in(functions: &Functions, workspace: &WorkspaceId, text: &str) -> Result<FunctionRecord> {
    let found = functions.store.function_named(workspace, text).await?;
    found.ok_or_else(|| Error::not_found("function", text))
}

/// The first parameter of a path: a function's id or name.
pub struct FunctionPath(pub(crate) String);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for FunctionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut http::request::Parts, state: &S) -> ApiResult<Self> {
        let params = axum::extract::RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|_| Error::not_found("function", "?"))?;
        let first = params.iter().next().map(|(_, value)| value.to_owned());
        Ok(first.map(FunctionPath).ok_or_else(|| Error::not_found("function", "?"))?)
    }
}
