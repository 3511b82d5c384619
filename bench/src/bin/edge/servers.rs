//! The upstream and the edge, as separate processes. Each prints its port and serves until it is
//! killed.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use pandastack_edge::{AccessLog, Edge, Location, Route, RouteSource, RouteUnavailable, Server};
use pandastack_types::SandboxId;
use pandastack_types::preview::Visibility;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The sandbox that every request is for.
pub const SANDBOX: &str = "5b7f4c58-9d0e-4d2b-8a0f-9a553f2b0c1e";
/// Bytes of a small answer: a typical JSON document.
const SMALL_BYTES: usize = 1024;
/// Bytes of a large answer.
pub const LARGE_BYTES: usize = 16 * 1024 * 1024;

struct Loopback;

#[async_trait]
impl RouteSource for Loopback {
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let to = Location::Fixed(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let route = Route { to, visibility: Visibility::Unlisted, host_header: None, key: None };
        Ok((sandbox.as_str() == SANDBOX).then_some(route))
    }
}

/// One thread, as nginx has one worker.
fn block_on(future: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Serves small and large answers, and upgrades that stay silent.
pub fn upstream() -> Result<()> {
    block_on(async {
        let small = Bytes::from(vec![b'x'; SMALL_BYTES]);
        let large = Bytes::from(vec![b'x'; LARGE_BYTES]);
        let router = Router::new()
            .route("/small", get(move || async move { small.clone() }))
            .route("/large", get(move || async move { large.clone() }))
            .route("/websocket", get(websocket));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        Ok(axum::serve(listener, router).await?)
    })
}

async fn websocket(mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // Held until the other side goes away.
        if let Ok(stream) = upgrade.await {
            let _ = tokio::io::copy(&mut hyper_util::rt::TokioIo::new(stream), &mut tokio::io::sink()).await;
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, header::HeaderValue::from_static("websocket"));
    response
}

/// The edge, with its access log on.
pub fn edge(access_log: &Path) -> Result<()> {
    block_on(async {
        let edge = Edge::new(Arc::new(Loopback), AccessLog::open(Some(access_log))?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        Server::new(edge, Router::new()).serve(listener, CancellationToken::new()).await;
        Ok(())
    })
}
