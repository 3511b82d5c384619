//! Reconciles a host's report with the records.
//!
//! Reports are complete, so one comparison suffices and a lost report is made good by the next. Rules:
//! - A host's view of a state wins over the record's, unless the record changed after the report was made.
//! - Absence from a report proves nothing by itself (it may be old, clocks may differ): before a
//!   sandbox is given up, its host is asked about it by name.
//! - A sandbox that the host has without a record was deleted, or its create never finished: the
//!   host deletes it.
//! - Rows that a replica is working on are left to that work. Operations in progress are read
//!   before the rows, so that an operation that finishes in between shows in the rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pandastack_store::clock::now;
use pandastack_store::{Amendment, Change, SandboxRecord, Select, StoreError};
use pandastack_types::agent_api::{AgentSandbox, HostReport, ReportAnswer, Usage};
use pandastack_types::{Result, SandboxId, SandboxState, SnapshotId, Transition, chain};

use crate::Sandboxes;
use crate::checkpoint;
use crate::in_flight::{Marks, OperationKey};
use crate::ops;
use crate::ops::lifecycle::{settle, towards};

/// The findings of a reconciliation.
#[derive(Debug, Default)]
struct Findings {
    /// Rows whose state or address differs from the host's report.
    changed: Vec<(SandboxRecord, AgentSandbox)>,
    /// Rows that need a query to the host: absent from the report, or left in `creating` or
    /// `stopping`.
    doubtful: Vec<SandboxRecord>,
    /// Sandboxes that the host must remove.
    unknown: Vec<SandboxId>,
    /// Snapshots that the host shall remove.
    unknown_snapshots: Vec<SnapshotId>,
    /// Rows that want checkpoints.
    checkpointed: Vec<SandboxRecord>,
    /// Totals of sandboxes that have a row.
    usage: Vec<(SandboxId, Usage)>,
}

impl Findings {
    /// Returns whether the report contains anything but usage.
    fn need_work(&self) -> bool {
        !(self.changed.is_empty()
            && self.doubtful.is_empty()
            && self.unknown.is_empty()
            && self.unknown_snapshots.is_empty())
    }
}

/// Processes a report; returns the resources that the host must delete.
pub async fn take(sandboxes: &Arc<Sandboxes>, report: HostReport) -> Result<ReportAnswer> {
    let record = sandboxes.hosts.record_report(report.clone(), now())?;
    sandboxes.store.put_host(&record).await?;
    note_denials(sandboxes, &report).await?;
    let mut findings = find(sandboxes, &report, &sandboxes.marks()).await?;
    if findings.need_work() {
        findings = match sandboxes.marks_of_all().await {
            Ok(marks) => find(sandboxes, &report, &marks).await?,
            Err(error) => {
                tracing::warn!(
                    error = %chain(&error),
                    "cannot get the operations in progress of another server; skipping reconciliation"
                );
                Findings { checkpointed: findings.checkpointed, usage: findings.usage, ..Findings::default() }
            }
        };
    }
    checkpoint::take_due(sandboxes, &findings.checkpointed, &report).await?;
    for (row, seen) in findings.changed {
        if let Err(error) = settle(sandboxes, &row, seen, Change::at(now())).await {
            tracing::warn!(sandbox = %row.id, error = %chain(&error), "cannot record a report");
        }
    }
    if sandboxes.usage_clock.is_due(&report.host) {
        sandboxes.store.record_usage(&findings.usage, now()).await?;
    }
    if !findings.doubtful.is_empty() {
        let own = Arc::clone(sandboxes);
        sandboxes.background.tasks.spawn(async move {
            for row in findings.doubtful {
                resolve(&own, row).await;
            }
        });
    }
    crate::volumes::reconcile::take(sandboxes, &report).await?;
    crate::suspended::stop_reported(sandboxes, &report).await?;
    Ok(ReportAnswer {
        forget_sandboxes: findings.unknown,
        forget_snapshots: findings.unknown_snapshots,
        shared: sandboxes.is_shared().await?,
        ..ReportAnswer::default()
    })
}

async fn note_denials(sandboxes: &Sandboxes, report: &HostReport) -> Result<()> {
    for denial in &report.denials {
        let denied = Amendment::EgressDenied { detail: denial.sentence(), count: denial.count };
        match sandboxes.amend(&denial.sandbox, &denied).await {
            Ok(_) => drop(sandboxes.egress_denied.fetch_add(denial.count, Ordering::Relaxed)),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Compares a report with the records, given the operations in progress.
async fn find(sandboxes: &Sandboxes, report: &HostReport, marks: &Marks) -> Result<Findings> {
    let rows = sandboxes.store.sandboxes(&Select::Host(report.host.clone())).await?;
    let checkpointed = rows.iter().filter(|row| row.spec.checkpoints.is_some()).cloned().collect();
    let compared = compare(rows, report, |id| marks.contains(&OperationKey::Sandbox(id.clone())));
    let mut findings = Findings { checkpointed, ..compared };
    let known: HashSet<_> = sandboxes.store.snapshot_ids(&report.host).await?.into_iter().collect();
    let forgotten =
        |id: &&SnapshotId| !known.contains(*id) && !marks.contains(&OperationKey::Snapshot((*id).clone()));
    findings.unknown_snapshots = report.snapshots.iter().filter(forgotten).cloned().collect();
    Ok(findings)
}

fn compare(
    rows: Vec<SandboxRecord>,
    report: &HostReport,
    in_flight: impl Fn(&SandboxId) -> bool,
) -> Findings {
    let mut seen: HashMap<_, _> = report.sandboxes.iter().map(|seen| (seen.id.clone(), seen)).collect();
    let mut findings = Findings::default();
    for row in rows {
        let seen = seen.remove(&row.id).filter(|seen| seen.incarnation == row.incarnation);
        if in_flight(&row.id) {
            continue;
        }
        if let Some(seen) = seen {
            findings.usage.push((row.id.clone(), seen.usage));
        }
        match (row.state, seen) {
            (SandboxState::Creating | SandboxState::Stopping, _) => findings.doubtful.push(row),
            (SandboxState::Failed | SandboxState::Deleted, _) => {}
            (_, None) => findings.doubtful.push(row),
            (state, Some(seen)) => {
                let moved = towards(state, seen.state).is_some();
                let placed = seen.residency != row.spec.residency || seen.guest_ip != row.spec.guest_ip;
                if report.at >= row.changed_at && (moved || (placed && state == seen.state)) {
                    findings.changed.push((row, seen.clone()));
                }
            }
        }
    }
    findings.unknown = seen.into_keys().filter(|id| !in_flight(id)).collect();
    findings
}

/// Queries a host for one sandbox and updates its row. Safe to repeat.
async fn resolve(sandboxes: &Sandboxes, row: SandboxRecord) {
    if row.state == SandboxState::Stopping {
        if let Err(error) = ops::delete::finish_unless_begun(sandboxes, &row).await {
            tracing::warn!(
                sandbox = %row.id, error = %chain(&error),
                "cannot delete; retrying at the next report"
            );
        }
        return;
    }
    let Some(_marked) = sandboxes.background.mark(&OperationKey::Sandbox(row.id.clone())) else { return };
    let Ok(client) = sandboxes.hosts.client(&row.host) else { return };
    let seen = match ops::describe(&client, &row).await {
        Ok(seen) => Some(seen),
        Err(error) if error.is_absent() => None,
        // Without an answer, nothing is known.
        Err(_) => return,
    };
    let result = match (row.state, seen) {
        (SandboxState::Creating, Some(seen)) if seen.state == SandboxState::Creating => return,
        (SandboxState::Creating, Some(seen)) if seen.state.is_live() => {
            let change = Change::at(now()).with_observed(seen).because("completed after a server restart");
            sandboxes.transition(&row.id, Transition::Created, &change).await
        }
        (SandboxState::Creating, _) => {
            let why = "the server stopped while creating the sandbox";
            return ops::create::undo(sandboxes, &row, Some(&client), why).await;
        }
        (_, Some(_)) => return,
        (_, None) => {
            let why = format!("host `{}` no longer has this sandbox; the host may have restarted", row.host);
            sandboxes.transition(&row.id, Transition::Lost, &Change::at(now()).because(why)).await
        }
    };
    if let Err(error) = result {
        tracing::warn!(
            sandbox = %row.id, error = %chain(&error),
            "cannot reconcile a sandbox; retrying at the next report"
        );
    }
}
