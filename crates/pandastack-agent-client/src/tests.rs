//! Calls to a server that echoes the request.

use axum::extract::{Query, Request};
use axum::http::StatusCode;
use axum::routing::{delete, get, put};
use axum::{Json, Router};
use pandastack_types::agent_api::endpoints::{DeleteVolume, ListProcesses, ProcessOutput, WriteFile};
use pandastack_types::agent_api::{OutputQuery, WriteFileQuery};
use pandastack_types::api::FileWritten;
use pandastack_types::{ErrorCode, SandboxId};
use tokio::net::UnixListener;

use super::*;

/// Timeout after which the step counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

async fn client(router: Router) -> (AgentClient, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    let key = LinkKey::new(&[7; 32]).unwrap();
    let address = format!("unix:{}", path.display());
    (AgentClient::new("host-1".parse().unwrap(), &address, key).unwrap(), dir)
}

fn sandbox() -> SandboxId {
    "s1".parse().unwrap()
}

#[tokio::test]
async fn calls_are_sent_with_path_query_and_headers() {
    let write = async |Query(query): Query<WriteFileQuery>, request: Request| {
        assert_eq!(request.uri().path(), "/agent/v1/sandboxes/s1/fs");
        assert_eq!(request.headers()[INCARNATION_HEADER], "3");
        assert_eq!(request.headers()[header::CONTENT_TYPE], "application/octet-stream");
        assert!(request.headers().contains_key(LINK_HEADER));
        let body = axum::body::to_bytes(request.into_body(), 1024).await.unwrap();
        Json(FileWritten { path: query.path, bytes: body.len() as u64 })
    };
    let (client, _dir) = client(Router::new().route("/agent/v1/sandboxes/{id}/fs", put(write))).await;
    let path = "/srv/a b&c?#ü".to_owned();
    let call = WriteFile::new(sandbox(), WriteFileQuery { path: path.clone(), ..WriteFileQuery::default() });
    let options = CallOptions::on_sandbox(3, PATIENCE);
    let written = client.call(call, options, Body::from("12345")).await.unwrap();
    assert_eq!(written, FileWritten { path, bytes: 5 });
}

#[tokio::test]
async fn mismatched_responses_fail_and_unused_bodies_are_ignored() {
    let router = Router::new()
        .route("/agent/v1/sandboxes/{id}/processes", get(async || "[]"))
        .route("/agent/v1/volumes/{id}", delete(async || (StatusCode::OK, "anything")));
    let (client, _dir) = client(router).await;
    let options = CallOptions::on_sandbox(1, PATIENCE);
    let error = client.call(ListProcesses::new(sandbox()), options, ()).await.unwrap_err();
    assert!(matches!(error, AgentError::BadResponse { .. }), "{error:?}");
    let call = DeleteVolume::new("v1".parse().unwrap());
    client.call(call, CallOptions::on_host(PATIENCE), ()).await.unwrap();
}

#[tokio::test]
async fn refusals_and_timeouts_are_distinguished() {
    let refuse = async |request: Request| {
        assert_eq!(request.headers()[LAST_EVENT_ID_HEADER], "10-0");
        let code = ErrorCode::NotFound;
        let body = ErrorBody { error: "no process".to_owned(), code, request_id: None, build_id: None };
        (StatusCode::NOT_FOUND, Json(body))
    };
    let router = Router::new()
        .route("/agent/v1/sandboxes/{id}/processes", get(std::future::pending::<()>))
        .route("/agent/v1/sandboxes/{id}/processes/{process}/output", get(refuse));
    let (client, _dir) = client(router).await;
    let call = ProcessOutput::new(sandbox(), 7, OutputQuery::default());
    let options = StreamOptions { incarnation: Some(1), last_event_id: Some("10-0") };
    let error = client.stream(call, options, ()).await.unwrap_err();
    assert!(error.is_absent(), "{error:?}");
    let options = CallOptions::on_sandbox(1, Duration::from_millis(50));
    let error = client.call(ListProcesses::new(sandbox()), options, ()).await.unwrap_err();
    assert!(matches!(error, AgentError::Timeout { .. }), "{error:?}");
}
