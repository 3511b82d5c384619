//! Deletes or hibernates sandboxes when their TTL ends.
//!
//! The reaper sleeps until the next expiry in the record and is woken when one changes; it never
//! polls. It takes no input: each pass handles everything due, so a restart, a missed wake-up or a
//! repeated one does no harm. A sandbox that cannot be ended now (its host does not respond) is
//! postponed by [`PUT_OFF`] without holding up the rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use pandastack_store::clock;
use pandastack_store::clock::now;
use pandastack_store::{Change, SandboxRecord, Select};
use pandastack_types::api::OnTimeout;
use pandastack_types::{Result, SandboxId, SandboxState, Transition, chain};
use tokio::time::Instant;

use crate::Sandboxes;
use crate::ops;
use crate::ops::lifecycle::StateChange;

/// Delay before the next attempt to end a sandbox.
const PUT_OFF: Duration = Duration::from_secs(15);
/// Longest sleep: the wall clock may be set while the timer runs.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Sandboxes ended at once.
const ENDED_AT_ONCE: usize = 8;
/// Ends lifetimes until shutdown.
pub async fn run(sandboxes: Arc<Sandboxes>) {
    let mut put_off = HashMap::<SandboxId, Instant>::new();
    loop {
        let wake_at = match reap(&sandboxes, &mut put_off).await {
            Ok(wake_at) => wake_at,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the reaper failed; retrying");
                Instant::now() + PUT_OFF
            }
        };
        tokio::select! {
            () = sandboxes.background.shutdown.cancelled() => return,
            () = sandboxes.expiry_changed.notified() => {}
            () = clock::moved() => {}
            () = tokio::time::sleep_until(wake_at.min(Instant::now() + SLEEP_MAX)) => {}
        }
    }
}

/// Ends sandboxes that are due; returns the time of the next check.
async fn reap(sandboxes: &Arc<Sandboxes>, put_off: &mut HashMap<SandboxId, Instant>) -> Result<Instant> {
    put_off.retain(|_, until| *until > Instant::now());
    let mut due = sandboxes.store.sandboxes(&Select::Due(now())).await?;
    due.retain(|record| !put_off.contains_key(&record.id));
    let ended = futures::stream::iter(due).map(|record| async move {
        let id = record.id.clone();
        (id, end(sandboxes, record).await)
    });
    let ended: Vec<_> = ended.buffer_unordered(ENDED_AT_ONCE).collect().await;
    for (id, result) in ended {
        if let Err(error) = result {
            tracing::warn!(
                sandbox = %id, error = %chain(&error),
                "cannot end an expired sandbox; retrying soon"
            );
            put_off.insert(id, Instant::now() + PUT_OFF);
        }
    }
    for snapshot in sandboxes.store.snapshots_due(now()).await? {
        ops::snapshot::remove(sandboxes, &snapshot).await?;
    }
    let retry = put_off.values().min().copied();
    let expiries = [sandboxes.store.next_expiry().await?, sandboxes.store.next_snapshot_expiry().await?];
    let next = expiries.into_iter().flatten().min().map(|at| Instant::now() + until(at));
    // A postponed expiry stays the next one in the records; handling it before its retry would be a
    // busy loop.
    let next = if retry.is_some() { next.filter(|at| *at > Instant::now()) } else { next };
    Ok([retry, next].into_iter().flatten().min().unwrap_or_else(|| Instant::now() + SLEEP_MAX))
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now())).unwrap_or(Duration::ZERO)
}

async fn end(sandboxes: &Arc<Sandboxes>, record: SandboxRecord) -> Result<()> {
    let kill = record.spec.on_timeout == OnTimeout::Kill || record.spec.candidate;
    if kill || record.state == SandboxState::Failed {
        return ops::delete::delete(sandboxes, record, Some("its lifetime expired")).await;
    }
    if record.state == SandboxState::Hibernated {
        let change = Change { ends_lifetime: true, ..Change::at(now()) };
        sandboxes.transition(&record.id, Transition::Hibernated, &change).await?;
        return Ok(());
    }
    let client = sandboxes.hosts.client(&record.host)?;
    let sleep = StateChange::Hibernate(record.spec.keep_on_timeout);
    ops::lifecycle::change_state(sandboxes, record, client, sleep, true).await?;
    Ok(())
}
