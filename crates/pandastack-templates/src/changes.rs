//! The report of a rebuild: what differs from the version that it repeats.
//!
//! Both versions run for it once more, each in a machine that only reads a file. A report that cannot be made
//! does not fail the build.

use std::time::Duration;

use http_body_util::BodyExt;
use pandastack_sandboxes::machine::Machine;
use pandastack_store::templates::BuildRecord;
use pandastack_types::api::TemplateChanges;
use pandastack_types::{Error, Result, SnapshotId};
use tokio::time::Instant;

use crate::build::Built;
use crate::log::Log;
use crate::machines::{self, Origin};
use crate::packages::{self, Packages, StatusReader};
use crate::service::Templates;

/// Longest time for comparing the packages.
const COMPARE_WAIT: Duration = Duration::from_secs(120);
/// Longest status file of dpkg that is read. That of a desktop has some MiB.
const STATUS_BYTES_MAX: u64 = 32 << 20;

/// Changes by a build, compared by `deadline`; `None` if it repeats no other.
pub(crate) async fn report(
    templates: &Templates,
    build: &BuildRecord,
    built: &Built,
    log: &Log,
    deadline: Instant,
) -> Result<Option<TemplateChanges>> {
    let Some(previous) = &build.spec.rebuild_of else { return Ok(None) };
    let before = match templates.store.build(&build.workspace, previous).await.map_err(Error::from) {
        Ok(before) => before,
        Err(error) => {
            log.write(&format!("the version that was rebuilt is gone: {}", error.message)).await;
            return Ok(None);
        }
    };
    let size_bytes_after =
        templates.machines.snapshot(&build.workspace, &built.snapshot).await?.spec.size_bytes;
    let mut changes = TemplateChanges {
        previous_build_id: previous.clone(),
        base: built.base.clone(),
        base_before: before.spec.base_digest,
        base_after: built.base_digest.clone(),
        size_bytes_before: before.spec.size_bytes,
        size_bytes_after,
        packages: None,
        packages_omitted: 0,
    };
    let compared = async {
        let Some(snapshot) = &before.spec.snapshot else { return Ok(None) };
        let older = installed(templates, build, snapshot).await?;
        let newer = installed(templates, build, &built.snapshot).await?;
        let both = older.is_some() || newer.is_some();
        Ok(both.then(|| packages::compare(&older.unwrap_or_default(), &newer.unwrap_or_default())))
    };
    let late = || Error::conflict("that takes too long");
    // A version that is built does not fail for lack of its report.
    let until = deadline.min(Instant::now() + COMPARE_WAIT);
    match tokio::time::timeout_at(until, compared).await.unwrap_or_else(|_| Err(late())) {
        Ok(Some((packages, omitted))) => {
            (changes.packages, changes.packages_omitted) = (Some(packages), omitted);
        }
        Ok(None) => {}
        Err(error) => {
            log.write(&format!("the packages of both versions cannot be compared: {}", error.message)).await;
        }
    }
    log.write(&format!("changes: {changes}")).await;
    Ok(Some(changes))
}

/// Packages of a version; `None` if it has no dpkg.
async fn installed(
    templates: &Templates,
    build: &BuildRecord,
    snapshot: &SnapshotId,
) -> Result<Option<Packages>> {
    let origin = Origin::Snapshot(snapshot.clone());
    let machine = machines::create(templates, build, &origin, "packages").await?;
    let found = read(&machine).await;
    templates.machines.delete(machine.record, Some("its packages are known")).await?;
    found
}

async fn read(machine: &Machine) -> Result<Option<Packages>> {
    let Some(entry) = machine.stat(packages::STATUS).await? else { return Ok(None) };
    if entry.size > STATUS_BYTES_MAX {
        let message = format!("{} has more than {STATUS_BYTES_MAX} bytes", packages::STATUS);
        return Err(Error::bad_request(message));
    }
    let mut content = machine.read(packages::STATUS).await?;
    let (mut reader, mut left) = (StatusReader::default(), STATUS_BYTES_MAX);
    while let Some(frame) = content.frame().await {
        let Ok(piece) = frame.map_err(Error::internal)?.into_data() else { continue };
        // The file can grow, and some have no size.
        left = left.saturating_sub(piece.len() as u64);
        if left == 0 {
            break;
        }
        reader.push(&piece);
    }
    Ok(Some(reader.finish()))
}
