//! Verifies the hash chain of the stored audit log, a stretch per call.

use pandastack_store::{self as store, Store};
use pandastack_types::api::AuditVerification;
use pandastack_types::audit::{ChainBreak, ChainCheck};
use pandastack_types::limits::AUDIT_VERIFY_MAX;

/// Entries read at once.
const PAGE: u32 = 1000;

/// Checks entries after an id, or from the oldest on: at most [`AUDIT_VERIFY_MAX`].
pub(crate) async fn verify(store: &dyn Store, after: Option<i64>) -> store::Result<AuditVerification> {
    // Read first, so that entries written during the check are not reported as missing.
    let ends = store.audit_ends().await?;
    let (mut last, before) = match after {
        None => (0, Some(ends.pruned)),
        // Read the entry itself for its hash. A missing entry was pruned, so any entry may follow.
        Some(after) => {
            let one = store.audit_lines(after.saturating_sub(1), 1).await?;
            (after, one.into_iter().find(|line| line.entry.id == after).map(|line| line.hash))
        }
    };
    let mut has_head = before.as_ref() == Some(&ends.head);
    let mut check = ChainCheck::after(before);
    let (mut first, mut problem) = (None, None);
    let next = 'entries: loop {
        let lines = store.audit_lines(last, PAGE).await?;
        for line in &lines {
            first.get_or_insert((line.entry.id, line.entry.at));
            if let Err(broken) = check.check(line) {
                problem = Some(broken);
                break 'entries None;
            }
            has_head |= line.hash == ends.head;
            last = line.entry.id;
        }
        if lines.len() < PAGE as usize {
            break None;
        }
        if check.checked() >= AUDIT_VERIFY_MAX {
            break Some(last);
        }
    };
    if problem.is_none() && next.is_none() && !has_head {
        problem = Some(ChainBreak::Cut { head: ends.head });
    }
    Ok(AuditVerification {
        checked: check.checked(),
        first: first.map(|(id, _)| id),
        since: first.map(|(_, at)| at),
        head: check.head().unwrap_or_default().to_owned(),
        next,
        problem: problem.map(|broken| broken.to_string()),
    })
}
