//! Commands of the fake agent: their text determines their output and exit.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use pandastack_types::SandboxId;
use serde_json::{Value, json};

use crate::fake_agent::FakeAgent;

/// Runs the last word of `argv`: `fail` ends with 3, `hang` never ends, anything else is printed.
pub async fn start(State(agent): State<FakeAgent>, Path(id): Path<SandboxId>, request: Request) -> Response {
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&bytes).unwrap();
    let command =
        body["argv"].as_array().and_then(|argv| argv.last()?.as_str()).unwrap_or_default().to_owned();
    let command = {
        let mut inner = agent.lock();
        inner.commands.push((id, body));
        inner.inside.every_command.map_or(command, str::to_owned)
    };
    let text = |text: &str| format!("event: stdout\ndata: {}\n\n", json!({"chunk": format!("{text}\n")}));
    let end = |code: i32| format!("event: exit\ndata: {}\n\n", json!({"exit_code": code}));
    let events = match command.as_str() {
        "fail" => vec![text("first"), text("the reason"), end(3)],
        "hang" => vec![text("begun")],
        other => vec![text(other), end(0)],
    };
    let hangs = command == "hang";
    let first = futures::stream::iter(events).map(|event| Ok::<_, std::io::Error>(Bytes::from(event)));
    let rest = futures::stream::once(async move {
        if hangs {
            std::future::pending::<()>().await;
        }
        Ok::<_, std::io::Error>(Bytes::new())
    });
    let headers = [("content-type", "text/event-stream"), ("x-pandastack-process", "1")];
    (headers, Body::from_stream(first.chain(rest))).into_response()
}

/// An empty list of processes.
pub async fn list() -> Json<Value> {
    Json(json!({"processes": []}))
}

/// An echo socket, until either end closes it.
pub async fn socket(mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(stream) = upgrade.await else { return };
        let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
    let switching = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    switching.header("connection", "upgrade").header("upgrade", "websocket").body(Body::empty()).unwrap()
}
