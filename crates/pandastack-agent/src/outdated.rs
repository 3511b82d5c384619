//! Verdicts of control on outdated states, and what they mean for a use.
//!
//! The verdict on a sleeping sandbox is in its record, because a sandbox wakes without a question to
//! control. It stays across sleeps, so that a sandbox that wakes daily does not put the end of its
//! grace off. The verdict on a snapshot is a file beside its manifest. [`crate::frozen`] lists and
//! writes them.

use std::path::Path;

use jiff::Timestamp;
use pandastack_types::agent_api::{OutdatedVerdict, Source};
use pandastack_types::api::OutdatedAction;

use crate::blocking::blocking;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::layout::snapshot as names;
use crate::record::read_json;

/// The verdict on a snapshot.
pub(crate) fn verdict(dir: &Path) -> Option<OutdatedVerdict> {
    read_json(&dir.join(names::OUTDATED)).ok()
}

/// The refusal of an outdated state.
pub(crate) fn refusal(verdict: &OutdatedVerdict) -> AgentError {
    AgentError::Outdated(verdict.reason.clone())
}

/// Refuses a snapshot with a due verdict, for uses that need its memory.
pub(crate) fn refuse_due(dir: &Path) -> Result<()> {
    match verdict(dir).filter(|verdict| verdict.is_due(Timestamp::now())) {
        Some(verdict) => Err(refusal(&verdict)),
        None => Ok(()),
    }
}

/// Returns whether a new sandbox must boot from the disk of its source. Refuses a source that must not
/// be used.
pub(crate) async fn must_boot(host: &HostResources, source: &Source) -> Result<bool> {
    let Source::Snapshot(id) = source else { return Ok(false) };
    let dir = host.layout.snapshot(id);
    let verdict = blocking(move || Ok::<_, AgentError>(verdict(&dir))).await?;
    match verdict.filter(|verdict| verdict.is_due(Timestamp::now())) {
        Some(verdict) if verdict.action == OutdatedAction::Refuse => Err(refusal(&verdict)),
        due => Ok(due.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::record::write_json;

    fn verdict_from(from: Timestamp, action: OutdatedAction) -> OutdatedVerdict {
        OutdatedVerdict { reported_at: from, from, action, reason: "the snapshot is outdated".to_owned() }
    }

    #[test]
    fn an_outdated_verdict_applies_from_its_effective_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refuse_due(dir.path()).is_ok(), "there is none");
        let hour = SignedDuration::from_hours(1);
        let write = |verdict| write_json(&dir.path().join(names::OUTDATED), &verdict).unwrap();
        write(verdict_from(Timestamp::now() + hour, OutdatedAction::Refuse));
        assert!(refuse_due(dir.path()).is_ok(), "its time has not come");
        write(verdict_from(Timestamp::now() - hour, OutdatedAction::Keep));
        assert!(refuse_due(dir.path()).is_ok(), "it keeps the state");
        for action in [OutdatedAction::Refuse, OutdatedAction::ColdRestart] {
            write(verdict_from(Timestamp::now() - hour, action));
            let refused = refuse_due(dir.path()).unwrap_err();
            assert_eq!(refused.to_string(), "the snapshot is outdated", "{action:?}");
        }
    }
}
