//! Connections from an app's machines to its databases. Agents forward each stream with the machine it
//! comes from.
//!
//! The record of a machine's app decides which databases the machine may reach. It is read at every
//! connection, and again whenever an app changes: no state has to follow sleep, forks and restarts,
//! and a detached database is unreachable at once.
//!
//! Must hold: only serving machines reach a database, and build machines if the app's setting
//! allows it; a machine without an app reaches none. After this check a session is like any other:
//! it waits at the gate while its database wakes.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint, Listener};
use pandastack_store::StoreError;
use pandastack_types::{DatabaseId, Owner, Result, SandboxId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast::error::RecvError;

use crate::preview_settings;
use crate::state::Apps;

/// The databases of one machine.
struct MachineDatabases {
    apps: Arc<Apps>,
    machine: SandboxId,
    /// Databases that the connection uses.
    used: Mutex<Vec<DatabaseId>>,
}

/// Serves a machine's connection to its end.
pub async fn serve(apps: Arc<Apps>, machine: SandboxId, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut names = apps.names.subscribe();
    let attached = MachineDatabases { apps: Arc::clone(&apps), machine, used: Mutex::default() };
    let usual = match attached.reachable().await.as_deref() {
        Ok([only]) => Some(Endpoint { database: only.to_string(), listener: Listener::Direct }),
        _ => None,
    };
    let detached = async {
        loop {
            let heard = names.recv().await;
            if matches!(heard, Err(RecvError::Closed)) || !attached.is_still_allowed().await {
                return;
            }
        }
    };
    tokio::select! {
        () = apps.inside.serve(stream, &attached, usual) => {}
        () = detached => {}
        () = apps.background.shutdown.cancelled() => {}
    }
}

impl MachineDatabases {
    /// Databases that the machine may mean.
    async fn reachable(&self) -> Result<Vec<DatabaseId>> {
        let machine = self.apps.machines.find(None, &self.machine).await?;
        let Some(Owner::App(id)) = machine.owner else {
            return Ok(Vec::new());
        };
        let app = match self.apps.store.app(None, id.as_str()).await {
            Ok(app) => preview_settings::effective(&self.apps, app).await?,
            Err(StoreError::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        // Build machines have a lifetime; serving machines have none.
        let seen = app.spec.seen_databases().filter(|(_, one)| one.build || machine.spec.persistent);
        Ok(seen.map(|(_, one)| one.database.clone()).collect())
    }

    /// Returns whether those databases may still be reached. If the store cannot be read, the
    /// connection stays.
    async fn is_still_allowed(&self) -> bool {
        let Ok(reachable) = self.reachable().await else { return true };
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.iter().all(|id| reachable.contains(id))
    }
}

#[async_trait]
impl Databases for MachineDatabases {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        let reachable = self.reachable().await;
        let reachable = reachable.map_err(|error| ConnectError::Unavailable(error.to_string()))?;
        let Some(id) = reachable.into_iter().find(|id| id.as_str() == endpoint.database) else {
            let message = format!("database `{}` is not attached to this app", endpoint.database);
            return Err(ConnectError::Refused(message));
        };
        self.used.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.apps.databases.connect(endpoint).await
    }

    async fn explain(&self, endpoint: &Endpoint, code: &str) -> Option<String> {
        self.apps.databases.explain(endpoint, code).await
    }
}
