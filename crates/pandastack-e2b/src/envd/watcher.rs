//! Watches that a client polls: `CreateWatcher`, `GetWatcherEvents`, `RemoveWatcher`.
//!
//! Watchers are the only state that this crate keeps between calls. They live in this process:
//! after a restart they are not found, as after a restart of E2B's daemon. A watcher that is not
//! polled is removed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Request};
use pandastack_types::SandboxId;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::connect;
use super::watch::{Watch, WatchRequest};
use crate::error::{RpcCode, RpcError, RpcResult};
use crate::limits::{WATCHER_EVENTS_MAX, WATCHER_IDLE_SECONDS, WATCHERS_MAX};
use crate::session::Session;

/// Longest time that a poll waits for a first change.
const EVENTS_WAIT: Duration = Duration::from_millis(300);

/// All watchers.
#[derive(Default)]
pub(super) struct Watchers(Mutex<HashMap<String, Watcher>>);

struct Watcher {
    sandbox: SandboxId,
    events: Arc<PendingChanges>,
    reader: AbortHandle,
    polled: Instant,
}

/// Changes that the client has not polled yet.
#[derive(Default)]
struct PendingChanges {
    events: Mutex<VecDeque<Value>>,
    /// Notified when there are more.
    arrived: Notify,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatcherRequest {
    #[serde(alias = "watcher_id")]
    watcher_id: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchers {
    fn insert(&self, watcher: Watcher) -> RpcResult<String> {
        let mut all = lock(&self.0);
        let idle = Duration::from_secs(WATCHER_IDLE_SECONDS);
        all.retain(|_, watcher| watcher.polled.elapsed() < idle);
        if all.len() >= WATCHERS_MAX {
            let what = format!("the limit of {WATCHERS_MAX} watchers is reached; remove some");
            return Err(RpcError::new(RpcCode::ResourceExhausted, what));
        }
        let id = uuid::Uuid::new_v4().to_string();
        all.insert(id.clone(), watcher);
        Ok(id)
    }

    /// Returns the changes since the last call, and waits briefly if there are none: a change that
    /// the client just made may still be in transit.
    async fn drain(&self, sandbox: &SandboxId, id: &str) -> RpcResult<Vec<Value>> {
        let kept = self.polled(sandbox, id)?;
        let arrived = kept.arrived.notified();
        let take = || lock(&kept.events).drain(..).collect::<Vec<_>>();
        let events = take();
        if !events.is_empty() {
            return Ok(events);
        }
        let _ = tokio::time::timeout(EVENTS_WAIT, arrived).await;
        Ok(take())
    }

    fn polled(&self, sandbox: &SandboxId, id: &str) -> RpcResult<Arc<PendingChanges>> {
        let mut all = lock(&self.0);
        let watcher =
            all.get_mut(id).filter(|watcher| watcher.sandbox == *sandbox).ok_or_else(|| missing(id))?;
        watcher.polled = Instant::now();
        Ok(Arc::clone(&watcher.events))
    }

    fn remove(&self, sandbox: &SandboxId, id: &str) -> RpcResult<()> {
        let mut all = lock(&self.0);
        all.get(id).filter(|watcher| watcher.sandbox == *sandbox).ok_or_else(|| missing(id))?;
        all.remove(id);
        Ok(())
    }
}

fn missing(id: &str) -> RpcError {
    let shown: String = id.chars().take(64).collect();
    RpcError::new(RpcCode::NotFound, format!("watcher with id {shown} not found; start another watch"))
}

/// Keeps the newest changes of a watch until it ends.
async fn keep(mut watch: Watch, kept: Arc<PendingChanges>) {
    while let Ok(Some(changes)) = watch.next().await {
        kept.extend(changes);
    }
}

impl PendingChanges {
    fn extend(&self, changes: Vec<Value>) {
        let mut events = lock(&self.events);
        events.extend(changes);
        while events.len() > WATCHER_EVENTS_MAX {
            events.pop_front();
        }
        drop(events);
        self.arrived.notify_one();
    }
}

/// Starts a watch.
pub(super) async fn create(
    session: Session,
    Extension(watchers): Extension<Arc<Watchers>>,
    request: Request,
) -> RpcResult<Json<Value>> {
    let (parts, body) = request.into_parts();
    let wanted: WatchRequest = connect::read_unary(body).await?;
    let watch = Watch::begin(&session, &parts.headers, &wanted).await?;
    let events = Arc::new(PendingChanges::default());
    let reader = tokio::spawn(keep(watch, Arc::clone(&events))).abort_handle();
    let id = watchers.insert(Watcher { sandbox: session.sandbox, events, reader, polled: Instant::now() })?;
    Ok(Json(json!({ "watcherId": id })))
}

/// Changes since the last call.
pub(super) async fn events(
    session: Session,
    Extension(watchers): Extension<Arc<Watchers>>,
    body: Body,
) -> RpcResult<Json<Value>> {
    let WatcherRequest { watcher_id } = connect::read_unary(body).await?;
    Ok(Json(json!({ "events": watchers.drain(&session.sandbox, &watcher_id).await? })))
}

/// Ends a watch.
pub(super) async fn remove(
    session: Session,
    Extension(watchers): Extension<Arc<Watchers>>,
    body: Body,
) -> RpcResult<Json<Value>> {
    let WatcherRequest { watcher_id } = connect::read_unary(body).await?;
    watchers.remove(&session.sandbox, &watcher_id)?;
    Ok(Json(json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watcher(sandbox: &SandboxId) -> Watcher {
        let reader = tokio::spawn(std::future::pending::<()>()).abort_handle();
        Watcher { sandbox: sandbox.clone(), events: Arc::default(), reader, polled: Instant::now() }
    }

    #[tokio::test]
    async fn a_poll_waits_for_late_events() {
        let (watchers, sandbox) = (Arc::new(Watchers::default()), SandboxId::random());
        let id = watchers.insert(watcher(&sandbox)).unwrap();
        let kept = watchers.polled(&sandbox, &id).unwrap();
        let (polling, of) = (Arc::clone(&watchers), (sandbox.clone(), id.clone()));
        let poll = tokio::spawn(async move { polling.drain(&of.0, &of.1).await });
        // The poll is already waiting when the first change arrives.
        tokio::task::yield_now().await;
        kept.extend(vec![json!({ "name": "late" })]);
        assert_eq!(poll.await.unwrap().unwrap(), [json!({ "name": "late" })]);
        kept.extend(vec![json!({ "name": "early" })]);
        assert_eq!(watchers.drain(&sandbox, &id).await.unwrap(), [json!({ "name": "early" })]);
    }

    #[tokio::test]
    async fn watchers_belong_to_their_sandbox_and_are_bounded() {
        let (watchers, sandbox) = (Watchers::default(), SandboxId::random());
        let id = watchers.insert(watcher(&sandbox)).unwrap();
        assert!(watchers.drain(&SandboxId::random(), &id).await.is_err());
        assert!(watchers.drain(&sandbox, &id).await.is_ok());
        for _ in 1..WATCHERS_MAX {
            watchers.insert(watcher(&sandbox)).unwrap();
        }
        assert_eq!(watchers.insert(watcher(&sandbox)).unwrap_err().code, RpcCode::ResourceExhausted);
        watchers.remove(&sandbox, &id).unwrap();
        assert!(watchers.insert(watcher(&sandbox)).is_ok());
    }
}
