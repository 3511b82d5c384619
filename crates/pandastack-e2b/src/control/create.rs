//! Creates a sandbox.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use pandastack_types::SnapshotId;
use pandastack_types::api::{CreateSandbox, Keep, OnTimeout, Sandbox, SnapshotList};
use pandastack_types::host_header::HostHeader;
use serde::Deserialize;
use serde_json::Value;

use super::extract::Authenticated;
use super::json::{is_empty, read_json};
use super::network::Network;
use super::shape;
use super::template_list;
use super::template_name::{TemplateRef, template_name};
use crate::error::{RestError, RestResult};
use crate::limits::{ANSWER_BYTES_MAX, TIMEOUT_SECONDS_DEFAULT, TIMEOUT_SECONDS_DEFAULT_V1};
use crate::native::{Caller, Native, NativeError};
use crate::native_paths as paths;
use crate::sandbox_state::AUTO_RESUME_LABEL;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Request body of a create.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    volume_mounts: Option<Vec<Value>>,
    mcp: Option<Value>,
    iam: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

/// Make a sandbox.
pub(super) async fn create_v2(
    State(native): State<Native>,
    Authenticated(caller): Authenticated,
    request: Request,
) -> RestResult<(StatusCode, Json<Value>)> {
    create(&native, &caller, request, TIMEOUT_SECONDS_DEFAULT).await
}

/// The same for older clients.
pub(super) async fn create_v1(
    State(native): State<Native>,
    Authenticated(caller): Authenticated,
    request: Request,
) -> RestResult<(StatusCode, Json<Value>)> {
    create(&native, &caller, request, TIMEOUT_SECONDS_DEFAULT_V1).await
}

async fn create(
    native: &Native,
    caller: &Caller,
    request: Request,
    timeout_default: u64,
) -> RestResult<(StatusCode, Json<Value>)> {
    let (parts, body) = request.into_parts();
    let wanted: NewSandbox = read_json(body).await?;
    check(&wanted)?;
    let private = wanted.network.as_ref().and_then(|network| network.allow_public_traffic) == Some(false);
    let create = translate(caller, wanted, timeout_default).await?;
    let made = post(caller, &parts.headers, &create).await?;
    let token = native.token_for(caller, &made.id).await?;
    let mut answer = shape::sandbox(&made, token, &shape::domain(&parts.headers));
    if private {
        answer["trafficAccessToken"] = make_private(caller, &made).await?;
    }
    Ok((StatusCode::CREATED, Json(answer)))
}

fn check(wanted: &NewSandbox) -> RestResult<()> {
    if wanted.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()) {
        return Err(RestError::unsupported("volumes are"));
    }
    if wanted.mcp.as_ref().is_some_and(|mcp| !mcp.is_null()) {
        return Err(RestError::unsupported("the MCP gateway is"));
    }
    if wanted.iam.as_ref().is_some_and(|iam| !is_empty(iam)) {
        return Err(RestError::unsupported("workload identities are"));
    }
    Ok(())
}

async fn translate(caller: &Caller, wanted: NewSandbox, timeout_default: u64) -> RestResult<CreateSandbox> {
    let mut metadata = wanted.metadata.unwrap_or_default();
    if wanted.auto_resume.is_some_and(|resume| resume.enabled) {
        metadata.insert(AUTO_RESUME_LABEL.to_owned(), "true".to_owned());
    }
    let pauses = wanted.auto_pause.unwrap_or(false);
    let mut network = wanted.network.unwrap_or_default();
    let host_header = network.mask_request_host.take().map(HostHeader::try_from).transpose();
    let invalid = |error| RestError::bad_request(format!("`maskRequestHost` {error}"));
    let mut create = CreateSandbox {
        metadata: Some(metadata),
        env: wanted.env_vars,
        network: network.policy(wanted.allow_internet_access)?,
        host_header: host_header.map_err(invalid)?,
        ttl_seconds: Some(wanted.timeout.unwrap_or(timeout_default).max(1)),
        on_timeout: Some(if pauses { OnTimeout::Hibernate } else { OnTimeout::Kill }),
        keep_on_timeout: (wanted.auto_pause_memory == Some(false)).then_some(Keep::Disk),
        ..CreateSandbox::default()
    };
    match snapshot_named(caller, &wanted.template_id).await? {
        Some(snapshot) => create.from_snapshot = Some(snapshot),
        None => create.template = Some(TemplateRef::of(&wanted.template_id).native()),
    }
    Ok(create)
}

/// The snapshot that a template name refers to, by id or by name. Only names that can be a
/// snapshot's are looked up.
async fn snapshot_named(caller: &Caller, name: &str) -> RestResult<Option<SnapshotId>> {
    let plain = template_name(name);
    if template_list::find(caller, &plain).await?.is_some() {
        return Ok(None);
    }
    let list: SnapshotList = caller.get(paths::SNAPSHOTS).await?;
    let found = list.snapshots.into_iter().find(|snapshot| {
        snapshot.id.as_str() == name
            || snapshot.name.as_deref().is_some_and(|own| own == name || own == plain)
    });
    Ok(found.map(|snapshot| snapshot.id))
}

async fn post(caller: &Caller, headers: &HeaderMap, create: &CreateSandbox) -> RestResult<Sandbox> {
    let unreadable =
        |error: String| RestError::bad_request(format!("the sandbox settings cannot be encoded: {error}"));
    let body = serde_json::to_vec(create).map_err(|error| unreadable(error.to_string()))?;
    let mut request = http::Request::builder().method(Method::POST).uri(paths::SANDBOXES);
    if let Some(key) = headers.get(IDEMPOTENCY_KEY) {
        request = request.header(IDEMPOTENCY_KEY, key);
    }
    let request = request.body(Body::from(body)).map_err(|error| unreadable(error.to_string()))?;
    let answer = caller.send(request).await?;
    let bytes = axum::body::to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await;
    let sandbox = bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    sandbox.ok_or_else(|| {
        NativeError::new(
            StatusCode::BAD_GATEWAY,
            "the response to the create request was interrupted; try again",
        )
        .into()
    })
}

/// Makes the sandbox's ports private, and returns their token. Fails if the ports stay open.
async fn make_private(caller: &Caller, sandbox: &Sandbox) -> RestResult<Value> {
    let path = paths::preview(&sandbox.id);
    let body = serde_json::json!({ "visibility": "private" });
    let set: Result<Value, _> = caller.json(Method::PUT, &path, Some(&body)).await;
    match set.map(|preview| preview["token"].clone()) {
        Ok(token) if token.is_string() => Ok(token),
        failed => {
            caller.call(Method::DELETE, &paths::sandbox(&sandbox.id), None::<&()>).await?;
            failed.map_err(RestError::from)?;
            Err(RestError::unsupported("private traffic is"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn checked(json: &str) -> Option<u16> {
        check(&serde_json::from_str(json).unwrap()).err().map(|error| error.status.as_u16())
    }

    #[test]
    fn unsupported_options_are_rejected() {
        assert_eq!(checked(r#"{"templateID":"base","allow_internet_access":true,"network":{}}"#), None);
        assert_eq!(
            checked(r#"{"templateID":"base","network":{"allowPublicTraffic":false,"denyOut":[]}}"#),
            None
        );
        for refused in [
            r#"{"templateID":"base","volumeMounts":[{"name":"a","path":"/a"}]}"#,
            r#"{"templateID":"base","mcp":{}}"#,
        ] {
            assert_eq!(checked(refused), Some(501), "{refused}");
        }
    }
}
