//! The streamable HTTP transport. Each client uses its own API key.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::limits::REQUEST_BYTES_MAX;
use crate::{Access, Tools};

/// Serves `/mcp` on `listener` until `shutdown`, for the API at `api_url`.
///
/// `hosts` are the accepted host names in addition to loopback names. Requests with another host
/// name (DNS rebinding) and requests from web pages are rejected.
///
/// Boxed, so that the server is compiled in this crate and not in the one that awaits it.
pub fn serve_http<'a>(
    listener: TcpListener,
    api_url: String,
    hosts: &'a [String],
    shutdown: CancellationToken,
) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
    Box::pin(serve(listener, api_url, hosts, shutdown))
}

async fn serve(
    listener: TcpListener,
    api_url: String,
    hosts: &[String],
    shutdown: CancellationToken,
) -> Result<()> {
    let tools = Tools::new(Access::PerRequest { api_url });
    let config = StreamableHttpServerConfig::default();
    let allowed: Vec<String> = config.allowed_hosts.iter().chain(hosts).cloned().collect();
    let config = config
        .with_allowed_hosts(allowed)
        .enforce_origin_validation()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(REQUEST_BYTES_MAX)
        .with_cancellation_token(shutdown.child_token());
    let service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let router = Router::new().nest_service("/mcp", service).layer(from_fn(require_key));
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
        .context("cannot serve MCP over HTTP")
}

/// Rejects requests without an API key. The API validates the key.
async fn require_key(request: Request, next: Next) -> Response {
    if bearer(request.headers()).is_some() {
        return next.run(request).await;
    }
    let message = "missing API key; send it as `Authorization: Bearer pds_...`";
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, axum::Json(serde_json::json!({ "error": message }))).into_response()
}

/// The API key of a request.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expect: Option<&str>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap_or_else(|_| panic!("{value}")));
        assert_eq!(bearer(&headers).as_deref(), expect, "{value}");
    }

    #[test]
    fn a_key_is_a_bearer_token() {
        check("Bearer pds_1", Some("pds_1"));
        check("bearer  pds_1 ", Some("pds_1"));
        check("Basic cGRz", None);
        check("Bearer ", None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
