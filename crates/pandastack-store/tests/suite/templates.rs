//! Templates, builds, tags, logs and layers.

use pandastack_store::templates::{
    BuildRecord, BuildSpec, BuildState, LATEST, LayerRecord, TagRecord, TemplateRecord, TemplateSpec,
};
use pandastack_store::workspaces::WorkspaceMove;
use pandastack_store::*;
use pandastack_types::api::{ImageConfig, TemplateSharing};
use pandastack_types::limits::TEMPLATE_BUILDS_IN_PROGRESS_MAX;
use pandastack_types::{BuildId, SnapshotId, TemplateId, WorkspaceId};

use super::{now, ws};

pub(super) fn template(name: &str) -> TemplateRecord {
    let spec = TemplateSpec { description: "first".into() };
    TemplateRecord { id: TemplateId::random(), workspace: ws(), name: name.into(), created_at: now(), spec }
}

pub(super) fn build(of: &TemplateRecord, state: BuildState) -> BuildRecord {
    let spec = BuildSpec { name: of.name.clone(), phase: "x".into(), ..BuildSpec::default() };
    let (workspace, template) = (of.workspace.clone(), of.id.clone());
    BuildRecord { id: BuildId::random(), workspace, template, state, created_at: now(), spec }
}

pub(super) async fn a_build_becomes_what_its_tags_mean(store: &dyn Store) {
    let mine = store.ensure_template(&template("mine")).await.unwrap();
    assert_eq!(store.ensure_template(&template("mine")).await.unwrap(), mine, "the first one stays");
    let other: WorkspaceId = "other".parse().unwrap();
    assert_eq!(store.template(&other, "mine").await.unwrap(), None);
    let mut first = build(&mine, BuildState::Queued);
    store.insert_build(&first).await.unwrap();
    assert!(store.build(&other, &first.id).await.is_err());
    assert_eq!(store.builds_in_progress().await.unwrap(), [first.clone()]);
    first.state = BuildState::Running;
    assert!(store.put_build(&first, BuildState::Queued).await.unwrap());
    assert!(!store.put_build(&first, BuildState::Queued).await.unwrap(), "it is not queued any more");
    first.state = BuildState::Done;
    first.spec.snapshot = Some(SnapshotId::random());
    let tags = ["v1".to_owned()];
    assert!(!store.publish_build(&first, BuildState::Queued, &tags).await.unwrap());
    assert_eq!(store.tagged_build(&mine.id, LATEST).await.unwrap(), None, "nothing was published");
    assert!(store.publish_build(&first, BuildState::Running, &tags).await.unwrap());
    let taken = first.spec.snapshot.clone().unwrap();
    assert_eq!(store.template_of_snapshot(&ws(), &taken).await.unwrap().as_deref(), Some("mine"));
    assert_eq!(store.template_of_snapshot(&other, &taken).await.unwrap(), None);
    let second = build(&mine, BuildState::Running);
    store.insert_build(&second).await.unwrap();
    let done = BuildRecord { state: BuildState::Done, ..second };
    assert!(store.publish_build(&done, BuildState::Running, &[]).await.unwrap());
    assert_eq!(store.tagged_build(&mine.id, LATEST).await.unwrap(), Some(done.clone()));
    assert_eq!(store.tagged_build(&mine.id, "v1").await.unwrap(), Some(first.clone()));
    let mut aside = build(&mine, BuildState::Running);
    aside.spec.request.keep_latest = true;
    store.insert_build(&aside).await.unwrap();
    aside.state = BuildState::Done;
    assert!(store.publish_build(&aside, BuildState::Running, &["aside".to_owned()]).await.unwrap());
    assert_eq!(store.tagged_build(&mine.id, "aside").await.unwrap(), Some(aside.clone()));
    assert_eq!(store.tagged_build(&mine.id, LATEST).await.unwrap(), Some(done.clone()), "it stays");
    store.delete_build(&aside.id).await.unwrap();
    let back = TagRecord {
        template: mine.id.clone(),
        tag: LATEST.into(),
        build: first.id.clone(),
        created_at: now(),
    };
    store.set_tags(&[back]).await.unwrap();
    assert_eq!(store.tagged_build(&mine.id, LATEST).await.unwrap(), Some(first.clone()));
    assert!(
        store.delete_tag(&mine.id, "v1").await.unwrap() && !store.delete_tag(&mine.id, "v1").await.unwrap()
    );
    assert!(store.builds_in_progress().await.unwrap().is_empty());
    store.delete_template(&mine.id).await.unwrap();
    assert!(
        store.templates(&ws()).await.unwrap().is_empty() && store.builds(&ws()).await.unwrap().is_empty()
    );
    assert!(store.tags(&mine.id).await.unwrap().is_empty());
}

pub(super) async fn a_rebuild_takes_the_tags_that_still_mean_its_version(store: &dyn Store) {
    let mine = store.ensure_template(&template("mine")).await.unwrap();
    let publish = async |rebuild_of: Option<&BuildRecord>, tags: &[&str]| {
        let mut one = build(&mine, BuildState::Running);
        one.spec.rebuild_of = rebuild_of.map(|before| before.id.clone());
        store.insert_build(&one).await.unwrap();
        one.state = BuildState::Done;
        one.spec.files = Some(SnapshotId::random());
        let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        assert!(store.publish_build(&one, BuildState::Running, &tags).await.unwrap());
        one
    };
    let meant = async |tag: &str| store.tagged_build(&mine.id, tag).await.unwrap().map(|one| one.id);
    let first = publish(None, &["v1", "old"]).await;
    let other = publish(None, &["old"]).await;
    let again = publish(Some(&first), &["v1", "old", "gone"]).await;
    assert_eq!(meant("v1").await, Some(again.id.clone()));
    assert_eq!(meant("old").await, Some(other.id.clone()), "another version has it");
    assert_eq!(meant(LATEST).await, Some(other.id.clone()));
    assert_eq!(meant("gone").await, None, "it was deleted");
    let heads = store.build_heads(&ws()).await.unwrap();
    assert_eq!(heads.iter().find(|head| head.id == again.id).unwrap().files, again.spec.files);
    store.delete_template(&mine.id).await.unwrap();
}

pub(super) async fn builds_have_a_quota_and_a_log(store: &dyn Store) {
    let mine = store.ensure_template(&template("mine")).await.unwrap();
    let logged = build(&mine, BuildState::Waiting);
    store.insert_build(&logged).await.unwrap();
    for _ in 1..TEMPLATE_BUILDS_IN_PROGRESS_MAX {
        store.insert_build(&build(&mine, BuildState::Waiting)).await.unwrap();
    }
    let refused = store.insert_build(&build(&mine, BuildState::Queued)).await;
    assert!(matches!(refused, Err(StoreError::Quota { .. })), "{refused:?}");
    store.append_build_log(&logged.id, 0, &["a".into(), "b".into()]).await.unwrap();
    store.append_build_log(&logged.id, 2, &["c".into()]).await.unwrap();
    assert_eq!(store.count_build_log(&logged.id).await.unwrap(), 3);
    assert_eq!(store.build_log(&logged.id, 1, 1).await.unwrap(), ["b"]);
    store.delete_build(&logged.id).await.unwrap();
    assert_eq!(store.count_build_log(&logged.id).await.unwrap(), 0);
    store.insert_build(&build(&mine, BuildState::Queued)).await.unwrap();
}

pub(super) async fn templates_are_shared_with_other_workspaces(store: &dyn Store) {
    let [shop, club]: [WorkspaceId; 2] = ["shop", "club"].map(|name| name.parse().unwrap());
    for workspace in [&shop, &club] {
        store.ensure_workspace(workspace, now()).await.unwrap();
    }
    let record = TemplateRecord { workspace: shop.clone(), ..template("shared") };
    let mine = store.ensure_template(&record).await.unwrap();
    let default = ws();
    let readable = async |reader| store.readable_template(reader, &shop, "shared").await.unwrap().is_some();
    assert_eq!((readable(&shop).await, readable(&club).await), (true, false), "it is private at first");
    let with_club = TemplateSharing { public: false, workspaces: vec![club.clone()] };
    store.set_template_sharing(&mine, &with_club).await.unwrap();
    assert_eq!(store.template_sharing(&mine.id).await.unwrap(), with_club);
    assert_eq!((readable(&club).await, readable(&default).await), (true, false));
    assert_eq!(store.shared_templates(&club).await.unwrap(), std::slice::from_ref(&mine));
    assert!(store.shared_templates(&shop).await.unwrap().is_empty(), "its own is not shared with it");
    let with_all = TemplateSharing { public: true, workspaces: Vec::new() };
    store.set_template_sharing(&mine, &with_all).await.unwrap();
    assert_eq!(store.template_sharing(&mine.id).await.unwrap(), with_all);
    assert_eq!((readable(&club).await, readable(&default).await), (true, true));
    assert!(store.shared_templates(&club).await.unwrap().is_empty(), "what is public is not listed");

    store.move_workspace(&shop, &WorkspaceMove::Suspend(None), now()).await.unwrap();
    assert_eq!((readable(&club).await, readable(&shop).await), (false, true), "its own stay its own");
    store.set_template_sharing(&mine, &with_club).await.unwrap();
    assert!(store.shared_templates(&club).await.unwrap().is_empty());
    store.move_workspace(&shop, &WorkspaceMove::Resume, now()).await.unwrap();
    assert!(readable(&club).await);

    store.delete_template(&mine.id).await.unwrap();
    assert_eq!(store.template_sharing(&mine.id).await.unwrap(), TemplateSharing::default());
    let refused = store.set_template_sharing(&mine, &with_all).await;
    assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{refused:?}");
    let again = store.ensure_template(&TemplateRecord { id: TemplateId::random(), ..record }).await.unwrap();
    store.set_template_sharing(&again, &with_club).await.unwrap();
    for movement in [WorkspaceMove::Delete, WorkspaceMove::Deleted] {
        store.move_workspace(&club, &movement, now()).await.unwrap();
    }
    assert_eq!(
        store.template_sharing(&again.id).await.unwrap(),
        TemplateSharing::default(),
        "nobody is left"
    );
}

/// A workspace that is deleted leaves nothing behind, and takes nothing new.
pub(super) async fn templates_go_with_their_workspace(store: &dyn Store) {
    let gone: WorkspaceId = "gone".parse().unwrap();
    store.ensure_workspace(&gone, now()).await.unwrap();
    let mine =
        store.ensure_template(&TemplateRecord { workspace: gone.clone(), ..template("mine") }).await.unwrap();
    let mut done = build(&mine, BuildState::Running);
    store.insert_build(&done).await.unwrap();
    (done.state, done.spec.snapshot) = (BuildState::Done, Some(SnapshotId::random()));
    store.publish_build(&done, BuildState::Running, &[]).await.unwrap();
    store.append_build_log(&done.id, 0, &["a".into()]).await.unwrap();
    let (config, snapshot) = (ImageConfig::default(), SnapshotId::random());
    let layer = LayerRecord { workspace: gone.clone(), key: "k".into(), snapshot, used_at: now(), config };
    store.put_layer(&layer).await.unwrap();
    let heads = store.build_heads(&gone).await.unwrap();
    assert_eq!((heads.len(), heads[0].snapshot.clone()), (1, done.spec.snapshot.clone()));
    store.move_workspace(&gone, &WorkspaceMove::Delete, now()).await.unwrap();
    let refused = store.insert_build(&build(&mine, BuildState::Queued)).await;
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    assert!(
        store.ensure_template(&TemplateRecord { workspace: gone.clone(), ..template("new") }).await.is_err()
    );
    store.move_workspace(&gone, &WorkspaceMove::Deleted, now()).await.unwrap();
    assert!(
        store.templates(&gone).await.unwrap().is_empty() && store.layers(&gone).await.unwrap().is_empty()
    );
    assert!(
        store.build_heads(&gone).await.unwrap().is_empty() && store.tags(&mine.id).await.unwrap().is_empty()
    );
    assert_eq!(store.count_build_log(&done.id).await.unwrap(), 0);
}

pub(super) async fn layers_belong_to_a_workspace(store: &dyn Store) {
    let other: WorkspaceId = "other".parse().unwrap();
    store.ensure_workspace(&other, now()).await.unwrap();
    let config = ImageConfig { user: Some("app".into()), ..ImageConfig::default() };
    let used_at = jiff::Timestamp::from_second(1_000).unwrap();
    let layer =
        LayerRecord { workspace: ws(), key: "k".into(), snapshot: SnapshotId::random(), used_at, config };
    store.put_layer(&layer).await.unwrap();
    assert_eq!(store.layer(&ws(), "k").await.unwrap(), Some(layer.clone()));
    assert_eq!(store.layer(&other, "k").await.unwrap(), None, "never another workspace's");
    let again = LayerRecord { used_at: jiff::Timestamp::from_second(2_000).unwrap(), ..layer.clone() };
    store.put_layer(&again).await.unwrap();
    let older = LayerRecord { key: "old".into(), ..layer };
    store.put_layer(&older).await.unwrap();
    assert_eq!(store.layers(&ws()).await.unwrap(), [again, older]);
    assert_eq!(store.template_workspaces().await.unwrap(), [ws()]);
    store.delete_layer(&ws(), "k").await.unwrap();
    assert_eq!(store.layers(&ws()).await.unwrap().len(), 1);
}
