//! What agents call. Signed, never with an API key.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Request, State};
use http_body_util::{BodyExt, Limited};
use pandastack_types::agent_api::{HostReport, ReportAnswer};
use pandastack_types::link::{Direction, LINK_HEADER};
use pandastack_types::{ErrorCode, HostId};

use crate::app::{App, now};
use crate::error::{ApiError, ApiResult};
use crate::extract::InPath;

/// Largest report: thousands of sandboxes at about a kilobyte each.
const REPORT_BYTES_MAX: usize = 32 * 1024 * 1024;

impl InPath for HostId {
    const WHAT: &'static str = "host";
}

/// A host reports.
pub(crate) async fn report(State(app): State<Arc<App>>, request: Request) -> ApiResult<Json<ReportAnswer>> {
    let (mut parts, body) = request.into_parts();
    let header = parts.headers.get(LINK_HEADER).and_then(|value| value.to_str().ok());
    let method = parts.method.as_str();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let signer = app.link.verify(Direction::AgentToControl, header, method, path, now().as_second());
    let signer = signer.map_err(|refused| ApiError::new(ErrorCode::Unauthorized, refused.to_string()))?;
    let crate::extract::Id(host) = crate::extract::Id::<HostId>::from_request_parts(&mut parts, &()).await?;
    let bytes = Limited::new(body, REPORT_BYTES_MAX).collect().await;
    let bytes =
        bytes.map_err(|error| ApiError::bad_request(format!("the report is not readable: {error}")))?;
    let report: HostReport = serde_json::from_slice(&bytes.to_bytes()).map_err(|error| {
        ApiError::bad_request(format!("the report is not readable ({error}); do the versions match?"))
    })?;
    if signer != host || report.host != host {
        let message = format!("`{signer}` reports for `{}` at the address of `{host}`", report.host);
        return Err(ApiError::new(ErrorCode::Forbidden, message));
    }
    Ok(Json(crate::report::take(&app, report).await?))
}
