//! Sign-in over HTTP. These calls need no credential yet.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use pandastack_oidc::{Attempt, DevicePoll, LoginError};
use pandastack_rest::extract::{parse_json, read_body_within};
use pandastack_rest::{ApiResult, Caller, Query};
use pandastack_types::api::{
    DeviceLogin, FinishLogin, LoginOptions, LoginProgress, LoginProvider, LoginSession, LoginStatus,
};
use pandastack_types::limits::{LOGIN_BYTES_MAX, SIGN_IN_SECONDS_MAX};
use pandastack_types::{Error, ErrorBody, ErrorCode, Result, WorkspaceId};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{Login, below, configured, end, failed, page, sign_in};
use crate::auth::{Keys, NewKey, address_of};
use crate::console;
use crate::services::{ServerState, Services};

/// Path that starts a sign-in in a browser, below the public URL.
const START: &str = "/v1/login/start";
/// Holds one attempt between the start and the callback. The callback comes from the provider's site, so the
/// cookie cannot be `SameSite=Strict`.
const COOKIE: &str = "__Host-pandastack-login";
/// Time to sign in at the provider.
const ATTEMPT_SECONDS: u32 = 600;
/// Polling interval where the provider names none (RFC 8628, section 3.2).
const POLL_SECONDS: u64 = 5;
/// Longest time for a body to arrive.
const BODY_WAIT: Duration = Duration::from_secs(SIGN_IN_SECONDS_MAX);

/// Routes outside the check of keys.
pub(crate) fn open() -> Router<ServerState> {
    Router::new()
        .route("/v1/login", get(options))
        .route(START, get(start))
        .route(super::CALLBACK, get(callback))
        .route("/v1/login/device", post(start_device))
        .route("/v1/login/token", post(finish_device))
        .route("/v1/login/session", delete(sign_out))
}

/// Get the login provider. Needs no API key.
#[utoipa::path(get, path = "/v1/login", tag = "login", operation_id = "login_options", security(()),
    responses((status = 200, body = LoginOptions)))]
pub(crate) async fn options(State(services): State<Arc<Services>>) -> Json<LoginOptions> {
    let provider = services.login.as_ref().map(|login| LoginProvider {
        name: login.config.name.clone(),
        url: below(&login.config.public_url, START).to_string(),
    });
    Json(LoginOptions { provider })
}

#[derive(Deserialize)]
pub(crate) struct StartArgs {
    workspace: Option<WorkspaceId>,
}

/// Start a sign-in to the web console. Redirects the browser to the login provider.
#[utoipa::path(get, path = "/v1/login/start", tag = "login", operation_id = "start_login", security(()),
    params(("workspace" = Option<String>, Query)), responses(
    (status = 303, description = "To the login provider"),
    (status = 501, description = "No login provider is configured", body = ErrorBody),
    (status = 503, description = "The login provider does not respond", body = ErrorBody)))]
pub(crate) async fn start(
    State(services): State<Arc<Services>>,
    Query(args): Query<StartArgs>,
    headers: HeaderMap,
) -> Response {
    begin(&services, args).await.unwrap_or_else(|error| page::refusal(error, &headers))
}

async fn begin(services: &Services, args: StartArgs) -> Result<Response> {
    let login = configured(services)?;
    let (provider, _place) = login.provider()?;
    let attempt = Attempt::new().map_err(failed)?;
    let url = provider.authorization_url(&attempt).await.map_err(failed)?;
    let workspace = args.workspace.map(|workspace| format!(".{workspace}")).unwrap_or_default();
    let cookie = cookie(&format!("{}{workspace}", attempt.cookie()), ATTEMPT_SECONDS)?;
    let headers = [(header::SET_COOKIE, cookie), (header::CACHE_CONTROL, no_store())];
    Ok((headers, Redirect::to(url.as_str())).into_response())
}

#[derive(Deserialize)]
pub(crate) struct CallbackArgs {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Finish a sign-in to the web console. The login provider sends the browser here.
#[utoipa::path(get, path = "/v1/login/callback", tag = "login", operation_id = "finish_login", security(()),
    params(("state" = Option<String>, Query), ("code" = Option<String>, Query),
           ("error" = Option<String>, Query), ("iss" = Option<String>, Query)),
    responses((status = 303, description = "To the web console, signed in"),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 501, body = ErrorBody)))]
pub(crate) async fn callback(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    Query(args): Query<CallbackArgs>,
    request: Request,
) -> ApiResult<Response> {
    let (login, address) = admitted(&services, &keys, &request)?;
    let finished = finish(&services, login, args, request.headers()).await;
    let mut response = match finished {
        Ok(cookie) => {
            let console = Redirect::to(pandastack_console::BASE);
            ([(header::SET_COOKIE, cookie)], console).into_response()
        }
        Err(error) => {
            note_refused(&keys, address, &error);
            page::refusal(error, request.headers())
        }
    };
    // The attempt is over, successful or not.
    response.headers_mut().append(header::SET_COOKIE, cookie("", 0)?);
    response.headers_mut().insert(header::CACHE_CONTROL, no_store());
    Ok(response)
}

/// Checks the provider's response; returns the cookie of the new console session.
async fn finish(
    services: &Services,
    login: &Login,
    args: CallbackArgs,
    headers: &HeaderMap,
) -> Result<HeaderValue> {
    let refused = |why: &str| failed(LoginError::Refused(why.to_owned()));
    let kept =
        presented(headers).ok_or_else(|| refused("it did not start in this browser, or it expired"))?;
    let (secret, workspace) = match kept.split_once('.') {
        Some((secret, workspace)) => {
            (secret, Some(workspace.parse().map_err(|_| refused("its cookie is invalid"))?))
        }
        None => (kept, None),
    };
    let attempt = Attempt::from_cookie(secret).ok_or_else(|| refused("its cookie is invalid"))?;
    if args.state.as_deref() != Some(attempt.state().as_str()) {
        return Err(refused("the response is for a different sign-in (`state` does not match)"));
    }
    // RFC 9207: a response of another provider must not be redeemed at this one.
    if args.iss.is_some_and(|iss| iss != login.config.oidc.issuer) {
        return Err(refused("the response is from a different provider"));
    }
    if let Some(error) = args.error {
        let shown: String = error.chars().filter(|c| c.is_ascii_graphic()).take(80).collect();
        return Err(refused(&format!("the provider responded `{shown}`")));
    }
    let code = args.code.ok_or_else(|| refused("the response has no authorization code"))?;
    let (provider, _place) = login.provider()?;
    let person = provider.exchange(&attempt, &code).await.map_err(failed)?;
    let browser = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // The key's secret is discarded: the browser uses the console's cookie.
    let NewKey { record, .. } = sign_in::open(services, login, &person, workspace.as_ref(), browser).await?;
    let caller = Caller {
        workspace: record.workspace,
        prefix: record.prefix,
        label: record.label,
        role: record.role,
        operator: record.operator,
        revoked: Arc::<CancellationToken>::default(),
    };
    let secret = console::open(services.store.as_ref(), &caller, browser).await?;
    console::cookie(&secret)
}

/// Start a sign-in on a device without a browser. The user confirms the code at the login provider.
#[utoipa::path(post, path = "/v1/login/device", tag = "login", operation_id = "start_device_login",
    security(()), responses((status = 200, body = DeviceLogin), (status = 429, body = ErrorBody),
    (status = 501, description = "No login provider is configured", body = ErrorBody),
    (status = 503, description = "The login provider does not respond", body = ErrorBody)))]
pub(crate) async fn start_device(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    request: Request,
) -> ApiResult<Response> {
    let (login, address) = admitted(&services, &keys, &request)?;
    // Every start counts as a failed attempt: a client that starts many sign-ins is limited like
    // one that guesses keys.
    keys.count_invalid_key(address);
    let (provider, _place) = login.provider()?;
    let code = provider.start_device().await.map_err(failed)?;
    let device = DeviceLogin {
        device_code: code.device_code,
        user_code: code.user_code,
        verification_uri: code.verification_uri,
        verification_uri_complete: code.verification_uri_complete,
        expires_in: code.expires_in,
        interval: code.interval.unwrap_or(POLL_SECONDS),
    };
    Ok(([(header::CACHE_CONTROL, no_store())], Json(device)).into_response())
}

/// Finish a sign-in on a device: get its session once the user has confirmed.
#[utoipa::path(post, path = "/v1/login/token", tag = "login", operation_id = "finish_device_login",
    security(()), request_body = FinishLogin, responses((status = 200, body = LoginProgress),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 429, body = ErrorBody),
    (status = 501, description = "No login provider is configured", body = ErrorBody)))]
pub(crate) async fn finish_device(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    request: Request,
) -> ApiResult<Response> {
    let (login, address) = admitted(&services, &keys, &request)?;
    let body = read_body_within(request.into_body(), LOGIN_BYTES_MAX, BODY_WAIT).await?;
    let finish: FinishLogin = parse_json(&body)?;
    let progress = poll(&services, login, &finish).await;
    let progress = progress.inspect_err(|error| note_refused(&keys, address, error))?;
    Ok(([(header::CACHE_CONTROL, no_store())], Json(progress)).into_response())
}

async fn poll(services: &Services, login: &Login, finish: &FinishLogin) -> Result<LoginProgress> {
    let (provider, _place) = login.provider()?;
    let unfinished = |status| Ok(LoginProgress { status, session: None });
    let person = match provider.poll_device(&finish.device_code).await.map_err(failed)? {
        DevicePoll::Pending => return unfinished(LoginStatus::Pending),
        DevicePoll::SlowDown => return unfinished(LoginStatus::SlowDown),
        DevicePoll::Done(person) => person,
    };
    let client = finish.client.as_deref().unwrap_or("device");
    let key = sign_in::open(services, login, &person, finish.workspace.as_ref(), client).await?;
    let session = LoginSession {
        token: key.secret,
        workspace: key.record.workspace,
        label: key.record.label,
        role: key.record.role,
        expires_at: key.record.expires_at.ok_or_else(|| Error::internal("a session without an end"))?,
    };
    Ok(LoginProgress { status: LoginStatus::Complete, session: Some(session) })
}

/// Sign out on a device: end the session that makes the request. API keys are not affected.
#[utoipa::path(delete, path = "/v1/login/session", tag = "login", operation_id = "end_login", responses(
    (status = 204), (status = 401, body = ErrorBody),
    (status = 409, description = "The credential is an API key", body = ErrorBody)))]
pub(crate) async fn sign_out(
    State(services): State<Arc<Services>>,
    State(keys): State<Arc<Keys>>,
    request: Request,
) -> ApiResult<StatusCode> {
    let bearer = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let secret = bearer.and_then(|value| value.split_once(' ')).map(|(_, secret)| secret.trim());
    let none = || Error::new(ErrorCode::Unauthorized, "not signed in; the request has no session");
    let caller = keys.check_from(address_of(request.extensions()), secret.ok_or_else(none)?).await?;
    let token = services.store.token(&caller.prefix).await?;
    if token.is_some_and(|token| token.session.is_none()) {
        let message = format!(
            "`{}...` is an API key, not a session; revoke it with `pandastack token rm`",
            caller.prefix
        );
        return Err(Error::conflict(message).into());
    }
    end(&services, &caller.workspace, &caller.prefix).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The provider and the caller's address, for calls that need no credential. Refuses an address that was
/// wrong too often.
fn admitted<'a>(
    services: &'a Services,
    keys: &Keys,
    request: &Request,
) -> Result<(&'a Login, Option<IpAddr>)> {
    let (login, address) = (configured(services)?, address_of(request.extensions()));
    keys.admit_stranger(address)?;
    Ok((login, address))
}

/// Responses of a sign-in must not be cached.
fn no_store() -> HeaderValue {
    HeaderValue::from_static("no-store")
}

/// Counts an attempt that was refused against its address.
fn note_refused(keys: &Keys, address: Option<IpAddr>, error: &Error) {
    if error.code == ErrorCode::Unauthorized {
        keys.count_invalid_key(address);
    }
}

/// The attempt of a browser.
fn presented(headers: &HeaderMap) -> Option<&str> {
    console::cookie_named(headers, COOKIE).filter(|value| !value.is_empty())
}

fn cookie(value: &str, seconds: u32) -> Result<HeaderValue> {
    let text = format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax");
    HeaderValue::from_str(&text).map_err(Error::internal)
}
