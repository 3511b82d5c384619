//! Volumes: requirements on every store; listed in `main.rs`.

use pandastack_store::volumes::{VolumeRecord, VolumeSpecRecord, VolumeState};
use pandastack_store::*;
use pandastack_types::api::AttachedVolume;
use pandastack_types::{SandboxId, Transition, VolumeId};

use super::{new_sandbox, now, ws};

pub(super) fn new_volume(name: &str) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId::random(),
        workspace: ws(),
        name: name.to_owned(),
        host: "host-a".parse().unwrap(),
        state: VolumeState::Creating,
        generation: 0,
        created_at: now(),
        spec: VolumeSpecRecord { size_bytes: 1 << 30, ..VolumeSpecRecord::default() },
    }
}

/// Tries to make a sandbox with the volume at that generation.
async fn attach(
    store: &dyn Store,
    volume: &VolumeRecord,
    read_only: bool,
    generation: u64,
) -> Result<SandboxId> {
    let mut record = new_sandbox();
    record.spec.volumes = vec![AttachedVolume {
        id: volume.id.clone(),
        name: volume.name.clone(),
        path: "/data".to_owned(),
        read_only,
        generation,
    }];
    store.insert_sandboxes(std::slice::from_ref(&record), None).await?;
    Ok(record.id)
}

async fn delete(store: &dyn Store, id: &SandboxId) {
    for transition in [Transition::Lost, Transition::Deleting, Transition::Deleted] {
        store.transition(id, transition, &Change::at(now())).await.unwrap();
    }
}

#[track_caller]
fn is_held(result: Result<SandboxId>, holder: &SandboxId) {
    match result {
        Err(StoreError::Held(message)) => assert!(message.contains(holder.as_str()), "{message}"),
        other => panic!("{other:?}"),
    }
}

pub(super) async fn a_volume_has_one_writer_or_readers(store: &dyn Store) {
    let volume = new_volume("data");
    store.insert_volumes(std::slice::from_ref(&volume)).await.unwrap();
    assert!(attach(store, &volume, false, 1).await.is_err(), "it is not ready");
    store.update_volume(&volume.id, &volume.spec).await.unwrap();

    let writer = attach(store, &volume, false, 1).await.unwrap();
    is_held(attach(store, &volume, false, 2).await, &writer);
    is_held(attach(store, &volume, true, 1).await, &writer);
    let holders = store.volume_holders(&ws()).await.unwrap();
    assert_eq!(holders.iter().map(|holder| &holder.sandbox).collect::<Vec<_>>(), [&writer]);
    // A refused sandbox leaves no row.
    assert_eq!(store.sandboxes(&Select::Workspace(ws())).await.unwrap().len(), 1);

    // The hold ends with the row of the sandbox, and not before.
    store.transition(&writer, Transition::Lost, &Change::at(now())).await.unwrap();
    is_held(attach(store, &volume, false, 2).await, &writer);
    for transition in [Transition::Deleting, Transition::Deleted] {
        store.transition(&writer, transition, &Change::at(now())).await.unwrap();
    }
    assert!(store.volume_holders(&ws()).await.unwrap().is_empty());

    let stale = attach(store, &volume, false, 1).await;
    assert!(matches!(stale, Err(StoreError::Held(_))), "a generation is used once: {stale:?}");
    let readers =
        [attach(store, &volume, true, 1).await.unwrap(), attach(store, &volume, true, 1).await.unwrap()];
    assert!(attach(store, &volume, false, 2).await.is_err());
    for reader in &readers {
        delete(store, reader).await;
    }
    attach(store, &volume, false, 2).await.unwrap();
    assert_eq!(store.volume(&ws(), "data").await.unwrap().generation, 2);
}

pub(super) async fn a_volume_is_deleted_in_two_steps(store: &dyn Store) {
    let volume = new_volume("data");
    store.insert_volumes(std::slice::from_ref(&volume)).await.unwrap();
    assert!(store.insert_volumes(&[new_volume("data")]).await.is_err(), "the name is taken");
    store.update_volume(&volume.id, &volume.spec).await.unwrap();
    let holder = attach(store, &volume, true, 0).await.unwrap();
    assert!(matches!(store.delete_volume(&volume.id).await, Err(StoreError::Held(_))));
    delete(store, &holder).await;

    // A ready volume is never removed: it must be marked as deleting first.
    store.remove_volume(&volume.id).await.unwrap();
    assert_eq!(store.volumes(&ws()).await.unwrap().len(), 1);
    store.delete_volume(&volume.id).await.unwrap();
    assert!(matches!(store.volume(&ws(), "data").await, Err(StoreError::NotFound { .. })));
    store.update_volume(&volume.id, &volume.spec).await.unwrap();
    let on_host = store.volumes_on(&volume.host).await.unwrap();
    assert_eq!(on_host.iter().map(|volume| volume.state).collect::<Vec<_>>(), [VolumeState::Deleting]);
    store.remove_volume(&volume.id).await.unwrap();
    assert!(store.volumes_on(&volume.host).await.unwrap().is_empty());
    store.insert_volumes(&[new_volume("data")]).await.unwrap();
}
