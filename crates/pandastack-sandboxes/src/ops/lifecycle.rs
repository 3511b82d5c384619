//! Pausing, resuming, sleeping and waking, and changes of a lifetime.

use std::sync::Arc;

use pandastack_agent_client::{AgentClient, AgentError};
use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_store::{Amendment, Change, SandboxRecord};
use pandastack_types::agent_api::{AgentKeepAwake, AgentPatch, AgentSandbox, endpoints};
use pandastack_types::api::{Hibernate, Keep, Lifecycle, PatchLifecycle};
use pandastack_types::limits::KEEP_AWAKE_SECONDS_MAX;
use pandastack_types::{Error, Residency, Result, SandboxState, Transition};

use super::{MOVE_WAIT, check_live, describe, options_for};
use crate::Sandboxes;

/// A state change that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateChange {
    /// Stop it in memory.
    Pause,
    /// Resume a paused sandbox.
    Resume,
    /// Write it to disk.
    Hibernate(Keep),
    /// Start it from where it was.
    Wake,
}

impl StateChange {
    async fn call(self, client: &AgentClient, record: &SandboxRecord) -> Result<AgentSandbox, AgentError> {
        let (id, options) = (record.id.clone(), options_for(record, MOVE_WAIT));
        match self {
            StateChange::Pause => client.call(endpoints::PauseSandbox::new(id), options, ()).await,
            StateChange::Resume => client.call(endpoints::ResumeSandbox::new(id), options, ()).await,
            StateChange::Hibernate(keep) => {
                let call = endpoints::HibernateSandbox::new(id);
                client.call(call, options, &Hibernate { keep }).await
            }
            StateChange::Wake => client.call(endpoints::WakeSandbox::new(id), options, ()).await,
        }
    }
}

/// The transition from a row's state to the state that its host reports; `None` if they are equal.
pub fn towards(row: SandboxState, seen: SandboxState) -> Option<Transition> {
    use SandboxState as S;
    match (row, seen) {
        (S::Creating, S::Running) => Some(Transition::Created),
        (S::Paused, S::Running) => Some(Transition::Resumed),
        (S::Hibernated, S::Running | S::Paused) => Some(Transition::Woken),
        (S::Running, S::Paused) => Some(Transition::Paused),
        (S::Running | S::Paused, S::Hibernated) => Some(Transition::Hibernated),
        (S::Running | S::Paused | S::Hibernated, S::Failed) => Some(Transition::Lost),
        _ => None,
    }
}

/// Moves a sandbox. Runs to its end even if the caller is dropped.
pub async fn change_state(
    sandboxes: &Arc<Sandboxes>,
    record: SandboxRecord,
    client: AgentClient,
    movement: StateChange,
    ends_lifetime: bool,
) -> Result<SandboxRecord> {
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let seen = movement.call(&client, &record).await?;
            match movement {
                StateChange::Hibernate(_) => fault::point("control.hibernate.answered").await,
                StateChange::Wake => fault::point("control.wake.answered").await,
                StateChange::Pause | StateChange::Resume => {}
            }
            let kept = match movement {
                // A repeated request leaves a sandbox asleep on disk unchanged, including what it
                // kept.
                StateChange::Hibernate(keep) if record.spec.residency != Some(Residency::Disk) => Some(keep),
                _ => None,
            };
            settle(&own, &record, seen, Change { ends_lifetime, kept, ..Change::at(now()) }).await
        })
        .await
}

/// Updates a row to the state that its host reports, with an event if the state differs.
pub async fn settle(
    sandboxes: &Sandboxes,
    record: &SandboxRecord,
    seen: AgentSandbox,
    change: Change,
) -> Result<SandboxRecord> {
    // Read again: a report may have applied the change already.
    let state = sandboxes.store.sandbox(None, &record.id).await?.state;
    let again = match state {
        SandboxState::Hibernated => Some(Transition::Hibernated),
        SandboxState::Paused => Some(Transition::Paused),
        SandboxState::Running => Some(Transition::Resumed),
        _ => None,
    };
    let Some(transition) = towards(state, seen.state).or(again) else {
        return Ok(sandboxes.store.sandbox(None, &record.id).await?);
    };
    let change = Change { detail: seen.failure.clone(), ..change.with_observed(seen) };
    Ok(sandboxes.transition(&record.id, transition, &change).await?)
}

/// Lifecycle settings and times of a sandbox. Queries the host for the idle time, but works without
/// its response.
pub async fn show(sandboxes: &Sandboxes, record: &SandboxRecord) -> Lifecycle {
    let seen = match sandboxes.hosts.client(&record.host) {
        Ok(client) => describe(&client, record).await.ok(),
        Err(_) => None,
    };
    let idle_seconds = seen.as_ref().map_or(0, |seen| seen.idle_seconds);
    let awake_until = seen.and_then(|seen| seen.awake_until).filter(|until| *until > now());
    Lifecycle {
        ttl_seconds: record.spec.ttl_seconds,
        persistent: record.spec.persistent,
        idle_seconds,
        idle_timeout_seconds: record.spec.idle_timeout_seconds,
        sleeps_when_idle: record.agent_idle_seconds().is_some(),
        on_timeout: record.spec.on_timeout,
        expires_at: record.expires_at,
        awake_until,
        checkpoints: record.spec.checkpoints,
    }
}

/// Wakes a sandbox and keeps it from counting as idle for a while; zero seconds end an earlier lease.
pub async fn keep_awake(
    sandboxes: &Arc<Sandboxes>,
    record: SandboxRecord,
    client: AgentClient,
    seconds: u64,
) -> Result<SandboxRecord> {
    if seconds > KEEP_AWAKE_SECONDS_MAX {
        return Err(Error::bad_request(format!(
            "`seconds` must be at most {KEEP_AWAKE_SECONDS_MAX}; renew the lease before it ends"
        )));
    }
    let until = if seconds == 0 { None } else { after_seconds(now(), seconds) };
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let call = endpoints::KeepAwake::new(record.id.clone());
            let seen = client.call(call, options_for(&record, MOVE_WAIT), &AgentKeepAwake { until }).await?;
            settle(&own, &record, seen, Change::at(now())).await
        })
        .await
}

/// Changes a lifetime: first the idle timeout on the host, then the record.
pub async fn patch(
    sandboxes: &Arc<Sandboxes>,
    record: SandboxRecord,
    request: PatchLifecycle,
) -> Result<SandboxRecord> {
    crate::validate::patch(&request)?;
    if request == PatchLifecycle::default() {
        return Err(Error::bad_request(
            "nothing to change; set ttl_seconds, persistent, idle_timeout_seconds, on_timeout or checkpoints",
        ));
    }
    check_live(&record)?;
    let spec = &record.spec;
    let ttl_seconds = request.ttl_seconds.unwrap_or(spec.ttl_seconds);
    // Setting a lifetime makes a persistent sandbox non-persistent, unless the same call keeps it
    // persistent.
    let persistent = request.persistent.unwrap_or(spec.persistent && request.ttl_seconds.is_none());
    let idle_timeout_seconds = request.idle_timeout_seconds.unwrap_or(spec.idle_timeout_seconds);
    let restarts = request.ttl_seconds.is_some() || (spec.persistent && !persistent);
    let expires_at = match (persistent, restarts) {
        (true, _) => None,
        (false, true) => after_seconds(now(), ttl_seconds),
        (false, false) => record.expires_at,
    };
    let idle_given = spec.idle_given || request.idle_timeout_seconds.is_some();
    let idle = (persistent || idle_given).then_some(idle_timeout_seconds);
    if idle != record.agent_idle_seconds() {
        let client = sandboxes.hosts.client(&record.host)?;
        let body = AgentPatch { idle_timeout_seconds: idle };
        let call = endpoints::PatchSandbox::new(record.id.clone());
        client.call(call, options_for(&record, MOVE_WAIT), &body).await?;
    }
    let on_timeout = request.on_timeout.unwrap_or(spec.on_timeout);
    let checkpoints = request.checkpoints.or(spec.checkpoints).filter(|wanted| wanted.every_seconds > 0);
    let amendment = Amendment::Lifecycle {
        ttl_seconds,
        persistent,
        idle_timeout_seconds,
        idle_given,
        checkpoints,
        on_timeout,
        expires_at,
    };
    Ok(sandboxes.amend(&record.id, &amendment).await?)
}
