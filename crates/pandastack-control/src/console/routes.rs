//! Sessions of the console over HTTP.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri, header};
use jiff::Timestamp;
use pandastack_rest::extract::{parse_json, read_body_within};
use pandastack_rest::{ApiResult, Caller, Id};
use pandastack_types::api::{Items, Me};
use pandastack_types::limits::{SIGN_IN_BYTES_MAX, SIGN_IN_SECONDS_MAX};
use pandastack_types::{Error, ErrorBody};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::{Keys, address_of};
use crate::services::{ServerState, Services};

/// Longest time for the body of a sign-in to arrive.
const SIGN_IN_WAIT: Duration = Duration::from_secs(SIGN_IN_SECONDS_MAX);

/// Request body of `POST /v1/console/session`.
#[derive(Deserialize, ToSchema)]
pub(crate) struct SignIn {
    /// API key to sign in with. It is not stored.
    api_key: String,
}

/// A console session of one browser.
#[derive(Serialize, ToSchema)]
pub(crate) struct Session {
    /// Session ID.
    id: String,
    /// Prefix of the API key that opened the session.
    token_prefix: String,
    /// User agent of the browser.
    browser: String,
    /// Time of sign-in.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Time of the last request, accurate to a few minutes.
    #[schema(value_type = String, format = DateTime)]
    last_used_at: Timestamp,
    /// Time when the session expires.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

/// Signing in and out: the calls that need no session yet. The first page leads to the console.
pub(crate) fn open() -> Router<ServerState> {
    Router::new()
        .route("/", get(first_page))
        .route("/v1/console/session", post(sign_in).merge(delete(sign_out)))
}

/// Names other than the platform's have no console: they are deleted apps, or unverified domains.
async fn first_page(
    State(services): State<Arc<Services>>,
    headers: HeaderMap,
    uri: Uri,
) -> ApiResult<Redirect> {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let host = uri.authority().or(named.as_ref()).map_or("", Authority::host);
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if is_address || services.apps.is_platform(host) {
        return Ok(Redirect::temporary(pandastack_console::BASE));
    }
    Err(Error::not_found("route", uri.path()).into())
}

/// Sessions of the workspace.
pub(crate) fn routes() -> Router<ServerState> {
    Router::new().route("/console/sessions", get(list)).route("/console/sessions/{id}", delete(revoke))
}

/// Sign in to the web console with an API key. The response sets a cookie that only the console's pages can
/// use.
#[utoipa::path(post, path = "/v1/console/session", tag = "console", request_body = SignIn, responses(
    (status = 200, body = Me), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 408, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 429, body = ErrorBody)))]
pub(crate) async fn sign_in(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    request: Request,
) -> ApiResult<Response> {
    let (address, headers) = (address_of(request.extensions()), request.headers().clone());
    let uri = request.uri().clone();
    // Otherwise another site could sign a user in with the attacker's key, and watch what they do.
    super::guard::check(&uri, &headers)?;
    if !super::guard::keeps_cookies(&headers) {
        let next = "open the console over HTTPS, or through a loopback address such as http://127.0.0.1:8080";
        return Err(
            Error::bad_request(format!("browsers store no session cookie over plain HTTP; {next}")).into()
        );
    }
    let read = async {
        let body = read_body_within(request.into_body(), SIGN_IN_BYTES_MAX, SIGN_IN_WAIT).await?;
        let SignIn { api_key } = parse_json(&body)?;
        Ok(api_key.trim().to_owned())
    };
    let caller = keys.check_in_body(address, read).await?;
    keys.rates.admit(&caller.workspace, Instant::now())?;
    let browser = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let secret = super::open(services.store.as_ref(), &caller, browser).await?;
    let set_cookie = [(header::SET_COOKIE, super::cookie(&secret)?)];
    let me = crate::routes::tokens::me(State(services), caller).await?;
    Ok(super::protect((set_cookie, me).into_response()))
}

/// Sign out of the web console. The session of the cookie ends.
#[utoipa::path(delete, path = "/v1/console/session", tag = "console", responses(
    (status = 204), (status = 403, body = ErrorBody)))]
pub(crate) async fn sign_out(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    uri: Uri,
    headers: HeaderMap,
) -> ApiResult<Response> {
    super::guard::check(&uri, &headers)?;
    let store = services.store.as_ref();
    if let Some(secret) = super::presented(&headers)
        && let Some(session) = store.console_session(&super::hash(secret)).await?
    {
        store.delete_console_session(&session.workspace, &session.id).await?;
        keys.revoke_session(&session.id);
        end_sign_in(&services, &session.token_prefix).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, super::no_cookie()?)]).into_response())
}

/// Ends the sign-in of a member whose browser signed out; a key stays.
async fn end_sign_in(services: &Services, prefix: &str) -> pandastack_types::Result<()> {
    let token = services.store.token(prefix).await?;
    match token.filter(|token| token.session.is_some()) {
        Some(token) => crate::login::end(services, &token.workspace, prefix).await,
        None => Ok(()),
    }
}

/// List the workspace's console sessions, newest first. Requires an owner key.
#[utoipa::path(get, path = "/v1/console/sessions", tag = "console",
    responses((status = 200, body = Items<Session>), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<Items<Session>>> {
    let sessions = services.store.console_sessions(&caller.workspace).await?;
    let items = sessions.into_iter().map(|session| Session {
        id: session.id,
        token_prefix: session.token_prefix,
        browser: session.browser,
        created_at: session.created_at,
        last_used_at: session.last_used_at,
        expires_at: session.expires_at,
    });
    Ok(Json(Items { items: items.collect() }))
}

/// Revoke a console session. It ends immediately. Requires an owner key.
#[utoipa::path(delete, path = "/v1/console/sessions/{id}", tag = "console", params(("id" = String, Path)),
    responses((status = 204), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn revoke(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    caller: Caller,
    Id(id): Id<String>,
) -> ApiResult<StatusCode> {
    services.store.delete_console_session(&caller.workspace, &id).await?;
    keys.revoke_session(&id);
    Ok(StatusCode::NO_CONTENT)
}
