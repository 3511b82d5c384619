//! Removes old rows, records when keys were last used, and closes connections of revoked keys.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use pandastack_store::Store;
use pandastack_store::clock::now;
use pandastack_types::limits::{AUDIT_DAYS, EVENTS_PAGE_MAX, IDEMPOTENCY_SECONDS, RUN_DAYS, RUNS_KEPT_MAX};
use pandastack_types::{Result, chain};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::auth::Keys;
use crate::revocation::RECHECK_EVERY;

/// Interval at which old rows are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Interval at which last-used times of keys are written.
const TOUCH_EVERY: Duration = Duration::from_secs(60);
/// Retention of webhook delivery ids; Git hosts do not redeliver later than that.
const DELIVERY_DAYS: i64 = 14;
/// Retention of events.
const EVENT_DAYS: i64 = 30;

/// Removes a service's expired data.
pub(crate) type PruneHook = Box<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Removes old rows until shutdown: the server's own, and those of each hook.
pub(crate) async fn prune(store: Arc<dyn Store>, shutdown: CancellationToken, hooks: Arc<[PruneHook]>) {
    let mut every = tokio::time::interval(PRUNE_EVERY);
    while shutdown.run_until_cancelled(every.tick()).await.is_some() {
        if let Err(error) = prune_old(store.as_ref(), &hooks).await {
            tracing::warn!(error = %chain(&error), "cannot delete old rows; retrying later");
        }
    }
}

async fn prune_old(store: &dyn Store, hooks: &[PruneHook]) -> Result<()> {
    let before = |duration| now().checked_sub(duration).unwrap_or(Timestamp::MIN);
    let window = SignedDuration::from_secs(i64::try_from(IDEMPOTENCY_SECONDS).unwrap_or(i64::MAX));
    let events = SignedDuration::from_hours(24 * EVENT_DAYS);
    store.prune(before(events), before(window), EVENTS_PAGE_MAX).await?;
    let runs = before(SignedDuration::from_hours(24 * RUN_DAYS));
    store.prune_runs(runs, RUNS_KEPT_MAX).await?;
    store.prune_deliveries(before(SignedDuration::from_hours(24 * DELIVERY_DAYS))).await?;
    store.prune_audit(before(SignedDuration::from_hours(24 * AUDIT_DAYS))).await?;
    crate::console::prune(store).await?;
    store.prune_sessions(now()).await?;
    for hook in hooks {
        hook().await?;
    }
    Ok(())
}

/// Writes when keys were last used, until shutdown. Every replica does: each knows which ones were used with it.
pub(crate) async fn keep_keys(keys: Arc<Keys>, shutdown: CancellationToken) {
    let mut every = tokio::time::interval(TOUCH_EVERY);
    while shutdown.run_until_cancelled(every.tick()).await.is_some() {
        if let Err(error) = keys.write_last_used().await {
            tracing::warn!(error = %chain(&error), "cannot record last-used times of keys; retrying later");
        }
    }
}

/// Ends requests and streams of keys that are no longer valid, until shutdown.
pub(crate) async fn end_revoked(keys: Arc<Keys>, shutdown: CancellationToken) {
    let mut every = tokio::time::interval(RECHECK_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(every.tick()).await.is_some() {
        if let Err(error) = keys.end_revoked().await {
            tracing::warn!(error = %chain(&error), "cannot check open streams of keys; retrying later");
        }
    }
}
