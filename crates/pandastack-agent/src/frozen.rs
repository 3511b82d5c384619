//! Frozen states of this host: their components, and the verdicts on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_image::Kernel;
use pandastack_types::agent_api::{
    FrozenSandbox, FrozenSnapshot, FrozenTemplate, HostFrozen, OutdatedVerdicts,
};

use crate::blocking::blocking;
use crate::components;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::host_resources::HostResources;
use crate::layout::{Layout, snapshot as names};
use crate::outdated;
use crate::record::{SandboxRecord, read_json, write_json_durably};
use crate::snapshot::Manifest;

/// Everything frozen on this host.
pub(crate) async fn list(host: &Arc<Host>) -> Result<HostFrozen> {
    let host = host.resources.clone();
    blocking(move || Ok::<_, AgentError>(read_all(&host))).await
}

/// Lists everything frozen. Unreadable entries are skipped: they cannot be used either.
fn read_all(host: &HostResources) -> HostFrozen {
    let layout = &host.layout;
    let kernel = Kernel::cached(&host.config.cache_dir).map(|kernel| kernel.release);
    HostFrozen {
        current: components::booted(host, kernel),
        sandboxes: entries(&layout.sandboxes()).filter_map(|dir| sleeper(layout, &dir)).collect(),
        snapshots: entries(&layout.snapshots()).filter_map(|dir| snapshot(&dir)).collect(),
        templates: entries(&layout.templates("")).flat_map(|dir| bakes(&dir)).collect(),
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// A sandbox that sleeps with its memory; `None` for one that kept only its disk, which boots with
/// current components.
fn sleeper(layout: &Layout, dir: &Path) -> Option<FrozenSandbox> {
    let id = dir.file_name()?.to_str()?.parse().ok()?;
    let record: SandboxRecord = read_json(&layout.record(&id)).ok()?;
    let components = if record.sleeps_on_disk() {
        let manifest: Manifest = read_json(&layout.sleep(&id).join(names::MANIFEST)).ok()?;
        (!manifest.disk_only).then_some(manifest.components)?
    } else if record.sleeps_in_memory() {
        record.components
    } else {
        return None;
    };
    Some(FrozenSandbox { id, components, verdict: record.outdated })
}

fn snapshot(dir: &Path) -> Option<FrozenSnapshot> {
    let id = dir.file_name()?.to_str()?.parse().ok()?;
    let manifest: Manifest = read_json(&dir.join(names::MANIFEST)).ok()?;
    Some(FrozenSnapshot { id, components: manifest.components, verdict: outdated::verdict(dir) })
}

fn bakes(dir: &Path) -> Vec<FrozenTemplate> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let manifests = entries(dir).filter_map(|bake| read_json::<Manifest>(&bake.join(names::MANIFEST)).ok());
    manifests.map(|manifest| FrozenTemplate { name: name.clone(), components: manifest.components }).collect()
}

/// Stores new verdicts. States that no longer exist are skipped.
pub(crate) async fn set_verdicts(host: &Arc<Host>, verdicts: OutdatedVerdicts) -> Result<()> {
    for (id, verdict) in verdicts.sandboxes {
        match host.sandbox(&id) {
            Ok(handle) => match handle.set_verdict(verdict).await {
                Err(AgentError::NoSandbox(_)) => {}
                kept => kept?,
            },
            Err(_) => continue,
        }
    }
    let layout = host.layout.clone();
    blocking(move || {
        for (id, verdict) in verdicts.snapshots {
            let dir = layout.snapshot(&id);
            let path = dir.join(names::OUTDATED);
            match verdict {
                _ if !dir.exists() => {}
                Some(verdict) => write_json_durably(&path, &verdict)?,
                None => match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(AgentError::io("remove", &path)(error));
                    }
                    _ => {}
                },
            }
        }
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use pandastack_types::SandboxState;
    use pandastack_types::agent_api::Components;

    use super::*;
    use crate::record::tests::record_in;
    use crate::record::write_json;

    fn manifest(kernel: &str, disk_only: bool) -> serde_json::Value {
        serde_json::json!({
            "template": "base", "shape": {"vcpus": 1, "memory_mib": 512}, "compatibility_key": "k",
            "sandbox": null, "uid": null, "state_bytes": 0, "memory_bytes_written": 0, "created_at": "2026-01-01T00:00:00Z",
            "kernel": kernel, "guest": {"version": "0.0.1", "build": "b"}, "disk_only": disk_only,
        })
    }

    #[test]
    fn hibernated_sandboxes_are_listed_with_their_frozen_components() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path(), dir.path());
        let asleep = |disk_only: bool| {
            let mut record = record_in(SandboxState::Hibernated);
            // Components of the last running machine; the list must show those of the snapshot on
            // disk.
            record.components = Components { kernel: Some("newer".to_owned()), ..Components::default() };
            let id = record.spec.id.clone();
            std::fs::create_dir_all(layout.sleep(&id)).unwrap();
            write_json(&layout.sleep(&id).join(names::MANIFEST), &manifest("older", disk_only)).unwrap();
            write_json(&layout.record(&id), &record).unwrap();
            layout.sandbox(&id)
        };
        let found = sleeper(&layout, &asleep(false)).unwrap();
        assert_eq!(found.components.kernel.as_deref(), Some("older"));
        assert_eq!(found.components.guest.unwrap().version, "0.0.1");
        assert_eq!(sleeper(&layout, &asleep(true)), None, "it boots with what is current");
    }
}
