//! Ends lifetimes when they end, and removes what is old.
//!
//! The reaper sleeps until the next expiry in the record and is woken when one changes; it never polls. It takes no
//! input: whatever is due when it looks is handled, so a restart, a missed wake-up or a repeated one does no harm. What
//! cannot be done now (its host does not answer) is put off for [`PUT_OFF`] without holding up the rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use pandastack_types::api::{Keep, OnTimeout};
use pandastack_types::limits::{AUDIT_DAYS, EVENTS_PAGE_MAX, IDEMPOTENCY_SECONDS, RUN_DAYS, RUNS_KEPT_MAX};
use pandastack_types::{Result, SandboxId, SandboxState, Transition};
use tokio::time::Instant;

use crate::app::{App, now};
use crate::clock;
use crate::ops;
use crate::ops::lifecycle::Move;
use crate::store::{Change, SandboxRecord, Select};

/// How long a sandbox that could not be ended is left alone.
const PUT_OFF: Duration = Duration::from_secs(15);
/// Longest sleep: the wall clock may be set while the timer runs.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Sandboxes ended at once.
const ENDED_AT_ONCE: usize = 8;
/// How often old rows are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// How often last-used times of keys are written.
const TOUCH_EVERY: Duration = Duration::from_secs(60);
/// Names of webhook deliveries are kept this long; nobody redelivers after it.
const DELIVERY_DAYS: i64 = 14;
/// Events are kept this long.
const EVENT_DAYS: i64 = 30;

/// Ends lifetimes until shutdown.
pub(crate) async fn run(app: Arc<App>) {
    let mut put_off = HashMap::<SandboxId, Instant>::new();
    loop {
        let wake_at = match reap(&app, &mut put_off).await {
            Ok(wake_at) => wake_at,
            Err(error) => {
                tracing::warn!(%error, cause = error.causes(), "the reaper tries again");
                Instant::now() + PUT_OFF
            }
        };
        tokio::select! {
            () = app.shutdown.cancelled() => return,
            () = app.expiry_changed.notified() => {}
            () = clock::moved() => {}
            () = tokio::time::sleep_until(wake_at.min(Instant::now() + SLEEP_MAX)) => {}
        }
    }
}

/// Ends what is due and says when to look again.
async fn reap(app: &Arc<App>, put_off: &mut HashMap<SandboxId, Instant>) -> Result<Instant> {
    put_off.retain(|_, until| *until > Instant::now());
    let mut due = app.store.sandboxes(&Select::Due(now())).await?;
    due.retain(|record| !put_off.contains_key(&record.id));
    let ended = futures::stream::iter(due).map(|record| async move {
        let id = record.id.clone();
        (id, end(app, record).await)
    });
    let ended: Vec<_> = ended.buffer_unordered(ENDED_AT_ONCE).collect().await;
    for (id, result) in ended {
        if let Err(error) = result {
            tracing::warn!(sandbox = %id, %error, "its lifetime ended, but it could not be; tried again soon");
            put_off.insert(id, Instant::now() + PUT_OFF);
        }
    }
    for snapshot in app.store.snapshots_due(now()).await? {
        ops::snapshot::remove(app, &snapshot).await?;
    }
    let retry = put_off.values().min().copied();
    let expiries = [app.store.next_expiry().await?, app.store.next_snapshot_expiry().await?];
    let next = expiries.into_iter().flatten().min().map(|at| Instant::now() + until(at));
    // What was put off stays the next expiry in the record; looking at it before its time would be a busy loop.
    let next = if retry.is_some() { next.filter(|at| *at > Instant::now()) } else { next };
    Ok([retry, next].into_iter().flatten().min().unwrap_or_else(|| Instant::now() + SLEEP_MAX))
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now())).unwrap_or(Duration::ZERO)
}

async fn end(app: &Arc<App>, record: SandboxRecord) -> Result<()> {
    let kill = record.spec.on_timeout == OnTimeout::Kill || record.spec.candidate;
    if kill || record.state == SandboxState::Failed {
        return ops::delete::delete(app, record, Some("its lifetime ended")).await;
    }
    if record.state == SandboxState::Hibernated {
        let change = Change { ends_lifetime: true, ..Change::at(now()) };
        app.transition(&record.id, Transition::Hibernated, &change).await?;
        return Ok(());
    }
    let client = app.hosts.client(&record.host)?;
    ops::lifecycle::go(app, record, client, Move::Hibernate(Keep::Memory), true).await?;
    Ok(())
}

/// Removes old rows until shutdown.
pub(crate) async fn prune(app: Arc<App>) {
    let mut every = tokio::time::interval(PRUNE_EVERY);
    while app.shutdown.run_until_cancelled(every.tick()).await.is_some() {
        if let Err(error) = prune_old(&app).await {
            tracing::warn!(%error, "old rows are removed later");
        }
    }
}

/// Writes when keys were last used, until shutdown. Every replica does: each knows which ones were used with it.
pub(crate) async fn keep_keys(app: Arc<App>) {
    let mut every = tokio::time::interval(TOUCH_EVERY);
    while app.shutdown.run_until_cancelled(every.tick()).await.is_some() {
        if let Err(error) = touch_keys(&app).await {
            tracing::warn!(%error, "last-used times of keys are written later");
        }
    }
}

async fn prune_old(app: &App) -> Result<()> {
    let before = |duration| now().checked_sub(duration).unwrap_or(Timestamp::MIN);
    let window = SignedDuration::from_secs(i64::try_from(IDEMPOTENCY_SECONDS).unwrap_or(i64::MAX));
    let events = SignedDuration::from_hours(24 * EVENT_DAYS);
    app.store.prune(before(events), before(window), EVENTS_PAGE_MAX).await?;
    let runs = before(SignedDuration::from_hours(24 * RUN_DAYS));
    app.store.prune_runs(runs, RUNS_KEPT_MAX).await?;
    app.store.prune_deliveries(before(SignedDuration::from_hours(24 * DELIVERY_DAYS))).await?;
    app.store.prune_audit(before(SignedDuration::from_hours(24 * AUDIT_DAYS))).await?;
    crate::functions::keep_house(app).await?;
    Ok(())
}

/// Writes when keys were last used.
pub(crate) async fn touch_keys(app: &App) -> Result<()> {
    let used = app.keys.take_used();
    if !used.is_empty() {
        app.store.touch_tokens(&used).await?;
    }
    Ok(())
}
