//! A standalone edge queries control servers, and fails over to the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, http::StatusCode};
use pandastack_edge::{AccessLog, AppRoute, ControlRoutes, Edge, EdgeCredentials, Instances, RouteSource};
use pandastack_types::SandboxId;
use pandastack_types::agent_api::EdgeRoute;
use pandastack_types::link::LinkKey;
use pandastack_types::preview::Visibility;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::{ID, PATIENCE};

/// A control server that knows one sandbox. It ends with its task, and its connections with it.
struct Control {
    address: String,
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    asked: AtomicUsize,
    followed: AtomicUsize,
    follower: Notify,
    ended: CancellationToken,
}

impl Control {
    async fn start() -> Self {
        let seen = Arc::new(Seen::default());
        let router = Router::new()
            .route("/internal/v1/routes/{id}", get(route))
            .route("/internal/v1/routes", get(changes))
            .route("/internal/v1/names/{name}", get(name))
            .with_state(Arc::clone(&seen));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen, task }
    }

    async fn kill(self) {
        self.seen.ended.cancel();
        self.task.abort();
        let _ = self.task.await;
    }

    async fn is_followed(&self) {
        while self.seen.followed.load(Ordering::SeqCst) == 0 {
            tokio::time::timeout(PATIENCE, self.seen.follower.notified()).await.expect("nobody follows");
        }
    }
}

async fn route(State(seen): State<Arc<Seen>>, Path(id): Path<String>) -> Response {
    if seen.ended.is_cancelled() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    seen.asked.fetch_add(1, Ordering::SeqCst);
    if id != ID {
        return StatusCode::NOT_FOUND.into_response();
    }
    Json(EdgeRoute {
        host: "host-a".parse().unwrap(),
        agent_address: "unix:/nowhere".to_owned(),
        incarnation: 7,
        visibility: Visibility::Private,
        membership: 0,
        preview_key: None,
        preview_revision: 0,
        host_header: None,
        closed: None,
    })
    .into_response()
}

/// An app with three machines, and one of a server that knows of one machine per app only.
async fn name(Path(name): Path<String>) -> Response {
    let serving = serde_json::json!({ "sandbox": "m1", "port": 8080 });
    let mut several = serving.clone();
    several["more"] = serde_json::json!(["m2", "m3"]);
    several["always"] = 2.into();
    match name.as_str() {
        "shop.localhost" => Json(serde_json::json!({ "serving": several })).into_response(),
        "old.localhost" => Json(serde_json::json!({ "serving": serving })).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn changes(State(seen): State<Arc<Seen>>) -> Body {
    seen.followed.fetch_add(1, Ordering::SeqCst);
    seen.follower.notify_one();
    let ended = seen.ended.clone();
    Body::from_stream(futures::stream::once(async move {
        ended.cancelled().await;
        Ok::<_, std::convert::Infallible>("\n")
    }))
}

fn routes_of(servers: &[&Control]) -> Arc<ControlRoutes> {
    let addresses: Vec<_> = servers.iter().map(|server| server.address.as_str()).collect();
    let link = LinkKey::new(&[7; 32]).unwrap();
    ControlRoutes::new(&addresses.join(", "), "edge".parse().unwrap(), EdgeCredentials::Secret(link)).unwrap()
}

#[tokio::test]
async fn route_lookups_fail_over_to_the_next_control_server() {
    let (first, second) = (Control::start().await, Control::start().await);
    let routes = routes_of(&[&first, &second]);
    let (known, unknown): (SandboxId, SandboxId) = (ID.parse().unwrap(), SandboxId::random());
    let found = routes.find(&known).await.unwrap().unwrap();
    assert_eq!(found.visibility, Visibility::Private);
    assert_eq!(second.seen.asked.load(Ordering::SeqCst), 0, "one is enough");
    first.kill().await;
    assert!(routes.find(&known).await.unwrap().is_some());
    assert!(routes.find(&unknown).await.unwrap().is_none(), "not there is an answer, too");
    assert_eq!(second.seen.asked.load(Ordering::SeqCst), 2);
    second.kill().await;
    let error = routes.find(&known).await.err().unwrap();
    assert!(error.to_string().contains("control server at http://127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_name_resolves_to_all_machines_of_an_app() {
    let control = Control::start().await;
    let routes = routes_of(&[&control]);
    let check = async |name: &str, machines: &[&str], always: usize| {
        let found = routes.find_name(name).await.unwrap();
        let sandboxes = machines.iter().map(|id| id.parse().unwrap()).collect();
        assert_eq!(
            found,
            Some(AppRoute::Serving(Instances { sandboxes, always, port: 8080, own_domain: false })),
            "{name}"
        );
    };
    check("shop.localhost", &["m1", "m2", "m3"], 2).await;
    check("old.localhost", &["m1"], 0).await;
    assert_eq!(routes.find_name("nobody.localhost").await.unwrap(), None);
}

#[tokio::test]
async fn route_changes_are_followed_from_the_remaining_control_server() {
    let (first, second) = (Control::start().await, Control::start().await);
    let routes = routes_of(&[&first, &second]);
    let edge = Edge::new(Arc::clone(&routes) as _, AccessLog::open(None).unwrap());
    let stop = CancellationToken::new();
    let following = {
        let (routes, edge, stop) = (Arc::clone(&routes), Arc::clone(&edge), stop.clone());
        tokio::spawn(async move { routes.follow(&edge, stop).await })
    };
    first.is_followed().await;
    assert_eq!(second.seen.followed.load(Ordering::SeqCst), 0);
    first.kill().await;
    second.is_followed().await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, following).await.unwrap().unwrap();
    edge.shut_down().await;
    second.kill().await;
}
