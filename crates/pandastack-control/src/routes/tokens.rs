//! The caller and its workspace's keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_sandboxes::Sandboxes;
use pandastack_store::TokenRecord;
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_types::api::{CreateToken, Items, Me, TokenCreated, TokenInfo};
use pandastack_types::{Error, ErrorBody};

use crate::auth::Keys;
use crate::auth::new_key;

/// Longest name of a key.
const LABEL_BYTES_MAX: usize = 256;
/// Longest life of a key that has an end.
const EXPIRY_DAYS_MAX: u32 = 3650;
const DAY_SECONDS: u64 = 24 * 3600;

/// Get the workspace and scopes of the API key.
#[utoipa::path(get, path = "/v1/me", tag = "keys", responses((status = 200, body = Me), (status = 401, body = ErrorBody)))]
pub(crate) async fn me(caller: Caller) -> Json<Me> {
    Json(Me {
        workspace: caller.workspace,
        token_prefix: caller.prefix,
        token_label: caller.label,
        token_scope: caller.scope,
        auth_method: "api_key".to_owned(),
    })
}

/// List API keys, without their secrets.
#[utoipa::path(get, path = "/v1/me/tokens", tag = "keys", responses((status = 200, body = Items<TokenInfo>)))]
pub(crate) async fn list(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
) -> ApiResult<Json<Items<TokenInfo>>> {
    let records = sandboxes.store.tokens(&caller.workspace).await?;
    Ok(Json(Items { items: records.into_iter().map(shown).collect() }))
}

/// Create an API key. The response contains its secret, which is not shown again. Requires an admin key.
#[utoipa::path(post, path = "/v1/me/tokens", tag = "keys", request_body = CreateToken, responses(
    (status = 201, body = TokenCreated), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(crate) async fn create(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateToken>,
) -> ApiResult<(StatusCode, Json<TokenCreated>)> {
    let label = request.label.unwrap_or_default();
    if label.len() > LABEL_BYTES_MAX {
        return Err(Error::bad_request(format!("`label` must be at most {LABEL_BYTES_MAX} bytes")).into());
    }
    let expires_at = match request.expires_in_days {
        Some(days) if !(1..=EXPIRY_DAYS_MAX).contains(&days) => {
            return Err(
                Error::bad_request(format!("`expires_in_days` must be 1 to {EXPIRY_DAYS_MAX}")).into()
            );
        }
        Some(days) => after_seconds(now(), u64::from(days) * DAY_SECONDS),
        None => None,
    };
    let scope = request.scope.unwrap_or_default();
    let key = new_key(caller.workspace, label, scope, expires_at).map_err(Error::internal)?;
    sandboxes.store.insert_token(&key.record).await?;
    Ok((StatusCode::CREATED, Json(TokenCreated { token: key.secret, info: shown(key.record) })))
}

/// Revoke an API key. It stops working at once.
#[utoipa::path(delete, path = "/v1/me/tokens/{prefix}", tag = "keys", params(("prefix" = String, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, description = "The last key stays", body = ErrorBody)))]
pub(crate) async fn delete(
    State(sandboxes): State<Arc<Sandboxes>>,
    State(keys): State<Arc<Keys>>,
    caller: Caller,
    Id(prefix): Id<String>,
) -> ApiResult<StatusCode> {
    sandboxes.store.delete_token(&caller.workspace, &prefix).await?;
    keys.forget(&prefix);
    Ok(StatusCode::NO_CONTENT)
}

fn shown(record: TokenRecord) -> TokenInfo {
    TokenInfo {
        prefix: record.prefix,
        label: record.label,
        scope: record.scope,
        created_at: record.created_at,
        expires_at: record.expires_at,
    }
}
