//! The daemon that E2B's clients expect on port 49983 of a sandbox, without a process in the sandbox.
//!
//! | what | where |
//! |---|---|
//! | `/process.Process/*`, `/filesystem.Filesystem/*` | Connect, JSON ([`connect`]) |
//! | `/files` | bytes in and out ([`files`]) |
//! | `/health` | 204 while the sandbox runs |
//!
//! A client that presents the sandbox's access token is its user. [`crate::gate`] answers for
//! sandboxes that are gone or paused.

mod connect;
mod entry;
mod files;
mod filesystem;
mod follow;
mod metadata;
mod process;
mod selector;
mod upload;
mod watch;
mod watcher;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::StatusCode;

use crate::error::{RpcCode, RpcError};
use crate::gate::{self, check_token};
use crate::native::Native;
use crate::session::Session;
use watcher::Watchers;

/// Routes of the daemon's port.
pub(crate) fn routes(native: Native) -> Router {
    let watchers = Arc::new(Watchers::default());
    Router::new()
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/process.Process/Update", post(process::update))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_dir))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list_dir))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route("/filesystem.Filesystem/WatchDir", post(watch::watch_dir))
        .route("/filesystem.Filesystem/CreateWatcher", post(watcher::create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watcher::events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watcher::remove))
        .layer(from_fn_with_state(native.clone(), check_token))
        .route("/health", get(health))
        .route("/files", get(files::read).merge(post(files::write)))
        .fallback(unknown)
        .layer(Extension(watchers))
        .with_state(native)
}

/// `/files` for signed URLs that name no sandbox.
pub(crate) fn signed_files() -> MethodRouter<Native> {
    get(files::read_signed).merge(post(files::write_signed))
}

/// Whether the sandbox runs. A sleeping sandbox counts as not running, and this does not wake it.
async fn health(State(native): State<Native>, session: Session) -> Response {
    match gate::check_running(&native, session.sandbox).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refusal) => refusal,
    }
}

async fn unknown() -> RpcError {
    RpcError::new(
        RpcCode::Unimplemented,
        "this server does not support this call; see docs/reference/e2b-compatibility.md",
    )
}
