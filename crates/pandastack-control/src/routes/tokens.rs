//! The caller, and the keys of its workspace.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use ipnet::IpNet;
use jiff::Timestamp;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_store::TokenRecord;
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_types::api::{CreateToken, Items, Me, Role, RotateToken, TokenCreated, TokenInfo};
use pandastack_types::{Error, ErrorBody, Result, WorkspaceId};

use crate::auth::new_key;
use crate::services::Services;

/// Longest name of a key.
const LABEL_BYTES_MAX: usize = 256;
/// Longest life of a key that has an end.
const EXPIRY_DAYS_MAX: u32 = 3650;
const DAY_SECONDS: u64 = 24 * 3600;
/// Default time that a replaced secret keeps working.
const OVERLAP_SECONDS_DEFAULT: u64 = DAY_SECONDS;
/// Longest time for which a replaced secret works.
const OVERLAP_SECONDS_MAX: u64 = 30 * DAY_SECONDS;
/// Most networks of one key.
const NETWORKS_MAX: usize = 64;

/// Get the workspace and role of the API key.
#[utoipa::path(get, path = "/v1/me", tag = "keys", responses((status = 200, body = Me), (status = 401, body = ErrorBody)))]
pub(crate) async fn me(State(services): State<Arc<Services>>, caller: Caller) -> ApiResult<Json<Me>> {
    let token = services.store.token(&caller.prefix).await?;
    let is_session = token.is_some_and(|token| token.session.is_some());
    Ok(Json(Me {
        workspace: caller.workspace,
        token_prefix: caller.prefix,
        token_label: caller.label,
        token_role: caller.role,
        token_scope: caller.role.into(),
        operator: caller.operator,
        auth_method: if is_session { "session" } else { "api_key" }.to_owned(),
    }))
}

/// List API keys, without their secrets.
#[utoipa::path(get, path = "/v1/me/tokens", tag = "keys", responses((status = 200, body = Items<TokenInfo>)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<Items<TokenInfo>>> {
    Ok(Json(list_of(&services, &caller.workspace).await?))
}

/// Create an API key. The response contains its secret, which is not shown again. Requires an owner key.
#[utoipa::path(post, path = "/v1/me/tokens", tag = "keys", request_body = CreateToken, responses(
    (status = 201, body = TokenCreated), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub(crate) async fn create(
    State(services): State<Arc<Services>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateToken>,
) -> ApiResult<(StatusCode, Json<TokenCreated>)> {
    let created = create_in(&services, &caller, &caller.workspace, request).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// Rotate an API key: replace its secret. The old secret keeps working for `overlap_seconds`.
#[utoipa::path(post, path = "/v1/me/tokens/{prefix}/rotate", tag = "keys", params(("prefix" = String, Path)),
    request_body = RotateToken, responses((status = 201, body = TokenCreated),
    (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The key has expired", body = ErrorBody)))]
pub(crate) async fn rotate(
    State(services): State<Arc<Services>>,
    caller: Caller,
    prefix: KeyPrefix,
    JsonBody(request): JsonBody<RotateToken>,
) -> ApiResult<(StatusCode, Json<TokenCreated>)> {
    let created = rotate_in(&services, &caller, &caller.workspace, &prefix.0, request).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// Revoke an API key. It stops working immediately.
#[utoipa::path(delete, path = "/v1/me/tokens/{prefix}", tag = "keys", params(("prefix" = String, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, description = "The last owner or operator key cannot be deleted", body = ErrorBody)))]
pub(crate) async fn delete(
    State(services): State<Arc<Services>>,
    caller: Caller,
    prefix: KeyPrefix,
) -> ApiResult<StatusCode> {
    delete_in(&services, &caller, &caller.workspace, &prefix.0).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The public part of a key, in a path.
pub(crate) type KeyPrefix = Id<String>;

pub(super) async fn list_of(services: &Services, workspace: &WorkspaceId) -> Result<Items<TokenInfo>> {
    let records = services.store.tokens(workspace).await?;
    Ok(Items { items: records.into_iter().filter(|record| record.session.is_none()).map(shown).collect() })
}

pub(super) async fn create_in(
    services: &Services,
    caller: &Caller,
    workspace: &WorkspaceId,
    request: CreateToken,
) -> Result<TokenCreated> {
    let label = request.label.unwrap_or_default();
    if label.len() > LABEL_BYTES_MAX {
        return Err(Error::bad_request(format!("`label` must be at most {LABEL_BYTES_MAX} bytes")));
    }
    let role = request.role.or(request.scope.map(Role::from)).unwrap_or_default();
    if request.operator {
        caller.require_operator()?;
        if *workspace != WorkspaceId::default_workspace()
            || request.role.is_some_and(|role| role != Role::Owner)
        {
            let message = "an operator key is always an owner key of workspace `default`; leave out `role`";
            return Err(Error::bad_request(message));
        }
    }
    let mut key = new_key(workspace.clone(), label).map_err(Error::internal)?;
    key.record.role = if request.operator { Role::Owner } else { role };
    key.record.operator = request.operator;
    key.record.expires_at = expiry(request.expires_in_days, request.expires_at)?;
    key.record.allow_from = networks(&request.allow_from)?;
    services.store.insert_token(&key.record, Some(&caller.prefix)).await?;
    Ok(TokenCreated { token: key.secret, info: shown(key.record), replaces: None, replaced_until: None })
}

pub(super) async fn rotate_in(
    services: &Services,
    caller: &Caller,
    workspace: &WorkspaceId,
    prefix: &str,
    request: RotateToken,
) -> Result<TokenCreated> {
    let overlap = request.overlap_seconds.unwrap_or(OVERLAP_SECONDS_DEFAULT);
    if overlap > OVERLAP_SECONDS_MAX {
        return Err(Error::bad_request(format!("`overlap_seconds` must be at most {OVERLAP_SECONDS_MAX}")));
    }
    let store = &services.store;
    let own = |old: &TokenRecord| old.workspace == *workspace && old.session.is_none();
    let old = store.token(prefix).await?.filter(own);
    let old = old.ok_or_else(|| Error::not_found("key", prefix))?;
    if old.operator {
        caller.require_operator()?;
    }
    if old.expires_at.is_some_and(|end| end <= now()) {
        let message = format!("key `{prefix}` has expired and cannot be rotated; create another");
        return Err(Error::conflict(message));
    }
    let new = new_key(workspace.clone(), old.label.clone()).map_err(Error::internal)?;
    let record = TokenRecord {
        prefix: new.record.prefix,
        hash: new.record.hash,
        created_at: new.record.created_at,
        last_used_at: None,
        ..old
    };
    let until = after_seconds(now(), overlap).unwrap_or(Timestamp::MAX);
    let ended = store.rotate_token(prefix, until, &record, Some(&caller.prefix)).await?;
    services.keys.forget(prefix);
    Ok(TokenCreated {
        token: new.secret,
        info: shown(record),
        replaces: Some(ended.prefix),
        replaced_until: ended.expires_at,
    })
}

pub(super) async fn delete_in(
    services: &Services,
    caller: &Caller,
    workspace: &WorkspaceId,
    prefix: &str,
) -> Result<()> {
    let token = services.store.token(prefix).await?.filter(|token| token.workspace == *workspace);
    if token.is_some_and(|token| token.operator) {
        caller.require_operator()?;
    }
    services.store.delete_token(workspace, prefix).await?;
    services.keys.revoke(prefix);
    Ok(())
}

fn expiry(days: Option<u32>, at: Option<Timestamp>) -> Result<Option<Timestamp>> {
    let latest = after_seconds(now(), u64::from(EXPIRY_DAYS_MAX) * DAY_SECONDS).unwrap_or(Timestamp::MAX);
    match (days, at) {
        (Some(_), Some(_)) => {
            Err(Error::bad_request("send either `expires_in_days` or `expires_at`, not both"))
        }
        (Some(days), None) if !(1..=EXPIRY_DAYS_MAX).contains(&days) => {
            Err(Error::bad_request(format!("`expires_in_days` must be 1 to {EXPIRY_DAYS_MAX}")))
        }
        (Some(days), None) => Ok(after_seconds(now(), u64::from(days) * DAY_SECONDS)),
        (None, Some(at)) if at <= now() || at > latest => Err(Error::bad_request(format!(
            "`expires_at` must be in the future, and within {EXPIRY_DAYS_MAX} days"
        ))),
        (None, at) => Ok(at),
    }
}

/// Networks in stored form; a bare address is a network of one.
fn networks(given: &[String]) -> Result<Vec<String>> {
    if given.len() > NETWORKS_MAX {
        return Err(Error::bad_request(format!("`allow_from` must have at most {NETWORKS_MAX} networks")));
    }
    let parse = |text: &String| {
        let net = text.parse::<IpNet>().ok().or_else(|| Some(text.parse::<IpAddr>().ok()?.into()));
        let unknown = || {
            let shown: String = text.chars().take(80).collect();
            Error::bad_request(format!("`{shown}` in `allow_from` is not a network, such as 10.1.0.0/16"))
        };
        Ok(net.ok_or_else(unknown)?.trunc().to_string())
    };
    given.iter().map(parse).collect()
}

fn shown(record: TokenRecord) -> TokenInfo {
    TokenInfo {
        prefix: record.prefix,
        label: record.label,
        role: record.role,
        scope: record.role.into(),
        operator: record.operator,
        created_at: record.created_at,
        expires_at: record.expires_at,
        last_used_at: record.last_used_at,
        allow_from: record.allow_from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_normalized() {
        let parse = |text: &str| networks(&[text.to_owned()]).map(|nets| nets.join(","));
        assert_eq!(parse("10.1.2.3/16").unwrap(), "10.1.0.0/16");
        assert_eq!(parse("192.0.2.7").unwrap(), "192.0.2.7/32");
        assert_eq!(parse("2001:db8::1").unwrap(), "2001:db8::1/128");
        for bad in ["", "10.0.0.0/33", "example.com", "10.0.0.0/8,::/0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
