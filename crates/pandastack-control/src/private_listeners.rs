//! Listeners of the private API: a socket for this machine, and an address for hosts of other machines.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use pandastack_fleet::{LinkListener, Peer};
use pandastack_types::chain;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::fleet::Fleet;

/// Binds a socket that only its owner may use; replaces one left by a dead process (the lock proves
/// that it is dead).
pub(crate) fn bind_socket(path: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves hosts over TCP until `stop`.
pub(crate) async fn serve_hosts(
    listener: TcpListener,
    fleet: Arc<Fleet>,
    router: Router,
    stop: CancellationToken,
) {
    let served = async {
        let service = router.into_make_service_with_connect_info::<Peer>();
        let listener = LinkListener::new(listener, fleet)?;
        axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await
    };
    if let Err(error) = served.await {
        tracing::error!(error = %chain(&error), "a server stopped");
    }
}

/// Serves processes of this machine until `stop`.
pub(crate) async fn serve_unix(listener: UnixListener, router: Router, stop: CancellationToken) {
    let router = router.layer(Extension(ConnectInfo(Peer::Local)));
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(error = %chain(&error), "a server stopped");
    }
}
