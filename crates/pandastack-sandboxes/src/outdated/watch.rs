//! Applies the policy: notifies owners, and sends agents their verdicts.

use std::sync::Arc;

use jiff::Timestamp;
use pandastack_agent_client::CallOptions;
use pandastack_store::clock::now;
use pandastack_store::{Amendment, StoreError};
use pandastack_types::agent_api::{OutdatedVerdict, OutdatedVerdicts, endpoints};
use pandastack_types::api::{OutdatedAction, OutdatedComponent, SnapshotKind};
use pandastack_types::{Owner, Result, SandboxId, chain};
use tokio::time::MissedTickBehavior;

use super::OutdatedPolicy;
use super::list::{next_step, sentence};
use super::survey::{HostStates, Subject, SurveyEntry, hosts, of_workspace};
use crate::Sandboxes;
use crate::ops::MOVE_WAIT;

/// Verdicts in one request to a host.
const VERDICTS_AT_ONCE: usize = 1000;

/// Checks all frozen states until shutdown.
pub async fn watch(sandboxes: Arc<Sandboxes>, policy: OutdatedPolicy) {
    let mut every = tokio::time::interval(policy.check_every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let shutdown = sandboxes.background.shutdown.clone();
    while shutdown.run_until_cancelled(every.tick()).await.is_some() {
        if let Err(error) = check(&sandboxes, &policy).await {
            tracing::warn!(error = %chain(&error), "cannot check frozen states; retrying later");
        }
    }
}

async fn check(sandboxes: &Sandboxes, policy: &OutdatedPolicy) -> Result<()> {
    let advisories = policy.advisories();
    let (hosts, _) = hosts(sandboxes).await;
    let mut new: Vec<(&HostStates, OutdatedVerdicts)> =
        hosts.iter().map(|host| (host, OutdatedVerdicts::default())).collect();
    for workspace in sandboxes.store.workspaces().await? {
        for surveyed in of_workspace(sandboxes, &hosts, &workspace.id, &advisories).await? {
            let wanted = verdict(&surveyed, policy, now());
            if wanted == surveyed.verdict {
                continue;
            }
            if let (Some(verdict), None) = (&wanted, &surveyed.verdict) {
                record_event(sandboxes, &surveyed.subject, verdict).await?;
            }
            let Some((_, verdicts)) = new.iter_mut().find(|(host, _)| host.host == surveyed.host) else {
                continue;
            };
            match surveyed.subject {
                Subject::Sandbox(record) => verdicts.sandboxes.push((record.id, wanted)),
                Subject::Snapshot(record, _) => verdicts.snapshots.push((record.id, wanted)),
                Subject::Bake(_) => {}
            }
        }
    }
    for (host, verdicts) in new {
        for part in parts(&verdicts) {
            let options = CallOptions::on_host(MOVE_WAIT);
            if let Err(error) = host.client.call(endpoints::SetVerdicts::new(), options, &part).await {
                tracing::warn!(host = %host.host, error = %chain(&error), "cannot set verdicts on a host");
            }
        }
    }
    Ok(())
}

/// Verdicts in parts that fit into a request.
fn parts(verdicts: &OutdatedVerdicts) -> Vec<OutdatedVerdicts> {
    let sandboxes = verdicts.sandboxes.chunks(VERDICTS_AT_ONCE);
    let sandboxes =
        sandboxes.map(|part| OutdatedVerdicts { sandboxes: part.to_vec(), ..OutdatedVerdicts::default() });
    let snapshots = verdicts.snapshots.chunks(VERDICTS_AT_ONCE);
    let snapshots =
        snapshots.map(|part| OutdatedVerdicts { snapshots: part.to_vec(), ..OutdatedVerdicts::default() });
    sandboxes.chain(snapshots).collect()
}

/// The verdict that a state shall have.
fn verdict(surveyed: &SurveyEntry, policy: &OutdatedPolicy, now: Timestamp) -> Option<OutdatedVerdict> {
    let SurveyEntry { subject, components, verdict, .. } = surveyed;
    let is_named = |outdated: &OutdatedComponent| !outdated.advisories.is_empty();
    let applies = match policy.only_advisories {
        true => components.iter().any(is_named),
        false => !components.is_empty(),
    };
    if !applies || policy.action == OutdatedAction::Keep || !is_subject_to_policy(subject) {
        return None;
    }
    let reported_at = verdict.as_ref().map_or(now, |verdict| verdict.reported_at);
    Some(OutdatedVerdict {
        reported_at,
        from: reported_at.checked_add(policy.grace()).unwrap_or(Timestamp::MAX),
        action: policy.action,
        reason: format!("{}; {}", sentence(subject, components), next_step(subject, components, true)),
    })
}

/// Services replace their own machines, which booting alone would not restore. Versions of
/// templates belong to their builds.
fn is_subject_to_policy(subject: &Subject) -> bool {
    match subject {
        Subject::Sandbox(record) => record.owner.is_none(),
        Subject::Snapshot(record, _) => match subject.owner() {
            None => record.spec.kind != SnapshotKind::Service,
            Some(owner) => matches!(owner, Owner::Build(_)),
        },
        Subject::Bake(_) => false,
    }
}

/// Notifies the owner by an event of the sandbox; for a snapshot, of its source sandbox, if that
/// still exists.
async fn record_event(sandboxes: &Sandboxes, subject: &Subject, verdict: &OutdatedVerdict) -> Result<()> {
    let sandbox: &SandboxId = match subject {
        Subject::Sandbox(record) => &record.id,
        Subject::Snapshot(record, _) => &record.sandbox,
        Subject::Bake(_) => return Ok(()),
    };
    let action = match verdict.action {
        OutdatedAction::Keep => return Ok(()),
        OutdatedAction::Refuse => "it cannot be used",
        OutdatedAction::ColdRestart => "it starts from its disk, without its memory",
    };
    let detail =
        format!("from {} on, {action}: {}", verdict.from.strftime("%Y-%m-%dT%H:%M:%SZ"), verdict.reason);
    match sandboxes.amend(sandbox, &Amendment::Outdated { detail }).await {
        Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
